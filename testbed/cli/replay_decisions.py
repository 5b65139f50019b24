"""`testbed replay-decisions`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def replay_decisions(*, run: Path, as_json: bool) -> int:
    """Make every decision that RUN recorded again, with the policy code that is installed now, and compare bit for bit.

    Exit code 0: all are the same; 1: some differ.

    \b
    Example:
      testbed replay-decisions runs/2026-11-20T10-31-07-quickstart
    """  # noqa: D301  # \b keeps click from wrapping the example
    import json  # noqa: PLC0415  # --help stays quick

    from msgspec import to_builtins  # noqa: PLC0415  # --help stays quick

    from testbed.control.replay_decisions import replay_decisions as replay  # noqa: PLC0415  # --help stays quick

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
