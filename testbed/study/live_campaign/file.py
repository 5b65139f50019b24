"""The file of a campaign of live runs.

kind = "live"
name = "held-out"
title = "The model of processes, judged on seeds that it was not made with"
policies = ["GreedyPM */per/OPT=MIN/MINVT=600", "EASY"]
repeats = 5                          # of each policy, scenario and seed
redo = 4                             # disturbed runs that are repeated, in total; default: the number of all runs

[[scenario]]
file = "quickstart"                  # a path relative to this file, or the name of a packaged scenario
seeds = [7, 8]                       # of the programs and of a generated trace; default: the scenario's own seed

[compare]
overheads = "processes.toml"         # as in `testbed compare`; a path relative to this file
goals = [0.05, 0.1]                  # equivalence margins of the median turnaround error and the max-stretch error
error_frac = 0.02                    # expected error; with the next line it gives the power that is printed
deviation_frac = 0.015               # expected standard deviation of the error over runs
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from testbed.study.compare.equivalence import LEAST_RUNS
from testbed.toml_files import first_mistake, read_toml

_Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
_Seed = Annotated[int, Field(ge=0)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScenarioTable(_Table):
    """A scenario to run once per seed in `seeds`; without seeds, with the scenario's own."""

    file: str
    seeds: tuple[_Seed, ...] = ()


class CompareTable(_Table):
    """The comparison with simulations: its overhead model, its goals, and the expected errors for the power."""

    overheads: str | None = None
    goals: tuple[_Share, _Share] = (0.05, 0.10)
    error_frac: _Share | None = None
    deviation_frac: _Share | None = None


class LiveCampaign(_Table):
    """A campaign of live runs."""

    kind: Literal["live"]
    name: _Name
    title: str = ""
    policies: Annotated[tuple[str, ...], Field(min_length=1)]
    repeats: Annotated[int, Field(ge=1, le=1000)] = LEAST_RUNS
    redo: Annotated[int, Field(ge=0)] | None = None
    order_seed: _Seed = 0
    scenario: Annotated[tuple[ScenarioTable, ...], Field(min_length=1)]
    compare: CompareTable = CompareTable()


def is_live(path: Path) -> bool:
    """Return whether a file declares a campaign of live runs. Raises `UserError` for an unreadable file."""
    return read_toml(path, "a campaign").get("kind") == "live"


def load_live_campaign(path: Path) -> LiveCampaign:
    """Read and check the file of a campaign of live runs. Raises `UserError`."""
    data = read_toml(path, "a campaign of live runs")
    try:
        return LiveCampaign.model_validate(data)
    except ValidationError as error:
        raise first_mistake(path, LiveCampaign, error) from None
