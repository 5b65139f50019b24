"""Scenario files: what to run, on what, how. Checked whole before anything is started."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from testbed.bus.imbalance import PATTERN as IMBALANCE_PATTERN
from testbed.bus.imbalance import drift_of
from testbed.bus.limits import (
    LEAST_NODE_CORES,
    LEAST_PERIOD_S,
    LEAST_TIME_SCALE,
    LEAST_UNITS_PER_CORE_S,
    MOST_DISK_MIB,
    MOST_NODE_CORES,
    MOST_NODE_MEMORY_MIB,
    MOST_NODES,
    MOST_PART_MIB,
    MOST_TIME_SCALE,
    MOST_TRACE_S,
    MOST_UNITS_PER_CORE_S,
)
from testbed.bus.migration import BRIDGE_PATTERN, HOST_PATTERN, PARTITION_PATTERN, Transport
from testbed.bus.need_profile import WHOLE, parts_of
from testbed.errors import InputError
from testbed.measure.influx_address import DEFAULT_BUCKET, DEFAULT_ORG, DEFAULT_URL, expected_url
from testbed.toml_files import first_mistake, read_toml

ExchangePeriod = Annotated[float, Field(ge=0.1, le=3600, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=MOST_TRACE_S, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=MOST_TRACE_S, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
INFLUX_RECORDER = "influx"
HOST_PATTERN_ALONE = rf"^({HOST_PATTERN}|[0-9a-f:.]+)$"
Topology = Literal["linear", "ring", "mesh", "torus", "all-to-all", "tree"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SegmentTable(_Table):
    """A part of the trace: jobs by index, a time window, or a week; by default all of it."""

    first_job: Annotated[int, Field(ge=0)] | None = None
    jobs: Annotated[int, Field(gt=0)] | None = None
    start_s: NonNegative | None = None
    duration_s: Positive | None = None
    week: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> SegmentTable:
        by_jobs = self.first_job is not None or self.jobs is not None
        by_time = self.start_s is not None or self.duration_s is not None
        if by_jobs + by_time + (self.week is not None) > 1:
            raise ValueError("one of first_job + jobs, start_s + duration_s, or week")
        if by_time and (self.start_s is None or self.duration_s is None):
            raise ValueError("start_s and duration_s together")
        return self


class LublinTable(_Table):
    """A synthetic trace by the Lublin-Feitelson model for a machine of `nodes`, with synthetic needs.

    `load` is the offered load on the nodes of the scenario; arrivals are stretched to it.
    """

    jobs: Annotated[int, Field(gt=0)]
    nodes: Annotated[int, Field(gt=0, le=MOST_NODES)]
    seed: Annotated[int, Field(ge=0)]
    mode: Literal["mixed", "typeless"] = "mixed"
    load: Positive | None = None


class WorkloadTable(_Table):
    """The source of the jobs: a trace file (relative to the scenario file), or a model."""

    trace: Path | None = None
    reading: str | None = None
    segment: SegmentTable = SegmentTable()
    lublin: LublinTable | None = None


class NodeMigrationTable(_Table):
    """The hypervisor's address for those of other nodes: the host, and libvirt's port unless it is its own.

    `partition` (control group) and `bridge` are those of guests there, where they differ from those of other nodes.
    """

    host: Annotated[str, Field(pattern=HOST_PATTERN_ALONE)]
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    partition: Annotated[str, Field(pattern=rf"^({PARTITION_PATTERN})?$", max_length=255)] = ""
    bridge: Annotated[str, Field(pattern=rf"^({BRIDGE_PATTERN})?$")] = ""


class NodeTable(_Table):
    """A node: `spawn` starts its agent on this machine; otherwise an agent of that name must be on the bus.

    `image_budget_mib` limits the images of saved guests on the disk of an agent that this scenario or its lab starts;
    0 is no limit but the disk's. `migration` is needed for live migrations between nodes that are not of a `[box]`.
    `cpu_set` are the CPUs of this machine that the guests of a spawned agent, or of a node of a `[box]`, may use, by
    default all. As guests compete by shares only where they cannot run side by side, a node with a part of a core needs
    one CPU.
    """

    name: Name
    cpus: Annotated[float, Field(ge=LEAST_NODE_CORES, le=MOST_NODE_CORES, allow_inf_nan=False)] = 1.0
    memory_mib: Annotated[int, Field(gt=0, le=MOST_NODE_MEMORY_MIB)] = 1024
    driver: str = "process"
    spawn: bool = True
    image_budget_mib: Annotated[int, Field(ge=0, le=MOST_DISK_MIB)] = 0
    cpu_set: tuple[Annotated[int, Field(ge=0, lt=MOST_NODE_CORES)], ...] = ()
    migration: NodeMigrationTable | None = None


class BrokerTable(_Table):
    """The message broker: `auto` is Mosquitto where it is installed, else embedded; or an address.

    That is `mqtts://head.example:8884` in a lab of several machines, or `$TESTBED_BROKER` for the URL in this variable
    of the environment (`testbed services env`). `tls_dir` is the folder of this controller's certificate, by default
    that in the environment variable TESTBED_TLS_DIR.
    """

    address: str = "auto"
    tls_dir: Path | None = None

    @property
    def kind(self) -> Literal["auto", "embedded", "mosquitto"] | None:
        """The broker to start, or None if `address` is that of an existing one."""
        for kind in ("auto", "embedded", "mosquitto"):
            if self.address == kind:
                return kind
        return None


class ProgramsTable(_Table):
    """The programs of jobs: `eatcpu`, `patterns` (ranks of an MPI job with messages between them), or a plug-in's name.

    `iteration_s` is the dedicated time between two polls of the control channel. `units_per_core_s` fixes how fast a
    core is taken to be, so that jobs get the same work in every run; without it that is measured before each run.
    `imbalance` is `uniform`, `1/i` (the i-th task of a parallel job has a part 1/i of the work of the first), or
    `drift:N`: then these parts move on to the next task after every N iterations.
    `work` is what a job has to do: `units` of work, or as much `cpu-time`, by the kernel's accounting, as these units
    take on a core of the measured speed. Then jobs do not take longer where cores become slower. Programs in virtual
    machines do not know that time.
    `profile` lets tasks need no more CPU than they are said to need, however much they may use, and less at times:
    `1,0.25@0.5` is all of their need in the first half of their work and a quarter of it in the second. Without it
    tasks use all that their caps allow.
    `check_results_s` are the seconds that the controller spends at the end on comparing results of a random sample of
    jobs with the expected results of their work (`testbed.control.result_checks`).
    """

    serial: Name = "eatcpu"
    parallel: Name = "patterns"
    topologies: Annotated[tuple[Topology, ...], Field(min_length=1)] = (
        "ring",
        "linear",
        "all-to-all",
        "tree",
        "mesh",
        "torus",
    )
    imbalance: Annotated[str, Field(pattern=rf"^({IMBALANCE_PATTERN})$")] = "uniform"
    message_bytes: Annotated[int, Field(ge=1, le=64 << 20)] = 4096
    iteration_s: Annotated[float, Field(ge=0.001, le=10)] = 0.04
    units_per_core_s: (
        Annotated[float, Field(ge=LEAST_UNITS_PER_CORE_S, le=MOST_UNITS_PER_CORE_S, allow_inf_nan=False)] | None
    ) = None
    calibration_s: Annotated[float, Field(ge=0.5, le=60)] = 2.5
    work: Literal["units", "cpu-time"] = "units"
    profile: str | None = None
    check_results_s: Annotated[float, Field(ge=0, le=3600)] = 20.0

    @field_validator("profile")
    @classmethod
    def _is_a_profile(cls, text: str | None) -> str | None:
        if text is not None:
            parts_of(text)
        return text

    @model_validator(mode="after")
    def _parts_that_drift_have_no_profile(self) -> ProgramsTable:
        if self.profile not in (None, WHOLE) and drift_of(self.imbalance) is not None:
            raise ValueError(f"profile {self.profile!r}: expected {WHOLE} with an imbalance that drifts")
        return self


class BoxTable(_Table):
    """The nodes are made on this machine by `testbed lab up`: each with a libvirtd, a network and a capacity.

    Guests get addresses on `guest_network`, whose last 256 belong to the nodes. `link_mbit_per_s` limits the link of
    each node, in each direction. A node's quota is `emulator_headroom_frac` above its cores: caps hold for virtual
    CPUs, and the other threads of their emulators need some time too. `xen_scheduler` is that of the hypervisors in
    nodes with driver `xen`, which are whole virtual machines.
    """

    guest_network: str = "10.77.0.0/16"
    link_mbit_per_s: Positive | None = None
    emulator_headroom_frac: Annotated[float, Field(ge=0, le=1)] = 0.1
    xen_scheduler: Literal["credit", "credit2"] = "credit"

    @field_validator("guest_network")
    @classmethod
    def _private_and_large(cls, text: str) -> str:
        expected = "a private IPv4 network from /8 to /20, such as 10.77.0.0/16"
        try:
            network = ipaddress.IPv4Network(text)
        except ValueError as error:
            raise ValueError(f"{expected}: {error}") from None
        private = (ipaddress.IPv4Network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
        if network.prefixlen > 20 or not any(network.subnet_of(block) for block in private):
            raise ValueError(expected)
        return text


class DeadlinesTable(_Table):
    """When the controller gives up on an operation, in wall seconds.

    A node is suspect after `node_silence_s` of silence, and lost after `node_lost_s`. Neither the controller's own time
    off the bus counts, nor a time in which it stood still. Agents keep their guests for `lease_ttl_s` without it. With
    `on_node_loss = "restart"`, a node destroys its guests once it has not heard from the controller for `fence_s`, by
    default 30 s, or twice `node_silence_s` if that is longer.
    """

    announce_s: Positive = 20.0
    command_s: Positive = 30.0
    slowest_mib_per_s: Positive = 10.0
    node_silence_s: Positive = 6.0
    node_lost_s: Positive = 60.0
    lease_ttl_s: Annotated[float, Field(ge=3, allow_inf_nan=False)] = 90.0
    fence_s: Positive | None = None
    tries: Annotated[int, Field(ge=1, le=10)] = 3

    @model_validator(mode="after")
    def _suspect_before_lost(self) -> DeadlinesTable:
        if self.node_lost_s < self.node_silence_s:
            raise ValueError(f"node_lost_s = {self.node_lost_s:g}: expected at least node_silence_s")
        if self.fence_s is not None and self.fence_s < 2 * self.node_silence_s:
            raise ValueError(f"fence_s = {self.fence_s:g}: expected at least 2 * node_silence_s")
        return self

    @property
    def fence_for_s(self) -> float:
        """The time for which a fence lets guests run without the controller."""
        return self.fence_s if self.fence_s is not None else max(30.0, 2 * self.node_silence_s)


class MigrationTable(_Table):
    """The way in which a running job moves to other nodes.

    `save-restore` stops it, writes images, and starts it from them; `live` moves its guests while they work, where all
    nodes that take part can and memory permits, and saves and restores elsewhere; `cheaper` does for each job what
    stops it for less time by the calibration that `overheads` names. Where `saves_at_once` is given, a node makes no
    more saves at once, and those first that free what a waiting job needs. A live migration is given up after
    `budget_s_per_gib` wall seconds for each GiB of a guest's memory, begun ones counted whole, or when it made no
    progress for `no_progress_s`.

    Hypervisors reach each other by `transport`: `tls` with the lab's certificates, or `tcp`, which anybody on the
    network reads, changes and uses; also `testbed lab up` makes nodes that take guests by that one alone.
    """

    mechanism: Literal["save-restore", "live", "cheaper"] = "save-restore"
    saves_at_once: Annotated[int, Field(ge=1, le=1000)] | None = None
    transport: Transport = "tls"
    budget_s_per_gib: Positive = 60.0
    no_progress_s: Positive = 20.0


class ImagesTable(_Table):
    """Second copies of the images of saved jobs.

    With `replicas = 1` each image is copied to a second node at save time, if one has room: the one with the most. A
    saved job whose node is lost, or whose image is damaged there, goes on from the copy. With `on_node_loss =
    "restart"` the last images of a job are then kept while it runs, until its next save is complete or it ends: such a
    job needs room for up to four times the memory that its tasks have touched, on two nodes.
    """

    replicas: Annotated[int, Field(ge=0, le=1)] = 0


class SharesTable(_Table):
    """The exchange of shares by policies that let jobs compete by shares, in wall seconds.

    Every `period_s` each node compares the shares of its guests with what they use. The bank of a job, if the policy
    has one, gives what it has every `grant_s`. A layer below MPI notes which tasks wait for which. With `waits` =
    `traffic` nodes without it guess that from the traffic of their guests.
    """

    period_s: ExchangePeriod = 5.0
    grant_s: ExchangePeriod = 5.0
    waits: Literal["layer", "traffic"] = "layer"


class ServeTable(_Table):
    """The jobs that users may give to a lab that `testbed serve` serves, and the limits of each user.

    A task's CPU need is one of `cpu_needs_frac`, as the speed of each is measured before the first job comes. It has at
    least `least_mem_frac` of a node's memory. Jobs run the scenario's programs, or one of `programs`. A job has work
    for at most `most_work_s` wall seconds on nodes of its own. A user has at most `jobs_per_user` jobs that have not
    ended, whose tasks need the CPU of at most `nodes_per_user` nodes together. `weights` are those of users' jobs,
    under policies that know weights; jobs of other users have weight 1. Users may ask for a guaranteed yield of at most
    `most_guaranteed_yield`; it is refused where the guarantees of all jobs would not fit. `access` says which users of
    the controller's machine may give jobs beside root and the controller's own user: none of them (`owner`), those of a
    group (`group:NAME`), or all (`everybody`).
    """

    access: Annotated[str, Field(pattern=r"^(owner|everybody|group:[a-z_][a-z0-9_-]{0,31})$")] = "owner"
    cpu_needs_frac: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)], ...], Field(min_length=1, max_length=16)
    ] = (0.25, 0.5, 1.0)
    least_mem_frac: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.1
    programs: Annotated[tuple[Name, ...], Field(max_length=16)] = ()
    most_work_s: Positive = 86400.0
    jobs_per_user: Annotated[int, Field(ge=1, le=100_000)] = 100
    nodes_per_user: Positive | None = None
    weights: dict[str, Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]] = {}
    most_guaranteed_yield: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0


class BoundTable(_Table):
    """The offline lower bound that stretches are compared with [RR Theorem 1]."""

    kind: Literal["theorem1", "fluid"] = "theorem1"
    tau_s: Positive = 10.0


class RunTable(_Table):
    """The form of a run directory: after `part_mib`, journal and points go on in new files, full ones compressed."""

    part_mib: Annotated[int, Field(ge=1, le=MOST_PART_MIB)] = 64


class InfluxTable(_Table):
    """The bucket of InfluxDB 2 that the points of the run are shipped to while it lasts.

    The table switches the recorder `influx` on. Its token is in the environment: INFLUXDB_V2_TOKEN. `gzip` spends CPU
    time of the controller where the way to the server is slow.
    """

    url: str = DEFAULT_URL
    org: Annotated[str, Field(min_length=1)] = DEFAULT_ORG
    bucket: Annotated[str, Field(min_length=1)] = DEFAULT_BUCKET
    gzip: bool = False

    @field_validator("url")
    @classmethod
    def _without_secrets(cls, text: str) -> str:
        if expected := expected_url(text):
            raise ValueError(expected)
        return text


class Scenario(_Table):
    """One scenario file. Trace seconds divided by `time_scale` are wall seconds.

    `on_controller_loss` says what agents do with the guests of a controller that was silent for the lease's time:
    `remove` them, or `pause` or `keep` them until `testbed resume` goes on with the run, or `testbed lab take` removes
    them. Without it a run of more than ten minutes keeps them, and a shorter one removes them. `on_node_loss` is for a
    job whose guests are lost with their node or its agent: the job fails, or starts again (`restart`), from its last
    image if there is one; `on_guest_loss` is its former name. `recorders` names plug-ins that get everything that the
    run records; a table `[influx]` adds `influx` to them. `overheads` is a model of what moves cost, for policies that
    know it (`/KNOWS=cost`): a file of `testbed calibrate` (relative to this one), or a text such as `constant:300`.
    """

    name: Name
    description: str = ""
    lab: Name = "local"
    policy: tuple[str, ...] = Field(min_length=1)
    period_s: Annotated[float, Field(ge=LEAST_PERIOD_S, le=MOST_TRACE_S, allow_inf_nan=False)] = 600.0
    time_scale: Annotated[float, Field(ge=LEAST_TIME_SCALE, le=MOST_TIME_SCALE, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 0
    workload: WorkloadTable
    nodes: tuple[NodeTable, ...] = Field(min_length=1)
    broker: BrokerTable = BrokerTable()
    programs: ProgramsTable = ProgramsTable()
    deadlines: DeadlinesTable = DeadlinesTable()
    migration: MigrationTable = MigrationTable()
    on_controller_loss: Literal["keep", "pause", "remove"] | None = None
    on_node_loss: Literal["fail", "restart"] = "fail"
    bound: BoundTable = BoundTable()
    images: ImagesTable = ImagesTable()
    shares: SharesTable = SharesTable()
    serve: ServeTable = ServeTable()
    box: BoxTable | None = None
    run: RunTable = RunTable()
    influx: InfluxTable | None = None
    recorders: tuple[str, ...] = ()
    overheads: Annotated[str, Field(min_length=1, max_length=500)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_table_switches_its_recorder_on(cls, data: object) -> object:
        if not isinstance(data, dict) or data.get("influx") is None:
            return data
        names = data.get("recorders", ())
        if not isinstance(names, list | tuple) or INFLUX_RECORDER in names:
            return data
        return {**data, "recorders": [*names, INFLUX_RECORDER]}

    @model_validator(mode="before")
    @classmethod
    def _former_names(cls, data: object) -> object:
        if not isinstance(data, dict) or "on_guest_loss" not in data:
            return data
        if "on_node_loss" in data:
            raise ValueError("on_node_loss alone: on_guest_loss is its former name")
        return {
            **{key: value for key, value in data.items() if key != "on_guest_loss"},
            "on_node_loss": data["on_guest_loss"],
        }

    @model_validator(mode="before")
    @classmethod
    def _nodes_of_a_box_are_there(cls, data: object) -> object:
        if not isinstance(data, dict) or data.get("box") is None or not isinstance(data.get("nodes"), list | tuple):
            return data
        if any(isinstance(node, dict) and node.get("spawn") for node in data["nodes"]):
            raise ValueError("nodes without spawn = true: `testbed lab up` starts the agents of a [box]")
        nodes = [{**node, "spawn": False} if isinstance(node, dict) else node for node in data["nodes"]]
        return {**data, "nodes": nodes}

    @model_validator(mode="before")
    @classmethod
    def _one_policy_is_a_list(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(data.get("policy"), str):
            return {**data, "policy": (data["policy"],)}
        return data

    @model_validator(mode="after")
    def _names_differ(self) -> Scenario:
        names = [node.name for node in self.nodes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"nodes with different names, found more than one {', '.join(twice)}")
        if self.box is not None and any(node.migration is not None for node in self.nodes):
            raise ValueError("nodes without a table migration: the nodes of a [box] have addresses of its own")
        if self.box is not None and self.broker.kind is None:
            raise ValueError("no broker.address: a [box] brings its own broker")
        return self


_MIGRATION_WORDS = {
    "host": "a host name or address, without a scheme, user, port or path",
    "partition": "the path of a control group, such as /guests",
    "bridge": "the name of a bridge, such as dfrs0",
}


def _words(mistake: ErrorDetails) -> str | None:
    location = mistake["loc"]
    if mistake["type"] == "string_pattern_mismatch" and "migration" in location:
        return _MIGRATION_WORDS[str(location[-1])]
    if mistake["type"] == "string_pattern_mismatch":
        return "1 to 63 of a-z, 0-9 and -, beginning with a letter or a digit"
    if mistake["type"] == "tuple_type":
        return "the name of a policy, or a list of names" if location == ("policy",) else "a list"
    return None


def load_scenario(path: Path) -> Scenario:
    """Read and check a scenario file, or raise an error that names file, key, value and the expected value."""
    return check_scenario(read_toml(path, "a scenario"), path)


def load_lab(path: Path) -> Scenario:
    """Read a file of which only the lab is used: a scenario, or one without name, policy and workload."""
    data = read_toml(path, "a scenario")
    return check_scenario({"name": path.stem.lower(), "policy": "FCFS", "workload": {}, **data}, path)


def check_scenario(data: dict[str, object], path: Path) -> Scenario:
    """Check the content of a scenario; `path` is for messages, and what its relative paths start from."""
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise first_mistake(path, Scenario, error, words=_words) from None
    tls_dir = scenario.broker.tls_dir
    if tls_dir is not None and not tls_dir.expanduser().is_absolute():
        broker = scenario.broker.model_copy(update={"tls_dir": path.parent / tls_dir})
        scenario = scenario.model_copy(update={"broker": broker})
    if scenario.overheads is not None and ".toml" in scenario.overheads:  # perhaps with a # behind it
        scenario = scenario.model_copy(update={"overheads": str(path.parent / scenario.overheads)})
    trace = scenario.workload.trace
    if trace is not None and not trace.is_absolute():
        workload = scenario.workload.model_copy(update={"trace": path.parent / trace})
        scenario = scenario.model_copy(update={"workload": workload})
    return scenario


def override(
    scenario: Scenario,
    *,
    policies: tuple[str, ...] = (),
    trace: Path | None = None,
    time_scale: float | None = None,
    seed: int | None = None,
) -> Scenario:
    """Return the scenario with the values of the command line in place of its own."""
    changes: dict[str, object] = {}
    if policies:
        changes["policy"] = policies
    if trace is not None:
        changes["workload"] = scenario.workload.model_copy(update={"trace": trace, "lublin": None})
    if time_scale is not None:
        changes["time_scale"] = check_time_scale(time_scale, "--time-scale")
    if seed is not None:
        changes["seed"] = seed
    return scenario.model_copy(update=changes)


def check_time_scale(value: float, where: str) -> float:
    """Return a valid time scale, or raise `InputError`."""
    if not LEAST_TIME_SCALE <= value <= MOST_TIME_SCALE:
        raise InputError(where, "time_scale", value, f"a number from {LEAST_TIME_SCALE:g} to {MOST_TIME_SCALE:g}")
    return value
