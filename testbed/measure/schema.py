"""The schema of all measurements of a run: tags, and fields with type, unit and meaning.

A point that does not fit is refused (`testbed.measure.points`); `testbed schema` prints the schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_type_hints

from testbed.run.interruption_entries import Penalty

RUN_TAGS: Final = ("run", "lab", "policy")


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag, with the same meaning in every measurement; each combination of tag values is a series.

    `kind` is str or int: the values of an int tag are decimal numbers from 0. `values` is the closed set of allowed
    values, empty if the set is open; `bound` describes the most values that a run has.
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
    """One measurement: the names of its tags, without those of the run, and its fields, of which a point has some.

    Points of a `state` are handed to the kernel at once (`testbed.measure.spool`).
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
    Tag("run", str, "one", "name of the run directory; a database has one value per stored run"),
    Tag("lab", str, "one", "name of the lab of the run"),
    Tag("policy", str, "one", "name of the scheduling policy"),
    Tag("node", str, "nodes of the scenario", "name of the node"),
    Tag("source", str, "nodes of the scenario", "name of the node that a guest left"),
    Tag("job", int, "jobs of the trace", "id of the job in the trace"),
    Tag("task", int, "tasks of the largest job", "number of the task in its job, from 0"),
    Tag("giver", str, "tasks of the largest job, and one", "giver of shares: number of a task, or `bank`"),
    Tag("receiver", str, "tasks of the largest job, and one", "receiver of shares: number of a task, or `bank`"),
    Tag(
        "shape", str, "twice the CPU needs of the trace",
        "properties of a job that determine its rate: parallel or not, CPU need",
    ),
    Tag(
        "verb", str, "closed set", "operation on the job",
        values=("start", "cap", "save", "transfer", "restore", "migrate"),
    ),
    Tag(
        "phase", str, "closed set",
        "part of an operation, of the slowest guest: time until the guest was held (hold), stopped at the common "
        "iteration (run_on), its image was written (write) and durable (sync); time until it had migrated (migrate), "
        "and for which the migration stopped it (downtime); or the time between the first and the last guest, by the "
        "nodes' clocks: held (hold_skew), released (release_skew)",
        values=("hold", "run_on", "write", "sync", "migrate", "downtime", "hold_skew", "release_skew"),
    ),
    Tag(
        "reason", str, "closed set", "the policy withdrew the job's nodes (preemption), or changed them (migration)",
        values=("preemption", "migration"),
    ),
    Tag(
        "mechanism", str, "closed set", "mechanism of the move: by images, or live",
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
    """Return the penalty keys of the journal with this ending as fields, without remarks on journal versions."""
    kinds = get_type_hints(Penalty, include_extras=True)
    names = [name for name in Penalty.__annotations__ if name.endswith(ending)]
    meanings = {name: str(kinds[name].__metadata__[0].description).partition(". Not before")[0] for name in names}
    return [Field(name, kinds[name].__origin__, unit, meaning) for name, meaning in meanings.items()]


_ALL = (
    Measurement(
        "node",
        "a node, as sampled by its agent, once per second or with the period of its option `--telemetry-s`",
        ("node",),
        (
            Field("cpu_frac", float, "1", "fraction of the machine's CPU time that was busy since the last point"),
            Field("core_units_per_s", float, "units/s", "work units per second of CPU time, by a probe of 0.5 ms"),
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
                "CPU time of the daemons that serve its guests, such as libvirtd, since they started; left out without "
                "such daemons",
            ),
            Field(
                "image_free_mib",
                int,
                "MiB",
                "free space for images of saved guests: on their disk, or of the node's budget if that is less; an "
                "image that is being written counts once it is complete; left out if there is no limit",
            ),
            Field(
                "exchange_sent",
                int,
                "",
                "messages about shares that the agent has sent to other agents since it started; left out before its "
                "first guest that exchanges shares",
            ),
            Field(
                "exchange_received",
                int,
                "",
                "messages about shares that the agent has received from other agents since it started; left out "
                "likewise",
            ),
        ),
    ),
    Measurement(
        "node_state",
        "a node went offline or returned",
        ("node",),
        (
            Field("online", bool, "", "whether the node is online"),
            Field("reason", str, "", "reason why it is offline, empty if it is online"),
        ),
        state=True,
    ),
    Measurement(
        "guest",
        "a guest, sampled together with its node",
        ("node", "job", "task"),
        (
            Field(
                "cap_cores",
                float,
                "cores",
                "CPU cap in force, as read back for this point; for a guest without a cap all that it can use; left "
                "out if it could not be read",
            ),
            Field(
                "wanted_cores",
                float,
                "cores",
                "requested CPU cap; points of versions without this field have it as `cap_cores`",
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
                "shares of the job's bank, which is on the node of the first task; left out for all other guests",
            ),
            Field("need_cores", float, "cores", "estimated CPU need, under policies with `/NEEDS=discovered` only"),
            Field("need_least_cores", float, "cores", "lower bound of the estimated CPU need"),
            Field("need_most_cores", float, "cores", "upper bound of the estimated CPU need"),
            Field("need_mib", float, "MiB", "largest resident memory so far: lower bound of the memory need"),
            Field(
                "dirty_mib_per_s",
                float,
                "MiB/s",
                'rate at which the guest changes its memory, with `mechanism = "cheaper"` on guests of QEMU only',
            ),
            Field("cpu_s", float, "s", "CPU time used since the guest was created"),
            Field("rss_mib", float, "MiB", "resident memory"),
            Field("read_mib", float, "MiB", "read from storage since the guest was created"),
            Field("written_mib", float, "MiB", "written to storage since the guest was created"),
            Field("units_done", int, "units", "work done, including all earlier lives of the guest"),
        ),
    ),
    Measurement(
        "share_transfer",
        "shares that a task, or the bank of its job, has taken from another one; one point per change of the amount; "
        "node is that of the receiver",
        ("node", "job", "giver", "receiver"),
        (
            Field(
                "taken_cores",
                float,
                "cores",
                "sum of all transfers in the present life of the job; a share that moves twice counts twice; the sum "
                "starts again from 0 in the next life",
            ),
        ),
    ),
    Measurement(
        "cap",
        "requested against achieved CPU over a window with one constant cap, read back at each sample, and no other "
        "operation",
        ("node", "job", "task"),
        (
            Field("requested_cores", float, "cores", "requested cap"),
            Field("achieved_cores", float, "cores", "CPU time used, divided by the length of the window"),
            Field("window_s", float, "s", "length of the window"),
            Field("drifted", bool, "", "whether the window ended because another cap was in force"),
        ),
    ),
    Measurement(
        "cap_drift",
        "the CPU cap in force of a guest differed from the cap that was set, and was set again",
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
            Field("mean_s", float, "s", "mean time of an iteration"),
            Field("max_s", float, "s", "longest time of an iteration; the ratio to the mean shows noise at barriers"),
            Field("compute_s", float, "s", "time for computing in all iterations"),
            Field("comm_s", float, "s", "time for sending and waiting for messages in all iterations"),
        ),
    ),
    Measurement(
        "bus",
        "a command and its acknowledgement",
        ("node",),
        (Field("round_trip_s", float, "s", "time from publishing the command to receiving the acknowledgement"),),
    ),
    Measurement(
        "controller",
        "the controller, once per second",
        (),
        (
            Field("cpu_s", float, "s", "CPU time of its process since the process started"),
            Field("broker_cpu_s", float, "s", "CPU time of the broker that it started; 0 without one"),
        ),
    ),
    Measurement(
        "run",
        "a stage of the run is over",
        ("stage",),
        (Field("elapsed_s", float, "s", "duration of the stage"),),
        state=True,
    ),
    Measurement(
        "calibration",
        "dedicated rate of jobs of one shape, measured before the replay or given by the scenario",
        ("shape",),
        (Field("units_per_core_s", float, "units/s", "work of one task per second and core"),),
    ),
    Measurement(
        "job",
        "a job changed its state",
        ("job",),
        (
            Field("state", str, "", "submitted, running, paused, resumed, moving, withdrawn, again, done or failed"),
            Field("trace_s", float, "trace s", "trace time of the change"),
            Field("tasks", int, "", "tasks of the job"),
            Field("flow_time_s", float, "trace s", "time from submission to the end; of a job that is done"),
            Field("stretch", float, "1", "bounded stretch, with the scenario's bound; of a job that is done"),
            Field("preemptions", int, "", "preemptions so far"),
            Field("migrations", int, "", "migrations so far"),
            Field("penalty_s", float, "s", "sum of rescheduling penalties so far"),
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
            Field("waiting", int, "", "jobs that were never started and do not run by this decision"),
            Field("paused", int, "", "jobs that were started before and do not run by this decision"),
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
            Field("elapsed_s", float, "s", "time from the first command to the last answer"),
            Field("waited_s", float, "s", "time from the plan to the first command"),
            Field("bytes", int, "B", "image bytes written, sent or read, or bytes sent by a live migration"),
            Field("ok", bool, "", "whether it succeeded"),
        ),
    ),
    Measurement(
        "action_phase",
        "one part of an operation on a job, as measured by its agents",
        ("job", "verb", "phase"),
        (Field("elapsed_s", float, "s", "duration of the part"),),
    ),
    Measurement(
        "migration",
        "one guest migrated live; node is the target",
        ("node", "source", "job", "task"),
        (
            Field("elapsed_s", float, "s", "time from the order until the guest ran on the target"),
            Field("downtime_s", float, "s", "time for which the guest was stopped"),
            Field("bytes", int, "B", "bytes sent"),
            Field("rounds", int, "", "passes over the guest's memory"),
            Field("counted", bool, "", "whether the source measured these; else times are upper bounds, bytes unknown"),
            Field("mib_per_s", float, "MiB/s", "throughput over the elapsed time"),
        ),
    ),
    Measurement(
        "rescheduling",
        "one preemption or migration, from its order to the first progress of all tasks after it",
        ("job", "reason", "mechanism"),
        (
            *_of_penalty("_s", "s"),
            *_of_penalty("_bytes", "B"),
            Field("save_mib_per_s", float, "MiB/s", "throughput of the save, of all guests together"),
            Field("transfer_mib_per_s", float, "MiB/s", "throughput of the transfer, of all guests together"),
            Field("restore_mib_per_s", float, "MiB/s", "throughput of the restore, of all guests together"),
            Field("live_mib_per_s", float, "MiB/s", "throughput of the live migration, of all guests together"),
            *_of_penalty("moved_tasks", ""),
        ),
        state=True,
    ),
)

TAGS: Final = {tag.name: tag for tag in _ALL_TAGS}
MEASUREMENTS: Final = {measurement.name: measurement for measurement in _ALL}
