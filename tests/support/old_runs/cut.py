"""Make an archive of a run directory, as permanent test data.

Call it in the folder `tests`: `python -m support.old_runs.cut RUN NAME`.

The archive tests/old_runs/NAME.tar.xz holds the manifest, the journal, all points, jobs.csv and summary.json. It
leaves out the agents' logs and the files that commands write into a run directory afterwards. The machine's name and
its build of the kernel are replaced, and a path of the machine is an error. An existing archive is never overwritten,
because later code must be able to read the files of earlier code.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from pathlib import Path

from support.old_runs.old_run_archive import archive, pack

_FILES = ("manifest.json", "events.jsonl", "jobs.csv", "summary.json")
_PATH = re.compile(r"/(?:home|root|tmp|work|var|run|usr|opt|mnt|srv)/[^\s\",]*")


def without_machine(name: str, text: str) -> str:
    """Replace the build of the kernel and the name of this machine; raises `SystemExit` for a path of the machine."""
    release = platform.release()
    text = text.replace(release, release.partition("-")[0])
    text = re.sub(rf'"{re.escape(platform.node())}"', '"machine"', text)
    if path := _PATH.search(text):
        sys.exit(f"{name}: holds the path {path[0]}: expected none of this machine")
    return text


def main() -> None:
    """Read the command line, and write the archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    words = parser.parse_args()
    names = [*_FILES, *(segment.name for segment in words.run.glob("points*.lp"))]
    texts = {name: (words.run / name).read_text(encoding="utf-8") for name in names}
    files = {name: without_machine(name, text).encode() for name, text in texts.items()}
    pack(words.run.resolve().name, files, archive(words.name))
    sys.stdout.write(f"{archive(words.name)}: {archive(words.name).stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
