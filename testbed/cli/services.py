"""`testbed services`: broker, InfluxDB and Grafana as containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from testbed.errors import UserError, nearest

if TYPE_CHECKING:
    from testbed.lab.services.containers import ServiceStatus

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
def up(*, names: tuple[str, ...], ports: tuple[str, ...], images: tuple[str, ...], as_json: bool) -> int:
    """Start services, all or those named, and wait until they are healthy; what is there as it should be stays."""
    from testbed.lab.services import catalogue, containers  # noqa: PLC0415  # --help stays quick
    from testbed.lab.services.keys import keys_file, make_keys  # noqa: PLC0415  # as above

    chosen = _chosen(names)
    told = {name: _port(name, text) for name, text in _pairs("--port", ports).items()}
    keys = make_keys()
    own = {**catalogue.IMAGES, **_pairs("--image", images)}, {**catalogue.PORTS, **told}
    known = catalogue.services(keys, *own)

    def say(line: str) -> None:
        click.echo(line, err=True)

    with containers.engine() as client:
        made = containers.up(client, [known[name] for name in chosen if name != "grafana"], say)
        if "grafana" in chosen:  # after the database, which makes its token
            (database,) = containers.status(client, ["influxdb"])
            known = catalogue.services(keys, *own, influx_reader=_reader(database, keys.influx_token))
            made += containers.up(client, [known["grafana"]], say)
        found = containers.status(client, chosen)
    _show(found, as_json=as_json, made=made)
    if not as_json:
        click.echo(f'passwords are in {keys_file()}; for commands: eval "$(testbed services env)"')
    return 0


@services.command()
@_NAMES
@click.option("--volumes", is_flag=True, help="Also remove their data.")
@_JSON
def down(*, names: tuple[str, ...], volumes: bool, as_json: bool) -> int:
    """Stop and remove services, all or those named; their data stays."""
    import json  # noqa: PLC0415  # --help stays quick

    from testbed.lab.services import containers  # noqa: PLC0415  # as above
    from testbed.lab.services.keys import keys_file  # noqa: PLC0415  # as above

    chosen = _chosen(names)
    with containers.engine() as client:
        gone = containers.down(client, chosen, volumes=volumes, say=lambda line: click.echo(line, err=True))
    if volumes and not names:
        keys_file().unlink(missing_ok=True)  # they are those of the data
    click.echo(json.dumps({"removed": gone}) if as_json else f"removed: {', '.join(gone) or 'nothing, as none was up'}")
    return 0


@services.command()
@_NAMES
@_JSON
def status(*, names: tuple[str, ...], as_json: bool) -> int:
    """Show services. Exit code 1 if one does not run or is not healthy."""
    from testbed.lab.services import containers  # noqa: PLC0415  # --help stays quick

    with containers.engine() as client:
        found = containers.status(client, _chosen(names))
    _show(found, as_json=as_json)
    return 0 if all(each.well for each in found) else 1


@services.command()
def env() -> int:
    """Print the variables by which commands find the services that are up."""
    import shlex  # noqa: PLC0415  # --help stays quick

    from testbed.lab.services import catalogue, containers  # noqa: PLC0415  # as above
    from testbed.lab.services.keys import load_keys  # noqa: PLC0415  # as above

    keys = load_keys()
    if keys is None:
        raise UserError("no services were ever up: testbed services up")
    with containers.engine() as client:
        at = {each.name: each.address for each in containers.status(client, catalogue.NAMES) if each.state == "running"}
    told = {}
    if "broker" in at:
        told["TESTBED_BROKER"] = f"mqtt://{catalogue.USER}:{keys.broker_password}@{at['broker']}"
    if "influxdb" in at:
        told["INFLUXDB_V2_URL"] = f"http://{at['influxdb']}"
        told["INFLUXDB_V2_TOKEN"] = keys.influx_token
    for name, value in told.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    return 0 if told else 1


def _reader(database: ServiceStatus, token: str) -> str:
    """Return the token by which Grafana reads measurements; it can do nothing else."""
    from testbed.lab.services.readers import read_token  # noqa: PLC0415  # as above
    from testbed.measure.influx_address import DEFAULT_BUCKET, DEFAULT_ORG  # noqa: PLC0415  # --help stays quick

    if database.state != "running":
        raise UserError("grafana: it reads InfluxDB, which is not up: testbed services up influxdb grafana")
    return read_token(f"http://{database.address}", token, DEFAULT_ORG, DEFAULT_BUCKET)


def _show(found: list[ServiceStatus], *, as_json: bool, made: list[str] | None = None) -> None:
    import json  # noqa: PLC0415  # --help stays quick
    from dataclasses import asdict  # noqa: PLC0415  # as above

    if as_json:
        more = {} if made is None else {"made": made}
        click.echo(json.dumps({"services": [asdict(each) for each in found], **more}, indent=2))
        return
    for each in found:
        click.echo(f"{each.name:9} {each.state:8} {each.health:9} {each.address:21} {each.image}")


def _chosen(names: tuple[str, ...]) -> tuple[str, ...]:
    from testbed.lab.services.catalogue import NAMES  # noqa: PLC0415  # --help stays quick

    for name in names:
        if name not in NAMES:
            raise UserError(f"service {name!r}: expected one of {', '.join(NAMES)}{nearest(name, NAMES)}")
    return tuple(name for name in NAMES if name in names) if names else NAMES


def _pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    from testbed.lab.services.catalogue import NAMES  # noqa: PLC0415  # --help stays quick

    found = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in NAMES or not value:
            raise UserError(f"{option} {text}: expected NAME=… with one of {', '.join(NAMES)}")
        found[name] = value
    return found


def _port(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise UserError(f"--port {name}={text}: expected a port from 1 to 65535")
    return int(text)
