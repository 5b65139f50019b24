"""The page in a real browser: it loads, updates, reconnects, switches to the next run, and is legible."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pytest
from support.live import HANG_S, wait_until
from support.report.rehearsed_run import GrowingRun, rehearse

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WINDOWS: Final[tuple[tuple[int, Literal["light", "dark"]], ...]] = (
    (1280, "light"), (1280, "dark"), (400, "light"), (400, "dark"),
)  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not there: pages cannot be tried"),
]

# The lowest contrast ratio of a text on the page to its background, with the text.
CONTRAST = """() => {
  const parts = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, index) => {
    const part = rgb[index] / 255;
    return sum + weight * (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  }, 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  let worst = [99, ""], seen = 0;
  for (const element of document.querySelectorAll("body *")) {
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    const text = texts.map((node) => node.data).join(" ");
    if (!text || !element.checkVisibility() || element.closest("noscript, .hidden")) continue;
    const [one, two] = [light(parts(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    seen += 1;
    if (ratio < worst[0]) worst = [ratio, text.slice(0, 40) + " in " + element.className];
  }
  return [...worst, seen];
}"""


BEYOND = """() => [...document.querySelectorAll("body *")]
  .filter((each) => each.checkVisibility() && !each.closest(".hidden"))
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)
  .map((each) => each.className)"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rehearse(tmp_path_factory.mktemp("runs") / "2026-11-21T10-00-00-quickstart")


@pytest.fixture(scope="module")
def browser(run: Path) -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pages cannot be tried")
    assert run.exists()  # made before, because no other event loop can run while this one is open
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield chromium
        chromium.close()


class Dashboard:
    """The command as a process, on a port that stays the same after a restart."""

    def __init__(self, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._arguments = arguments
        self.begin()

    def begin(self) -> None:
        code = "import sys; from testbed.cli.dashboard import dashboard; sys.exit(dashboard(standalone_mode=False))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *self._arguments, "--port", str(self.port), "--json"], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextlib.contextmanager
def dashboard(*arguments: str) -> Iterator[Dashboard]:
    process = Dashboard(*arguments)
    try:
        yield process
    finally:
        process.kill()


@contextlib.contextmanager
def opened(
    browser: Browser, url: str, width: int = 1280, scheme: Literal["light", "dark"] = "light"
) -> Iterator[tuple[Page, list[str]]]:
    """Open a page; errors and warnings of its console are collected."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(HANG_S * 1000)
    complaints: list[str] = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in {"error", "warning"} else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(url)
    yield page, complaints
    context.close()


def text(page: Page, selector: str, pattern: str) -> None:
    """Wait until an element's text matches."""
    page.wait_for_function(
        "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector).textContent)",
        arg=[selector, pattern],
    )


def middle_of(run: Path, runs: Path, name: str = "2026-11-22T00-00-00-growing") -> tuple[GrowingRun, float]:
    """Return a run that has just begun to save a job, and the second at which it did."""
    lines = (run / "events.jsonl").read_text().splitlines()
    at_s = next(json.loads(line)["t_s"] for line in lines if '"verb":"save"' in line)
    growing = GrowingRun(run, runs / name, at_s)
    growing.advance_past('"verb":"save"')
    # the page calls a run silent some time after its last change: these files stay new, however slowly a browser starts
    os.utime(growing.target / "events.jsonl", (time.time() + 86_400,) * 2)
    return growing, at_s


def test_the_page_shows_a_run_and_goes_on_with_it(browser: Browser, run: Path, tmp_path: Path) -> None:
    growing, at_s = middle_of(run, tmp_path)
    with dashboard("--runs", str(tmp_path)) as process, opened(browser, process.url) as (page, complaints):
        text(page, "#state", "Running")
        text(page, "#scenario", "^quickstart$")
        text(page, "#actions", "save")
        assert page.locator("#nodes .node").count() == 2
        assert page.locator("#nodes .cpu i").count() > 0
        before = int(page.locator("#ended").inner_text())
        clock_before = page.locator("#wall-clock").inner_text()
        page.wait_for_function(
            "(before) => document.querySelector('#wall-clock').textContent > before", arg=clock_before
        )
        growing.advance(at_s + 12)
        text(page, "#penalty-sum", "[1-9].* preemption")
        growing.advance(growing.end_s)
        text(page, "#state", "Finished")
        text(page, "#ended", "^12$")
        assert before < 12
        assert page.locator("#nodes .cpu i").count() == 0
        assert page.locator("#log li").first.inner_text().endswith("s")
        assert complaints == []


def test_details_are_reached_with_mouse_and_keyboard(browser: Browser, run: Path, tmp_path: Path) -> None:
    middle_of(run, tmp_path)
    with dashboard("--runs", str(tmp_path)) as process, opened(browser, process.url) as (page, complaints):
        text(page, "#actions", "save")
        page.locator("#gantt").focus()
        page.keyboard.press("ArrowRight")
        text(page, "#gantt-live", r"^Job \d+, task \d")
        first = page.locator("#gantt-live").inner_text()
        page.keyboard.press("ArrowDown")
        page.wait_for_function("(first) => document.querySelector('#gantt-live').textContent !== first", arg=first)
        text(page, "#gantt-live", "on node-b")
        assert page.locator("#tip").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#tip").is_visible()
        page.locator("#windows button", has_text="1 min").click()
        assert page.locator("#windows [aria-pressed=true]").inner_text() == "1 min"
        box = page.locator("#gantt-scroll").bounding_box()
        assert box is not None
        found = False
        for step in range(1, 60):  # along the uppermost lane, from now backwards
            page.mouse.move(box["x"] + box["width"] - 12 - 10 * step, box["y"] + 8)
            found = found or page.locator("#tip").is_visible()
        assert found
        page.locator("#nodes .node").first.focus()
        text(page, "#tip", r"node-a.*job \d+ task \d: cap")
        page.keyboard.press("ArrowDown")
        text(page, "#tip", "node-b")
        assert complaints == []


def test_the_page_comes_back_when_the_dashboard_was_killed(browser: Browser, run: Path, tmp_path: Path) -> None:
    growing, at_s = middle_of(run, tmp_path)
    with (
        dashboard("--runs", str(tmp_path), "--token-file", str(tmp_path / "token")) as process,
        opened(browser, process.url) as (page, complaints),
    ):
        text(page, "#state", "Running")
        assert "token" not in page.url
        process.kill()
        text(page, "#link", "reconnecting")
        growing.advance(at_s + 5)
        assert process.process.poll() is not None
        process.begin()
        text(page, "#link", "^$")
        growing.advance(growing.end_s)
        text(page, "#state", "Finished")
        assert all(re.search("ERR_|Failed to load", one) for one in complaints), (
            complaints
        )  # the browser reports the lost connection


def test_the_page_changes_over_to_the_next_run(browser: Browser, run: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with dashboard("--runs", str(runs)) as process, opened(browser, process.url) as (page, complaints):
        text(page, "#state", "No run yet")
        growing, _ = middle_of(run, runs)
        text(page, "#policy", "2026-11-22T00-00-00-growing")
        text(page, "#actions", "save")
        with (growing.target / "events.jsonl").open("a") as file:  # half a line: its controller was killed
            file.write('{"t_s":1')
        follower, _ = middle_of(run, runs, "2026-11-23T00-00-00-next")
        text(page, "#policy", "2026-11-23T00-00-00-next")
        follower.advance(follower.end_s)
        text(page, "#state", "Finished")
        assert complaints == []


def test_names_from_a_run_stay_text(browser: Browser, run: Path, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    target = tmp_path / "2026-11-22T00-00-00-x"
    target.mkdir()
    for name in ("manifest.json", "events.jsonl", "points.lp"):
        node = "a" if name == "points.lp" else evil
        renamed = (run / name).read_text().replace('"quickstart"', f'"{evil}"').replace("node-a", node)
        (target / name).write_text(renamed)
    with dashboard(str(target)) as process, opened(browser, process.url) as (page, complaints):
        text(page, "#scenario", "^<img")
        text(page, "#nodes .name", "^<img")
        assert page.locator("img").count() == 0
        assert complaints == []


def test_it_fits_and_can_be_read_in_light_and_dark(browser: Browser, run: Path, tmp_path: Path) -> None:
    growing, at_s = middle_of(run, tmp_path)
    growing.advance(at_s + 5)
    with dashboard("--runs", str(tmp_path)) as process:
        for width, scheme in WINDOWS:
            with opened(browser, process.url, width, scheme) as (page, complaints):
                text(page, "#penalty-sum", "penalty")
                page.locator("#nodes .node").first.focus()
                wait_until(page.locator("#tip").is_visible, "the details of a node")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.evaluate(BEYOND) == []
                ratio, where, seen = page.evaluate(CONTRAST)
                assert seen > 60
                assert ratio >= 4.5, (where, width, scheme)
                background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
                assert (background == "rgb(13, 16, 20)") is (scheme == "dark")
                assert complaints == []
