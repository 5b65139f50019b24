"""Data model of campaign files: traces, policies, overheads, and the tables and figures of the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from testbed.bus.limits import MOST_NODES, MOST_TRACE_S
from testbed.errors import UserError, nearest
from testbed.scheduling.bound.max_stretch import Kind
from testbed.scheduling.campaign.conditions import Condition
from testbed.scheduling.campaign.ranges import Numbers, numbers_of
from testbed.scheduling.policies.configuration import DEFAULT_PERIOD_S, catalogue
from testbed.scheduling.simulation.named import named

Positive = Annotated[float, Field(gt=0, le=MOST_TRACE_S, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=MOST_TRACE_S, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
WHOLE_CATALOGUE = "catalogue"  # stands for its 116 names in a list of policies

MEASURES = (
    "max_stretch", "mean_stretch", "degradation_theorem1", "degradation_fluid", "degradation_factor",
    "bound_theorem1", "bound_fluid", "underutilization", "preemptions_per_job", "migrations_per_job",
    "preemptions_per_hour", "migrations_per_hour", "preemption_gb_per_s", "migration_gb_per_s", "makespan_s",
    "decide_mean_s", "decide_max_s", "simulation_wall_s", "simulation_cpu_s",
)  # fmt: skip


def _list_of(value: object) -> object:
    return value if isinstance(value, list | tuple) else (value,)


def _canonical(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names as the catalogue prints them, each once; raises ValueError for an unknown name."""
    found: dict[str, None] = {}
    for name in names:
        if name == WHOLE_CATALOGUE:
            found.update(dict.fromkeys(configuration.name for configuration in catalogue()))
            continue
        try:
            found[named(name, DEFAULT_PERIOD_S).name] = None
        except UserError as error:
            raise ValueError(f"names of policies, or {WHOLE_CATALOGUE!r}: {error}") from None
    return tuple(found)


def _known_measure(name: str) -> str:
    if name not in MEASURES:
        raise ValueError(f"a measure{nearest(name, MEASURES) or '; known: ' + ', '.join(MEASURES)}")
    return name


