"""`testbed replay-decisions`: recomputes the decisions of a run, and compares them with the recorded ones."""

from __future__ import annotations

import json
from pathlib import Path

import click
from msgspec import to_builtins

from testbed.control.replay_decisions import replay_decisions as replay


def replay_decisions(*, run: Path, as_json: bool) -> int:
    count, differences = replay(run)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "decisions": count,
                    "different": [
                        {
                            "number": d.number,
                            "time_s": d.time_s,
                            "recorded": to_builtins(d.recorded),
                            "repeated": to_builtins(d.repeated),
                        }
                        for d in differences
                    ],
                },
                indent=2,
            )
        )
    else:
        for d in differences:
            recorded, repeated = to_builtins(d.recorded), to_builtins(d.repeated)
            click.echo(f"decision {d.number} at {d.time_s:.1f} s: recorded {recorded}, now {repeated}")
        same = count - len(differences)
        click.echo(f"{same} of {count} decisions are the same, bit for bit")
    return 1 if differences else 0
