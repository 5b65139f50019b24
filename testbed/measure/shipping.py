"""Ships all points of a run directory, for `testbed ingest`, with retries while the server makes progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.errors import RunError, UserError
from testbed.measure.influx_address import Address
from testbed.measure.influx_writer import ServerAwayError, Writer
from testbed.measure.rundir import read_json
from testbed.measure.shipper import BackOff, Shipper
from testbed.measure.shipping_batches import points_left
from testbed.measure.shipping_position import BusyError, Shipped
from testbed.measure.spool import segments


@dataclass(frozen=True, slots=True)
class ShippingCount:
    """The outcome of shipping a run's points: `points` are complete in its directory, `left` are not shipped yet.

    `shipped` and `refused` count all shipping of this run to this address so far. `sent` counts the points sent by this
    call, including repeats; `elapsed_s` is wall time.
    """

    run: str
    points: int
    shipped: int
    refused: int
    left: int
    sent: int
    elapsed_s: float
    refused_file: str | None
    problem: str | None

    @property
    def complete(self) -> bool:
        """Whether every point is in the database."""
        return self.problem is None and not self.refused and not self.left

    def as_json(self) -> dict[str, object]:
        """Return the counts by name."""
        return {**asdict(self), "elapsed_s": round(self.elapsed_s, 3)}


def check_run(run: Path) -> None:
    """Raise `UserError` if there are no points at `run`."""
    if not segments(run):
        raise UserError(f"{run}: no points.lp: expected a run directory")


def influx_table(run: Path) -> Mapping[str, object] | None:
    """Return the table [influx] of the run's scenario; None if the scenario has none, or the run has no manifest."""
    if not (run / "manifest.json").exists():
        return None
    scenario = read_json(run / "manifest.json").get("scenario")
    table = scenario.get("influx") if isinstance(scenario, dict) else None
    return table if isinstance(table, dict) else None


def ship(
    run: Path, address: Address, writer: Writer, tell: Callable[[str], None], show: Callable[[Shipped], None], *,
    from_start: bool, patience_s: float,
) -> ShippingCount:  # fmt: skip
    """Ship all present points of `run` that were not shipped to `address` yet; with `from_start` all points.

    `tell` gets lines for people, `show` the progress of shipping. The timeout `patience_s` applies to the time without
    an acknowledgement. Raises `UserError` if a person has to fix something first. Closes the writer.
    """
    began_s = time.monotonic()
    shipper = Shipper(run, address, writer, tell)
    try:
        problem = _until_done(shipper, tell, show, from_start=from_start, patience_s=patience_s)
        reached = shipper.reached
        # points that a live run has recorded meanwhile do not count as left: all earlier ones are shipped
        left = 0 if problem is None else points_left(run, reached.segment, reached.offset_bytes)
        return ShippingCount(
            str(run),
            reached.read_points + left,
            reached.shipped_points,
            reached.refused_points,
            left,
            shipper.sent_points,
            time.monotonic() - began_s,
            str(shipper.refused_path) if reached.refused_points else None,
            problem,
        )
    finally:
        shipper.close()


def _until_done(
    shipper: Shipper, tell: Callable[[str], None], show: Callable[[Shipped], None], *, from_start: bool,
    patience_s: float,
) -> str | None:  # fmt: skip
    """Ship until all points are shipped, and return None, or return the error after the timeout."""
    back_off = BackOff()
    ends_s = time.monotonic() + patience_s
    well = True
    while True:
        try:
            if from_start:
                shipper.restart()
                from_start = False
            more = shipper.step()
        except (ServerAwayError, RunError) as error:
            wait_s = back_off.after(error)
            if isinstance(error, BusyError):
                ends_s = time.monotonic() + patience_s  # the server serves another shipper meanwhile
            elif time.monotonic() + wait_s > ends_s:
                return str(error)
            if well:
                tell(f"{error}; trying again" + ("" if isinstance(error, BusyError) else f" for {patience_s:g} s"))
            well = False
            time.sleep(wait_s)
            continue
        show(shipper.reached)
        if not more:
            return None
        back_off.reset()
        well = True
        ends_s = time.monotonic() + patience_s
