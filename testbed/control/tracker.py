"""Processes agents' reports about guests: progress, ends and failures of tasks, and telemetry samples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from testbed.bus.guest_details import Done, Drift, GuestReport, Healed, Progress
from testbed.bus.suspicious_acts import ActKind
from testbed.bus.telemetry import ExchangeCounts, GuestSample, NeedSample, Supersteps, Telemetry
from testbed.control.cap_windows import CapWindows
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.recorder import Recorder
from testbed.control.share_flows import ShareFlows
from testbed.control.work_rates import Allowance, CpuAccounts, WorkRates
from testbed.lab.fleet import Node
from testbed.lab.guest_specs import cap_at
from testbed.measure.points import Value
from testbed.needs.estimator import NEED_WINDOW_S, NEWS_FRAC
from testbed.run import events
from testbed.run.phases import Phase

_MOST_BOOTS = 10_000  # bound on the boots of nodes whose lost samples are counted
_NOTHING = Supersteps(steps=0, longest_s=0.0, compute_s=0.0, comm_s=0.0)


class StepMeter:
    """Keeps each guest's last counters of iterations, and computes the fields of `superstep` points from them."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, Supersteps]] = {}  # time and value of the last sample

    def advance(self, guest: str, taken_ns: int, found: Supersteps) -> dict[str, Value] | None:
        """Return steps, mean, longest, computing and communication since the last point; None without a step.

        After a restore the counters may be lower than before; repeated iterations count from the next sample on.
        Samples older than the last one, for example from the previous node, are ignored: a point includes them already.
        """
        before_ns, before = self._last.get(guest, (-1, _NOTHING))
        if taken_ns <= before_ns:
            return None
        steps = found.steps - before.steps
        if steps == 0:
            return None  # the longest iteration of this sample is reported again by the next ones
        self._last[guest] = taken_ns, found
        if steps < 0:
            return None
        compute_s = max(0.0, found.compute_s - before.compute_s)
        comm_s = max(0.0, found.comm_s - before.comm_s)
        mean_s = (compute_s + comm_s) / steps
        return {
            "steps": steps,
            "mean_s": mean_s,
            "max_s": max(mean_s, found.longest_s),
            "compute_s": compute_s,
            "comm_s": comm_s,
        }


