"""Simulation of one trace under one policy in one call, which takes files or jobs and policies or their names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from testbed.bus.limits import LEAST_PERIOD_S, MOST_NODES, MOST_TRACE_S
from testbed.errors import UserError
from testbed.measure.rundir import JOB_COLUMNS
from testbed.scheduling.bound.max_stretch import bound as lower_bound
from testbed.scheduling.metrics import TAU_S
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.configuration import DEFAULT_PERIOD_S
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.simulation.compiling import Compiling, When
from testbed.scheduling.simulation.measures import Measures, measure
from testbed.scheduling.simulation.overheads import DEFAULT_NODE_MEMORY_GB, Overheads, constant
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.scheduling.simulation.run import SimulatedRun
from testbed.scheduling.simulation.simulate import simulate as simulate_jobs
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.trace import load_trace
from testbed.study.analysis.extras import need
from testbed.study.report.page.table import Table, table_html

if TYPE_CHECKING:
    import polars as pl

Bound: TypeAlias = Literal["theorem1", "fluid"]


@dataclass(frozen=True, eq=False)
class Simulation:
    """A completed simulation: `outcome` has start, end, preemptions and migrations of each job as arrays."""

    outcome: SimulatedRun
    measures: Measures
    tau_s: float
    node_memory_gb: float

    @property
    def policy(self) -> str:
        """Name of the scheduling policy."""
        return self.outcome.policy

    @cached_property
    def jobs(self) -> pl.DataFrame:
        """One row per job with the columns of jobs.csv; times are trace seconds. Needs the extra `query`."""
        need("query", "data frames")
        import polars as pl  # noqa: PLC0415  # an extra, and slow to import

        from testbed.measure.lines_reader import table_dtypes  # noqa: PLC0415  # needs polars

        types = table_dtypes("jobs")
        rows = list(self.outcome.job_rows(self.node_memory_gb, self.tau_s))
        return pl.DataFrame(rows, schema={name: types[name] for name in JOB_COLUMNS}, orient="row")

    def __repr__(self) -> str:
        return f"<Simulation of {len(self.outcome.jobs)} jobs on {self.outcome.nodes} nodes under {self.policy}>"

    def _repr_html_(self) -> str:
        """Return the measures as an HTML table for a notebook."""
        rows = tuple(
            (name, "–" if value is None else f"{value:,.4g}")  # noqa: RUF001  # a dash, for people to read
            for name, value in self.measures.as_dict().items()
        )
        caption = (
            f"Trace of {len(self.outcome.jobs)} jobs on {self.outcome.nodes} nodes; τ of the bounded stretch"
            f" {self.tau_s:g} s."
        )
        return table_html(Table("measures", self.policy, caption, ("measure", "value"), rows))


def simulate(
    trace: str | Path | Sequence[Job],
    policy: str | Policy,
    *,
    nodes: int,
    overheads: str | float | Overheads | None = None,
    reading: str | None = None,
    period_s: float = DEFAULT_PERIOD_S,
    bound: float | Bound | None = "theorem1",
    tau_s: float = TAU_S,
    node_memory_gb: float = DEFAULT_NODE_MEMORY_GB,
    compile_kernels: bool | None = None,
    check: bool = False,
) -> Simulation:
    """Replay a trace on `nodes` identical nodes under a policy in virtual time, as `testbed simulate` does.

    `trace` is a file, or a sequence of jobs in order of submission; an SWF log also needs a `reading`. `policy` is a
    policy or a name from the catalogue; `period_s` is for periodic policies. `overheads` is a number of seconds per
    resume and migration, 300 by default, or a model as `--overheads` takes it. `bound` is the lower bound on the
    maximum stretch, to which the degradation refers: its kind, its known value, or None for no degradation. `tau_s`
    is τ of the bounded stretch, and `node_memory_gb` is in 1e9 bytes. `compile_kernels` decides whether kernels are
    compiled to machine code; None compiles them if the simulation ends sooner with it. With `check`, every decision
    is checked.

    Raises `UserError` for an invalid argument, `RunError` if jobs wait for ever or a check fails.
    """
    _check(nodes, period_s, tau_s, node_memory_gb)
    model = _model(overheads)
    chosen = parse(policy, period_s) if isinstance(policy, str) else policy
    jobs = load_trace(trace, reading) if isinstance(trace, str | Path) else trace
    when = When.IF_SOONER if compile_kernels is None else When.AT_ONCE if compile_kernels else When.NEVER
    outcome = simulate_jobs(
        jobs, nodes, chosen, model, check, node_memory_gb=node_memory_gb, compiling=Compiling(when)
    )  # fmt: skip
    least = lower_bound(jobs, nodes, tau_s, bound, compiling=compile_kernels) if isinstance(bound, str) else bound
    return Simulation(outcome, measure(outcome, least, node_memory_gb, tau_s), tau_s, node_memory_gb)


def _check(nodes: int, period_s: float, tau_s: float, node_memory_gb: float) -> None:
    if not 1 <= nodes <= MOST_NODES:
        raise UserError(f"nodes = {nodes}: expected from 1 to {MOST_NODES}")
    if not LEAST_PERIOD_S <= period_s <= MOST_TRACE_S:
        raise UserError(f"period_s = {period_s:g}: expected seconds, from {LEAST_PERIOD_S:g} to {MOST_TRACE_S:.0f}")
    if not 0 <= tau_s < math.inf:
        raise UserError(f"tau_s = {tau_s:g}: expected seconds, 0 or more")
    if not 0 < node_memory_gb < math.inf:
        raise UserError(f"node_memory_gb = {node_memory_gb:g}: expected GB, more than 0")


def _model(overheads: str | float | Overheads | None) -> Overheads | None:
    if isinstance(overheads, str):
        return parse_overheads(overheads)
    return constant(overheads) if isinstance(overheads, int | float) else overheads
