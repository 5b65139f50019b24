"""Definitions of the services: container images, ports, volumes, and health checks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files

from testbed.bus.quotas import mosquitto_quotas
from testbed.lab.services.keys import Keys, mosquitto_hash
from testbed.measure.grafana import dashboards
from testbed.measure.influx_address import DEFAULT_BUCKET, DEFAULT_ORG

NAMES = ("broker", "influxdb", "grafana")
IMAGES = {
    "broker": "eclipse-mosquitto:2.0.20",
    "influxdb": "influxdb:2.7.11",
    "grafana": "grafana/grafana:11.6.0",
}
PORTS = {"broker": 1883, "influxdb": 8086, "grafana": 3000}
USER = "testbed"
_MOSQUITTO_CONF = "\n".join(
    [
        "listener 1883",
        "allow_anonymous false",
        "password_file /mosquitto/config/passwords",
        "set_tcp_nodelay true",
        *mosquitto_quotas(),
        "persistence true",
        "persistence_location /mosquitto/data/",
        "autosave_interval 5",
        "log_dest stdout",
        "log_type error",
        "log_type warning",
        "",
    ]
)


@dataclass(frozen=True, slots=True)
class Service:
    """A service's container, which listens on `port` of the loopback interface, and has its folder `data` in a volume.

    `files` (path to text) are copied into the container before its start, owned by `owner`. `healthy` is the health
    check, a command that the engine runs inside.
    """

    name: str
    image: str
    inner_port: int
    port: int
    data: str
    healthy: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    owner: int = 0

    @property
    def digest(self) -> str:
        """The digest of this description, a label of the container that is made from it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def services(
    keys: Keys, images: Mapping[str, str], ports: Mapping[str, int], influx_reader: str = ""
) -> dict[str, Service]:
    """Return all services by name; `images` and `ports` have one of each.

    `influx_reader` is the token by which Grafana reads (`testbed.lab.services.readers`); it must not have write access.
    """
    return {
        "broker": Service(
            "broker", images["broker"], 1883, ports["broker"], "/mosquitto/data",
            ("CMD-SHELL", "nc -w 2 127.0.0.1 1883 < /dev/null"),  # not every busybox has nc -z
            files={
                "/mosquitto/config/mosquitto.conf": _MOSQUITTO_CONF,
                "/mosquitto/config/passwords": f"{USER}:{mosquitto_hash(keys.broker_password)}\n",
            },
            owner=1883,
        ),
        "influxdb": Service(
            "influxdb", images["influxdb"], 8086, ports["influxdb"], "/var/lib/influxdb2", ("CMD", "influx", "ping"),
            environment={
                "DOCKER_INFLUXDB_INIT_MODE": "setup", "DOCKER_INFLUXDB_INIT_USERNAME": USER,
                "DOCKER_INFLUXDB_INIT_PASSWORD": keys.influx_password, "DOCKER_INFLUXDB_INIT_ORG": DEFAULT_ORG,
                "DOCKER_INFLUXDB_INIT_BUCKET": DEFAULT_BUCKET, "DOCKER_INFLUXDB_INIT_ADMIN_TOKEN": keys.influx_token,
                "INFLUXD_REPORTING_DISABLED": "true",
            },
        ),
        "grafana": Service(
            "grafana", images["grafana"], 3000, ports["grafana"], "/var/lib/grafana",
            ("CMD", "wget", "-q", "--spider", "http://127.0.0.1:3000/api/health"),
            environment={
                "GF_SECURITY_ADMIN_PASSWORD": keys.grafana_password, "GF_ANALYTICS_REPORTING_ENABLED": "false",
                "GF_ANALYTICS_CHECK_FOR_UPDATES": "false", "INFLUXDB_V2_URL": "http://influxdb:8086",
                "INFLUXDB_V2_ORG": DEFAULT_ORG, "INFLUXDB_V2_BUCKET": DEFAULT_BUCKET,
                "INFLUXDB_V2_TOKEN": influx_reader,
            },
            files=_provisioning(),
        ),
    }  # fmt: skip


def _provisioning() -> dict[str, str]:
    here = files("testbed.lab.services") / "grafana"
    told = (here / "dashboards.yml").read_text(encoding="utf-8")
    folder = "/etc/grafana/testbed-dashboards"  # the volume would be mounted over the usual folder
    return {
        "/etc/grafana/provisioning/datasources/testbed.yml": (here / "datasources/testbed.yml").read_text("utf-8"),
        "/etc/grafana/provisioning/dashboards/testbed.yml": told.replace("/var/lib/grafana/dashboards/testbed", folder),
        **{f"{folder}/{name}": text for name, text in dashboards().items()},
    }
