"""The order of a campaign's runs: a randomised block design in which each repeat does every case once.

Drift, such as a machine that becomes slower, then affects all cases alike. A campaign that is stopped early has run all
cases about equally often.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.packaged import find_scenario
from testbed.study.live_campaign.file import LiveCampaign


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of scenario, policy and seed, which is repeated; `seed` is None for the scenario's own."""

    scenario: Path
    policy: str
    seed: int | None

    def __str__(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.scenario.stem} under {self.policy}{seed}"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One repeat of a case."""

    case: Case
    repeat: int

    @property
    def key(self) -> str:
        """Identity of the run within the campaign."""
        return f"{self.case}, repeat {self.repeat}"


def cases_of(campaign: LiveCampaign, file: Path) -> list[Case]:
    """Return all cases. Raises `UserError` for a scenario that does not exist."""
    found = []
    for table in campaign.scenario:
        beside = file.parent / table.file
        path = beside if beside.is_file() else find_scenario(table.file)
        seeds: Sequence[int | None] = table.seeds or (None,)
        found += [Case(path, policy, seed) for seed in seeds for policy in campaign.policies]
    return found


def planned(campaign: LiveCampaign, cases: Sequence[Case]) -> Iterator[list[PlannedRun]]:
    """Yield the runs of each repeat in their order, which is determined by `order_seed`."""
    for repeat in range(1, campaign.repeats + 1):
        order = [PlannedRun(case, repeat) for case in cases]
        random.Random(f"{campaign.order_seed}/{repeat}").shuffle(order)  # noqa: S311  # an order of runs is no secret
        yield order
