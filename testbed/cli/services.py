"""`testbed services`: broker, InfluxDB and Grafana as containers."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred

_NAMES = click.argument("names", nargs=-1, metavar="[broker|influxdb|grafana]…")
_PORTS = click.option(
    "--port", "ports", multiple=True, metavar="NAME=PORT",
    help="Port of a service, if not the default; may be repeated.",
)  # fmt: skip
_IMAGES = click.option(
    "--image", "images", multiple=True, metavar="NAME=IMAGE",
    help="Container image of a service, if not the default; may be repeated.",
)  # fmt: skip
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
@_PORTS
@_IMAGES
@_JSON
@deferred
def up() -> None:
    """Start all or the named services and wait until they are healthy; healthy services are not restarted."""


@services.command()
@_NAMES
@click.option("--volumes", is_flag=True, help="Also remove the data of the services.")
@_JSON
@deferred
def down() -> None:
    """Stop and remove all or the named services; their data is kept."""


@services.command()
@_NAMES
@_JSON
@deferred
def status() -> None:
    """Show the state of services. Exit code 1: a service does not run or is not healthy."""


@services.command(
    epilog="\b\nExample:\n  testbed services compose services && docker compose -f services/compose.yaml up -d",
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@_NAMES
@_PORTS
@_IMAGES
@deferred
def compose() -> None:
    """Write the definitions of all or the named services to FOLDER, for Docker Compose or Podman Compose.

    FOLDER gets compose.yaml, the files that it refers to, and testbed.env with the addresses for other commands. The
    passwords are those of `testbed services up`. Use one of the two ways, because both use the same ports.
    """


@services.command()
@deferred
def env() -> None:
    """Print the environment variables that tell other commands the addresses of the services."""
