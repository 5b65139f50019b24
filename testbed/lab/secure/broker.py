"""Mosquitto's configuration for a lab of several machines: two listeners, TLS 1.3, and access rules for each party.

Agents use one listener, which trusts only certificates of agents and takes each client's id from its certificate. So no
node can take over another node's session by claiming its client id. Controllers use the other listener.

Mosquitto's access rules (ACL) do not refuse subscriptions: they are applied to each message before its delivery. But a
subscription takes about 700 bytes of memory for each level of its topic, so a megabyte of subscriptions would end the
broker. Therefore the agents' listener also has Mosquitto's plugin of dynamic security, with a file of each agent's
permitted subscriptions. The plugin refuses all other subscriptions before they take memory.

The topics that one agent may write to are finite: three of its own, one for replies to each controller, and those on
which other nodes get shares. Mosquitto cannot forbid retained messages by topic, so a compromised agent can leave at
most that many retained messages at the broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from testbed.bus import topics
from testbed.bus.quotas import mosquitto_quotas
from testbed.errors import UserError, shown
from testbed.lab.secure.authority import CONTROLLER_PREFIX
from testbed.lab.secure.broker_log import UNWANTED

AGENT_PORT, CONTROLLER_PORT = 8883, 8884
SUBSCRIPTIONS = "agents-subscriptions.json"  # read only when the broker starts, not at a reload
_PLUGIN = "mosquitto_dynamic_security.so"  # part of Mosquitto's package, in the linker's path
_ANYTHING = ("#", "$share/#", "+/#")  # `#` does not match topics that begin with $
SAVE_EVERY_S = 30  # the age of a restarted broker's state after a kill; the quotas bound the size of each write


def agents_acl(lab: str, nodes: Sequence[str], controllers: Sequence[str], parted: str = "") -> str:
    """Return the access rules of agents.

    Each agent may write its own topics, its replies to `controllers`, and the topics on which other nodes get shares,
    where messages are authenticated by the secret of a job. Each agent may read its commands, the lease, releases of
    leases, and its own topic for shares. For the node `parted`, if any, only its status may be written, which
    `testbed.lab.secure.farewell` needs.
    """
    lines = [f"# Agents of lab {lab}: a user that is not listed here has no access."]
    for node in nodes:
        lines += ["", f"user {topics.check_name('node', node)}"]
        lines += [f"topic write {topics.node_topic(lab, node, kind)}" for kind in ("status", "telemetry", "event")]
        lines += [
            *(f"topic read {each}" for each in topics.readable_by(lab, node)),
            *(f"topic write {topics.reply_topic(lab, controller, node)}" for controller in controllers),
            *(f"topic write {topics.node_topic(lab, other, 'exchange')}" for other in nodes if other != node),
        ]
    if parted:
        lines += ["", f"user {topics.check_name('node', parted)}"]
        lines += [f"topic write {topics.node_topic(lab, parted, 'status')}"]
    return "\n".join(lines) + "\n"


def agents_subscriptions(lab: str, nodes: Sequence[str]) -> str:
    """Return the agents' permitted subscriptions, as configuration of Mosquitto's plugin of dynamic security.

    Messages are subject to `agents_acl`, not to the plugin. The plugin does not limit a node that is not listed here.
    """
    refused = [{"acltype": "subscribePattern", "topic": each, "priority": 0, "allow": False} for each in _ANYTHING]

    def role(node: str) -> dict[str, object]:
        own = [
            {"acltype": "subscribeLiteral", "topic": each, "priority": 1, "allow": True}
            for each in topics.readable_by(lab, node)
        ]
        return {"rolename": node, "acls": [*own, *refused]}

    told = {
        "defaultACLAccess": {
            "publishClientSend": False, "publishClientReceive": False, "subscribe": False, "unsubscribe": True,
        },
        "clients": [{"username": node, "roles": [{"rolename": node, "priority": 0}]} for node in nodes],
        "roles": [role(node) for node in nodes],
        "groups": [],
    }  # fmt: skip
    return json.dumps(told, indent=1) + "\n"


def controllers_acl(lab: str, controllers: Sequence[str]) -> str:
    """Return the access rules of controllers: read agents' messages, command, hold the lease, read the load."""
    lines = [f"# Controllers of lab {lab}: a user that is not listed here has no access."]
    for name in controllers:
        lines += ["", f"user {CONTROLLER_PREFIX}{topics.check_name('controller', name)}"]
        lines += [f"topic read {topics.node_topic(lab, topics.ANY, kind)}" for kind in ("status", "telemetry", "event")]
        lines += [
            f"topic write {topics.node_topic(lab, topics.ANY, 'command')}",
            f"topic read {topics.reply_topic(lab, name, topics.ANY)}",
            f"topic readwrite {topics.lease_topic(lab)}",
            f"topic read {topics.release_topic(lab, topics.ANY)}",
            f"topic write {topics.release_topic(lab, name)}",
            "topic read $SYS/broker/#",
        ]
    return "\n".join(lines) + "\n"


