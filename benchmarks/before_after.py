"""One command on two versions of the code, in turns: `python benchmarks/before_after.py COMMIT --repeats 3 -- COMMAND`.

Both versions are installed in environments of their own in `--place` (default: the folder `before-after`), from clones
of this repository: COMMIT in `before`, HEAD in `after`. COMMAND runs in both clones, in the order before, after, after,
before, so that neither version has the quieter half of the time. The files that COMMAND writes stay in the clones. A
second call with the same `--place` continues where the first one ended.

example: python benchmarks/before_after.py v1 --repeats 2 -- testbed run benchmarks/caps-processes.toml
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIDES = ("before", "after")


def git(*arguments: str) -> str:
    argv = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def prepare(tree: Path, commit: str, extras: str) -> None:
    """Clone a commit and install it, with the versions of its own constraints file."""
    ready = tree / ".venv" / "ready"
    if ready.exists():
        return
    if not tree.exists():
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(tree)], check=True)
        subprocess.run(["git", "-C", str(tree), "checkout", "--quiet", "--detach", commit], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(tree / ".venv")], check=True)
    what = f".[{extras}]" if extras else "."
    pip = [str(tree / ".venv/bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "-c", "tests/constraints.txt", what], check=True, cwd=tree)
    ready.touch()


def environment(tree: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONSAFEPATH"}}
    return {**kept, "VIRTUAL_ENV": str(tree / ".venv"), "PATH": f"{tree}/.venv/bin:{os.environ['PATH']}"}


def order(repeats: int) -> list[str]:
    """Return the order of the runs: before, after, after, before, …"""
    return [side for turn in range(repeats) for side in (SIDES if turn % 2 == 0 else reversed(SIDES))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the version before; HEAD is the one after")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each version (default: %(default)s)")
    parser.add_argument("--extras", default="", help="extras of the package to install, such as libvirt,secure")
    parser.add_argument("--place", type=Path, default=Path("before-after"), help="folder of both clones")
    parser.add_argument("command", nargs="+", help="the command to run in both clones, after --")
    options = parser.parse_args()
    place = options.place.resolve()
    place.mkdir(parents=True, exist_ok=True)
    commits = {"before": git("rev-parse", options.commit), "after": git("rev-parse", "HEAD")}
    done_file = place / "turns.jsonl"
    done = [json.loads(line) for line in done_file.read_text().splitlines()] if done_file.exists() else []
    if any(turn["commit"] != commits[turn["side"]] for turn in done):
        parser.error(f"{done_file}: has turns of other commits: expected another --place")
    for side in SIDES:
        prepare(place / side, commits[side], options.extras)
    for number, side in enumerate(order(options.repeats)):
        if number < len(done):
            continue
        load, begin_s = os.getloadavg()[0], time.monotonic()
        print(f"[{number + 1}/{2 * options.repeats}] {side} {commits[side][:7]}, load {load:.1f}", flush=True)
        code = subprocess.run(options.command, cwd=place / side, env=environment(place / side), check=False).returncode
        if code:
            print(f"{side}: exit code {code}", file=sys.stderr)
            return code
        turn = {"side": side, "commit": commits[side], "load_before": load, "wall_s": time.monotonic() - begin_s}
        with done_file.open("a") as file:
            file.write(json.dumps(turn) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
