"""Capabilities of an agent's driver: the protocols that it implements, less those that this machine cannot support."""

from __future__ import annotations

from collections.abc import Mapping

from node_agent.drivers.protocol import (
    Driver,
    DriverError,
    DriverFacts,
    FindsSaves,
    GuessesWaits,
    Joins,
    Meter,
    Meters,
    Migrates,
    Natives,
    Reading,
    Saves,
    Shares,
    UnableError,
)
from testbed.bus.messages import Exchange, GuestSpec

PROTOCOLS: Mapping[str, type] = {
    "save": Saves, "live": Migrates, "mpi": Joins, "native": Natives, "shares": Shares, "traffic": GuessesWaits,
}  # fmt: skip
"""Optional protocols by the ability that nodes announce."""
_TASKS = {
    "save": "save and restore guests", "live": "migrate guests live", "mpi": "run members of MPI jobs",
    "native": "run programs outside guests", "shares": "let guests compete by shares",
    "traffic": "guess from traffic which ranks wait for which",
}  # fmt: skip


class Abilities:
    """Gives a driver as one of its protocols; raises `UnableError` for a protocol that it does not have here."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lacks: Mapping[str, str] = {}
        self.counts_waits = False
        """Whether ranks count for whom they wait, so that no guess is needed."""

    def found(self, facts: DriverFacts) -> tuple[str, ...]:
        """Take the facts that the driver found when it opened; return all capabilities of the node."""
        self._lacks = facts.lacks
        self.counts_waits = "waits" in facts.capabilities
        able = [name for name in PROTOCOLS if self._has(name)]
        images = [f"save:{self.saving.images.name}"] if "save" in able else []
        whole = ["whole"] if "save" in able and self.saving.images.whole else []
        return tuple(dict.fromkeys(("start", "cap", *able, *images, *whole, *facts.capabilities)))

    @property
    def saving(self) -> Saves:
        """The driver as one that saves guests."""
        if isinstance(self._driver, Saves) and "save" not in self._lacks:
            return self._driver
        raise self._refusal("save")

    @property
    def finding(self) -> FindsSaves | None:
        """The driver as one that recognises complete images of a killed agent's saves, None if it does not."""
        return self._driver if isinstance(self._driver, FindsSaves) and self._has("save") else None

    @property
    def migrating(self) -> Migrates:
        """The driver as one whose guests migrate live.

        Controllers order this only of nodes that announce it, so an order to a node without it is suspicious.
        """
        if isinstance(self._driver, Migrates) and "live" not in self._lacks:
            return self._driver
        refusal = self._refusal("live")
        refusal.suspicious = True
        raise refusal

    @property
    def joining(self) -> Joins:
        """The driver as one whose guests are members of MPI jobs."""
        if isinstance(self._driver, Joins) and "mpi" not in self._lacks:
            return self._driver
        raise self._refusal("mpi")

    @property
    def running_native(self) -> Natives:
        """The driver as one that runs programs outside guests."""
        if isinstance(self._driver, Natives) and "native" not in self._lacks:
            return self._driver
        raise self._refusal("native")

    @property
    def sharing(self) -> Shares:
        """The driver as one whose guests compete by shares."""
        if isinstance(self._driver, Shares) and "shares" not in self._lacks:
            return self._driver
        raise self._refusal("shares")

    @property
    def guessing(self) -> GuessesWaits:
        """The driver as one that guesses for whom guests wait."""
        if isinstance(self._driver, GuessesWaits) and "traffic" not in self._lacks:
            return self._driver
        raise self._refusal("traffic")

    def check_start(self, spec: GuestSpec, exchange: Exchange | None = None) -> None:
        """Raise `UnableError` for a rank of an MPI job, or a guest with a share, that this driver cannot create.

        The same holds for an exchange that needs guesses of waits, if the driver has none.
        """
        guesses = exchange is not None and exchange.waits == "traffic" and not self.counts_waits
        needs = {"mpi": spec.program.ranks > 1, "shares": spec.share_cores is not None, "traffic": guesses}
        for ability, is_needed in needs.items():
            if is_needed and not self._has(ability):
                raise self._refusal(ability)

    def _has(self, ability: str) -> bool:
        return isinstance(self._driver, PROTOCOLS[ability]) and ability not in self._lacks

    def _refusal(self, ability: str) -> UnableError:
        why = self._lacks.get(ability, f"it does not implement {PROTOCOLS[ability].__name__}")
        return UnableError(f"driver {self._driver.name!r} cannot {_TASKS[ability]}: {why}")


def meter_of(driver: Driver, guest: str) -> Meter:
    """Return a function that reads the CPU time and work units of a guest.

    It may be called from any thread if the driver implements `Meters`, else in the event loop only.
    """
    if isinstance(driver, Meters):
        return driver.meter(guest)

    def read() -> Reading:
        for sample in driver.sample():
            if sample.guest == guest:
                return Reading(sample.cpu_s, sample.units_done)
        raise DriverError(f"guest {guest} has ended")

    read()
    return read
