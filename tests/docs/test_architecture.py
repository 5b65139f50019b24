"""The picture of the packages is up to date, and its page names every wing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.live import HANG_S

ROOT = Path(__file__).resolve().parents[2]
PAGE, PICTURE = ROOT / "docs/architecture.md", ROOT / "docs/images/imports.svg"
WINGS = sorted(path.parent.name for path in (ROOT / "testbed").glob("*/__init__.py"))


def test_the_picture_is_what_the_code_gives() -> None:
    command = [sys.executable, str(ROOT / "scripts/draw-architecture"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_picture_shows_every_wing() -> None:
    names = re.findall(r'class="name"[^>]*>([^<]+)<', PICTURE.read_text(encoding="utf-8"))
    assert {*WINGS, "node_agent"} <= set(names)


def test_the_page_says_what_every_wing_is_for_and_its_links_lead_somewhere() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [wing for wing in WINGS if f"**`{wing}`**" not in page] == []
    links = re.findall(r"\]\(([^)#:]+)\)", page)
    assert "images/imports.svg" in links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
