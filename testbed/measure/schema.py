"""Every measurement of a run: its tags, and its fields with type, unit and meaning, in one place.

A point that does not fit is refused (`testbed.measure.points`); the page made of this is `testbed schema`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_type_hints

from testbed.run.interruption_entries import Penalty

RUN_TAGS: Final = ("run", "lab", "policy")


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag, which means the same in every measurement; each combination of their values is a series.

    `kind` is str or int: the values of an int tag are decimal numbers from 0. `values` is the closed set of what is
    allowed, empty if it is open; `bound` says how many values a run has at most.
    """

    name: str
    kind: type
    bound: str
    meaning: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `kind` is float, int, str or bool; `unit` is empty for a name or a count."""

    name: str
    kind: type
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement: the names of the tags beside those of the run, and its fields, of which a point has some.

    A point of a `state` is made durable at once (`testbed.measure.spool`).
    """

    name: str
    meaning: str
    tags: tuple[str, ...]
    fields: tuple[Field, ...]
    state: bool = False

    def field(self, name: str) -> Field | None:
        """Return the field of that name."""
        return next((field for field in self.fields if field.name == name), None)


_ALL_TAGS = (
    Tag("run", str, "one", "name of the run directory; a database holds as many as it keeps runs"),
    Tag("lab", str, "one", "name of the lab that the run had"),
    Tag("policy", str, "one", "name of the scheduling policy"),
    Tag("node", str, "nodes of the scenario", "name of the node"),
    Tag("source", str, "nodes of the scenario", "name of the node that a guest left"),
    Tag("job", int, "jobs of the trace", "id of the job in the trace"),
    Tag("task", int, "tasks of the largest job", "number of the task in its job, from 0"),
    Tag("giver", str, "tasks of the largest job, and one", "who gave shares: number of a task, or `bank`"),
    Tag("receiver", str, "tasks of the largest job, and one", "who took shares: number of a task, or `bank`"),
    Tag("shape", str, "twice the CPU needs of the trace", "what a job's speed depends on: parallel or not, CPU need"),
    Tag(
        "verb", str, "closed set", "what was done to the job",
        values=("start", "cap", "save", "transfer", "restore", "migrate"),
    ),
    Tag(
        "phase", str, "closed set",
        "part of an operation, of the slowest guest: until it was held (hold), stood still at the common iteration "
        "(run_on), its image was written (write) and durable (sync); until it had migrated (migrate), and for how long "
        "it stood still for that (downtime); or the time "
        "between the first and the last guest, by the nodes' clocks: held (hold_skew), released (release_skew)",
        values=("hold", "run_on", "write", "sync", "migrate", "downtime", "hold_skew", "release_skew"),
    ),
    Tag(
        "reason", str, "closed set", "the policy took the job's nodes away (preemption), or gave it others (migration)",
        values=("preemption", "migration"),
    ),
    Tag(
        "mechanism", str, "closed set", "by images, or live",
        values=("save-restore", "live"),
    ),
    Tag(
        "stage", str, "closed set",
        "part of the run: lab and nodes come up and are calibrated (prepare), the jobs are replayed (replay), the lab "
        "is taken down (teardown)",
        values=("prepare", "replay", "teardown"),
    ),
)  # fmt: skip


def _of_penalty(ending: str, unit: str) -> list[Field]:
    """Return the keys of a journal's penalties whose names end so as fields; versions of the journal do not matter."""
    kinds = get_type_hints(Penalty, include_extras=True)
    names = [name for name in Penalty.__annotations__ if name.endswith(ending)]
    meanings = {name: str(kinds[name].__metadata__[0].description).partition(". Not before")[0] for name in names}
    return [Field(name, kinds[name].__origin__, unit, meaning) for name, meaning in meanings.items()]


