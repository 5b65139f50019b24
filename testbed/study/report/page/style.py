"""The style of figures, and their reproducible output as files or as inline SVG: equal figures give equal bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from testbed.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe-Ito: distinct under any kind of colour vision.
ORANGE: Final = "#E69F00"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
CYCLE: Final = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE)
DASHES: Final = ("-", "--", ":", "-.", (0, (5, 1, 1, 1)), (0, (1, 1)))

INK: Final = "#1d2329"  # in a page: the colour of its text
FAINT: Final = "#d5dade"  # in a page: the colour of its rules
WIDE_IN, NARROW_IN, HALF_IN = 11.0, 4.3, 4.9
FORMATS: Final = ("svg", "pdf", "png")
# Colours that a page replaces on a dark background (templates/page.css).
_VARIABLES: Final = {
    INK: "currentColor",
    FAINT: "var(--rule)",
    BLUE.lower(): "var(--blue)",
    VERMILION.lower(): "var(--vermilion)",
    GREEN.lower(): "var(--green)",
}
MOST_MARKS: Final = 4000  # a scatter plot of more points is rasterized inside the SVG

_RC: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "path.simplify": True,
    "text.parse_math": False,  # names may contain any character, such as $
}


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure: `draw` draws it into an empty one of any width; `name` is the name of its files and its id in a page.

    `caption` has the measured quantity, its unit and the number of observations; `alt` is its short version for screen
    readers. A wide chart takes the width of the page, and is drawn a second time for narrow screens.
    """

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[Figure], None]
    height_in: float = 3.2
    wide: bool = False

    @property
    def width_in(self) -> float:
        """The default width in inches, for a figure that is alone in its row."""
        return WIDE_IN if self.wide else HALF_IN

    def figure(self, width_in: float | None = None) -> Figure:
        """Return the drawn matplotlib figure, `width_in` inches wide, for changes before it is saved."""
        import matplotlib as mpl  # noqa: PLC0415  # of the extra `report`: a module with figures loads without it
        from matplotlib.figure import Figure  # noqa: PLC0415  # as above

        with mpl.rc_context({**_RC, "svg.hashsalt": self.name}):
            figure = Figure(figsize=(width_in or self.width_in, self.height_in), layout="constrained")
            self.draw(figure)
        return figure

    def rendered(self, form: str, width_in: float | None = None, *, ground: str = "white") -> bytes:
        """Return the figure as the content of a file in one of `FORMATS`; equal figures give equal bytes."""
        import matplotlib as mpl  # noqa: PLC0415  # as in `figure`

        with mpl.rc_context({**_RC, "svg.hashsalt": self.name}):
            buffer = io.BytesIO()
            dates: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
            self.figure(width_in).savefig(buffer, format=form, metadata=dates[form], facecolor=ground, dpi=200)
        return buffer.getvalue()

    def _repr_svg_(self) -> str:
        """Return the figure as SVG for a notebook."""
        return self.rendered("svg").decode()


@dataclass(frozen=True, slots=True)
class Absent:
    """The placeholder of a figure that a run cannot have, with the reason."""

    name: str
    title: str
    reason: str


@dataclass(frozen=True, slots=True)
class Headline:
    """One main number, for the top of a page."""

    value: str
    unit: str
    label: str


def short(text: str, most: int) -> str:
    """Return a name cut to `most` characters, so that a long label cannot displace a figure."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def single_axes(figure: Figure, x: str, y: str) -> Axes:
    """Return the only axes of a figure, with labels."""
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def log_scale(axes: Axes, side: Literal["x", "y"], low: float, high: float) -> None:
    """Make an axis from `low` to `high` logarithmic, with plain numbers at several ticks per decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415  # only to draw

    axes.set(**{f"{side}scale": "log"})
    axis = axes.xaxis if side == "x" else axes.yaxis
    close = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if high / low < 12.0 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=close if high / low < 300.0 else (1.0,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))


def legend_outside(figure: Figure, columns: int) -> None:
    """Put the legend above the axes: in `columns` where the figure is wide, in one where it is narrow."""
    figure.legend(loc="outside upper left", ncols=columns if figure.get_figwidth() > NARROW_IN + 0.5 else 1)


def write_chart(chart: Chart, folder: Path, form: str) -> Path:
    """Write the chart to FOLDER/NAME.FORM on a white background; return the path. Raises `UserError`."""
    path = folder / f"{chart.name}.{form}"
    data = chart.rendered(form)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror}") from error
    return path


def _round(tag: re.Match[str]) -> str:
    """Round the numbers in a tag to hundredths of a point, which is not visible."""
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0])


def inline_svg(chart: Chart, width_in: float, variant: str) -> str:
    """Return the chart as inline SVG for a page: with ids that are unique in the page, and with the page's colours."""
    text = chart.rendered("svg", width_in, ground="none").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)  # the page's own style has these
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    prefix = f"{chart.name}-{variant}-"
    text = re.sub(r'\sid="|href="#|url\(#', lambda match: match[0] + prefix, text)
    text = text.replace("font-family: 'DejaVu Sans'; ", "").replace("'DejaVu Sans'", "inherit")
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    text = re.sub(r"<[^>]*>", _round, text)
    head = re.match(r"<svg[^>]*>", text)
    box = re.search(r'viewBox="([^"]*)"', text)
    if head is None or box is None:
        raise ValueError(f"figure {chart.name}: no SVG")
    body = re.sub(r">\s+<", "><", text[head.end() :].strip())
    return (
        f'<svg class="{variant}" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box[1]}" role="img" '
        f'aria-label="{escape(chart.alt)}">{body}'
    )
