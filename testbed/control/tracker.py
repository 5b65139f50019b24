"""What agents report of guests, turned into the progress, the end or the failure of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from testbed.bus.caps import same_cap
from testbed.bus.messages import GuestEvent
from testbed.bus.telemetry import GuestSample, Supersteps, Telemetry
from testbed.control.cluster import Cluster, LiveJob, Phase
from testbed.control.fleet import Node
from testbed.control.recorder import CapWindow, Recorder
from testbed.control.step_meter import StepMeter
from testbed.control.work_rates import Allowance, CpuAccounts, WorkRates
from testbed.failure_codes import Failure, FailureCode, known_code
from testbed.suspicious_acts import ActKind

SHORTEST_WINDOW_S = 2.0
_MOST_BOOTS = 10_000  # of all nodes, of which lost samples are told


@dataclass(slots=True)
class _OpenWindow:
    wanted_cores: float
    cap_cores: float  # in force, as read back
    begin_ns: int
    begin_cpu_s: float
    last_ns: int
    last_cpu_s: float


class Tracker:
    """Follows the guests.

    Calls `on_progress(job)` when every task has progressed since the last start or restore, `on_done(job)` when every
    task has ended well, `on_failed(job, failure)` when one has not, or when its result was found wrong afterwards, and
    `on_checked(job)` when that is known. Points of a sample carry the time at which it was taken, however late that is.
    A guest's end, and the verdict about its result, count only from a node that runs or ran it.
    """

    def __init__(
        self,
        cluster: Cluster,
        recorder: Recorder,
        on_progress: Callable[[LiveJob], None],
        on_done: Callable[[LiveJob], None],
        on_failed: Callable[[LiveJob, Failure], None],
        on_checked: Callable[[LiveJob], None] = lambda _live: None,
    ) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._on_progress = on_progress
        self._on_done = on_done
        self._on_failed = on_failed
        self._on_checked = on_checked
        self._tasks: dict[str, tuple[LiveJob, int]] = {}
        for live in cluster.jobs.values():
            self.follow(live)
        self._ends: set[tuple[int, str, str, int]] = set()  # that were taken: agents tell them again after an outage
        self._windows: dict[str, _OpenWindow] = {}
        self._steps = StepMeter()
        self._accounts = CpuAccounts()
        self.work_rates = WorkRates()
        self._unsent: dict[tuple[int, str], tuple[int, int]] = {}  # given up, refused, by node and boot
        self._begin_ns: int | None = None  # of the run, by the loop's clock

    def follow(self, live: LiveJob) -> None:
        """Take what guests of these names do for what the job's do; what was said of earlier names counts no more."""
        self._tasks = {guest: task for guest, task in self._tasks.items() if task[0] is not live}
        self._tasks |= {spec.guest: (live, spec.task) for spec in live.specs}

    def guest_event(self, node: int, event: GuestEvent) -> None:
        """Take what a guest did by itself.

        What does not fit the job's state is journalled and ignored; what a node tells of a guest that it never had is
        neither.
        """
        known = self._tasks.get(event.guest)
        if known is None:
            return
        live, task = known
        end = (node, event.guest, event.event, event.mono_ns)  # a guest that begins again keeps its name
        if end in self._ends:
            return
        had = node in live.places(task) or (node, task) in live.been or live.unchecked.get(task) == node
        if not had:
            what = f"it tells {event.event!r} of job {live.job_id} task {task}, which it never had"
            self._recorder.suspect(node, ActKind.FOREIGN_GUEST, what)
            return
        self._recorder.journal("guest", job=live.job_id, task=task, node=node, event=event.event, detail=event.detail)
        if live.unchecked.get(task) == node and event.event in ("done", "failed"):
            self._checked(live, task, event)
        elif not live.ended and not live.withdrawn and node in live.places(task):
            self._take(node, live, task, event)
        else:
            return
        if event.event in ("ended", "done", "failed"):
            self._ends.add(end)

    def _checked(self, live: LiveJob, task: int, event: GuestEvent) -> None:
        del live.unchecked[task]
        if event.event == "failed":
            self._on_failed(live, _failure(task, event))
        self._on_checked(live)

    def _take(self, node: int, live: LiveJob, task: int, event: GuestEvent) -> None:
        if event.event == "progress":
            live.progress_s = self._recorder.now_s()
            self._advance(live, task, event.detail.get("units"))
            live.progressed.add(task)
            if len(live.progressed) == len(live.specs):
                self._on_progress(live)
        elif event.event in ("ended", "done"):
            if event.event == "ended":
                live.unchecked[task] = node
            if task not in live.finished_tasks:
                self._judge(node, live, task, event.guest)
            self._advance(live, task, event.detail.get("units"))
            self._last_steps(node, live, task, event)
            live.checksums[task] = str(event.detail.get("checksum", ""))
            live.finished_tasks.add(task)
            if len(live.finished_tasks) == len(live.specs):
                self._on_done(live)
        elif event.event == "failed":
            self._on_failed(live, _failure(task, event))
        else:
            self._note(node, live, task, event)

    def _note(self, node: int, live: LiveJob, task: int, event: GuestEvent) -> None:
        """Record what was found wrong with a guest that goes on."""
        name = self._recorder.node_names[node]
        if event.event == "drift":
            found, wanted = event.detail.get("found"), event.detail.get("wanted")
            if isinstance(found, float) and isinstance(wanted, float):
                tags = {"node": name, "job": str(live.job_id), "task": str(task)}
                self._end_window(live, task, event.guest, tags, drifted=True)
                self._recorder.cap_drift(tags, found, wanted)
        elif event.event == "healed":
            silent_s = event.detail.get("silent_s")
            if isinstance(silent_s, float):
                text = f"job {live.job_id} task {task} on {name} tells again after {silent_s:.0f} s of silence"
                self._recorder.say_of(name, text)

    def _judge(self, node: int, live: LiveJob, task: int, guest: str) -> None:
        """Mark a task that is done sooner than any core that is known can be."""
        cpu_most_s, nodes = self._accounts.end(guest, node, self._recorder.now_s(), _allowance(live, task))
        doubt = self.work_rates.doubt(live.job_id, live.specs[task].program, cpu_most_s, nodes)
        if doubt:
            live.doubts[task] = doubt
            self._recorder.doubt(live.job_id, task, node, doubt)

    def telemetry(self, node: Node, record: Telemetry, taken_ns: int) -> None:
        """Take a node's sample of the second; `taken_ns` is when it was taken, by the loop's clock."""
        if self._begin_ns is None:
            self._begin_ns = _now_ns() - int(self._recorder.now_s() * 1e9)
        since_ns = taken_ns - self._begin_ns
        if since_ns < 0:
            return  # before this run
        self.work_rates.probe(node.index, record.core_units_per_s)
        if record.dropped or record.refused:
            self._note_unsent(node, record)
        time_ns = self._recorder.anchor_ns + since_ns
        self._recorder.point(
            "node",
            {"node": node.name},
            {
                "cpu_frac": record.cpu_frac,
                "memory_used_mib": record.memory_used_mib,
                "disk_read_mib": record.disk_read_mib,
                "disk_written_mib": record.disk_written_mib,
                "net_received_mib": record.net_received_mib,
                "net_sent_mib": record.net_sent_mib,
                "agent_cpu_s": record.agent_cpu_s,
                "agent_rss_mib": record.agent_rss_mib,
                **({"core_units_per_s": record.core_units_per_s} if record.core_units_per_s > 0 else {}),
                **({"image_free_mib": record.image_free_mib} if record.image_free_mib is not None else {}),
            },
            time_ns,
        )
        for sample in record.guests:
            self._sample(node, record, sample, since_ns, time_ns)

    def _sample(self, node: Node, record: Telemetry, sample: GuestSample, since_ns: int, time_ns: int) -> None:
        known = self._tasks.get(sample.guest)
        if known is None:
            return
        live, task = known
        here = node.index in live.places(task)
        if not here and (node.index, task) not in live.been:
            return  # it never had the guest
        tags = {"node": node.name, "job": str(live.job_id), "task": str(task)}
        caps = {"cap_cores": sample.cap_cores, "wanted_cores": sample.wanted_cores}
        self._recorder.point(
            "guest",
            tags,
            {
                **{name: cores for name, cores in caps.items() if cores is not None},
                "cpu_s": sample.cpu_s,
                "rss_mib": sample.rss_mib,
                "read_mib": sample.read_mib,
                "written_mib": sample.written_mib,
                "units_done": sample.units_done,
            },
            time_ns,
        )
        if sample.supersteps is not None:
            fields = self._steps.advance(sample.guest, since_ns, sample.supersteps)
            if fields is not None:
                self._recorder.point("superstep", tags, fields, time_ns)
        if live.ended or not here:
            return
        if task not in live.finished_tasks:
            self._accounts.sample(sample.guest, node.index, since_ns / 1e9, sample.cpu_s, _allowance(live, task))
        if sample.units_done > live.units_done[task]:
            self._advance(live, task, sample.units_done)
            live.progress_s = max(live.progress_s, since_ns / 1e9)
        if record.late:  # whether the job was steady then is not known any more
            self._end_window(live, task, sample.guest, tags)
        else:
            self._window(live, task, record.mono_ns, sample, tags)

    def _last_steps(self, node: int, live: LiveJob, task: int, event: GuestEvent) -> None:
        """Record the iterations since the last sample of a task that is done: no sample comes any more."""
        detail = event.detail
        steps = detail.get("steps")
        numbers = [detail.get(name) for name in ("longest_s", "compute_s", "comm_s")]
        longest_s, compute_s, comm_s = (float(x) if isinstance(x, int | float) else 0.0 for x in numbers)
        if not isinstance(steps, int):
            return
        found = Supersteps(steps=steps, longest_s=longest_s, compute_s=compute_s, comm_s=comm_s)
        fields = self._steps.advance(event.guest, int(self._recorder.now_s() * 1e9), found)
        if fields is not None:
            tags = {"node": self._recorder.node_names[node], "job": str(live.job_id), "task": str(task)}
            self._recorder.point("superstep", tags, fields)

    def _note_unsent(self, node: Node, record: Telemetry) -> None:
        """Journal samples that a node gave up, and what it could not send at once, since the last such entry."""
        key = node.index, record.boot
        if key not in self._unsent and len(self._unsent) >= _MOST_BOOTS:
            return
        dropped, refused = self._unsent.get(key, (0, 0))
        self._unsent[key] = max(dropped, record.dropped), max(refused, record.refused)
        dropped, refused = record.dropped - dropped, record.refused - refused
        if dropped > 0:
            self._recorder.journal("telemetry", node=node.index, dropped=dropped)
            self._recorder.say_of(node.name, f"node {node.name} lost {dropped} samples: too many waited for the bus")
        if refused > 0:
            self._recorder.journal("unsent", node=node.index, refused=refused)
            text = f"node {node.name} could not send at once, {refused} times: too much waited for the broker"
            self._recorder.say_of(node.name, text)

    def _advance(self, live: LiveJob, task: int, units: object) -> None:
        if isinstance(units, int):
            live.units_done[task] = max(live.units_done[task], units)

    def _window(self, live: LiveJob, task: int, mono_ns: int, sample: GuestSample, tags: dict[str, str]) -> None:
        """Take a sample into the open window, which ends where the cap in force is another, or not known."""
        found, wanted = sample.cap_cores, sample.wanted_cores
        if found is None or wanted is None:
            self._end_window(live, task, sample.guest, tags)
            return
        drifted = not same_cap(found, wanted, float(live.specs[task].program.workers))
        window = self._windows.get(sample.guest)
        steady = live.phase is Phase.RUNNING and live.advances and not live.finished_tasks
        same = window is not None and (found, wanted) == (window.cap_cores, window.wanted_cores)
        if window is not None and (drifted or not steady or not same):
            self._end_window(live, task, sample.guest, tags, drifted=drifted)
            window = None
        if drifted or not steady:
            return
        if window is None:
            self._windows[sample.guest] = _OpenWindow(wanted, found, mono_ns, sample.cpu_s, mono_ns, sample.cpu_s)
            return
        window.last_ns, window.last_cpu_s = mono_ns, sample.cpu_s
        if mono_ns - window.begin_ns >= 10 * 10**9:
            self._close_window(live, task, window, tags)
            self._windows[sample.guest] = _OpenWindow(wanted, found, mono_ns, sample.cpu_s, mono_ns, sample.cpu_s)

    def _end_window(
        self, live: LiveJob, task: int, guest: str, tags: dict[str, str], *, drifted: bool = False
    ) -> None:  # fmt: skip
        window = self._windows.pop(guest, None)
        if window is not None:
            self._close_window(live, task, window, tags, drifted=drifted)

    def _close_window(
        self, live: LiveJob, task: int, window: _OpenWindow, tags: dict[str, str], *, drifted: bool = False
    ) -> None:  # fmt: skip
        length_s = (window.last_ns - window.begin_ns) / 1e9
        if length_s >= SHORTEST_WINDOW_S:
            used_s = window.last_cpu_s - window.begin_cpu_s
            program = live.specs[task].program.name
            used_cores = used_s / length_s
            self._recorder.cap_window(tags, CapWindow(program, window.wanted_cores, used_cores, length_s, drifted))


def _now_ns() -> int:
    return int(asyncio.get_running_loop().time() * 1e9)


def _allowance(live: LiveJob, task: int) -> Allowance:
    """Return what a task may use now: it is uncapped while it is made, held, saved or moved."""
    spec = live.specs[task]
    limit_cores = most_cores = float(spec.program.workers)
    if live.phase is Phase.RUNNING:
        yield_frac = max(live.yield_frac, live.flight.yield_frac if live.flight is not None else 0.0)
        limit_cores = min(most_cores, spec.cpu_cores * yield_frac)
    return Allowance(limit_cores, most_cores, live.placed_s, live.left_s)


def _failure(task: int, event: GuestEvent) -> Failure:
    """Return why a guest failed, as its agent reports it; agents of earlier versions report no code."""
    code = known_code(event.detail.get("code")) or FailureCode.GUEST_FAILED
    return Failure(code, f"task {task}: {event.detail.get('reason', 'it ended without a word')}")