Measure = Annotated[str, BeforeValidator(_known_measure)]
Measures = Annotated[tuple[Measure, ...], BeforeValidator(_list_of), Field(min_length=1)]
Conditions = Annotated[tuple[Annotated[Condition, BeforeValidator(Condition.parse)], ...], BeforeValidator(_list_of)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Traces(_Table):
    """A set of traces: `label` is its name in tables; `loads` override the campaign's, and () leaves it unscaled."""

    name: Name
    label: str = ""
    nodes: Annotated[int, Field(gt=0, le=MOST_NODES)]
    loads: tuple[Positive, ...] | None = None

    @property
    def title(self) -> str:
        """The text that tables and figures show."""
        return self.label or self.name


class LublinTraces(_Traces):
    """Traces of the Lublin-Feitelson model with synthetic needs [RR 5.3.2], one per seed."""

    kind: Literal["lublin"]
    jobs: Annotated[int, Field(gt=0)]
    seeds: Numbers
    mode: Literal["mixed", "typeless"] = "mixed"


class LogTraces(_Traces):
    """An SWF log under a reading, or a job table, one trace per week [RR 5.3.1]; `whole` makes it one trace.

    A path is relative to the campaign file; a bare name is also searched in the folder $TESTBED_TRACES.
    """

    kind: Literal["log"]
    path: Path
    reading: str | None = None
    weeks: Literal["all", "whole"] | Numbers = "all"

    @field_validator("weeks", mode="before")
    @classmethod
    def _one_way(cls, value: object) -> object:
        return value if value in ("all", "whole") else numbers_of(value)


class TableTraces(_Traces):
    """Job tables, one trace per file: `files` are patterns relative to the campaign file, in order of names."""

    kind: Literal["table"]
    files: Annotated[tuple[str, ...], BeforeValidator(_list_of), Field(min_length=1)]


Traces = Annotated[LublinTraces | LogTraces | TableTraces, Field(discriminator="kind")]


class _Drawn(_Table):
    name: Name
    title: str
    policies: tuple[str, ...] = ()
    where: Conditions = ()

    @field_validator("policies")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _canonical(names)


class TableSpec(_Drawn):
    """A table: one row per policy, one column per set of traces and measure.

    `cell` selects the statistics over traces: mean, sample standard deviation and maximum; the mean with the maximum in
    parentheses; or the mean alone.
    """

    measures: Measures
    cell: Literal["mean-std-max", "mean-max", "mean"] = "mean-std-max"
    digits: Annotated[int, Field(ge=0, le=9)] = 2


class FigureSpec(_Drawn):
    """A figure: means over traces against `x`, one line per policy, set of traces and measure."""

    measures: Measures
    x: Literal["load", "period_s"]
    log_y: bool = False


class RankingSpec(_Drawn):
    """A table and a figure of how policies rank by the mean of a measure, less is better, under each overhead model.

    `baseline` is the policy with which the best policy of dynamic fractional resource scheduling is compared.
    """

    measure: Measure = "degradation_theorem1"
    baseline: str = "EASY"
    digits: Annotated[int, Field(ge=0, le=9)] = 2

    @property
    def measures(self) -> tuple[str, ...]:
        """The measure as a tuple, as tables and figures have it."""
        return (self.measure,)

    @field_validator("baseline")
    @classmethod
    def _name(cls, name: str) -> str:
        return _canonical((name,))[0]


class Campaign(_Table):
    """One campaign file: every trace at every load, under every policy with every period and penalty.

    `overheads` are models instead of penalties, in the syntax of `testbed simulate --overheads`; results name a model
    by this text. Files are relative to the campaign file. `calibration`, `calibration#constant` and
    `calibration#extrapolate` stand for the user's own calibration.
    """

    name: Name
    title: str = ""
    policies: Annotated[tuple[str, ...], Field(min_length=1)]
    traces: Annotated[tuple[Traces, ...], Field(min_length=1)]
    loads: tuple[Positive, ...] = ()
    periods_s: Annotated[tuple[Positive, ...], Field(min_length=1)] = (DEFAULT_PERIOD_S,)
    penalty_s: Annotated[tuple[NonNegative, ...], BeforeValidator(_list_of), Field(min_length=1)] | None = None
    overheads: Annotated[tuple[str, ...], BeforeValidator(_list_of), Field(min_length=1)] | None = None
    bound: Annotated[tuple[Literal["theorem1", "fluid", "none"], ...], BeforeValidator(_list_of)] = ("theorem1",)
    tau_s: NonNegative = 10.0
    node_memory_gb: Positive = 8.0
    tables: tuple[TableSpec, ...] = ()
    figures: tuple[FigureSpec, ...] = ()
    rankings: tuple[RankingSpec, ...] = ()

    @field_validator("policies")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _canonical(names)

    @model_validator(mode="after")
    def _agrees(self) -> Campaign:
        for what, names in (
            ("traces", [source.name for source in self.traces]),
            ("tables, figures and rankings", [drawn.name for drawn in self.drawn]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{what} with different names")
        if self.penalty_s is not None and self.overheads is not None:
            raise ValueError("penalty_s or overheads, not both")
        if "none" in self.bound and len(self.bound) > 1:
            raise ValueError('bound = "none", or bounds')
        for drawn in self.drawn:
            self._can_draw(drawn)
        return self

    def _can_draw(self, drawn: TableSpec | FigureSpec | RankingSpec) -> None:
        for name in drawn.policies:
            if name not in self.policies:
                raise ValueError(f"{drawn.name}: policies of the campaign, not {name!r}")
        if isinstance(drawn, RankingSpec) and drawn.baseline not in (drawn.policies or self.policies):
            raise ValueError(f"{drawn.name}: a baseline among its policies, not {drawn.baseline!r}")
        for measure in drawn.measures:
            kind = measure.removeprefix("degradation_").removeprefix("bound_")
            if kind in ("theorem1", "fluid") and kind not in self.bound:
                raise ValueError(f"bound {kind!r} for {measure} in {drawn.name}")

    @property
    def drawn(self) -> tuple[TableSpec | FigureSpec | RankingSpec, ...]:
        """The tables, figures and rankings that are made from the results."""
        return (*self.tables, *self.figures, *self.rankings)

    @property
    def bounds(self) -> tuple[Kind, ...]:
        """The lower bounds that are computed for each trace."""
        return tuple(kind for kind in ("theorem1", "fluid") if kind in self.bound)
