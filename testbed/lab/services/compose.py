"""Definitions of the services as a file for Docker Compose or Podman Compose, with the files that it refers to.

`compose.yaml` is JSON, which is YAML as well, and holds no secrets: they are in `NAME.env` and in mounted files of the
same folder, which only its owner may enter. InfluxDB creates Grafana's read-only token when it sets itself up; the
token is in a volume of both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from testbed.errors import UserError
from testbed.host.whole_files import write_whole
from testbed.lab.services.catalogue import NAMES, Service

FILE = "compose.yaml"
ENVIRONMENT = "testbed.env"  # for commands
_TOKENS = "tokens"  # volume with the token of Grafana
_TOKEN_FILE = f"/{_TOKENS}/grafana"
_TOKEN_SCRIPT = f"""#!/bin/sh
set -eu
influx auth create --org "$DOCKER_INFLUXDB_INIT_ORG" --read-bucket "$DOCKER_INFLUXDB_INIT_BUCKET_ID" \\
  --description grafana --hide-headers >/tmp/authorization
cut -f 3 /tmp/authorization | tr -d '\\n' >{_TOKEN_FILE}.part
rm /tmp/authorization
test -s {_TOKEN_FILE}.part
mv {_TOKEN_FILE}.part {_TOKEN_FILE}
"""
_SETUP = "/docker-entrypoint-initdb.d/read-token.sh"  # the image of InfluxDB executes it once, at its setup
_DATASOURCE = "/etc/grafana/provisioning/datasources/testbed.yml"
_HEALTH = {"interval": "5s", "timeout": "10s", "retries": 60}


def write_compose(services: Mapping[str, Service], folder: Path) -> Path:
    """Write the file of these services into a folder, which is created; return its path.

    Raises `OSError`, and `UserError` for a folder with other files.
    """
    there = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if there and not there <= {FILE, ENVIRONMENT, *NAMES, *(f"{name}.env" for name in NAMES)}:
        raise UserError(f"{folder}: has other files: expected a folder of this command alone, or a new one")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # it holds passwords
    described = {}
    for name, service in services.items():
        mounts = [f"{name}:{service.data}"]
        for inner, text in _files(service).items():
            own = folder / name / inner.lstrip("/")
            own.parent.mkdir(parents=True, exist_ok=True)
            write_whole(own, text)
            own.chmod(0o755 if inner == _SETUP else 0o644)  # users inside read them, whatever the umask is here
            mounts.append(f"./{own.relative_to(folder)}:{inner}:ro")
        if name in {"influxdb", "grafana"}:
            mounts.append(f"{_TOKENS}:/{_TOKENS}" + (":ro" if name == "grafana" else ""))
        secrets = "".join(f"{key}={value}\n" for key, value in service.environment.items() if value)
        write_whole(folder / f"{name}.env", secrets.encode(), mode=0o600)
        described[name] = {
            "image": service.image, "restart": "unless-stopped", "env_file": [f"{name}.env"], "volumes": mounts,
            "ports": [f"127.0.0.1:{service.port}:{service.inner_port}"],
            "healthcheck": {"test": list(service.healthy), **_HEALTH},
            **({"depends_on": {"influxdb": {"condition": "service_healthy"}}} if name == "grafana" else {}),
        }  # fmt: skip
    volumes = [*services, *([_TOKENS] if {"influxdb", "grafana"} & services.keys() else [])]
    content = {"services": described, "volumes": {name: {} for name in volumes}}
    write_whole(folder / FILE, f"{json.dumps(content, indent=2)}\n".encode(), mode=0o644)
    return folder / FILE


def _files(service: Service) -> dict[str, str]:
    """Return the files of a service by their paths inside, with the way of Grafana's token."""
    files = dict(service.files)
    if service.name == "influxdb":
        files[_SETUP] = _TOKEN_SCRIPT
    if service.name == "grafana":
        files[_DATASOURCE] = files[_DATASOURCE].replace("$__env{INFLUXDB_V2_TOKEN}", f"$__file{{{_TOKEN_FILE}}}")
    return files
