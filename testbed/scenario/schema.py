"""The schema of scenario files: workload, lab and policies. A file is validated completely before a run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from testbed.bus.limits import LEAST_PERIOD_S, LEAST_TIME_SCALE, MOST_TIME_SCALE, MOST_TRACE_S
from testbed.errors import InputError
from testbed.scenario.keys import REQUIRED, Name, Table, key
from testbed.scenario.lab_tables import (
    BoxTable,
    BrokerTable,
    DeadlinesTable,
    ImagesTable,
    MigrationTable,
    NodeMigrationTable,
    NodeTable,
)
from testbed.scenario.record_tables import BoundTable, InfluxTable, RunTable
from testbed.scenario.workload_tables import (
    LublinTable,
    ProgramsTable,
    SegmentTable,
    ServeTable,
    SharesTable,
    WorkloadTable,
)
from testbed.toml_files import first_mistake, read_toml

__all__ = [
    "BoundTable", "BoxTable", "BrokerTable", "DeadlinesTable", "ImagesTable", "InfluxTable", "LublinTable",
    "MigrationTable", "NodeMigrationTable", "NodeTable", "ProgramsTable", "RunTable", "Scenario", "SegmentTable",
    "ServeTable", "SharesTable", "WorkloadTable", "check_scenario", "check_time_scale", "load_lab", "load_scenario",
    "override",
]  # fmt: skip
INFLUX_RECORDER = "influx"
FORMER_NAMES = {"on_node_loss": "on_guest_loss"}  # of keys, still accepted


class Scenario(Table):
    """A scenario: a workload, a lab, and the policies under which the lab runs the workload.

    Trace seconds divided by `time_scale` are wall seconds.
    """

    name: Name = key(REQUIRED, "Name of the scenario, part of the names of run directories.", example="my-lab")
    description: str = key("", "A sentence about the scenario, for lists and reports.")
    lab: Name = key("local", "Name of the lab: a run uses the agents of this lab only.")
    policy: tuple[str, ...] = Field(
        min_length=1,
        description="Scheduling policies, which run one after the other; a string is a single policy. "
        "`testbed policies` lists their names.",
        examples=[["EASY", "GreedyPM */per/OPT=MIN/MINVT=600"]],
    )
    period_s: Annotated[float, Field(ge=LEAST_PERIOD_S, le=MOST_TRACE_S, allow_inf_nan=False)] = key(
        600.0, "Period of the passes of periodic policies.", unit="trace s"
    )
    time_scale: Annotated[float, Field(ge=LEAST_TIME_SCALE, le=MOST_TIME_SCALE, allow_inf_nan=False)] = key(
        1.0, "Compression of the trace: trace seconds per wall second. Rescheduling costs are not compressed."
    )
    seed: Annotated[int, Field(ge=0)] = key(0, "Seed of the programs' data.")
    workload: WorkloadTable = Field(description="The source of the jobs.")
    nodes: tuple[NodeTable, ...] = Field(min_length=1, description="The nodes, each a table `[[nodes]]`.")
    broker: BrokerTable = BrokerTable()
    programs: ProgramsTable = ProgramsTable()
    deadlines: DeadlinesTable = DeadlinesTable()
    migration: MigrationTable = MigrationTable()
    on_controller_loss: Literal["keep", "pause", "remove"] | None = key(
        None,
        "What agents do with guests when the lease of a lost controller ends: `keep` or `pause` them for "
        "`testbed resume`, or `remove` them. The default is `keep` for runs of more than ten minutes and for labs "
        "under `testbed serve`, else `remove`.",
        example="keep",
    )
    on_node_loss: Literal["fail", "restart"] = key(
        "fail",
        "Action for a job whose guests are lost with a node: the job fails, or restarts, from its last image if it has "
        "one. The former name of this key is `on_guest_loss`.",
    )
    bound: BoundTable = BoundTable()
    images: ImagesTable = ImagesTable()
    shares: SharesTable = SharesTable()
    serve: ServeTable = ServeTable()
    box: BoxTable | None = None
    run: RunTable = RunTable()
    influx: InfluxTable | None = None
    recorders: tuple[str, ...] = key(
        (), "Plug-ins that get all records of a run. A table `[influx]` adds `influx`.", example=["influx"]
    )
    overheads: Annotated[str, Field(min_length=1, max_length=500)] | None = key(
        None,
        'Overhead model for policies with `/KNOWS=cost` and for `mechanism = "cheaper"`: a file of '
        "`testbed calibrate`, relative to the scenario file, or a text such as `constant:300`.",
        example="calibration.toml",
    )

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
        if not isinstance(data, dict):
            return data
        for name, former in FORMER_NAMES.items():
            if former in data and name in data:
                raise ValueError(f"{name} alone: {former} is its former name")
            if former in data:
                data = {name: data[former], **{key: value for key, value in data.items() if key != former}}
        return data

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


_WORDS = {
    "imbalance": 'uniform, 1/i or drift:N, such as "drift:20"',
    "access": "owner, everybody or group:NAME",
    "host": "a host name or address, without a scheme, user, port or path",
    "partition": "the path of a control group, such as /guests",
    "bridge": "the name of a bridge, such as dfrs0",
}


def expected_words(mistake: ErrorDetails) -> str | None:
    """Return the expected value of a key where pydantic's text is unclear."""
    location = mistake["loc"]
    if mistake["type"] == "string_pattern_mismatch":
        return _WORDS.get(str(location[-1])) or "1 to 63 of a-z, 0-9 and -, beginning with a letter or a digit"
    if mistake["type"] == "tuple_type":
        return "the name of a policy, or a list of names" if location == ("policy",) else "a list"
    return None


def load_scenario(path: Path) -> Scenario:
    """Read and check a scenario file; raises `UserError` with file, key, value and the expected value."""
    return check_scenario(read_toml(path, "a scenario"), path)


def load_lab(path: Path) -> Scenario:
    """Read the lab of a scenario file, in which name, policy and workload may be missing."""
    data = read_toml(path, "a scenario")
    return check_scenario({"name": path.stem.lower(), "policy": "FCFS", "workload": {}, **data}, path)


def check_scenario(data: dict[str, object], path: Path) -> Scenario:
    """Check the content of a scenario; `path` is its file, for messages and relative paths."""
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise first_mistake(path, Scenario, error, words=expected_words) from None
    return complete(scenario, path)


def complete(scenario: Scenario, path: Path) -> Scenario:
    """Return the scenario with relative paths resolved from the folder of its file."""
    tls_dir = scenario.broker.tls_dir
    if tls_dir is not None and not (tls_dir.is_absolute() or str(tls_dir).startswith("~")):
        broker = scenario.broker.model_copy(update={"tls_dir": path.parent / tls_dir})
        scenario = scenario.model_copy(update={"broker": broker})
    if scenario.overheads is not None and ".toml" in scenario.overheads:  # a suffix with # may follow the path
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
    """Return the time scale if it is valid; raises `InputError`."""
    if not LEAST_TIME_SCALE <= value <= MOST_TIME_SCALE:
        raise InputError(where, "time_scale", value, f"a number from {LEAST_TIME_SCALE:g} to {MOST_TIME_SCALE:g}")
    return value
