"""`testbed services`: broker, InfluxDB and Grafana as containers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from testbed.errors import UserError, nearest
from testbed.host.whole_files import write_whole
from testbed.lab.services import catalogue, containers
from testbed.lab.services.catalogue import NAMES
from testbed.lab.services.compose import ENVIRONMENT, write_compose
from testbed.lab.services.containers import ServiceStatus
from testbed.lab.services.keys import Keys, keys_file, load_keys, make_keys
from testbed.lab.services.readers import read_token
from testbed.measure.influx_address import DEFAULT_BUCKET, DEFAULT_ORG


def up(*, names: tuple[str, ...], ports: tuple[str, ...], images: tuple[str, ...], as_json: bool) -> int:
    chosen, own = _chosen(names), _own(images, ports)
    keys = make_keys()
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


def compose(*, folder: Path, names: tuple[str, ...], ports: tuple[str, ...], images: tuple[str, ...]) -> int:
    chosen, own = _chosen(names), _own(images, ports)
    if "grafana" in chosen and "influxdb" not in chosen:
        raise UserError("grafana: it reads InfluxDB: expected influxdb grafana")
    try:
        keys = make_keys()
        known = catalogue.services(keys, *own)
        variables = _variables(keys, {name: f"127.0.0.1:{known[name].port}" for name in chosen})
        path = write_compose({name: known[name] for name in chosen}, folder)
        write_whole(folder / ENVIRONMENT, _exports(variables).encode(), mode=0o600)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: {error.strerror}: expected a folder that this user may create and write to"
        ) from None
    click.echo(f"{path}: written; for commands: . {folder / ENVIRONMENT}")
    return 0


def _own(images: tuple[str, ...], ports: tuple[str, ...]) -> tuple[dict[str, str], dict[str, int]]:
    """Return image and port of each service: the given ones, or the defaults."""
    given = {name: _port(name, text) for name, text in _pairs("--port", ports).items()}
    return {**catalogue.IMAGES, **_pairs("--image", images)}, {**catalogue.PORTS, **given}


def _variables(keys: Keys, at: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that tell commands the addresses of services."""
    found = {}
    if "broker" in at:
        found["TESTBED_BROKER"] = f"mqtt://{catalogue.USER}:{keys.broker_password}@{at['broker']}"
    if "influxdb" in at:
        found["INFLUXDB_V2_URL"] = f"http://{at['influxdb']}"
        found["INFLUXDB_V2_TOKEN"] = keys.influx_token
    return found


def env() -> int:
    keys = load_keys()
    if keys is None:
        raise UserError("no services were ever up: testbed services up")
    with containers.engine() as client:
        at = {each.name: each.address for each in containers.status(client, catalogue.NAMES) if each.state == "running"}
    found = _variables(keys, at)
    click.echo(_exports(found), nl=False)
    return 0 if found else 1


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


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
