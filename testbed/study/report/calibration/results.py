"""The checked figures of experiments on a calibration's page: an error affects only its own experiment's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from testbed.errors import UserError, printable, shown
from testbed.study.calibration.checked import NAME
from testbed.study.calibration.experiment import Experiment
from testbed.study.calibration.model import Calibration
from testbed.study.calibration.results import guarded
from testbed.study.calibration.trials import Trials
from testbed.study.report.calibration.data import Clocks, Measured, Series
from testbed.study.report.page.style import Absent, Chart, Headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")


@dataclass(slots=True)
class Shown:
    """Figures by section, series and clocks of all experiments, headlines, and notes on failures.

    `of_reschedulings` is the reason why the first experiment on reschedulings has no data, `of_clocks` the same for
    clocks.
    """

    sections: dict[str, list[Chart | Absent]] = field(default_factory=dict)
    headlines: list[Headline] = field(default_factory=list)
    penalties: list[Series] = field(default_factory=list)
    clocks: list[Clocks] = field(default_factory=list)
    of_reschedulings: str = ""
    of_clocks: str = ""
    notes: list[str] = field(default_factory=list)


def shown_by(
    trials: Trials, calibration: Calibration, experiments: Sequence[Experiment], taken: AbstractSet[str] = frozenset()
) -> Shown:
    """Return the results of all experiments, in their order; `taken` are names on the page that no figure may have."""
    found = Shown()
    names = set(taken)
    for experiment in experiments:
        measured = Measured(experiment.name, trials, calibration)
        found.headlines += _each(measured, experiment.headlines, Headline, found.notes) or ()
        penalties = _each(measured, experiment.penalties, Series, found.notes)
        clocks = _each(measured, experiment.clocks, Clocks, found.notes)
        found.penalties += penalties or ()
        found.clocks += clocks or ()
        if penalties is not None:
            found.of_reschedulings = found.of_reschedulings or measured.why_not()
        if clocks is not None:
            found.of_clocks = found.of_clocks or measured.why_not()
        figures = _figures(experiment, measured, names, found.notes)
        names |= {figure.name for figure in figures}
        if figures:
            found.sections.setdefault(experiment.section, []).extend(figures)
    return found


def _each(
    measured: Measured, method: Callable[[Measured], Sequence[T] | None], kind: type[T], notes: list[str]
) -> list[T] | None:
    """Return the checked results of an experiment's method, None if it has none or failed."""

    def made() -> list[T] | None:
        found = method(measured)
        for one in found or ():
            if not isinstance(one, kind):
                raise UserError(f"experiment {measured.experiment}: {shown(one)}: expected a {kind.__name__}")
            if not _drawable(one):
                words = f"{kind.__name__} {shown(getattr(one, 'label', getattr(one, 'title', '')))}"
                raise UserError(f"experiment {measured.experiment}: {words}: expected finite numbers of every row")
        return None if found is None else list(found)

    return guarded(measured.experiment, method.__name__, made, notes)


def _drawable(one: object) -> bool:
    """Return whether the common figures of several experiments can be drawn from this object."""
    match one:
        case Series():
            return len(one.rows) > 0 and bool(np.isfinite(one.values).all())
        case Clocks():
            return len(one.x_s) == len(one.y_s) == len(one.rows) and bool(np.isfinite([one.x_s, one.y_s]).all())
    return True


def _figures(
    experiment: Experiment, measured: Measured, taken: AbstractSet[str], notes: list[str]
) -> list[Chart | Absent]:
    """Return the figures of an experiment, or a single placeholder with the error if they are invalid."""

    def made() -> list[Chart | Absent]:
        found = list(experiment.figures(measured))
        names = [_checked_name(experiment.name, one) for one in found]
        for place, name in enumerate(names):
            if name in taken or name in names[:place]:
                raise UserError(f"experiment {experiment.name}: figure {name}: expected a name of its own")
        return [_guarded(experiment.name, one) for one in found]

    failures: list[str] = []
    found = guarded(experiment.name, "figures", made, failures)
    if found is not None:
        return found
    notes += failures
    return [Absent(f"failed_{experiment.name.replace('-', '_')}", experiment.about, f"{failures[0]}.")]


def _checked_name(experiment: str, figure: object) -> str:
    if not isinstance(figure, Chart | Absent):
        raise UserError(f"experiment {experiment}: {shown(figure)}: expected a Chart or an Absent")
    if not isinstance(figure.name, str) or not NAME.fullmatch(figure.name):
        expected = "a name of small letters, digits and '_'"
        raise UserError(f"experiment {experiment}: figure {shown(figure.name)}: expected {expected}")
    texts = (figure.title, figure.caption, figure.alt) if isinstance(figure, Chart) else (figure.title, figure.reason)
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"experiment {experiment}: figure {figure.name}: {shown(texts)}: expected texts")
    return figure.name


def _guarded(experiment: str, figure: Chart | Absent) -> Chart | Absent:
    """Return a chart that shows the error in place of its drawing if `draw` raises one."""
    if isinstance(figure, Absent):
        return figure
    draw = figure.draw

    def safe(canvas: Figure) -> None:
        try:
            draw(canvas)
            canvas.draw_without_rendering()
        except Exception as error:  # noqa: BLE001  # no error of a plug-in may prevent the page
            words = f"experiment {experiment}: this figure cannot be drawn:\n{type(error).__name__}: {error}"
            canvas.clear()
            canvas.text(0.02, 0.5, "\n".join(map(printable, words.split("\n"))), va="center", wrap=True)

    return replace(figure, draw=safe)
