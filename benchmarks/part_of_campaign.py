"""Print the file of a campaign with one of its sets of traces, and possibly only some loads of it.

    python benchmarks/part_of_campaign.py rr7659-catalogue scaled --loads 0.1,0.2,0.3 > part.toml

A campaign of hours becomes parts that are done one after the other; their results can be joined.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

CAMPAIGNS = Path(__file__).parents[1] / "scenarios/campaigns"


def part(text: str, traces: str, loads: str = "") -> str:
    """Return the campaign with the set `traces` only; raise `ValueError` if it has none of this name, or no loads."""
    tables = text.split("\n\n")
    kept = [each for each in tables if not each.startswith("[[traces]]") or f'\nname = "{traces}"\n' in each]
    if not any(each.startswith("[[traces]]") for each in kept):
        raise ValueError(f"there are no traces {traces!r}")
    found = "\n\n".join(kept)
    if loads:
        found, changed = re.subn(r"^loads = .*$", f"loads = [{loads}]", found, flags=re.MULTILINE)
        if changed != 1:
            raise ValueError(f"traces {traces!r} have no loads")
    return found


def main() -> None:
    """Print the part of a packaged campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", help="the name of a packaged campaign")
    parser.add_argument("traces", help="the name of a set of traces")
    parser.add_argument("--loads", default="", help="loads, separated by commas")
    chosen = parser.parse_args()
    try:
        print(part((CAMPAIGNS / f"{chosen.campaign}.toml").read_text(), chosen.traces, chosen.loads), end="")
    except (OSError, ValueError) as error:
        sys.exit(f"part_of_campaign: {chosen.campaign}: {error}")


if __name__ == "__main__":
    main()
