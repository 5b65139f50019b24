"""Plausibility checks of finished tasks: whether a task can have had enough CPU time for its work.

The CPU time has two upper bounds: the values in the node's samples, and the time that the controller's caps allow on
the controller's clock. The speed of a core is known from measurements of the same programs in guests before the run,
and from the probes of each agent, one per second on its own core. A task is marked if it needs more than `TOLERANCE`
times the fastest of these speeds: its work cannot have been done there, or the node's reports of CPU time and speed are
wrong.

The tolerance is wide, because cores change their speed, and measurements on a busy machine are too slow. In addition,
each life of a guest gets `SLACK_S` seconds, because a cap applies per period: a guest may use the budgets of two
periods back to back on a free core, and a sample is read slightly before its time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from testbed.bus.imbalance import parts_of
from testbed.bus.messages import ProgramSpec
from testbed.bus.need_profile import mean_factor

TOLERANCE = 3.0
SLACK_S = 0.25  # two periods of the drivers' caps, 0.1 s each, and the time that a busy agent needs to read a sample
BUILT_IN = ("eatcpu", "patterns")  # their units are the probes' units


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """Work units per second and core, measured before the run.

    `core` is the rate of a core in a guest, `by_job` has the dedicated rate of each job, and `probe` is the core
    speed by the agents' probes during the measurement. All are 0 or empty without measurements.
    """

    core: float = 0.0
    by_job: Mapping[int, float] = field(default_factory=dict)
    probe: float = 0.0


@dataclass(frozen=True, slots=True)
class Allowance:
    """The CPU limit of a guest: `limit_cores` at present, and `most_cores` while it is created or saved.

    The guest was placed at `placed_s`, and its previous life ended at `left_s`.
    """

    limit_cores: float
    most_cores: float
    placed_s: float
    left_s: float


@dataclass(slots=True)
class _Account:
    """The CPU seconds that a guest can have had over all its lives, up to `upto_s`."""

    allowed: Allowance
    upto_s: float
    told_s: float = 0.0  # CPU time of this life by the last sample
    most_s: float = 0.0
    nodes: set[int] = field(default_factory=set)


class CpuAccounts:
    """Bounds the CPU time of guests from above. Times are wall seconds of the run, by the controller's clock."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def sample(self, guest: str, node: int, now_s: float, told_s: float, allowed: Allowance) -> None:
        """Add a sample: the usage since the last sample is the lesser of the reported and the allowed CPU time."""
        account = self._account(guest, node, allowed)
        if now_s <= account.upto_s:
            return
        used_s = told_s - account.told_s if told_s >= account.told_s else told_s  # a lower value: it changed its node
        account.most_s += min(used_s, self._allowed_s(account, now_s, allowed))
        account.told_s, account.upto_s, account.allowed = told_s, now_s, allowed

    def end(self, guest: str, node: int, now_s: float, allowed: Allowance) -> tuple[float, frozenset[int]]:
        """Return the maximum CPU seconds that a guest that ends now can have had, and its nodes.

        The guest can have used its whole allowance since its last sample.
        """
        account = self._account(guest, node, allowed)
        del self._accounts[guest]
        return account.most_s + self._allowed_s(account, now_s, allowed), frozenset(account.nodes)

    @staticmethod
    def _allowed_s(account: _Account, now_s: float, allowed: Allowance) -> float:
        return max(0.0, now_s - account.upto_s) * max(allowed.limit_cores, account.allowed.limit_cores)

    def _account(self, guest: str, node: int, allowed: Allowance) -> _Account:
        account = self._accounts.get(guest)
        if account is None:
            account = _Account(allowed, allowed.placed_s, most_s=SLACK_S * allowed.limit_cores)
            self._accounts[guest] = account
        elif account.allowed.placed_s != allowed.placed_s:  # the guest was saved meanwhile
            account.most_s += max(0.0, allowed.left_s - account.upto_s) * allowed.most_cores
            account.most_s += SLACK_S * allowed.limit_cores
            account.allowed, account.upto_s, account.told_s = allowed, allowed.placed_s, 0.0
        account.nodes.add(node)
        return account


class WorkRates:
    """The highest known core speed of each node, and whether a finished task exceeded it."""

    def __init__(self, measured: MeasuredRates | None = None, probed: Collection[int] = ()) -> None:
        """`probed` are the nodes, by index, whose guests run the code that their agent's probe measures."""
        self._measured = measured or MeasuredRates()
        self._probed = frozenset(probed)
        self._probes: dict[int, float] = {}

    def probe(self, node: int, units_per_s: float) -> None:
        """Record an agent's probe of a core, in work units per second."""
        self._probes[node] = max(units_per_s, self._probes.get(node, 0.0))

    def fastest(self, job_id: int, program: str, nodes: frozenset[int]) -> float:
        """Return the work units per second of CPU time of the fastest known core; 0 if none is known."""
        measured = self._measured
        probe = max((self._probes.get(node, 0.0) for node in nodes), default=0.0)
        known = max(measured.core if program in BUILT_IN else 0.0, measured.by_job.get(job_id, 0.0))
        if measured.probe > 0:
            known *= max(1.0, probe / measured.probe)
        if program in BUILT_IN and nodes <= self._probed:
            known = max(known, probe)
        return known

    def doubt(self, job_id: int, program: ProgramSpec, cpu_most_s: float, nodes: frozenset[int]) -> str:
        """Return the reason why a task cannot have done its work in `cpu_most_s`; empty if it can, or if unknown."""
        iterations = -(-program.work_units // program.units_per_iteration)
        parts = parts_of(program.imbalance, program.rank, program.ranks, iterations)
        units = program.work_units * sum(times / divisor for divisor, times in parts) / iterations
        units *= mean_factor(program.profile, iterations)
        fastest = self.fastest(job_id, program.name, nodes)
        if fastest <= 0.0 or units <= TOLERANCE * fastest * cpu_most_s:
            return ""
        return (
            f"it is done with {units:.0f} work units in at most {cpu_most_s:.3f} s of CPU time; "
            f"the fastest known core does {fastest:.0f} per second: expected at most {TOLERANCE:g} times that"
        )
