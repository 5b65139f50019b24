"""Tables of a scenario about jobs: their source, their programs, and their submission to a served lab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from testbed.bus.imbalance import PATTERN as IMBALANCE_PATTERN
from testbed.bus.imbalance import drift_of
from testbed.bus.limits import LEAST_UNITS_PER_CORE_S, MOST_NODES, MOST_UNITS_PER_CORE_S
from testbed.bus.need_profile import WHOLE, parts_of
from testbed.scenario.keys import REQUIRED, Fraction, Name, NonNegative, Positive, Table, key

ExchangePeriod = Annotated[float, Field(ge=0.1, le=3600, allow_inf_nan=False)]
WorkMeasure = Literal["units", "cpu-time"]
Topology = Literal["linear", "ring", "mesh", "torus", "all-to-all", "tree"]


class SegmentTable(Table):
    """A part of the trace: jobs by index, a time window, or a week. The default is the whole trace."""

    first_job: Annotated[int, Field(ge=0)] | None = key(None, "Index of the first job, from 0 on.", example=7)
    jobs: Annotated[int, Field(gt=0)] | None = key(None, "Number of jobs.", example=6)
    start_s: NonNegative | None = key(None, "Start of a time window in the trace.", unit="trace s", example=3600)
    duration_s: Positive | None = key(None, "Length of the time window.", unit="trace s", example=3600)
    week: Annotated[int, Field(ge=0)] | None = key(None, "Number of a week of the trace, from 0 on.", example=3)

    @model_validator(mode="after")
    def _one_way(self) -> SegmentTable:
        by_jobs = self.first_job is not None or self.jobs is not None
        by_time = self.start_s is not None or self.duration_s is not None
        if by_jobs + by_time + (self.week is not None) > 1:
            raise ValueError("one of first_job + jobs, start_s + duration_s, or week")
        if by_time and (self.start_s is None or self.duration_s is None):
            raise ValueError("start_s and duration_s together")
        return self


class LublinTable(Table):
    """A synthetic trace by the Lublin-Feitelson model, with synthetic CPU needs and memory requirements [RR 5.3.2]."""

    jobs: Annotated[int, Field(gt=0)] = key(REQUIRED, "Number of jobs.", example=100)
    nodes: Annotated[int, Field(gt=0, le=MOST_NODES)] = key(
        REQUIRED, "Number of nodes of the modelled machine.", example=4
    )
    seed: Annotated[int, Field(ge=0)] = key(REQUIRED, "Seed of the random numbers.", example=1)
    mode: Literal["mixed", "typeless"] = key("mixed", "Model with batch and interactive jobs, or with one type of job.")
    load: Positive | None = key(
        None, "Offered load on the nodes of the scenario; interarrival times are scaled to it.", example=0.7
    )


class WorkloadTable(Table):
    """The source of the jobs: a trace file or a model."""

    trace: Path | None = key(
        None, "Trace file (SWF, CSV, also compressed), relative to the scenario file.", example="trace.csv"
    )
    reading: str | None = key(
        None,
        "Rule that derives jobs with needs from a log; `testbed trace convert --help` explains the readings. CSV "
        "traces need none.",
        example="hpc2n",
    )
    segment: SegmentTable = SegmentTable()
    lublin: LublinTable | None = None


class ProgramsTable(Table):
    """The programs that the tasks of jobs run, and how their work is sized."""

    serial: Name = key("eatcpu", "Program of jobs with one task: `eatcpu`, or the name of a plug-in.")
    parallel: Name = key(
        "patterns", "Program of jobs with several tasks: `patterns` (MPI ranks that exchange messages), or a plug-in."
    )
    topologies: Annotated[tuple[Topology, ...], Field(min_length=1)] = key(
        ("ring", "linear", "all-to-all", "tree", "mesh", "torus"),
        "Communication topologies of parallel jobs; a job has that of its id modulo their number.",
    )
    imbalance: Annotated[str, Field(pattern=rf"^({IMBALANCE_PATTERN})$")] = key(
        "uniform",
        "Distribution of a parallel job's work: `uniform`; `1/i`: task i has 1/i of the work of the first; `drift:N`: "
        "the same, and the parts move to the next task after every N iterations.",
        example="1/i",
    )
    message_bytes: Annotated[int, Field(ge=1, le=64 << 20)] = key(4096, "Size of an MPI message.", unit="bytes")
    iteration_s: Annotated[float, Field(ge=0.001, le=10)] = key(
        0.04, "Length of an iteration on a dedicated node: between two message exchanges, or two polls.", unit="s"
    )
    units_per_core_s: (
        Annotated[float, Field(ge=LEAST_UNITS_PER_CORE_S, le=MOST_UNITS_PER_CORE_S, allow_inf_nan=False)] | None
    ) = key(
        None,
        "Speed of a core by which work is sized, so that jobs have the same work in each run. Without it the "
        "controller measures the speed before each run.",
        unit="units/s",
        example=250000,
    )
    calibration_s: Annotated[float, Field(ge=0.5, le=60)] | None = key(
        None,
        "Duration of the speed measurement of each kind of job before a run; a longer one is more exact. By default "
        "2.5 s, and 20 s in virtual machines.",
        unit="s",
        example=10,
    )
    work: WorkMeasure | None = key(
        None,
        "Measure of a job's work: `units`, or the CPU time that these units take at the measured speed. With "
        "`cpu-time` jobs do not take longer on slower cores. By default CPU time, and units in virtual machines, which "
        "support nothing else.",
        example="units",
    )
    profile: str | None = key(
        None,
        "Real CPU needs during the work of a task, as fractions of its declared need: in the example the full need, "
        "and a quarter of it from half of the work on. With a profile, programs use no more CPU than their real need; "
        "without a profile they use all of their cap.",
        example="1,0.25@0.5",
    )
    check_results_s: Annotated[float, Field(ge=0, le=3600)] = key(
        20.0, "Time after the run for comparing results of jobs with their expected checksums.", unit="s"
    )

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


class SharesTable(Table):
    """The exchange of CPU shares between tasks, under policies with shares."""

    period_s: ExchangePeriod = key(5.0, "Period after which nodes compare shares with usage.", unit="s")
    grant_s: ExchangePeriod = key(5.0, "Period after which the bank of a job distributes its shares.", unit="s")
    waits: Literal["layer", "traffic"] = key(
        "layer",
        "Source of the knowledge which task waits for which: `layer`: a layer below MPI; `traffic`: an estimate from "
        "network traffic where that layer is missing.",
    )


class ServeTable(Table):
    """Jobs that users may submit to a lab of `testbed serve`, and limits per user."""

    access: Annotated[str, Field(pattern=r"^(owner|everybody|group:[a-z_][a-z0-9_-]{0,31})$")] = key(
        "owner",
        "Users of the controller's machine who may submit jobs, beside root and the controller's user: none (`owner`), "
        "those of a group (`group:NAME`), or `everybody`.",
    )
    cpu_needs_frac: Annotated[tuple[Fraction, ...], Field(min_length=1, max_length=16)] = key(
        (0.25, 0.5, 1.0),
        "CPU needs that a task may have. The controller measures the speed of each before the first job.",
        unit="part of a node",
    )
    least_mem_frac: Fraction = key(0.1, "Least memory requirement of a task.", unit="part of a node")
    programs: Annotated[tuple[Name, ...], Field(max_length=16)] = key(
        (), "Programs that jobs may run beside those of `[programs]`.", example=["patterns"]
    )
    most_work_s: Positive = key(86400.0, "Most work of a job, as its run time on dedicated nodes.", unit="s")
    most_urgent_work_s: Positive = key(
        3600.0, "Most work of an urgent job, for which others may be paused; not more than `most_work_s`.", unit="s"
    )
    jobs_per_user: Annotated[int, Field(ge=1, le=100_000)] = key(100, "Most jobs of a user that have not ended.")
    urgent_jobs_per_user: Annotated[int, Field(ge=0, le=100_000)] = key(
        1, "Most urgent jobs of a user that have not ended."
    )
    nodes_per_user: Positive | None = key(
        None,
        "Most nodes that all jobs of a user that have not ended occupy. A task counts as the larger of its CPU need "
        "and its memory, under FCFS and EASY as a node.",
        unit="nodes",
        example=2,
    )
    weights: dict[str, Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]] = key(
        {}, "Weights of users' jobs under policies with `/WEIGHTS=jobs`; others have weight 1.", example={"alice": 2.0}
    )
    most_guaranteed_yield: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = key(
        0.0,
        "Highest yield that a user may have guaranteed under policies with `/LEAST=jobs`. A job is refused if the "
        "guarantees of all jobs do not fit.",
    )
