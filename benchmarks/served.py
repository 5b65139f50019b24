"""A served lab with three users, and the same jobs replayed under EASY.

    python benchmarks/served.py --minutes 20 --out served
    python benchmarks/served.py --table served

Four nodes of processes are served under XGE. One user submits serial jobs in bursts, one submits ordinary parallel
jobs, and one submits short parallel jobs with `-xge`. Each is a user of this machine, so root is needed. Every task
needs a whole node, as EASY gives it one; the offered load is about 0.8. Jobs carry no estimates: EASY knows their run
times. Then the run becomes a trace of the accepted jobs, which is replayed live under EASY, and simulated under both
policies without penalties. Steps that have ended well in the folder `--out` are skipped. The table has response times
by user, and waits until jobs were selected to run: starts and the saves of others come on top. One run shows that it
works; it has no interval.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import pwd
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from lab import print_machine

from testbed.control.queue_messages import Accepted, Refused, Show, Submit
from testbed.control.queue_socket import send
from testbed.errors import RunError
from testbed.measure.rundir import read_journal

LAB = "served"
POLICIES = ("XGE", "EASY")
NODES, CORES, MEMORY_MIB = 4, 0.45, 512
READY_WITHIN_S = 300.0
SCENARIO = f"""
name = "served"
lab = "{LAB}"
policy = "XGE"
[workload]
[programs]
iteration_s = 0.1
[serve]
access = "everybody"
cpu_needs_frac = [1.0]
least_mem_frac = 0.2
jobs_per_user = 100
urgent_jobs_per_user = 10
""" + "".join(
    f'[[nodes]]\nname = "node-{node}"\ncpus = {CORES}\ncpu_set = [{node * 2 // NODES}]\nmemory_mib = {MEMORY_MIB}\n'
    for node in range(NODES)
)


@dataclass(frozen=True)
class User:
    """A user of this machine, and the jobs that this user submits: tasks, CPU need, seconds of work, frequency."""

    name: str
    tasks: tuple[int, ...]
    need_frac: float
    work_s: tuple[float, float]
    every_s: float
    burst: int = 1
    urgent: bool = False

    def jobs(self, draw: random.Random) -> list[Submit]:
        """Return the jobs of one visit."""
        return [
            Submit(
                tasks=draw.choice(self.tasks), cpu_need_frac=self.need_frac, mem_req_frac=0.2, urgent=self.urgent,
                work_s=round(draw.uniform(*self.work_s), 3),
            )
            for _ in range(draw.randint(1, self.burst))
        ]  # fmt: skip


USERS = (
    User("daemon", (1,), 1.0, (10.0, 40.0), every_s=45.0, burst=6),
    User("bin", (2,), 1.0, (10.0, 30.0), every_s=60.0),
    User("sys", (3, 4), 1.0, (5.0, 10.0), every_s=150.0, urgent=True),
)


def give(user: User, seed: int, until_s: float) -> None:
    """Submit jobs as a user until a time of the monotonic clock; a job that is refused is dropped, and counted."""
    draw = random.Random(f"{seed} {user.name}")  # noqa: S311  # the same jobs for the same seed
    account = pwd.getpwnam(user.name)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    given = refused = 0
    while True:
        time.sleep(draw.expovariate(1.0 / user.every_s))
        if time.monotonic() > until_s:
            break
        for job in user.jobs(draw):
            answer = send(LAB, job)
            given += isinstance(answer, Accepted)
            if isinstance(answer, Refused):
                refused += 1
                print(f"{user.name}: {answer.text}", file=sys.stderr, flush=True)
    print(f"{user.name}: {given} jobs given, {refused} refused", file=sys.stderr, flush=True)


def serve(folder: Path, minutes: float, seed: int) -> Path:
    """Serve the lab for some minutes; return the run directory."""
    (folder / "served.toml").write_text(SCENARIO)
    command = [sys.executable, "-m", "testbed", "serve", "served.toml", "--out", "runs"]
    with (folder / "serve.log").open("w") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as lab:
        try:
            _until_ready(lab)
            until_s = time.monotonic() + 60.0 * minutes
            context = multiprocessing.get_context("fork")
            users = [context.Process(target=give, args=(user, seed, until_s)) for user in USERS]
            for process in users:
                process.start()
            for process in users:
                process.join()
            run = max((folder / "runs").iterdir(), key=lambda path: path.name)
            _testbed(folder, "control", str(run.relative_to(folder)), "close")
            if lab.wait() != 0 or any(process.exitcode != 0 for process in users):
                raise SystemExit(f"testbed serve, or a user, failed: see {folder / 'serve.log'}")
            return run
        finally:
            if lab.poll() is None:
                lab.send_signal(signal.SIGINT)


def _until_ready(lab: subprocess.Popen[bytes]) -> None:
    ends_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < ends_s and lab.poll() is None:
        try:
            send(LAB, Show())
        except RunError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit("the lab does not accept jobs")


def _testbed(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"testbed {' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def replay(folder: Path, run: Path) -> None:
    """Replay the submitted jobs: live under EASY, and simulated under both policies."""
    _testbed(folder, "trace", "convert", str(run), "trace.csv", "--from", "run")
    if not _ended(folder / "easy"):
        _testbed(folder, "run", "served.toml", "--trace", "trace.csv", "--policy", "EASY", "--out", "easy")
    command = ["simulate", "trace.csv", "--nodes", str(NODES), "--penalty-s", "0", "--jobs-out", "simulated"]
    _testbed(folder, *command, *(word for policy in POLICIES for word in ("--policy", policy)))


def table(folder: Path) -> str:
    """Return waits and response times by user, as served and replayed."""
    (served,), (easy,) = (_ended(folder / name) for name in ("runs", "easy"))
    users = {
        int(entry["arrival"]["job"]): str(entry["by"])
        for entry in read_journal(served / "events.jsonl")
        if entry["kind"] == "arrived" and isinstance(entry["arrival"], dict)
    }
    lines = ["| user | policy | jobs | wait s, mean (median) | response s, mean (median) | most | pauses |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    found = {"XGE, served": served / "jobs.csv", "EASY, replayed": easy / "jobs.csv"}
    found |= {f"{policy}, simulated": folder / "simulated" / f"{policy}.csv" for policy in POLICIES}
    for user in [each.name for each in USERS]:
        for policy, jobs in found.items():
            rows = [row for row in _jobs(jobs) if users[int(row["job_id"])] == user]
            waits = [float(row["start_time_s"]) - float(row["submit_time_s"]) for row in rows]
            responses = [float(row["end_time_s"]) - float(row["submit_time_s"]) for row in rows]
            pauses = sum(int(row["preemptions"]) for row in rows)
            lines.append(
                f"| {user} | {policy} | {len(rows)} | {_both(waits)} | {_both(responses)} | "
                f"{f'{max(responses):.1f}' if responses else '-'} | {pauses} |"
            )
    return "\n".join(lines)


def _ended(folder: Path) -> list[Path]:
    """Return the run directories in a folder whose runs have ended."""
    return [path.parent for path in folder.glob("*/summary.json")]


def _jobs(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["end_time_s"]]


def _both(values: Sequence[float]) -> str:
    return f"{mean(values):.1f} ({median(values):.1f})" if values else "-"


def main() -> None:
    """Do the missing steps, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="minutes for which users submit jobs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("served"), help="folder for the runs")
    parser.add_argument("--table", type=Path, help="only print the table of this folder")
    chosen = parser.parse_args()
    folder: Path = chosen.table or chosen.out
    if chosen.table is None:
        if os.geteuid() != 0:
            raise SystemExit("expected root, because jobs are submitted as three other users")
        print_machine()
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        runs = _ended(folder / "runs")
        replay(folder, runs[0].resolve() if runs else serve(folder, chosen.minutes, chosen.seed).resolve())
    print(table(folder))


if __name__ == "__main__":
    main()
