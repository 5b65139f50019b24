"""`testbed services`: broker, InfluxDB and Grafana as containers."""

from __future__ import annotations

import click

from testbed.cli.deferred import deferred

_NAMES = click.argument("names", nargs=-1, metavar="[broker|influxdb|grafana]…")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")


@click.group()
def services() -> None:
    """Run broker, InfluxDB and Grafana as containers on this machine's loopback interface. Needs the extra `docker`.

    \b
    Example:
      testbed services up
      eval "$(testbed services env)"
      testbed run scenario.toml        # [broker] address = "$TESTBED_BROKER"; an [influx] table
      testbed services down
    """  # noqa: D301  # \b keeps click from wrapping the example


@services.command()
@_NAMES
@click.option("--port", "ports", multiple=True, metavar="NAME=PORT", help="Where a service listens, if not as usual.")
@click.option("--image", "images", multiple=True, metavar="NAME=IMAGE", help="An image of your own for a service.")
@_JSON
@deferred
def up() -> None:
    """Start services, all or those named, and wait until they are healthy; what is there as it should be stays."""


@services.command()
@_NAMES
@click.option("--volumes", is_flag=True, help="Also remove their data.")
@_JSON
@deferred
def down() -> None:
    """Stop and remove services, all or those named; their data stays."""


@services.command()
@_NAMES
@_JSON
@deferred
def status() -> None:
    """Show services. Exit code 1 if one does not run or is not healthy."""


@services.command()
@deferred
def env() -> None:
    """Print the variables by which commands find the services that are up."""