class Tracker:
    """Follows the guests: writes their reports into journal and points, and their progress into `Progress`.

    Points carry the time at which their sample was taken, even if the sample arrives late. A guest's end, and the
    verdict on its result, count only from a node that runs or ran the guest. `hear` listens to the ledger.
    """

    def __init__(self, cluster: Cluster, recorder: Recorder) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._tasks: dict[str, tuple[LiveJob, int]] = {}
        for live in cluster.jobs.values():
            self.follow(live)
        self._ends: set[tuple[int, str, str, int]] = set()  # processed ends: agents resend events after an outage
        self._windows = CapWindows(recorder)
        self._steps = StepMeter()
        self._flows = ShareFlows(recorder)
        self._accounts = CpuAccounts()
        self.work_rates = WorkRates()
        self.divides = False  # whether the tasks of a job divide its CPU among themselves
        self.need_found: Callable[[], None] | None = None  # called for policies that use measured CPU needs
        self._needs_again_s: dict[int, float] = {}  # when a job's need may cause a decision again, by job
        self._unsent: dict[tuple[int, str], tuple[int, int]] = {}  # dropped, refused, by node and boot
        self._begin_ns: int | None = None  # begin of the run on the loop's clock

    def follow(self, live: LiveJob) -> None:
        """Attribute reports about the present guest names to the job; reports about earlier names are ignored."""
        self._tasks = {guest: task for guest, task in self._tasks.items() if task[0] is not live}
        self._tasks |= {spec.guest: (live, spec.task) for spec in live.specs}

    def guest_event(self, node: int, event: GuestReport) -> None:
        """Process an event of a guest.

        An event that does not fit the job's state is journalled and does not count. An event from a node that never had
        the guest is a suspicious act, and is not journalled.
        """
        known = self._tasks.get(event.guest)
        if known is None:
            return
        live, task = known
        end = (node, event.guest, event.event, event.mono_ns)  # a restarted guest keeps its name
        if end in self._ends:
            return
        state = live.state
        had = node in state.places(task) or (node, task) in state.been or state.unchecked.get(task) == node
        if not had:
            what = f"it reports {event.event!r} of job {live.job_id} task {task}, which it never had"
            self._recorder.suspect(node, ActKind.FOREIGN_GUEST, what)
            return
        counts = self._recorder.journal(
            events.Guest(
                *self._recorder.times(), job=live.job_id, task=task, node=node, event=event.event, detail=event.told
            )
        )
        if counts and event.event in ("ended", "done", "failed"):
            self._ends.add(end)

    def hear(self, event: events.Event) -> None:
        """Act on an event of a guest, a retry, and the restart of a job: see `Ledger.listen`."""
        match event:
            case events.Guest():
                self._take(self._cluster.jobs[event.job], event)
            case events.Retry():
                live = self._cluster.jobs[event.job]
                live.progress.ended &= live.state.finished_tasks
            case events.Job(state="again"):
                live = self._cluster.jobs[event.job]
                live.begin_again()
                self.follow(live)

    def _take(self, live: LiveJob, event: events.Guest) -> None:
        node, task, progress = event.node, event.task, live.progress
        match event.typed:
            case Progress(units=units):
                progress.at_s = self._recorder.now_s()
                progress.advance(task, units)
                progress.arriving.discard(task)
            case Done() as end if task not in progress.ended:
                progress.ended.add(task)
                self._judge(node, live, task)
                progress.at_s = self._recorder.now_s()
                progress.advance(task, end.units)
                progress.arriving.discard(task)
                self._last_steps(node, live, task, end)
            case Drift(found=float() as found, wanted=float() as wanted, of="cap"):
                self._windows.end(live.specs[task].guest, drifted=True)
                tags = {"node": self._recorder.node_names[node], "job": str(live.job_id), "task": str(task)}
                self._recorder.cap_drift(tags, found, wanted)
            case Healed(silent_s=float() as silent_s):
                name = self._recorder.node_names[node]
                text = f"job {live.job_id} task {task} on {name} reports again after {silent_s:.0f} s of silence"
                self._recorder.say_of(name, text)

    def _judge(self, node: int, live: LiveJob, task: int) -> None:
        """Record a doubt about a task that is done sooner than the fastest known core allows."""
        guest = live.specs[task].guest
        cpu_most_s, nodes = self._accounts.end(guest, node, self._recorder.now_s(), self._allowance(live, task))
        doubt = self.work_rates.doubt(live.job_id, live.specs[task].program, cpu_most_s, nodes)
        if doubt:
            self._recorder.doubt(live.job_id, task, node, doubt)

    def telemetry(self, node: Node, record: Telemetry, taken_ns: int) -> None:
        """Process a node's telemetry sample; `taken_ns` is the time at which it was taken, on the loop's clock."""
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
                **({"daemons_cpu_s": record.daemons_cpu_s} if record.daemons_cpu_s > 0 else {}),
                **({"core_units_per_s": record.core_units_per_s} if record.core_units_per_s > 0 else {}),
                **({"image_free_mib": record.image_free_mib} if record.image_free_mib is not None else {}),
                **_exchanged(record.exchange),
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
        here = node.index in live.state.places(task)
        if not here and (node.index, task) not in live.state.been:
            return  # the node never had the guest
        tags = {"node": node.name, "job": str(live.job_id), "task": str(task)}
        caps = {
            "cap_cores": sample.cap_cores, "wanted_cores": sample.wanted_cores, "share_cores": sample.share_cores
        }  # fmt: skip
        self._recorder.point(
            "guest",
            tags,
            {
                **{name: cores for name, cores in caps.items() if cores is not None},
                **_needed(sample.need),
                **_dirty(sample),
                **self._flows.take(live, task, sample, node.index, time_ns),
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
        if live.state.ended or not here:
            return
        if task not in live.state.finished_tasks:
            self._accounts.sample(sample.guest, node.index, since_ns / 1e9, sample.cpu_s, self._allowance(live, task))
        if sample.units_done > live.progress.units[task]:
            live.progress.advance(task, sample.units_done)
            live.progress.at_s = max(live.progress.at_s, since_ns / 1e9)
        if record.late:  # whether the job was steady at that time is unknown
            self._windows.end(sample.guest)
            return
        live.hear_dirty(task, sample.dirty_mib_per_s)
        if sample.need is not None and self.need_found is not None:
            self._hear_need(live, task, sample.need, self.need_found)
        self._windows.take(live, task, node.index, record.mono_ns, sample, tags)

    def _hear_need(self, live: LiveJob, task: int, need: NeedSample, found: Callable[[], None]) -> None:
        """Record a node's estimate of a task's CPU need; request a decision if the job's need differs by enough.

        A job causes at most one such decision per window of the estimators, however often its nodes change estimates.
        """
        live.hear_need(task, need)
        if live.state.stranded or live.state.withdrawn:
            return  # no decision concerns it
        now_s = self._recorder.now_s()
        if abs(live.found_need_frac / live.told_need_frac - 1.0) > NEWS_FRAC and now_s >= self._needs_again_s.get(
            live.job_id, 0.0
        ):
            self._needs_again_s[live.job_id] = now_s + NEED_WINDOW_S
            found()

    def _last_steps(self, node: int, live: LiveJob, task: int, end: Done) -> None:
        """Record the iterations of a done task since its last sample, because no further sample follows."""
        if end.steps is None:
            return
        found = Supersteps(
            steps=end.steps, longest_s=end.longest_s or 0.0, compute_s=end.compute_s or 0.0, comm_s=end.comm_s or 0.0
        )
        fields = self._steps.advance(live.specs[task].guest, int(self._recorder.now_s() * 1e9), found)
        if fields is not None:
            tags = {"node": self._recorder.node_names[node], "job": str(live.job_id), "task": str(task)}
            self._recorder.point("superstep", tags, fields)

    def _note_unsent(self, node: Node, record: Telemetry) -> None:
        """Journal the samples that a node dropped and the messages that it could not send, since the last entry."""
        key = node.index, record.boot
        if key not in self._unsent and len(self._unsent) >= _MOST_BOOTS:
            return
        dropped, refused = self._unsent.get(key, (0, 0))
        self._unsent[key] = max(dropped, record.dropped), max(refused, record.refused)
        dropped, refused = record.dropped - dropped, record.refused - refused
        if dropped > 0:
            self._recorder.journal(events.Telemetry(*self._recorder.times(), node=node.index, dropped=dropped))
            self._recorder.say_of(node.name, f"node {node.name} lost {dropped} samples: too many waited for the bus")
        if refused > 0:
            self._recorder.journal(events.Unsent(*self._recorder.times(), node=node.index, refused=refused))
            text = f"node {node.name} could not send at once, {refused} times: too much waited for the broker"
            self._recorder.say_of(node.name, text)

    def _allowance(self, live: LiveJob, task: int) -> Allowance:
        """Return the present CPU limit of a task, which is uncapped while it is created, held, saved or moved.

        If the tasks of a job divide its CPU among themselves, a task can have all of it.
        """
        spec, state = live.specs[task], live.state
        limit_cores = most_cores = float(spec.program.workers)
        if state.phase is Phase.RUNNING:
            yield_frac = max(state.yield_frac, state.flight.yield_frac if state.flight is not None else 0.0)
            sharers = len(live.specs) if self.divides else 1
            limit_cores = min(most_cores, cap_at(spec, yield_frac) * sharers)
        return Allowance(limit_cores, most_cores, state.placed_s, state.left_s)


def _needed(need: NeedSample | None) -> dict[str, Value]:
    """Return the fields of a node's estimate of a guest's CPU need."""
    if need is None:
        return {}
    return {"need_cores": need.cores, "need_least_cores": need.least_cores, "need_most_cores": need.most_cores,
            "need_mib": need.memory_mib}  # fmt: skip


def _dirty(sample: GuestSample) -> dict[str, Value]:
    """Return the field of the rate at which a guest writes to its memory, if it is known."""
    return {} if sample.dirty_mib_per_s is None else {"dirty_mib_per_s": sample.dirty_mib_per_s}


def _now_ns() -> int:
    return int(asyncio.get_running_loop().time() * 1e9)


def _exchanged(counts: ExchangeCounts | None) -> dict[str, Value]:
    return {} if counts is None else {"exchange_sent": counts.sent, "exchange_received": counts.received}
