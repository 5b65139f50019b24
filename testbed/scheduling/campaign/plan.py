"""The plan of a campaign: simulations and bounds by key, and the units of work that are still to do.

The key of a simulation is a digest of all inputs of its result, without the code: the jobs (their source), the nodes
and their memory, the policy and its period, the overheads, tau. The key of a bound covers jobs, nodes, tau and kind.
A result is reused wherever the same key is needed again, also after the campaign file has changed.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from testbed.errors import UserError
from testbed.scheduling.bound.max_stretch import Kind
from testbed.scheduling.campaign.digests import digest, overheads_digest
from testbed.scheduling.campaign.instances import Instance, Recipe, TraceSets
from testbed.scheduling.simulation.named import named
from testbed.scheduling.simulation.overheads import DEFAULT_PENALTY_S, Overheads, constant
from testbed.scheduling.simulation.overheads_parser import parse_overheads

OWN_CALIBRATION = "calibration"  # in a list of overheads
CALIBRATION_VARIABLE = "TESTBED_CALIBRATION"


@dataclass(frozen=True, slots=True)
class Setting:
    """One policy as it is simulated on every trace. `period_s` is None for policies that act on events alone."""

    policy: str
    period_s: float | None
    penalty_s: float | None  # None with a model of overheads
    overheads: Overheads


@dataclass(frozen=True, slots=True)
class Simulation:
    """One setting on one trace."""

    key: str
    setting: Setting


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of work: simulations of one trace, and its bounds that are not known yet."""

    name: str  # digest of the keys and the code; names the file of its results
    label: str
    recipe: Recipe
    tau_s: float
    node_memory_gb: float
    simulations: tuple[Simulation, ...]
    bounds: tuple[tuple[str, Kind], ...]  # key, kind


@dataclass(frozen=True, slots=True)
class Asked:
    """The simulations and bounds that a campaign asks for on one trace."""

    instance: Instance
    simulations: tuple[Simulation, ...]
    bounds: tuple[tuple[str, Kind], ...]

    @property
    def keys(self) -> list[str]:
        """Return the keys of simulations and bounds."""
        return [simulation.key for simulation in self.simulations] + [key for key, _ in self.bounds]


class Plan:
    """A campaign on its traces; `calibration` is the user's file, by default that of $TESTBED_CALIBRATION.

    Raises UserError for invalid traces, policies and overheads, for a missing calibration, and for a given
    `calibration` that the campaign does not use.
    """

    def __init__(self, sets: TraceSets, calibration: Path | None = None) -> None:
        campaign = sets.campaign
        self.sets = sets
        self.settings = _settings(sets, calibration)
        figures = [overheads_digest(setting.overheads) for setting in self.settings]
        self.asked: list[Asked] = []
        for instance in sets.instances():
            of_trace = (instance.identity, instance.nodes, campaign.tau_s)
            self.asked.append(
                Asked(
                    instance,
                    tuple(
                        Simulation(
                            digest(*of_trace, setting.policy, setting.period_s, costs, campaign.node_memory_gb), setting
                        )
                        for setting, costs in zip(self.settings, figures, strict=True)
                    ),
                    tuple((digest(*of_trace, "bound", kind), kind) for kind in campaign.bounds),
                )
            )

    def keys(self) -> set[str]:
        """Return the keys of all simulations and bounds."""
        return {key for asked in self.asked for key in asked.keys}

    def left(self, settled: Container[str], limit: int | None = None) -> int:
        """Return the number of simulations and bounds that are not settled, of the same traces as `units`."""
        chosen = (asked for asked in self.asked if limit is None or asked.instance.number < limit)
        return len({key for asked in chosen for key in asked.keys if key not in settled})

    def units(self, settled: Container[str], code: str, limit: int | None = None) -> Iterator[Unit]:
        """Yield the units whose keys are not settled, of the first `limit` seeds, weeks or files of each set.

        Two sets that share a trace share its unit.
        """
        taken: set[str] = set()
        for asked in self.asked:
            instance = asked.instance
            if limit is not None and instance.number >= limit:
                continue
            left = [key for key in asked.keys if key not in settled and key not in taken]
            if not left:
                continue
            taken.update(left)
            wanted = set(left)
            yield Unit(
                name=digest(sorted(left), code),
                label=instance.label,
                recipe=self.sets.recipe(instance),
                tau_s=self.sets.campaign.tau_s,
                node_memory_gb=self.sets.campaign.node_memory_gb,
                simulations=tuple(one for one in asked.simulations if one.key in wanted),
                bounds=tuple((key, kind) for key, kind in asked.bounds if key in wanted),
            )


def _settings(sets: TraceSets, calibration: Path | None) -> list[Setting]:
    campaign = sets.campaign
    costs: list[tuple[float | None, Overheads]]
    models = () if campaign.overheads is None else tuple(dict.fromkeys(campaign.overheads))
    if calibration is not None and not any(_is_own(text) for text in models):
        raise UserError(f"{sets.path}: its overheads do not ask for a calibration, such as {calibration}")
    if models:
        costs = [(None, replace(parse_overheads(_located(text, sets, calibration)), name=text)) for text in models]
    else:
        penalties_s = (DEFAULT_PENALTY_S,) if campaign.penalty_s is None else campaign.penalty_s
        costs = [(penalty_s, constant(penalty_s)) for penalty_s in dict.fromkeys(penalties_s)]
    return [
        Setting(name, period_s, penalty_s, overheads)
        for penalty_s, overheads in costs
        for name in campaign.policies
        for period_s in (dict.fromkeys(campaign.periods_s) if has_period(name) else (None,))
    ]


def _is_own(text: str) -> bool:
    """Whether a model is the user's calibration."""
    return text.partition("#")[0] == OWN_CALIBRATION


def _located(text: str, sets: TraceSets, calibration: Path | None) -> str:
    """Return the text of a model, with the path of its file resolved if it has one."""
    file, mark, key = text.partition("#")
    if _is_own(text):
        own = calibration or os.environ.get(CALIBRATION_VARIABLE)
        if not own:
            raise UserError(
                f"{sets.path}: overheads {text!r} are those of your own hardware: name the file that "
                f"`testbed calibrate` wrote by --calibration FILE or ${CALIBRATION_VARIABLE}"
            )
        if not str(own).lower().endswith(".toml"):
            raise UserError(f"calibration {own}: expected a .toml file, as `testbed calibrate` writes it")
        return f"{own}{mark}{key}"
    if file.lower().endswith(".toml"):
        return str(sets.path.parent / file) + mark + key
    return text


def has_period(name: str) -> bool:
    """Whether a policy depends on the period; a policy with a period in its name, such as DYNMCB8-PER-300, does not.

    Plug-ins that cannot be compared are assumed to depend on it.
    """
    return named(name, 600.0) != named(name, 601.0)
