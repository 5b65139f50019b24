"""MQTT topics `testbed/v1/<lab>/…`: built from checked names, and parsed."""

from __future__ import annotations

import re
from typing import Literal

from testbed.errors import UserError

ANY = "+"
CLIENT_PREFIX = "dfrs."  # of every client id: no node's name can begin with it, as names of nodes have no dot

NodeKind = Literal["status", "telemetry", "command", "event", "exchange"]

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_NODE = re.compile(rf"testbed/v1/({_NAME.pattern})/node/({_NAME.pattern})/(?:status|telemetry|command|event|exchange)")
_RELEASE = re.compile(rf"testbed/v1/({_NAME.pattern})/release/({_NAME.pattern})")
_FLEETING = re.compile(rf"testbed/v1/{_NAME.pattern}/node/{_NAME.pattern}/(?:telemetry|command|event|exchange)")
_REPLY = re.compile(rf"testbed/v1/({_NAME.pattern})/controller/({_NAME.pattern})/reply(?:/({_NAME.pattern}))?")


def check_name(what: str, name: str) -> str:
    """Return `name` if it is allowed in a topic, else raise `UserError`; `what` is the kind of name (lab, node)."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{what} = {name!r}: expected 1 to 63 of a-z, 0-9 and -, beginning with a letter or a digit")
    return name


def node_topic(lab: str, node: str, kind: NodeKind) -> str:
    """Return a topic of one node, or the pattern for every node if `node` is `+`."""
    checked = ANY if node == ANY else check_name("node", node)
    return f"testbed/v1/{check_name('lab', lab)}/node/{checked}/{kind}"


def lease_topic(lab: str) -> str:
    """Return the topic of the retained lease of a lab."""
    return f"testbed/v1/{check_name('lab', lab)}/lease"


def release_topic(lab: str, controller: str) -> str:
    """Return the topic on which a controller ends the lease of another, or the pattern for all if it is `+`."""
    checked = ANY if controller == ANY else check_name("controller", controller)
    return f"testbed/v1/{check_name('lab', lab)}/release/{checked}"


def releaser_of(topic: str) -> str:
    """Return the controller of a release topic, an empty string for any other topic."""
    found = _RELEASE.fullmatch(topic)
    return found.group(2) if found else ""


def readable_by(lab: str, node: str) -> tuple[str, ...]:
    """Return all subscriptions of an agent: its commands, messages about shares, the lease, and releases of leases."""
    check_name("node", node)
    own = node_topic(lab, node, "command"), node_topic(lab, node, "exchange")
    return *own, lease_topic(lab), release_topic(lab, ANY)


def reply_topic(lab: str, client: str, node: str) -> str:
    """Return the topic on which a controller gets the replies of one node, or the pattern of all if it is `+`."""
    checked = ANY if node == ANY else check_name("node", node)
    return f"testbed/v1/{check_name('lab', lab)}/controller/{check_name('client', client)}/reply/{checked}"


def reply_pattern(lab: str) -> str:
    """Return the pattern of all topics on which controllers of a lab get replies."""
    return f"testbed/v1/{check_name('lab', lab)}/controller/{ANY}/reply/{ANY}"


def node_of(topic: str) -> str | None:
    """Return the node of a node's topic, None for any other topic."""
    found = _NODE.fullmatch(topic)
    return found.group(2) if found else None


def is_reply_topic(lab: str, topic: str, node: str) -> bool:
    """Whether `topic` is a controller's topic for replies of `node`: the agent publishes replies on no other topic.

    A controller of protocol 2 had one topic for the replies of all nodes; the error about the protocol is published
    there.
    """
    found = _REPLY.fullmatch(topic)
    return found is not None and found.group(1) == lab and found.group(3) in (None, node)


def replier_of(topic: str) -> str:
    """Return the node of a reply topic, an empty string for any other topic."""
    found = _REPLY.fullmatch(topic)
    return (found.group(3) or "") if found else ""


def never_retained(topic: str) -> bool:
    """Whether `topic` never has retained messages; of our topics, only status and lease have them."""
    return bool(_FLEETING.fullmatch(topic) or _REPLY.fullmatch(topic))


def matches(pattern: str, topic: str) -> bool:
    """Whether a subscription to `pattern` (with `+` and a final `#`) matches `topic`."""
    if pattern == topic:
        return True
    if topic.startswith("$") and pattern[:1] in {"+", "#"}:
        return False  # [MQTT-4.7.2-1] wildcards do not match the broker's own topics
    wanted, found = pattern.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        found = found[: len(wanted)] if len(found) >= len(wanted) else found
    return len(wanted) == len(found) and all(w in {"+", f} for w, f in zip(wanted, found, strict=True))


def check_topic(topic: str) -> str:
    """Return `topic` if a message may be published on it, or raise `ValueError`."""
    if not topic or any(c in topic for c in "+#\0"):
        raise ValueError(f"topic {topic!r}: expected a name without wildcards")
    return topic


def check_pattern(pattern: str) -> str:
    """Return `pattern` if it may be subscribed to, or raise `ValueError`."""
    levels = pattern.split("/")
    whole = all(level in {"+", "#"} or not ("+" in level or "#" in level) for level in levels)
    if not pattern or "\0" in pattern or not whole or "#" in levels[:-1]:
        raise ValueError(f"pattern {pattern!r}: expected + to fill a level, and # only as the last one")
    return pattern
