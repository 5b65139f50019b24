"""Leases a lab: creates token, requester and fleet, takes the lease, and waits for the nodes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.bus.lease import new_token
from testbed.bus.messages import OnControllerLoss
from testbed.bus.protocol import Bus
from testbed.bus.requests import Requester
from testbed.bus.suspicious_acts import ActLog
from testbed.errors import UserError
from testbed.lab.fleet import Fleet, rule_of
from testbed.lab.lab_record import LabRecord
from testbed.lab.lease import hold_lease
from testbed.lab.local_agents import last_words
from testbed.scenario.schema import DeadlinesTable, NodeTable, Scenario


@dataclass(frozen=True, slots=True)
class LeasedLab:
    """A lab under this process's lease. Set the fleet's callbacks before `ready`, which subscribes to the nodes."""

    fleet: Fleet
    requester: Requester
    deadlines: DeadlinesTable
    token: str

    async def announced(self, folder: Path | None = None) -> None:
        """Subscribe to the nodes' messages, and wait until every node has announced itself.

        Raises `UserError` if a node is silent, with the last log lines of the agents whose logs are in `folder`.
        """
        await self.fleet.open()
        try:
            await self.fleet.wait_for_all(self.deadlines.announce_s)
        except UserError as error:
            if folder is None:
                raise
            raise UserError(f"{error}{last_words(folder)}") from error

    async def any_announced(self) -> None:
        """Subscribe, and wait for every node until the deadline of an announcement; silent nodes are suspect then."""
        await self.fleet.open()
        await self.fleet.wait_for_any(self.deadlines.announce_s)

    async def ready(self, folder: Path | None = None) -> None:
        """Do as `announced`, then wait until no node has a guest of an earlier controller; raises `UserError`."""
        await self.announced(folder)
        await self.fleet.wait_until_empty(self.deadlines.announce_s)


@contextlib.asynccontextmanager
async def lease_lab(
    bus: Bus,
    lab: str,
    names: Sequence[str],
    client: str,
    *,
    deadlines: DeadlinesTable,
    tables: Sequence[NodeTable] = (),
    on_controller_loss: OnControllerLoss = "remove",
    force: bool = False,
    party: str = "",
    run: str = "",
    record: LabRecord | None = None,
    acts: ActLog | None = None,
) -> AsyncIterator[LeasedLab]:
    """Hold the lease of a lab inside the block, with the nodes of these names as a fleet.

    `client` is this controller's name on the bus. `tables` are the nodes' expected properties. For `force`, `party` and
    `run` see `hold_lease`. `record` stores the token for the next controller of the run. At the end the lease is
    released, whereupon agents destroy all remaining guests. Raises `UserError` when another controller drives the lab.
    """
    token = new_token()
    succeeds = () if record is None else record.begin(token)
    requester = Requester(bus, lab, client, lambda: token)
    fleet = Fleet(bus, lab, names, requester, rule_of(deadlines), tables, acts)
    if acts is not None:
        requester.on_bad_reply = acts.note
    holding = hold_lease(
        bus, lab, token, deadlines.lease_ttl_s, on_controller_loss=on_controller_loss, force=force, party=party,
        run=run, succeeds=succeeds, stays=lambda: record is not None and record.taking_over,
    )  # fmt: skip
    async with holding, requester:
        if record is not None:
            record.taken()
        yield LeasedLab(fleet, requester, deadlines, token)


def lease_scenario(
    bus: Bus,
    scenario: Scenario,
    client: str,
    *,
    names: Sequence[str] = (),
    acts: ActLog | None = None,
    run: str = "",
    record: LabRecord | None = None,
) -> contextlib.AbstractAsyncContextManager[LeasedLab]:
    """Lease the lab of a scenario, with the nodes of these names, by default all."""
    return lease_lab(
        bus, scenario.lab, names or [node.name for node in scenario.nodes], client, deadlines=scenario.deadlines,
        tables=scenario.nodes, on_controller_loss=scenario.on_controller_loss or "remove", acts=acts, run=run,
        record=record,
    )  # fmt: skip
