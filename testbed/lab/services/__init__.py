"""Broker, InfluxDB and Grafana of a lab as containers."""
