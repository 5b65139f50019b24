"""Regression checks of real hypervisors: a pytest plugin, and a suite that any lab runs against its own nodes."""
