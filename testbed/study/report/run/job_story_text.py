"""The story of a job as text: first a summary, then one line per event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from testbed.measure.reasons import REASONS
from testbed.study.report.run.job_story import GUEST, Event
from testbed.study.report.run.job_story_event import SHORTEST_WAIT_S, megabytes, places, seconds, text_of, wait_text
from testbed.study.report.run.job_story_reader import JobReport
from testbed.study.report.run.job_waits import (
    BLIND,
    CONTROLLER,
    FENCE,
    IMAGE_AWAY,
    MEMORY,
    NODE_AWAY,
    OPERATION,
    OPERATOR,
    POLICY,
)

_MERGED = frozenset({"progress", "ended", "done"})  # all tasks report these
_UNDER_WAY = {
    "start": "is being started",
    "cap": "runs, and its caps are being set,",
    "save": "is being saved",
    "transfer": "is saved, and its images are being copied,",
    "restore": "is being restored",
    "migrate": "is migrating live",
}
_WAITED = {
    POLICY: "the policy to choose it",
    OPERATOR: "the operator to continue the run",
    OPERATION: "an operation of its own",
    NODE_AWAY: "nodes that were away",
    IMAGE_AWAY: "nodes with its images that were away",
    FENCE: "the fences of its guests on nodes that did not answer",
    MEMORY: "memory that other jobs held",
    BLIND: "a controller, after the loss of the earlier one",
    CONTROLLER: "the controller",
}


def lines(report: JobReport) -> Iterator[str]:
    """Yield the lines of the story."""
    yield _headline(report)
    yield from (f"  {line}" for line in _summary(report))
    yield ""
    yield f"  {'trace':>9}  {'wall (UTC)' if report.run.anchor_ns is not None else 'wall':<10}  event"
    for event in merged(report.story.events):
        yield f"  {clock(event.trace_s):>9}  {_wall(report, event.t_s):<10}  {text_of(event)}"
    if not report.story.ended:
        yield f"  {clock(report.story.trace_s):>9}  {_wall(report, report.story.t_s):<10}  {_open_end(report)}"


def clock(trace_s: float) -> str:
    """Return trace seconds as h:mm:ss."""
    minutes, rest = divmod(int(trace_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def merged(events: Sequence[Event]) -> Iterator[Event]:
    """Yield events, with successive reports of a job's tasks merged into one event at the time of the last report."""
    held: Event | None = None
    for event in events:
        same = event.kind == GUEST and event.facts["event"] in _MERGED
        if held is not None and same and _alike(held, event):
            tasks = [*held.facts["tasks"], event.facts["task"]]
            nodes = [*held.facts["nodes"], event.facts["node"]]
            held = replace(event, facts={**event.facts, "tasks": tasks, "nodes": nodes})
            continue
        if held is not None:
            yield held
        held = None
        if same:
            tasks, nodes = [event.facts["task"]], [event.facts["node"]]
            held = replace(event, facts={**event.facts, "tasks": tasks, "nodes": nodes})
        else:
            yield event
    if held is not None:
        yield held


def _alike(one: Event, other: Event) -> bool:
    def verified(event: Event) -> object:
        detail = event.facts["detail"]
        return detail.get("verified") if isinstance(detail, dict) else None

    return one.facts["event"] == other.facts["event"] and verified(one) == verified(other)


def _wall(report: JobReport, t_s: float) -> str:
    """Return the time of day in UTC, or seconds since the run began if the run has no manifest."""
    if report.run.anchor_ns is None:
        return f"+{t_s:.1f} s"
    return datetime.fromtimestamp(report.run.anchor_ns / 1e9 + t_s, UTC).strftime("%H:%M:%S.%f")[:-5]


def _date(report: JobReport, t_s: float) -> str:
    """Return date and time in UTC, or seconds since the run began if the run has no manifest."""
    if report.run.anchor_ns is None:
        return _wall(report, t_s)
    return datetime.fromtimestamp(report.run.anchor_ns / 1e9 + t_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _headline(report: JobReport) -> str:
    story, row = report.story, report.row
    at = f"at {clock(story.trace_s)} ({_date(report, story.t_s)})"
    if story.state == "failed":
        reason = story.reason.text if story.reason is not None and story.reason.text else "the journal gives no reason"
        return f"job {story.job} failed {at}: {reason}; {_ran(report)}"
    if story.state == "done":
        stretch = "" if row.stretch is None else f": bounded stretch {row.stretch:.2f}"
        return f"job {story.job} is done {at}{stretch}; {_ran(report)}"
    return f"job {story.job} {_now(report)} when the journal ends {at}; {_ran(report)}"


def _now(report: JobReport) -> str:
    story = report.story
    if story.state == "coming":
        return "was not submitted yet"
    if story.operation is not None:
        return _UNDER_WAY.get(story.operation.facts["verb"], "is changed")
    if story.waits_for is not None and not (story.spans and story.spans[-1].end_s >= story.t_s):
        return f"waits for {wait_text(story.waits_for, report.run.node_names)}"
    if story.spans:
        span = story.spans[-1]
        return f"runs on {places(span.nodes)} at yield {span.yield_frac:.2f}"
    return "waits"


def _ran(report: JobReport) -> str:
    story, row = report.story, report.row
    if not story.spans:
        return "it never ran" if story.ended else "it has not run yet"
    work = "" if row.run_time_s is None else f", {report.work_s:.0f} of {row.run_time_s:.0f} trace s of its work done"
    return f"it {'had' if story.ended else 'has'} run for {seconds(story.ran_s)}{work}"


def _summary(report: JobReport) -> Iterator[str]:
    story, row, run = report.story, report.row, report.run
    if story.reason is not None:
        meaning = REASONS.get(story.reason.code)
        yield f"reason: {story.reason.code}" + (f" ({meaning})" if meaning else "")
    yield (
        f"{_count(row.tasks, 'task')} of {run.program_of(story.job)}, CPU need {row.cpu_need_frac:g} and memory "
        f"{row.mem_req_frac:g} of a node each, submission time {clock(row.submit_time_s)}; {run.policy}"
    )
    if story.spans:
        nodes = sorted({node for span in story.spans for node in span.nodes})
        yield f"ran at {_yields(report)} on {', '.join(nodes)}"
    if row.preemptions or row.migrations:
        live = f" ({row.live_migrations} live)" if row.live_migrations else ""
        moves = f"{_count(row.preemptions, 'preemption')} and {_count(row.migrations, 'migration')}{live}"
        yield f"{moves} cost {seconds(row.penalty_s)}, {megabytes(row.bytes_moved)} moved"
    waited = [(waited_s, kind) for kind, waited_s in story.waited_s().items() if waited_s >= SHORTEST_WAIT_S]
    if waited:
        parts = (f"{seconds(waited_s)} for {_WAITED[kind]}" for waited_s, kind in sorted(waited, reverse=True))
        yield f"waited {', '.join(parts)}, while none of its tasks ran"


def _yields(report: JobReport) -> str:
    spans, ran_s = report.story.spans, report.story.ran_s
    least, most = (end(span.yield_frac for span in spans) for end in (min, max))
    if least == most:
        return f"yield {least:.2f}"
    mean = sum((span.end_s - span.begin_s) * span.yield_frac for span in spans) / ran_s
    return f"yields {least:.2f} to {most:.2f}, mean {mean:.2f},"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _open_end(report: JobReport) -> str:
    if report.story.aborted is not None:
        return f"the run was aborted: {report.story.aborted}"
    if report.run.summary is not None:
        return "the run ended"
    return "the journal ends here: the run is going on, or its controller was killed"
