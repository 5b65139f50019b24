"""Text for one event of a job's story, in one line; durations are wall seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from testbed.study.report.run import job_story as story
from testbed.study.report.run.job_waits import Wait

SHORTEST_WAIT_S = 0.05  # shorter waits are the controller's processing time
_DONE_WITH = {"save": "written", "transfer": "copied", "restore": "read", "migrate": "sent"}
_VERBS = {"start": "start on", "save": "save on", "transfer": "transfer of its images to", "restore": "restore on",
          "migrate": "live migration to", "cap": "caps on"}  # fmt: skip
_CAUSES = {"policy": "the policy to choose it", "operator": "the operator to continue the run",
           "blind": "a controller"}  # fmt: skip
_PENALTIES = ("save_s", "wait_s", "transfer_s", "restore_s", "downtime_s", "first_progress_s")


def seconds(value_s: float) -> str:
    """Return a duration with three digits, in milliseconds if it is below 0.1 s."""
    if value_s < 0.1:
        return f"{value_s * 1000:.1f} ms"
    return f"{value_s:.2f} s" if value_s < 10 else f"{value_s:.1f} s"


def megabytes(count: float) -> str:
    """Return bytes as MB of 10^6 bytes."""
    return f"{count / 1e6:.1f} MB"


def several(noun: str, numbers: Sequence[object]) -> str:
    """Return a noun with its numbers: job 1, or jobs 1, 2."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def places(nodes: Iterable[str]) -> str:
    """Return names of nodes, with the number of tasks on a node if it is not one."""
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in sorted(Counter(nodes).items()))


def wait_text(wait: Wait, names: Sequence[str]) -> str:
    """Return the cause of a wait as text, such as `memory of node-a (held by job 5)`."""
    nodes = [names[node] if node < len(names) else f"node {node}" for node in wait.nodes]
    return _cause({"kind": wait.kind, "nodes": nodes, "jobs": list(wait.jobs), "behind": wait.behind})


def _cause(wait: Mapping[str, Any]) -> str:
    match wait["kind"]:
        case "memory":
            held = f" (held by {several('job', wait['jobs'])})" if wait["jobs"] else ""
            return f"memory of {', '.join(wait['nodes'])}{held}"
        case "operation":
            return f"its own {wait['behind']}"
        case "node-away":
            return f"{', '.join(wait['nodes'])} to come back"
        case "fence":
            return f"the fences of its guests on {', '.join(wait['nodes'])}"
        case "image-away":
            return f"{', '.join(wait['nodes'])} with its image to come back"
    return _CAUSES.get(wait["kind"], "the controller")


def _decision(facts: Mapping[str, Any]) -> str:
    before, after = facts["before"], facts["after"]
    left_out = f", after {facts['left_out']} more without this job" if facts["left_out"] and after is not None else ""
    return f"decision {facts['number']} ({'; '.join(_causes(facts)) or 'no event'}){left_out}: {_change(before, after)}"


def _causes(facts: Mapping[str, Any]) -> Iterable[str]:
    if facts["submitted"]:
        yield f"{several('job', facts['submitted'])} submitted"
    if facts["tried_again"]:
        yield f"{several('job', facts['tried_again'])} tried again"
    for state in sorted({end["state"] for end in facts["ended"]}):
        yield f"{several('job', [end['job'] for end in facts['ended'] if end['state'] == state])} {state}"
    if facts["periodic"]:
        yield "periodic"
    for node in facts["nodes"]:
        yield f"node {node['node']} {'back' if node['online'] else 'away'}"
    if facts["not_migrated"]:
        yield f"{several('job', facts['not_migrated'])} could not migrate live"
    elif facts["changed"] and not facts["nodes"]:
        yield "the cluster changed"


