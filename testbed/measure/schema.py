"""Every measurement of a run: its tags, and its fields with type, unit and meaning, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RUN_TAGS: Final = ("run", "lab", "policy")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `kind` is float, int, str or bool; `unit` is empty for a name or a count."""

    name: str
    kind: type
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement: the tags beside those of the run, and its fields."""

    name: str
    meaning: str
    tags: tuple[str, ...]
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        """Return the field of that name."""
        return next((field for field in self.fields if field.name == name), None)


_ALL = (
    Measurement(
        "node",
        "a node, once a second, as its agent sees it",
        ("node",),
        (
            Field("cpu_frac", float, "1", "share of the machine's CPU time that was busy since the last point"),
            Field("memory_used_mib", float, "MiB", "memory in use on the machine"),
            Field("disk_read_mib", float, "MiB", "read from disks since the machine started"),
            Field("disk_written_mib", float, "MiB", "written to disks since the machine started"),
            Field("net_received_mib", float, "MiB", "received since the machine started"),
            Field("net_sent_mib", float, "MiB", "sent since the machine started"),
            Field("agent_cpu_s", float, "s", "CPU time of the agent since it started"),
            Field("agent_rss_mib", float, "MiB", "resident memory of the agent"),
        ),
    ),
    Measurement(
        "guest",
        "a guest, once a second",
        ("node", "job", "task"),
        (
            Field("cap_cores", float, "cores", "CPU cap in force, as read back"),
            Field("cpu_s", float, "s", "CPU time used since the guest was created"),
            Field("rss_mib", float, "MiB", "resident memory"),
            Field("read_mib", float, "MiB", "read from storage since the guest was created"),
            Field("written_mib", float, "MiB", "written to storage since the guest was created"),
            Field("units_done", int, "units", "work done, over all its lives"),
        ),
    ),
    Measurement(
        "cap",
        "requested against achieved CPU over a window with one constant cap and no other operation",
        ("node", "job", "task"),
        (
            Field("requested_cores", float, "cores", "the cap"),
            Field("achieved_cores", float, "cores", "CPU time used divided by the window"),
            Field("window_s", float, "s", "length of the window"),
        ),
    ),
    Measurement(
        "action",
        "one operation on a job, by the controller's clock",
        ("job", "verb"),
        (
            Field("elapsed_s", float, "s", "from the first command to the last answer"),
            Field("waited_s", float, "s", "from the plan to the first command"),
            Field("bytes", int, "B", "image bytes written, sent or read, or sent by a live migration"),
            Field("ok", bool, "", "whether it succeeded"),
        ),
    ),
    Measurement(
        "rescheduling",
        "one preemption or migration, complete with the first progress after it",
        ("job", "reason", "mechanism"),
        (
            Field("save_s", float, "s", "from the order to hold until the last image was durable"),
            Field(
                "paused_s",
                float,
                "s",
                "for which the policy did not want the job to run; no part of the penalty",
            ),
            Field("wait_s", float, "s", "wanted to run, but waiting for memory or an earlier operation"),
            Field("transfer_s", float, "s", "copying images between nodes"),
            Field("restore_s", float, "s", "from the order to restore until every guest was created"),
            Field("live_s", float, "s", "from the order to migrate live until every guest was taken over"),
            Field("downtime_s", float, "s", "longest time for which a guest stood still in a live migration"),
            Field("first_progress_s", float, "s", "from the restore or arrival until every task had progressed"),
            Field("penalty_s", float, "s", "save + wait + transfer + restore + downtime + first progress"),
            Field("hold_skew_s", float, "s", "between the first and the last member held, by the nodes' clocks"),
            Field("release_skew_s", float, "s", "between the first and the last whole member released, likewise"),
            Field("saved_bytes", int, "B", "written to images"),
            Field("transferred_bytes", int, "B", "copied between nodes"),
            Field("restored_bytes", int, "B", "read from images"),
            Field("migrated_bytes", int, "B", "sent by live migrations"),
        ),
    ),
    Measurement(
        "decision",
        "one decision of the policy",
        (),
        (
            Field("decide_s", float, "s", "time that the policy took"),
            Field("jobs", int, "", "jobs in the system"),
            Field("running", int, "", "jobs that run by this decision"),
            Field("min_yield_frac", float, "1", "least yield of a running job, 0 if none runs"),
            Field("demand_frac", float, "nodes", "sum of the CPU needs of all jobs in the system"),
            Field("useful_frac", float, "nodes", "sum of yield times CPU need over running tasks"),
        ),
    ),
    Measurement(
        "superstep",
        "iterations of one member of a job since its last point: computing, then exchanging messages",
        ("node", "job", "task"),
        (
            Field("steps", int, "", "iterations done"),
            Field("mean_s", float, "s", "mean time of one"),
            Field("max_s", float, "s", "longest time of one; against the mean it shows noise at the barrier"),
            Field("compute_s", float, "s", "computing, in all of them"),
            Field("comm_s", float, "s", "sending and waiting for messages, in all of them"),
        ),
    ),
    Measurement(
        "bus",
        "a command and its acknowledgement",
        ("node",),
        (Field("round_trip_s", float, "s", "from publishing the command until the agent's acknowledgement was heard"),),
    ),
    Measurement(
        "job",
        "a job changed its state",
        ("job",),
        (
            Field("state", str, "", "submitted, running, paused, done or failed"),
            Field("trace_s", float, "s", "trace time of the change"),
        ),
    ),
)

MEASUREMENTS: Final = {measurement.name: measurement for measurement in _ALL}
