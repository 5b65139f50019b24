"""The report of a sweep: results, tables, figures."""

from __future__ import annotations

from pathlib import Path

from testbed.scheduling.campaign.figures import lines_of, write_figure
from testbed.scheduling.campaign.plan import Plan
from testbed.scheduling.campaign.rankings import rank
from testbed.scheduling.campaign.rankings_drawn import write_ranking
from testbed.scheduling.campaign.results import rows_of, write_results
from testbed.scheduling.campaign.summary import summarise
from testbed.scheduling.campaign.sweep import Results
from testbed.scheduling.campaign.tables import write_table


def write_report(folder: Path, plan: Plan, results: Results) -> list[str]:
    """Write results, tables and figures of the completed work to a folder, and return the tables as texts.

    Raises UserError for files that cannot be written, RunError where an extra is missing.
    """
    campaign = plan.sets.campaign
    rows = rows_of(plan, results)
    write_results(folder, rows)
    if campaign.tables or campaign.rankings:
        (folder / "tables").mkdir(exist_ok=True)
    tables = [write_table(folder / "tables", table, summarise(campaign, table, rows)) for table in campaign.tables]
    if campaign.figures or campaign.rankings:
        (folder / "figures").mkdir(exist_ok=True)
    for figure in campaign.figures:
        write_figure(folder / "figures", figure, lines_of(campaign, figure, rows))
    rankings = [write_ranking(folder, spec, rank(plan.settings, spec, rows)) for spec in campaign.rankings]
    return [*tables, *rankings]
