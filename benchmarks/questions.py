"""Test hypotheses about the differences between [RR]'s printed tables and ours: simulate tables with and without each.

    python benchmarks/questions.py --list
    TESTBED_TRACES=logs python benchmarks/questions.py --out questions > page.md
    python benchmarks/questions.py --out questions --only stretch-search > page.md

Each file in `printed/questions` is one hypothesis: a question, the printed values that it predicts, a change (a patch
of this project's files, a factor, or the loads that count), and the campaigns that the change may affect. The script
simulates each campaign with the last commit and with its patch, in copies. A hypothesis explains a difference only if
the changed values agree with print, by the rule of `against_print.py`, and no other value stops agreeing. The project
adopts no change only because it comes nearer to print.
Campaigns that are complete in the folder `--out` for the same commit are not simulated again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from against_print import Compared, compare, read_results
from part_of_campaign import part

from testbed.errors import UserError

ROOT = Path(__file__).parents[1]
QUESTIONS = Path(__file__).parent / "printed/questions"
CATALOGUE = ROOT / "scenarios/campaigns/rr7659-catalogue.toml"
BOUND = "fluid"  # the printed degradations fit it


@dataclass(frozen=True)
class Campaign:
    """A part of the catalogue: one set of traces, some policies, and the measures that are compared."""

    traces: str
    policies: tuple[str, ...]
    loads: str = ""
    measures: tuple[str, ...] = ("degradation",)

    def text(self) -> str:
        """Return the campaign's file."""
        kept = part(CATALOGUE.read_text(encoding="utf-8"), self.traces, self.loads)
        head = kept.partition("[[tables]]")[0]
        policies = "".join(f"  {json.dumps(name)},\n" for name in self.policies)
        return re.sub(r"^policies = \[.*?^\]", f"policies = [\n{policies}]", head, flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Question:
    """A reason why print could differ, and the campaigns in which it would show.

    Instead of a patch it may have a factor of our values, or the loads of which traces are taken.
    """

    name: str
    asks: str
    expects: str
    patch: str
    factor: float
    loads: tuple[float, ...]
    campaigns: tuple[Campaign, ...]


def read_question(path: Path) -> Question:
    """Read the file of a question."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    campaigns = tuple(
        Campaign(**{key: tuple(value) if isinstance(value, list) else value for key, value in each.items()})
        for each in found["campaign"]
    )
    return Question(
        path.stem, found["asks"], found["expects"], found.get("patch", ""), found.get("factor", 1.0),
        tuple(found.get("loads", ())), campaigns,
    )  # fmt: skip


def run(*command: str | Path, cwd: Path, given: str | None = None) -> str:
    """Run a command; raise `UserError` with its last words if it fails."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, input=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"{' '.join(map(str, command[:4]))}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def copy_of(commit: str, patch: str, folder: Path) -> Path:
    """Return a copy of the commit with the patch; a patch that does not apply any more raises `UserError`."""
    if not folder.is_dir():
        made = folder.with_suffix(".part")
        run("git", "clone", "--quiet", "--no-checkout", ROOT, made, cwd=ROOT)
        run("git", "checkout", "--quiet", "--detach", commit, cwd=made)
        if patch:
            run("git", "apply", "-", cwd=made, given=patch)
        made.rename(folder)
    return folder


def simulate(tree: Path, campaign: Campaign, folder: Path) -> list[dict[str, str]]:
    """Return the results of a campaign with the code in `tree`."""
    file = folder.with_suffix(".toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(campaign.text(), encoding="utf-8")
    run(sys.executable, "-m", "testbed", "campaign", file.resolve(), "--out", folder.resolve(), cwd=tree)
    return read_results(folder)


def rows_of(campaign: Campaign, results: Sequence[dict[str, str]]) -> dict[tuple[str, ...], Compared]:
    """Return the comparisons with print that a campaign is for."""
    found = {}
    for each in compare(results):
        if each.measure not in campaign.measures or (
            each.measure == "degradation" and not each.ours_of.endswith(BOUND)
        ):
            continue
        found[each.table, each.traces, each.algorithm, each.measure, each.statistic, each.ours_of] = each
    return found


def answered(question: Question, commit: str, out: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each printed value: printed, ours, and ours with the patch."""
    plain = copy_of(commit, "", out / commit / "as-it-is")
    patched = copy_of(commit, question.patch, out / commit / question.name) if question.patch else plain
    for campaign in question.campaigns:
        name = f"{campaign.traces}-{hashlib.sha256(campaign.text().encode()).hexdigest()[:16]}"
        results = simulate(plain, campaign, out / commit / "runs/as-it-is" / name)
        before = after = rows_of(campaign, results)
        if question.loads:
            after = rows_of(campaign, [row for row in results if float(row["load"]) in question.loads])
        elif question.patch:
            after = rows_of(campaign, simulate(patched, campaign, out / commit / "runs" / question.name / name))
        for key, each in before.items():
            new = after[key]
            value = new.ours * question.factor
            yield {
                "question": question.name, "table": each.table, "traces": each.traces, "algorithm": each.algorithm,
                "measure": each.measure, "statistic": each.statistic, "ours_of": each.ours_of, "printed": each.printed,
                "ours": each.ours, "agrees": each.agrees, "with": value,
                "with_agrees": judged_again(new, value, question.factor),
            }  # fmt: skip


def judged_again(each: Compared, value: float, factor: float) -> bool | None:
    """Return whether a value that was multiplied agrees, with its error multiplied as well."""
    if factor == 1.0 or each.agrees is None:
        return each.agrees
    return abs(value - each.printed) <= 1.96 * each.error * factor + 0.005


def page(questions: Sequence[Question], rows: Sequence[dict[str, Any]]) -> str:
    """Return the summary, and all values, as Markdown."""
    lines = [
        "| question | values judged | agree | with the change | ratio print / ours | with the change |",
        "|---" * 6 + "|",
    ]
    for question in questions:
        own = [row for row in rows if row["question"] == question.name]
        told = [row for row in own if row["agrees"] is not None]
        ratios = [
            sorted(row["printed"] / row[name] for row in own if row[name] and row["printed"])
            for name in ("ours", "with")
        ]
        spread = [f"{some[len(some) // 2]:.2f} ({some[0]:.2f} to {some[-1]:.2f})" if some else "" for some in ratios]
        lines.append(
            f"| {question.name} | {len(told)} | {sum(row['agrees'] for row in told)} | "
            f"{sum(bool(row['with_agrees']) for row in told)} | {spread[0]} | {spread[1]} |"
        )
    for question in questions:
        lines += [
            "",
            f"### {question.name}",
            "",
            question.asks.strip(),
            "",
            f"*Expected*: {question.expects.strip()}",
            "",
        ]
        heads = ("table", "traces", "algorithm", "measure", "printed", "ours of", "ours", "with the change")
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for row in rows:
            if row["question"] == question.name:
                marks = [{True: " agrees", False: "", None: ""}[row[name]] for name in ("agrees", "with_agrees")]
                names = [row[name].replace("*", chr(92) + "*") for name in ("algorithm", "ours_of")]
                lines.append(
                    f"| {row['table']} | {row['traces']} | {names[0]} | {row['measure']}, {row['statistic']} | "
                    f"{row['printed']:,g} | {names[1]} | {row['ours']:,.4g}{marks[0]} | "
                    f"{row['with']:,.4g}{marks[1]} |"
                )
    return "\n".join(lines)


def main() -> None:
    """Ask the chosen questions, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the questions")
    parser.add_argument("--only", default="", metavar="NAMES", help="names of questions, separated by commas")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="copies of the code, and results of campaigns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a line of JSON for each value")
    options = parser.parse_args()
    there = {path.stem: path for path in sorted(QUESTIONS.glob("*.toml"))}
    names = options.only.split(",") if options.only else list(there)
    if unknown := sorted(set(names) - set(there)):
        parser.error(f"no question {unknown[0]!r}; there is: {', '.join(there)}")
    questions = [read_question(there[name]) for name in names]
    if options.list:
        print("\n".join(f"{each.name}: {each.asks.strip()}" for each in questions))
        return
    if options.out is None:
        parser.error("--out is missing: a folder for copies of the code and results")
    out = options.out.resolve()
    rows: list[dict[str, Any]] = []
    try:
        commit = run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
        for question in questions:
            print(f"{question.name} ...", file=sys.stderr, flush=True)
            rows += answered(question, commit, out)
    except UserError as error:
        sys.exit(f"questions: {error}")
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(page(questions, rows))


if __name__ == "__main__":
    main()
