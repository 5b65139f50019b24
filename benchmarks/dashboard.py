"""The dashboard at 200 nodes: `python benchmarks/dashboard.py [--nodes 200] [--guests 4] [--seconds 20] [--json]`.

A synthetic run grows as a real one would: every node and guest reports each second, and several times a second a job
ends, another begins and the yields of some jobs change. The benchmark measures the CPU share of the dashboard's
process. In a headless Chromium, which draws without a graphics card, it also measures the CPU share of the page's main
thread, the times between its frames, and its long tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from lab import percentile, print_machine, print_table

from node_agent.facts import cpu_model
from testbed.measure.points import to_line

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
FRAMES = """(milliseconds) => new Promise((done) => {
  const gaps = [], long = [];
  const observer = new PerformanceObserver((list) => long.push(...list.getEntries().map((each) => each.duration)));
  observer.observe({ type: "longtask" });
  const begin = performance.now();
  let last = begin;
  const frame = () => {
    const now = performance.now();
    gaps.push(now - last);
    last = now;
    if (now - begin < milliseconds) requestAnimationFrame(frame);
    else { observer.disconnect(); done({ gaps: gaps.slice(1), long }); }
  };
  requestAnimationFrame(frame);
})"""


class Cluster:
    """A run that grows: `guests` jobs of one task on each node, with `decisions_per_s` decisions per second."""

    def __init__(self, path: Path, nodes: int, guests: int, decisions_per_s: float) -> None:
        self._path = path
        self._names = [f"node-{index:03d}" for index in range(nodes)]
        self._every_s = 1 / decisions_per_s
        self._draw = random.Random(1)  # noqa: S311  # the same run each time
        self._begin_ns = time.time_ns()
        self._action = 0
        self._next_job = 0
        self._jobs: dict[int, list[Any]] = {}  # job -> node, yield, CPU time
        path.mkdir(parents=True)
        facts = {name: {"cpus": 4.0, "memory_mib": 16384} for name in self._names}
        clocks = {"anchor_unix_ns": self._begin_ns, "replay_begin_s": 0.0, "time_scale": 50.0}
        (path / "manifest.json").write_text(json.dumps({"nodes": facts, "clocks": clocks}))
        self._events = (path / "events.jsonl").open("w", buffering=1)
        self._points = (path / "points.lp").open("w", buffering=1 << 20)
        self._journal("begin", scenario="benchmark", policy="synthetic", run_tag="bench")
        self._journal("replay", jobs=1_000_000)
        for node in range(nodes):
            for _ in range(guests):
                self._start(node)

    def grow(self, stop: threading.Event) -> None:
        """Write until `stop` is called."""
        begin_s = time.monotonic()
        points_s, decision_s = begin_s + 1.0, begin_s + self._every_s
        while not stop.wait(max(0.0, min(points_s, decision_s) - time.monotonic())):
            now_s = time.monotonic()
            if now_s >= points_s:
                self._sample()
                points_s += 1.0
            if now_s >= decision_s:
                self._decide()
                decision_s += self._every_s

    def _now_s(self) -> float:
        return (time.time_ns() - self._begin_ns) / 1e9

    def _journal(self, kind: str, **entry: object) -> None:
        now_s = self._now_s()
        line = {"t_s": round(now_s, 6), "kind": kind, "trace_s": round(now_s * 50, 3), **entry}
        self._events.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _operate(self, verb: str, job: int, node: int, yield_frac: float) -> None:
        self._action += 1
        about = {"action": self._action, "verb": verb, "job": job, "nodes": [node]}
        self._journal("intent", **about, yield_frac=yield_frac, guests=[f"dfrs-bench-j{job}-t0"])
        self._journal("outcome", **about, ok=True, error=None, elapsed_s=0.01, waited_s=0.0, bytes=0)

    def _start(self, node: int) -> None:
        job = self._next_job
        self._next_job += 1
        self._jobs[job] = [node, round(self._draw.uniform(0.2, 1.0), 3), 0.0]
        self._journal("job", job=job, state="submitted")
        self._view([job])
        self._journal("job", job=job, state="running", detail=self._names[node])
        self._operate("start", job, node, self._jobs[job][1])
        self._journal("guest", job=job, task=0, node=node, event="progress", detail={"units": 1})

    def _view(self, submitted: Sequence[int]) -> None:
        """Journal a decision: the first thousand with the new job only, the others with the whole view, as in a run."""
        shown = submitted if self._now_s() < 1 else list(self._jobs)
        count = len(shown)
        view = {
            "time_s": self._now_s() * 50, "node_available": [True] * len(self._names), "job_id": list(shown),
            "submit_time_s": [1234.5] * count, "tasks": [1] * count, "cpu_need_frac": [0.25] * count,
            "mem_req_frac": [0.2] * count, "virtual_time_s": [self._draw.random() * 1e4 for _ in shown],
            "state": [1] * count, "task_node": [self._jobs[job][0] for job in shown],
            "start_time_s": [1234.5] * count, "estimate_s": [None] * count,
        }  # fmt: skip
        event = {"completed": [], "submitted": list(submitted), "periodic": False, "changed": False}
        decision = {"task_node": view["task_node"], "yield_frac": [self._jobs[job][1] for job in shown]}
        self._journal("decision", decide_s=0.001, policy="synthetic", view=view, event=event, decision=decision)

    def _decide(self) -> None:
        ended = self._draw.choice(list(self._jobs))
        node = self._jobs.pop(ended)[0]
        self._journal("guest", job=ended, task=0, node=node, event="done", detail={"units": 9})
        self._journal("job", job=ended, state="done")
        self._start(node)
        for job in self._draw.sample(list(self._jobs), 10):
            self._jobs[job][1] = round(self._draw.uniform(0.2, 1.0), 3)
            self._operate("cap", job, self._jobs[job][0], self._jobs[job][1])

    def _sample(self) -> None:
        time_ns = time.time_ns()
        node_fields = {
            "cpu_frac": 0.5, "memory_used_mib": 9000.0, "disk_read_mib": 1.0, "disk_written_mib": 1.0,
            "net_received_mib": 1.0, "net_sent_mib": 1.0, "agent_cpu_s": 1.0, "agent_rss_mib": 50.0,
        }  # fmt: skip
        tags = {"run": self._path.name, "lab": "bench", "policy": "synthetic"}
        lines = [to_line("node", {**tags, "node": name}, node_fields, time_ns) for name in self._names]
        for job, values in self._jobs.items():
            values[2] += values[1] * self._draw.uniform(0.9, 1.0)
            about = {**tags, "node": self._names[values[0]], "job": str(job), "task": "0"}
            fields = {
                "cap_cores": values[1], "cpu_s": values[2], "rss_mib": 64.0, "read_mib": 0.0, "written_mib": 0.0,
                "units_done": int(values[2] * 1e4),
            }  # fmt: skip
            lines.append(to_line("guest", about, fields, time_ns))
        self._points.write("\n".join(lines) + "\n")
        self._points.flush()


def measure(
    nodes: int, guests: int, decisions_per_s: float, seconds: float, shots: Path | None
) -> list[dict[str, object]]:
    """Return one row per time window of the Gantt chart."""
    from playwright.sync_api import CDPSession, sync_playwright  # noqa: PLC0415  # the help works without it

    code = "import sys; from testbed.cli.dashboard import dashboard; sys.exit(dashboard(standalone_mode=False))"
    rows: list[dict[str, object]] = []
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="dfrs-bench-") as folder:
        cluster = Cluster(Path(folder) / "2026-01-01T00-00-00-bench", nodes, guests, decisions_per_s)
        writer = threading.Thread(target=cluster.grow, args=(stop,))
        writer.start()
        server = subprocess.Popen(
            [sys.executable, "-c", code, "--runs", folder, "--port", "0", "--json"], stdout=subprocess.PIPE
        )
        try:
            if server.stdout is None:
                raise RuntimeError("the dashboard has no output")
            url = json.loads(server.stdout.readline())["url"]
            process = psutil.Process(server.pid)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                devtools = page.context.new_cdp_session(page)
                devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

                def busy_s(devtools: CDPSession = devtools) -> float:
                    metrics = devtools.send("Performance.getMetrics")["metrics"]
                    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

                page.goto(url)
                page.wait_for_function("document.querySelectorAll('#nodes .node').length > 0")
                for window in ("1 min", "All"):
                    page.locator("#windows button", has_text=window).click()
                    page.wait_for_timeout(2000)
                    before, page_before_s, begin_s = process.cpu_times(), busy_s(), time.monotonic()
                    frames = page.evaluate(FRAMES, seconds * 1000)
                    after, page_s, wall_s = process.cpu_times(), busy_s() - page_before_s, time.monotonic() - begin_s
                    gaps = sorted(frames["gaps"])
                    rows.append(
                        {
                            "window": window,
                            "server_cpu_frac": (after.user + after.system - before.user - before.system) / wall_s,
                            "server_rss_mib": process.memory_info().rss / 2**20,
                            "page_cpu_frac": page_s / wall_s,
                            "frames_per_s": len(gaps) / seconds,
                            "frame_p50_ms": percentile(gaps, 0.5),
                            "frame_p95_ms": percentile(gaps, 0.95),
                            "frame_max_ms": gaps[-1],
                            "long_tasks": len(frames["long"]),
                            "longest_ms": max(frames["long"], default=0.0),
                        }
                    )
                    if shots is not None:
                        page.screenshot(path=shots / f"dashboard-{window.replace(' ', '-')}.png", full_page=True)
                browser.close()
        finally:
            stop.set()
            writer.join()
            server.terminate()
            server.wait(10)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--guests", type=int, default=4, help="guests on each node")
    parser.add_argument("--decisions-per-s", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement")
    parser.add_argument("--shots", type=Path, metavar="DIR", help="keep pictures of the page there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = measure(options.nodes, options.guests, options.decisions_per_s, options.seconds, options.shots)
    if options.json:
        machine = {"cpu": cpu_model(), "cores": os.cpu_count(), "load": os.getloadavg()}
        print(
            json.dumps(
                {"machine": machine, "options": {**vars(options), "shots": str(options.shots)}, "rows": rows}, indent=2
            )
        )
        return
    print_machine()
    print_table(
        f"{options.nodes} nodes, {options.guests} guests each, {options.decisions_per_s:g} decisions/s, "
        f"{options.seconds:g} s each, Chromium without a graphics card",
        (
            "Gantt window",
            "server CPU",
            "RSS MiB",
            "page CPU",
            "frames/s",
            "p50 ms",
            "p95 ms",
            "max ms",
            "long tasks",
            "longest ms",
        ),
        [tuple(row.values()) for row in rows],
    )


if __name__ == "__main__":
    main()
