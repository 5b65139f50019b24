"""`testbed services`: broker, InfluxDB and Grafana as containers."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict

import click

from testbed.errors import UserError, nearest
from testbed.lab.services import catalogue, containers
from testbed.lab.services.catalogue import NAMES
from testbed.lab.services.containers import ServiceStatus
from testbed.lab.services.keys import keys_file, load_keys, make_keys
from testbed.lab.services.readers import read_token
from testbed.measure.influx_address import DEFAULT_BUCKET, DEFAULT_ORG


def up(*, names: tuple[str, ...], ports: tuple[str, ...], images: tuple[str, ...], as_json: bool) -> int:
    chosen = _chosen(names)
    told = {name: _port(name, text) for name, text in _pairs("--port", ports).items()}
    keys = make_keys()
    own = {**catalogue.IMAGES, **_pairs("--image", images)}, {**catalogue.PORTS, **told}
    known = catalogue.services(keys, *own)

    def say(line: str) -> None:
        click.echo(line, err=True)

    with containers.engine() as client:
        made = containers.up(client, [known[name] for name in chosen if name != "grafana"], say)
        if "grafana" in chosen:  # after the database, which creates the token for it
            (database,) = containers.status(client, ["influxdb"])
            known = catalogue.services(keys, *own, influx_reader=_reader(database, keys.influx_token))
            made += containers.up(client, [known["grafana"]], say)
        found = containers.status(client, chosen)
    _show(found, as_json=as_json, made=made)
    if not as_json:
        click.echo(f'passwords are in {keys_file()}; for commands: eval "$(testbed services env)"')
    return 0


def down(*, names: tuple[str, ...], volumes: bool, as_json: bool) -> int:
    chosen = _chosen(names)
    with containers.engine() as client:
        gone = containers.down(client, chosen, volumes=volumes, say=lambda line: click.echo(line, err=True))
    if volumes and not names:
        keys_file().unlink(missing_ok=True)  # the keys belong to the deleted data
    click.echo(json.dumps({"removed": gone}) if as_json else f"removed: {', '.join(gone) or 'nothing, as none was up'}")
    return 0


def status(*, names: tuple[str, ...], as_json: bool) -> int:
    with containers.engine() as client:
        found = containers.status(client, _chosen(names))
    _show(found, as_json=as_json)
    return 0 if all(each.well for each in found) else 1


def env() -> int:
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
    """Return the read-only token with which Grafana reads measurements."""
    if database.state != "running":
        raise UserError("grafana: it reads InfluxDB, which is not up: testbed services up influxdb grafana")
    return read_token(f"http://{database.address}", token, DEFAULT_ORG, DEFAULT_BUCKET)


def _show(found: list[ServiceStatus], *, as_json: bool, made: list[str] | None = None) -> None:
    if as_json:
        more = {} if made is None else {"made": made}
        click.echo(json.dumps({"services": [asdict(each) for each in found], **more}, indent=2))
        return
    for each in found:
        click.echo(f"{each.name:9} {each.state:8} {each.health:9} {each.address:21} {each.image}")


def _chosen(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in NAMES:
            raise UserError(f"service {name!r}: expected one of {', '.join(NAMES)}{nearest(name, NAMES)}")
    return tuple(name for name in NAMES if name in names) if names else NAMES


def _pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
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
