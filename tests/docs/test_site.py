"""The documentation builds as a site without a warning, and every page is in its table of contents."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.docs.blocks import ROOT

DOCS = ROOT / "docs"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path / "site")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "scenario.html").exists()


def test_the_page_of_commands_is_up_to_date_and_manual_pages_are_made(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "commands-page")]
    checked = subprocess.run([*script, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    subprocess.run([*script, "--man", str(tmp_path)], check=True)
    assert ".SH OPTIONS" in (tmp_path / "testbed-run.1").read_text()
    assert (tmp_path / "node-agent.1").exists()


def test_the_index_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([a-z0-9-]+\.md)\)", (DOCS / "index.md").read_text()))
    pages = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert pages - linked == set()
    assert linked - pages == set()


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md")]), ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    missing = []
    for target, anchor in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]+)?\)", page.read_text()):
        path = (page.parent / target).resolve()
        if not path.exists():
            missing.append(target)
        elif anchor and path.suffix == ".md" and anchor[1:] not in anchors(path):
            missing.append(target + anchor)
    assert missing == []


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page, as web sites for Git repositories generate them."""
    headings = re.findall(r"^#{1,6} (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
