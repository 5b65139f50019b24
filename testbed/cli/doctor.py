"""`testbed doctor`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path(), help="Where guests would be saved.")
@click.option("--broker", default=None, help="Also try this broker.")
@click.option("--influx", "influx_url", default=None, help="Also try this database, http://HOST:PORT.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(*, folder: Path, broker: str | None, influx_url: str | None, as_json: bool) -> int:
    """Say what is wrong with this machine, and how to mend it.

    Exit code 0 if nothing is, notes apart; 1 with a warning; 2 with an error, or for a mistake in the options.

    \b
    Examples:
      testbed doctor
      testbed doctor --folder /var/lib/dfrs-testbed --broker mqtts://head:8884 --json
    """  # noqa: D301  # \b keeps click from wrapping the examples
    import json  # noqa: PLC0415  # --help stays quick
    from dataclasses import asdict  # noqa: PLC0415  # as above

    from rich.console import Console  # noqa: PLC0415  # as above

    from testbed.bus.address import BrokerAddress  # noqa: PLC0415  # as above
    from testbed.doctor.examine import examine  # noqa: PLC0415  # as above
    from testbed.doctor.finding import worst  # noqa: PLC0415  # as above
    from testbed.measure.influx_address import is_url  # noqa: PLC0415  # as above

    if influx_url is not None and not is_url(influx_url):
        raise click.BadParameter(f"{influx_url!r}: expected http://HOST:PORT", param_hint="--influx")
    console, status = Console(), Console(stderr=True)
    address = None if broker is None else BrokerAddress.parse(broker)
    with status.status("looking") as spinner:
        found = list(examine(folder, address, influx_url, lambda name: spinner.update(f"looking at {name}")))
    severity = worst(found)
    if as_json:
        click.echo(json.dumps({"worst": severity, "findings": [asdict(each) for each in found]}, indent=2))
    else:
        style = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
        width = max(len(each.check) for each in found)
        for each in found:
            console.print(
                f"[{style[each.severity]}]{each.severity:8}[/] {each.check:{width}}  ", each.found, sep="", markup=True,
                highlight=False, soft_wrap=True,
            )  # fmt: skip
            if each.mend:
                console.print(
                    f"{'':8} {'':{width}}  mend: ", each.mend, sep="", markup=False, highlight=False, soft_wrap=True
                )
    return {"ok": 0, "note": 0, "warning": 1, "error": 2}[severity]