_ALL = (
    Measurement(
        "node",
        "a node, once a second unless its agent was told otherwise (`--telemetry-s`), as the agent sees it",
        ("node",),
        (
            Field("cpu_frac", float, "1", "share of the machine's CPU time that was busy since the last point"),
            Field("core_units_per_s", float, "units/s", "work units in a second of CPU time, by a probe of 0.5 ms"),
            Field("memory_used_mib", float, "MiB", "memory in use on the machine"),
            Field("disk_read_mib", float, "MiB", "read from disks since the machine started"),
            Field("disk_written_mib", float, "MiB", "written to disks since the machine started"),
            Field("net_received_mib", float, "MiB", "received since the machine started"),
            Field("net_sent_mib", float, "MiB", "sent since the machine started"),
            Field("agent_cpu_s", float, "s", "CPU time of the agent since it started"),
            Field("agent_rss_mib", float, "MiB", "resident memory of the agent"),
            Field(
                "daemons_cpu_s",
                float,
                "s",
                "CPU time of the daemons that serve its guests, such as libvirtd, since they started; left out where "
                "there are none",
            ),
            Field(
                "image_free_mib",
                int,
                "MiB",
                "room for images of saved guests: free space on their disk, or what the node's budget leaves if that "
                "is less; an image that is being written counts once it is complete; left out where nothing limits it",
            ),
            Field(
                "exchange_sent",
                int,
                "",
                "messages about shares that the agent has sent to other agents since it started; left out as long as "
                "it has had no guest that exchanges shares",
            ),
            Field(
                "exchange_received",
                int,
                "",
                "messages about shares that the agent has received from others since it started, likewise",
            ),
        ),
    ),
    Measurement(
        "node_state",
        "a node went away, or came back",
        ("node",),
        (
            Field("online", bool, "", "whether it is there"),
            Field("reason", str, "", "why it is not, empty if it is"),
        ),
        state=True,
    ),
    Measurement(
        "guest",
        "a guest, as often as its node",
        ("node", "job", "task"),
        (
            Field(
                "cap_cores",
                float,
                "cores",
                "CPU cap in force, as read back for this point; all that the guest can use "
                "while it has none; left out where it could not be read",
            ),
            Field(
                "wanted_cores",
                float,
                "cores",
                "CPU cap that was asked for; points of versions without this field tell it as `cap_cores`",
            ),
            Field(
                "share_cores",
                float,
                "cores",
                "share of a guest that competes by shares, as read back for this point; others have none",
            ),
            Field(
                "bank_cores",
                float,
                "cores",
                "shares that the bank of the job has, at the node of its first task; other guests have no such field",
            ),
            Field("need_cores", float, "cores", "estimated CPU need, under policies with `/NEEDS=discovered` only"),
            Field("need_least_cores", float, "cores", "lower bound of the estimated CPU need"),
            Field("need_most_cores", float, "cores", "upper bound of the estimated CPU need"),
            Field("need_mib", float, "MiB", "largest resident memory so far: lower bound of the memory need"),
            Field("cpu_s", float, "s", "CPU time used since the guest was created"),
            Field("rss_mib", float, "MiB", "resident memory"),
            Field("read_mib", float, "MiB", "read from storage since the guest was created"),
            Field("written_mib", float, "MiB", "written to storage since the guest was created"),
            Field("units_done", int, "units", "work done, over all its lives"),
        ),
    ),
    Measurement(
        "share_transfer",
        "shares that a task, or the bank of its job, has taken from another, each time that the amount has changed; "
        "node is that of the receiver",
        ("node", "job", "giver", "receiver"),
        (
            Field(
                "taken_cores",
                float,
                "cores",
                "sum of all transfers in the present life of the job, so a share that moves twice counts twice; less "
                "than before in the next life",
            ),
        ),
    ),
    Measurement(
        "cap",
        "requested against achieved CPU over a window with one constant cap, read back at each sample, and no other "
        "operation",
        ("node", "job", "task"),
        (
            Field("requested_cores", float, "cores", "the cap that was asked for"),
            Field("achieved_cores", float, "cores", "CPU time used divided by the window"),
            Field("window_s", float, "s", "length of the window"),
            Field("drifted", bool, "", "whether it ended because another cap was found in force"),
        ),
    ),
    Measurement(
        "cap_drift",
        "the CPU cap of a guest was found to be another than was set, and was set again",
        ("node", "job", "task"),
        (
            Field("found_cores", float, "cores", "cap in force, -1 if there was none"),
            Field("expected_cores", float, "cores", "cap that was set"),
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
        "controller",
        "the controller, once a second",
        (),
        (
            Field("cpu_s", float, "s", "CPU time of its process since that started"),
            Field("broker_cpu_s", float, "s", "CPU time of the broker that it started; 0 without one"),
        ),
    ),
    Measurement(
        "run",
        "a stage of the run is over",
        ("stage",),
        (Field("elapsed_s", float, "s", "how long it took"),),
        state=True,
    ),
    Measurement(
        "calibration",
        "how fast jobs of one shape work alone, measured before the replay or given by the scenario",
        ("shape",),
        (Field("units_per_core_s", float, "units/s", "work of one task in a second on one core"),),
    ),
    Measurement(
        "job",
        "a job changed its state",
        ("job",),
        (
            Field("state", str, "", "submitted, running, paused, resumed, moving, done or failed"),
            Field("trace_s", float, "trace s", "trace time of the change"),
            Field("tasks", int, "", "tasks of the job"),
            Field("flow_time_s", float, "trace s", "from submission to the end; of a job that is done"),
            Field("stretch", float, "1", "bounded stretch, with the scenario's bound; of a job that is done"),
            Field("preemptions", int, "", "preemptions until then"),
            Field("migrations", int, "", "migrations until then"),
            Field("penalty_s", float, "s", "rescheduling penalty until then"),
        ),
        state=True,
    ),
    Measurement(
        "decision",
        "one decision of the policy",
        (),
        (
            Field("trace_s", float, "trace s", "trace time of the decision"),
            Field("decide_s", float, "s", "time that the policy took"),
            Field("jobs", int, "", "jobs in the system"),
            Field("running", int, "", "jobs that run by this decision"),
            Field("waiting", int, "", "jobs that were never started and are not by this decision"),
            Field("paused", int, "", "jobs that were started and do not run by this decision"),
            Field("min_yield_frac", float, "1", "least yield of a running job, 0 if none runs"),
            Field("mean_yield_frac", float, "1", "mean yield of the running jobs, 0 if none runs"),
            Field("demand_frac", float, "nodes", "sum of the CPU needs of all tasks in the system"),
            Field("useful_frac", float, "nodes", "sum of yield times CPU need over running tasks"),
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
        "action_phase",
        "one part of an operation on a job, as its agents told it",
        ("job", "verb", "phase"),
        (Field("elapsed_s", float, "s", "how long it took"),),
    ),
    Measurement(
        "migration",
        "one guest migrated live; node is where it went",
        ("node", "source", "job", "task"),
        (
            Field("elapsed_s", float, "s", "from the order until it ran at its new node"),
            Field("downtime_s", float, "s", "for which it stood still"),
            Field("bytes", int, "B", "sent"),
            Field("rounds", int, "", "passes over its memory"),
            Field("counted", bool, "", "whether the source told these; else the times are upper bounds, bytes unknown"),
            Field("mib_per_s", float, "MiB/s", "sent in a second of its elapsed time"),
        ),
    ),
    Measurement(
        "rescheduling",
        "one preemption or migration, complete with the first progress after it",
        ("job", "reason", "mechanism"),
        (
            *_of_penalty("_s", "s"),
            *_of_penalty("_bytes", "B"),
            Field("save_mib_per_s", float, "MiB/s", "written in a second of saving, of all its guests together"),
            Field("transfer_mib_per_s", float, "MiB/s", "copied in a second of transfer, likewise"),
            Field("restore_mib_per_s", float, "MiB/s", "read in a second of restoring, likewise"),
            Field("live_mib_per_s", float, "MiB/s", "sent in a second of live migration, likewise"),
            *_of_penalty("moved_tasks", ""),
        ),
        state=True,
    ),
)

TAGS: Final = {tag.name: tag for tag in _ALL_TAGS}
MEASUREMENTS: Final = {measurement.name: measurement for measurement in _ALL}
