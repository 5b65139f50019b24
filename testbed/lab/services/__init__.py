"""Containers for a lab's broker, InfluxDB and Grafana."""
