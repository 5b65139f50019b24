"""Rankings under overhead models as text, CSV, LaTeX and a figure."""

from __future__ import annotations

from pathlib import Path

from testbed.host.whole_files import csv_text
from testbed.scheduling.campaign.figures import drawing
from testbed.scheduling.campaign.model import RankingSpec
from testbed.scheduling.campaign.rankings import Best, Ranking
from testbed.scheduling.campaign.tables import aligned, latex_table, tex
from testbed.scheduling.workload.files import write_text


def write_ranking(folder: Path, spec: RankingSpec, ranking: Ranking) -> str:
    """Write NAME.txt, .csv and .tex and NAME-models.csv to tables/, NAME.svg and .pdf to figures/; return the text.

    Raises UserError for files that cannot be written, RunError without matplotlib.
    """
    text = as_text(spec, ranking)
    tables = folder / "tables"
    write_text(tables / f"{spec.name}.txt", text)
    write_text(tables / f"{spec.name}.csv", policies_csv(spec, ranking))
    write_text(tables / f"{spec.name}-models.csv", models_csv(spec, ranking))
    write_text(tables / f"{spec.name}.tex", as_latex(spec, ranking))
    _draw(folder / "figures", spec, ranking)
    return text


def as_text(spec: RankingSpec, ranking: Ranking) -> str:
    """Return the means and ranks of policies, the agreement of rankings and the gains, in plain characters."""
    if not ranking.traces:
        return f"{spec.title}\n\nno trace has results of every policy under every model yet\n"
    blocks = [
        [spec.title],
        [f"  {name}: {about}" for name, about in zip(ranking.models, ranking.about, strict=True)],
        [f"mean {spec.measure} over {ranking.traces} traces, and rank; less is better"],
        aligned(
            [["Algorithm", *(head for model in ranking.models for head in (model, "rank"))], *_body(spec, ranking)]
        ),
        ["Kendall's tau between the rankings"],
        aligned([["", *ranking.models], *_agreement(ranking)]),
        [f"Gain: {spec.baseline} over the DFRS policy with the least mean, trace by trace"],
        aligned([["", "best DFRS policy", "mean gain", "std.", "least", "most"], *_gains(spec, ranking)]),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _body(spec: RankingSpec, ranking: Ranking) -> list[list[str]]:
    return [
        [
            policy,
            *(
                text
                for cell, rank in zip(cells, ranks, strict=True)
                for text in (f"{cell.mean:,.{spec.digits}f}", f"{rank:g}")
            ),
        ]
        for policy, cells, ranks in zip(ranking.policies, ranking.cells, ranking.ranks, strict=True)
    ]


def _agreement(ranking: Ranking) -> list[list[str]]:
    return [
        [model, *("-" if tau is None else f"{tau:.3f}" for tau in taus)]
        for model, taus in zip(ranking.models, ranking.tau, strict=True)
    ]


def _gains(spec: RankingSpec, ranking: Ranking) -> list[list[str]]:
    return [[model, *_gain(spec, best)] for model, best in zip(ranking.models, ranking.best, strict=True)]


def _gain(spec: RankingSpec, best: Best | None) -> list[str]:
    if best is None:
        return ["-"] * 5
    gain = best.gain
    std = "-" if gain.count == 1 else f"{gain.std:,.{spec.digits}f}"
    mean, least, most = (f"{value:,.{spec.digits}f}" for value in (gain.mean, best.lowest, gain.maximum))
    return [best.policy, mean, std, least, most]


def policies_csv(spec: RankingSpec, ranking: Ranking) -> str:
    """Return one line per policy and model, with all digits."""
    lines = [
        [policy, model, spec.measure, cell.count, cell.mean, "" if cell.count == 1 else cell.std, cell.maximum, rank]
        for policy, cells, ranks in zip(ranking.policies, ranking.cells, ranking.ranks, strict=True)
        for model, cell, rank in zip(ranking.models, cells, ranks, strict=True)
    ]
    return csv_text(["policy", "overheads", "measure", "count", "mean", "std", "max", "rank"], lines)


def models_csv(spec: RankingSpec, ranking: Ranking) -> str:
    """Return one line per model: its best DFRS policy, the gain over the baseline, and tau with every model."""
    lines: list[list[object]] = []
    for model, best, taus in zip(ranking.models, ranking.best, ranking.tau, strict=True):
        gain = (
            [""] * 5 if best is None else [best.policy, best.gain.mean, best.gain.std, best.lowest, best.gain.maximum]
        )
        if best is not None and best.gain.count == 1:
            gain[2] = ""
        lines.append([model, spec.baseline, *gain, *("" if tau is None else tau for tau in taus)])
    heads = ["overheads", "baseline", "best_policy", "gain_mean", "gain_std", "gain_min", "gain_max"]
    return csv_text([*heads, *(f"tau with {model}" for model in ranking.models)], lines)


def as_latex(spec: RankingSpec, ranking: Ranking) -> str:
    """Return a `table` environment that needs the package booktabs: means and ranks, then gains and tau."""
    count = len(ranking.models)
    over = " & ".join(rf"\multicolumn{{2}}{{c}}{{{tex(model)}}}" for model in ranking.models)
    gains = [["Best DFRS policy"], [f"Mean gain over {spec.baseline}"], [r"Kendall's tau with the first"]]
    for best, tau in zip(ranking.best, ranking.tau, strict=True):
        policy, mean, *_ = _gain(spec, best)
        gains[0].append(policy)
        gains[1].append(mean)
        gains[2].append("-" if tau[0] is None else f"{tau[0]:.3f}")
    spans = [[rf"\multicolumn{{2}}{{c}}{{{tex(cell)}}}" for cell in cells] for _, *cells in gains]
    lines = [
        rf" & {over} \\", rf"Algorithm{' & avg. & rank' * count} \\", r"\midrule",
        *[" & ".join(map(tex, row)) + r" \\" for row in _body(spec, ranking)], r"\midrule",
        *[" & ".join([tex(row[0]), *cells]) + r" \\" for row, cells in zip(gains, spans, strict=True)],
    ]  # fmt: skip
    return latex_table(spec, 2 * count, lines)


def _draw(folder: Path, spec: RankingSpec, ranking: Ranking) -> None:
    """Draw ranks as lines from model to model, each mean at its point."""
    places = list(range(len(ranking.models)))
    with drawing(folder, spec.name, (3.4 + 2.0 * len(places), 1.8 + 0.4 * len(ranking.policies))) as (_, axes):
        for color, (policy, cells, ranks) in enumerate(
            zip(ranking.policies, ranking.cells, ranking.ranks, strict=True)
        ):
            axes.plot(places, ranks, color=f"C{color}", marker="o", markersize=5)
            for place, cell, rank in zip(places, cells, ranks, strict=True):
                text = f"{cell.mean:,.{spec.digits}f}"
                axes.annotate(text, (place, rank), (0, 6), textcoords="offset points", ha="center", fontsize="x-small")
            axes.annotate(
                policy, (places[-1], ranks[-1]), (9, 0), textcoords="offset points", va="center",
                color=f"C{color}", fontsize="small", annotation_clip=False,
            )  # fmt: skip
        labels = [_under(spec, ranking, place) for place in places]
        axes.set_xticks(places, labels, fontsize="small")
        axes.set_xlim(-0.3, max(places, default=0) + 0.3)
        axes.set_yticks(range(1, len(ranking.policies) + 1))
        axes.invert_yaxis()
        axes.set_ylabel("rank (1 is the best)")
        axes.set_title(spec.title, fontsize="medium", wrap=True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)


def _under(spec: RankingSpec, ranking: Ranking, place: int) -> str:
    best, tau = ranking.best[place], ranking.tau[0][place]
    lines = [ranking.models[place]]
    if place > 0 and tau is not None:
        lines.append(f"tau with the first {tau:.2f}")
    if best is not None:
        lines.append(f"best DFRS gains {best.gain.mean:,.3g} x on {spec.baseline}")
    return "\n".join(lines)
