"""The naming scheme of DFRS algorithms as data: actions at each kind of event, and limits [RR 4.5, Table 1].

<on submission>[ *][/per|/stretch-per]/OPT=<MIN|AVG|MAX>[/MINVT=seconds|/MINFT=seconds]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import TypeVar

from testbed.errors import UserError

DEFAULT_PERIOD_S = 600.0  # [RR 5.1]: twice the rescheduling penalty
CATALOGUE_LIMITS_S = (300.0, 600.0)  # one and two penalties [RR 5.1]


class OnSubmission(Enum):
    """How a new job gets its nodes; values as printed."""

    NOTHING = ""
    GREEDY = "Greedy"
    GREEDY_P = "GreedyP"
    GREEDY_PM = "GreedyPM"
    MCB8 = "MCB8"


class Periodic(Enum):
    """The action at every multiple of the period; values as printed."""

    NOTHING = ""
    MCB8 = "per"
    MCB8_STRETCH = "stretch-per"


class Optimise(Enum):
    """How CPU that remains after equal minimum yields is allocated; values as printed."""

    MIN = "MIN"
    AVG = "AVG"
    MAX = "MAX"


class Limit(Enum):
    """The time of a running job that protects it from being moved by a packing; values as printed."""

    VIRTUAL_TIME = "MINVT"
    FLOW_TIME = "MINFT"


class NotInGrammarError(UserError):
    """A text that is not a name of the scheme, or a name of a combination that Table 1 does not have."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One algorithm of the scheme. `name` is its catalogue name; the period is a separate setting.

    `opportunistic` is the `*`: jobs are also started when others complete. `limit_s` seconds of `limit` time
    protect a running job. Raises NotInGrammarError for a combination that the scheme does not have.
    """

    on_submission: OnSubmission
    opportunistic: bool
    periodic: Periodic
    optimise: Optimise
    limit: Limit | None = None
    limit_s: float = 0.0
    period_s: float = DEFAULT_PERIOD_S

    def __post_init__(self) -> None:
        if fault := self._fault():
            raise NotInGrammarError(f"policy {self.name!r}: {fault}")

    @property
    def name(self) -> str:
        """The catalogue name, such as `GreedyPM */per/OPT=MIN/MINVT=600`."""
        parts = [self.on_submission.value + (" *" if self.opportunistic else "")]
        if self.periodic is not Periodic.NOTHING:
            parts.append(self.periodic.value)
        parts.append(f"OPT={self.optimise.value}")
        if self.limit is not None:
            parts.append(f"{self.limit.value}={repr(self.limit_s).removesuffix('.0')}")
        return "/".join(parts)

    @property
    def packs(self) -> bool:
        """Whether MCB8 is used at all."""
        return self.periodic is not Periodic.NOTHING or self.on_submission is OnSubmission.MCB8

    def _fault(self) -> str | None:
        stretch = self.periodic is Periodic.MCB8_STRETCH
        nothing_new = self.on_submission is OnSubmission.NOTHING
        limit = "" if self.limit is None else self.limit.value
        rules = (
            (nothing_new and self.opportunistic, "'*' needs an action on submission"),
            (stretch and not nothing_new, "stretch-per has no action on submission"),
            (
                not self.opportunistic and self.periodic is Periodic.NOTHING,
                "without '*' and without a periodic pass a job may wait for ever",
            ),
            (stretch and self.optimise is Optimise.MIN, "stretch-per has OPT=AVG or OPT=MAX"),
            (not stretch and self.optimise is Optimise.MAX, "OPT=MAX is for stretch-per only"),
            (limit and not self.packs, f"{limit} limits MCB8, which this policy does not use"),
            (limit and not 0.0 < self.limit_s < inf, f"{limit} must be a positive number of seconds"),
            (not 0.0 < self.period_s < inf, f"the period must be positive seconds, not {self.period_s}"),
        )
        return next((text for broken, text in rules if broken), None)


_NAME = re.compile(
    r"""\s* (?P<submission> greedypm | greedyp | greedy | mcb8 | ) \s* (?P<star> \* )? \s*
    (?: / \s* (?P<periodic> stretch-per | per ) \s* )?
    / \s* opt \s* = \s* (?P<optimise> min | avg | max ) \s*
    (?: / \s* (?P<limit> minvt | minft ) \s* = \s* (?P<limit_s> \d+ (?: \.\d+ )? (?: e \+? \d+ )? ) \s* )?""",
    re.IGNORECASE | re.VERBOSE,
)

E = TypeVar("E", bound=Enum)


def _member(kind: type[E], text: str | None) -> E:
    return next(member for member in kind if member.value.casefold() == (text or "").casefold())


def parse_configuration(name: str, period_s: float = DEFAULT_PERIOD_S) -> Configuration:
    """Parse a name of the scheme; spaces and case do not matter. Raises NotInGrammarError for any other text."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise NotInGrammarError(f"policy {name!r}: not a name of the scheme")
    limit = match["limit"]
    return Configuration(
        on_submission=_member(OnSubmission, match["submission"]),
        opportunistic=match["star"] is not None,
        periodic=_member(Periodic, match["periodic"]),
        optimise=_member(Optimise, match["optimise"]),
        limit=None if limit is None else _member(Limit, limit),
        limit_s=0.0 if limit is None else float(match["limit_s"]),
        period_s=period_s,
    )


def catalogue() -> Iterator[Configuration]:
    """Yield the 116 algorithms of [RR]: 3 x 2 without MCB8, 11 x 2 x 5 with it."""
    rows: list[tuple[OnSubmission, bool, Periodic]]
    rows = [(new, True, Periodic.NOTHING) for new in OnSubmission if new is not OnSubmission.NOTHING]
    rows += [
        (new, star, Periodic.MCB8)
        for star in (False, True)
        for new in OnSubmission
        if new is not OnSubmission.NOTHING or not star
    ]
    rows.append((OnSubmission.NOTHING, False, Periodic.MCB8_STRETCH))
    for new, star, periodic in rows:
        stretch = periodic is Periodic.MCB8_STRETCH
        for optimise in (Optimise.MAX if stretch else Optimise.MIN, Optimise.AVG):
            plain = Configuration(new, star, periodic, optimise)
            yield plain
            if plain.packs:
                for limit in Limit:
                    for limit_s in CATALOGUE_LIMITS_S:
                        yield replace(plain, limit=limit, limit_s=limit_s)