def filtered_command(config: Path, program: Path = Path("/usr/sbin/mosquitto")) -> list[str]:
    """Return the command that executes Mosquitto in its own process, without the per-packet lines in the log."""
    script = f"exec {program} -c {config} 2> >(exec grep --line-buffered -Ev '{UNWANTED}' >&2)"
    return ["/bin/bash", "-c", script]


def mosquitto_config(
    bind: str, certificates: Path, state_dir: Path, acl_dir: Path, *,
    agent_port: int = AGENT_PORT, controller_port: int = CONTROLLER_PORT, user: str = "mosquitto",
    log_denied: bool = False,
) -> str:  # fmt: skip
    """Return a mosquitto.conf; `certificates` is the broker's folder of `testbed.lab.secure.authority`.

    The access rules are expected in `acl_dir` as agents.acl and controllers.acl, the agents' subscriptions as
    `SUBSCRIPTIONS`; `user` is Mosquitto's user. With `log_denied` Mosquitto logs denied messages, and one or more lines
    per packet, which `filtered_command` drops. Raises `UserError` for a value that Mosquitto would interpret, such as a
    value of several lines.
    """
    for key, value, pattern, expected in (
        ("bind", bind, r"[A-Za-z0-9:][A-Za-z0-9.:-]{0,253}", "a name or an address, as 192.0.2.1"),
        ("user", user, r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", "the name of a user, as mosquitto"),
        *(
            (key, str(path), r"/([\w./@+=,~ -]*[\w./@+=,~-])?", "an absolute path of letters, digits and ./@+=,~_-")
            for key, path in (("certificates", certificates), ("state-dir", state_dir), ("rules", acl_dir))
        ),
    ):
        if not re.fullmatch(pattern, value):
            raise UserError(f"mosquitto.conf: {key} = {shown(value)}: expected {expected}")
    lines = ["per_listener_settings true"]
    for door, port in (("agents", agent_port), ("controllers", controller_port)):
        lines += [
            "",
            f"listener {port} {bind}",
            f"cafile {certificates / f'{door}-ca.pem'}",
            f"crlfile {certificates / f'{door}-ca.crl'}",
            f"certfile {certificates / 'cert.pem'}",
            f"keyfile {certificates / 'key.pem'}",
            "tls_version tlsv1.3",
            "require_certificate true",
            "use_identity_as_username true",
            *(["use_username_as_clientid true"] if door == "agents" else []),
            "allow_anonymous false",
            f"acl_file {acl_dir / f'{door}.acl'}",
            *([f"plugin {_PLUGIN}", f"plugin_opt_config_file {acl_dir / SUBSCRIPTIONS}"] if door == "agents" else []),
        ]
    lines += [
        "",
        f"clientid_prefixes {topics.CLIENT_PREFIX}",  # no controller can claim an agent's id, which is the node's name
        f"user {user}",
        "set_tcp_nodelay true",
        *mosquitto_quotas(),
        "persistence true",
        f"persistence_location {state_dir}/",
        f"autosave_interval {SAVE_EVERY_S}",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        f"log_type {'debug' if log_denied else 'subscribe'}",  # debug logs subscriptions as well, refused or not
    ]
    return "\n".join(lines) + "\n"