def _change(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    if after is None:
        return "not chosen, it waits" if before is None else f"pause it ({_target(before)} before)"
    if before is None:
        return f"run on {_target(after)}"
    if sorted(before["nodes"]) == sorted(after["nodes"]):
        return f"yield {before['yield_frac']:.2f} -> {after['yield_frac']:.2f} on {places(after['nodes'])}"
    return f"move from {_target(before)} to {_target(after)}"


def _target(target: Mapping[str, Any]) -> str:
    return f"{places(target['nodes'])} at yield {target['yield_frac']:.2f}"


def _operation(facts: Mapping[str, Any]) -> str:
    verb = facts["verb"]
    at = f" at yield {facts['yield_frac']:.2f}" if verb in ("start", "restore", "migrate", "cap") else ""
    what = f"{_VERBS.get(verb, f'{verb} on')} {places(facts['nodes'])}{at}"
    if facts.get("carried_on"):
        what += ", continued after the loss of the controller"
    if "elapsed_s" not in facts:
        return f"{what}: in progress for {seconds(facts['under_way_s'])} at the end{_waited(facts['waits'])}"
    phases = [f"{name.removesuffix('_s')} {seconds(value)}" for name, value in _shown(facts["phases"])]
    report = f" ({', '.join(phases)})" if phases else ""
    if not facts["ok"]:
        return f"{what}: failed after {seconds(facts['elapsed_s'])}: {facts['error']}{_waited(facts['waits'])}"
    moved = f", {megabytes(facts['bytes'])} {_DONE_WITH.get(verb, 'moved')}" if facts["bytes"] else ""
    return f"{what}: took {seconds(facts['elapsed_s'])}{report}{moved}{_waited(facts['waits'])}"


def _shown(phases: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    return ((name, value) for name, value in phases.items() if name.endswith("_s") and value >= 0.0005)


def _waited(waits: Sequence[Mapping[str, Any]]) -> str:
    shown = [wait for wait in waits if wait["waited_s"] >= SHORTEST_WAIT_S]
    if not shown:
        return ""
    return "; had waited " + ", ".join(f"{seconds(wait['waited_s'])} for {_cause(wait)}" for wait in shown)


def _migration(facts: Mapping[str, Any]) -> str:
    what = f"  task {facts['task']} from {facts['source']} to {facts['target']}"
    if "error" in facts:
        there = {True: "present", False: "absent", None: "unknown"}
        return (
            f"{what}: failed: {facts['error']} (guest at the source: {there[facts.get('at_source')]}, "
            f"at the target: {there[facts.get('at_target')]})"
        )
    counted = "" if facts.get("counted", True) else ", upper limits, as the source reported no values"
    return (
        f"{what}: arrived after {seconds(facts['elapsed_s'])}, downtime {seconds(facts['downtime_s'])}, "
        f"{megabytes(facts['bytes'])} in {facts.get('rounds', 0)} rounds{counted}"
    )


def _rescheduling(facts: Mapping[str, Any]) -> str:
    parts = [
        f"{name.removesuffix('_s').replace('_', ' ')} {seconds(facts[name])}"
        for name in _PENALTIES
        if facts.get(name, 0.0) >= 0.0005
    ]
    moved = sum(value for name, value in facts.items() if name.endswith("_bytes"))
    live = " (live)" if facts.get("mechanism") == "live" else ""
    paused = f"; in addition paused for {seconds(facts['paused_s'])}" if facts.get("paused_s") else ""
    end = " until the next one began, before any progress" if facts["cut_off"] else ""
    held = f"; the run was paused for {seconds(facts['held_s'])} in addition" if facts.get("held_s") else ""
    what = "pause of the run" if facts["reason"] == "pause" else facts["reason"]
    return (
        f"{what}{live} cost {seconds(facts['penalty_s'])}{end}: {', '.join(parts) or 'nothing'}; "
        f"{megabytes(moved)} moved{paused}{held}"
    )


def _guest(facts: Mapping[str, Any]) -> str:
    tasks = facts.get("tasks", [facts["task"]])
    where = f"{several('task', tasks)} on {places(facts.get('nodes', [facts['node']]))}"
    detail = facts["detail"] if isinstance(facts["detail"], dict) else {}
    match facts["event"]:
        case "progress":
            return f"{where}: first progress"
        case "ended":
            return f"{where}: ended, its result is being checked"
        case "done":
            return f"{where}: done" + (", result as expected" if detail.get("verified") is True else "")
        case "failed":
            return f"{where}: failed: {detail.get('reason', 'it ended without a word')}"
        case "drift":
            return f"{where}: its cap was {detail.get('found')} cores instead of {detail.get('wanted')}, and set again"
    return f"{where}: {facts['event']}"


def _retry(facts: Mapping[str, Any]) -> str:
    return f"  attempt {facts['attempt']} failed, tried again: {facts['error']}"


def _no_room(facts: Mapping[str, Any]) -> str:
    return (
        f"no {facts['verb']}: {facts['node']} has {facts['free_mib']} MiB free for images, "
        f"{facts['needed_mib']} MiB are needed"
    )


def _fence(facts: Mapping[str, Any]) -> str:
    return (
        f"waits for the fences of its guests on {places(facts['nodes'])}, which does not answer: "
        f"for {seconds(facts['left_s'])} at most"
    )


def _node(facts: Mapping[str, Any]) -> str:
    return f"node {facts['node']} " + ("is back" if facts["online"] else f"is away: {facts['reason']}")


def _ended(facts: Mapping[str, Any]) -> str:
    return str(facts["state"]) + (f" ({facts['code']}): {facts['reason']}" if "code" in facts else "")


def _unchecked(facts: Mapping[str, Any]) -> str:
    return f"the results of {several('task', facts['tasks'])} were not checked before the run ended"


_TEXTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    story.SUBMITTED: lambda _facts: "submitted",
    story.DECISION: _decision,
    story.OPERATION: _operation,
    story.RETRY: _retry,
    story.NO_ROOM: _no_room,
    story.MIGRATION: _migration,
    story.RESCHEDULING: _rescheduling,
    story.GUEST: _guest,
    story.NODE: _node,
    story.ENDED: _ended,
    story.UNCHECKED: _unchecked,
    story.FENCE: _fence,
    story.ORDER: lambda facts: str(facts["text"]),
}


def text_of(event: story.Event) -> str:
    """Return the text of an event, without its time."""
    return _TEXTS[event.kind](event.facts)
