"""Failure detector for nodes: a pure function from observed events to the state of each node (online, suspect, lost).

Silence does not prove a failure. It counts only while the controller could have received messages: not while the
controller was disconnected from the bus, nor while its own loop was stopped. When all nodes fall silent together,
without a report about any of them, the cause may be the connection between them and the controller. Such nodes are
suspect, and become lost only once their leases must have run out as well.

    unknown --announced--> online --silence, or last will--> suspect --lost_after_s of silence--> lost
       suspect, lost --announced, or a message if silence was the only reason--> online
       any --its agent reports its end--> lost

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Standing(StrEnum):
    """The presumed state of a node."""

    UNKNOWN = "unknown"  # not announced yet
    ONLINE = "online"
    SUSPECT = "suspect"  # commands to the node wait
    LOST = "lost"  # the jobs that ran on the node have failed


@dataclass(frozen=True, slots=True)
class Rule:
    """Limits of silence, in seconds during which messages could have been received.

    A node is suspect after `silence_s` and lost after `lost_after_s`. If all nodes are silent, they are lost after
    `lost_together_after_s`. A step of the controller's clock of more than `stall_s` means that the controller was
    stopped.
    """

    silence_s: float
    lost_after_s: float
    lost_together_after_s: float
    stall_s: float


@dataclass(frozen=True, slots=True)
class NodeLife:
    """State of one node. `silent_s` is the silence that counts; `boot` names the life of its agent.

    `parted`: the broker or the agent itself reported the agent's end; then only an announcement makes the node online.
    """

    standing: Standing = Standing.UNKNOWN
    silent_s: float = 0.0
    boot: str = ""
    parted: bool = False


@dataclass(frozen=True, slots=True)
class LabLife:
    """State of all nodes at one moment; `on_bus`: the controller is connected."""

    nodes: tuple[NodeLife, ...]
    at_s: float
    on_bus: bool = True


@dataclass(frozen=True, slots=True)
class Passed:
    """The controller read its clock, which it does periodically."""

    at_s: float


@dataclass(frozen=True, slots=True)
class BusLost:
    """The controller lost its connection to the bus."""


@dataclass(frozen=True, slots=True)
class BusBack:
    """The controller is connected again."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of a node arrived."""

    node: int


@dataclass(frozen=True, slots=True)
class Announced:
    """A node's agent announced itself; `boot` differs for each life of the agent."""

    node: int
    boot: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """The broker published an agent's last will: its connection broke, or it was killed."""

    node: int


@dataclass(frozen=True, slots=True)
class Left:
    """A node's agent reported its end, with its guests; or the node must not be used any more, for a `reason`."""

    node: int
    reason: str = "its agent ended"


Noticed = Passed | BusLost | BusBack | Heard | Announced | Vanished | Left


@dataclass(frozen=True, slots=True)
class Change:
    """The presumed state of a node changed; `restarted`: a new agent runs, which may have taken over the guests."""

    node: int
    before: Standing
    after: Standing
    reason: str
    restarted: bool = False


def at_first(nodes: int, at_s: float) -> LabLife:
    """Return the initial state."""
    return LabLife((NodeLife(),) * nodes, at_s)


def notice(lab: LabLife, what: Noticed, rule: Rule) -> tuple[LabLife, tuple[Change, ...]]:
    """Return the state after an observed event, and the changes."""
    match what:
        case Passed(at_s):
            return _passed(lab, at_s, rule)
        case BusLost():
            return replace(lab, on_bus=False), ()
        case BusBack():
            return replace(lab, on_bus=True, nodes=_forgiven(lab.nodes)), ()
        case Heard(node) | Announced(node) | Vanished(node) | Left(node):
            return _told(lab, node, what)


def _told(lab: LabLife, node: int, what: Heard | Announced | Vanished | Left) -> tuple[LabLife, tuple[Change, ...]]:
    before, restarted = lab.nodes[node], False
    match what:
        case Heard():
            life, reason = _heard(before), "it sends messages again"
        case Announced(boot=boot):
            life, restarted = NodeLife(Standing.ONLINE, boot=boot), before.boot not in ("", boot)
            reason = "its agent was restarted" if restarted else "it is there"
        case Vanished():
            standing = Standing.SUSPECT if before.standing is Standing.ONLINE else before.standing
            life, reason = replace(before, standing=standing, parted=True), "its agent vanished"
        case Left(reason=reason):
            standing = before.standing if before.standing is Standing.UNKNOWN else Standing.LOST
            life = replace(before, standing=standing, parted=True)
    after = replace(lab, nodes=(*lab.nodes[:node], life, *lab.nodes[node + 1 :]))
    if before.standing is life.standing and not restarted:
        return after, ()
    return after, (Change(node, before.standing, life.standing, reason, restarted),)


def _heard(life: NodeLife) -> NodeLife:
    if life.parted or life.standing is Standing.UNKNOWN:
        return replace(life, silent_s=0.0)
    return replace(life, standing=Standing.ONLINE, silent_s=0.0)


def _forgiven(nodes: tuple[NodeLife, ...]) -> tuple[NodeLife, ...]:
    """Return the nodes with their silence reset, as the controller itself may have caused it."""
    return tuple(replace(life, silent_s=0.0) for life in nodes)


def _passed(lab: LabLife, at_s: float, rule: Rule) -> tuple[LabLife, tuple[Change, ...]]:
    elapsed_s = at_s - lab.at_s
    lab = replace(lab, at_s=at_s)
    if not lab.on_bus:
        return lab, ()
    if elapsed_s > rule.stall_s:
        return replace(lab, nodes=_forgiven(lab.nodes)), ()
    nodes = tuple(replace(life, silent_s=life.silent_s + elapsed_s) for life in lab.nodes)
    watched = [life for life in nodes if life.standing in (Standing.ONLINE, Standing.SUSPECT)]
    together = all(life.silent_s > rule.silence_s and not life.parted for life in watched)
    changes = []
    lives = []
    for node, life in enumerate(nodes):
        standing, reason = _judged(life, rule, together=together)
        if standing is not life.standing:
            changes.append(Change(node, life.standing, standing, reason))
        lives.append(replace(life, standing=standing))
    return replace(lab, nodes=tuple(lives)), tuple(changes)


def _judged(life: NodeLife, rule: Rule, *, together: bool) -> tuple[Standing, str]:
    if life.standing not in (Standing.ONLINE, Standing.SUSPECT):
        return life.standing, ""
    silent = f"silent for {life.silent_s:.1f} s"
    if life.silent_s > (rule.lost_together_after_s if together else rule.lost_after_s):
        return Standing.LOST, f"{silent}, as all nodes" if together else silent
    if life.silent_s > rule.silence_s:
        return Standing.SUSPECT, f"{silent}, as all nodes" if together else silent
    return life.standing, ""
