"""Recorder `influx`: ships the points of a run to InfluxDB during the run, from the files in its directory.

The recorder only counts the points that it receives. A separate thread, which may wait for the server, reads the points
from the run directory. A table `[influx]` in the scenario enables the recorder; the token is in the environment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from testbed.errors import RunError, TestbedError
from testbed.measure.influx_address import Address, find_address
from testbed.measure.influx_writer import InfluxWriter, ServerAwayError, ServerRefusesError, client_module
from testbed.measure.points import Value
from testbed.measure.recorders import CLOSE_WITHIN_S
from testbed.measure.shipper import BackOff, Shipper
from testbed.measure.shipping_batches import points_left
from testbed.measure.shipping_position import Shipped

POLL_S = 0.5  # a batch has the points of this time
MEND_S = 15.0  # between two attempts while a person has to fix something
SAY_AGAIN_S = 60.0  # least time between two warnings about an unreliable server
LAST_S = CLOSE_WITHIN_S - 2.0  # timeout for the remaining points, once the run has ended
_log = logging.getLogger(__name__)


class InfluxRecorder:
    """A `testbed.measure.recorders.RunRecorder`; raises `UserError` for a missing client or an invalid URL."""

    def __init__(self) -> None:
        client_module()
        find_address(None)  # checks the URL of the environment; the scenario was checked when it was loaded
        self._told_points = 0  # points that the recorder received
        self._work: _Shipping | None = None

    def open(self, path: Path, manifest: Mapping[str, object]) -> None:
        """Start shipping."""
        scenario = manifest.get("scenario")
        table = scenario.get("influx") if isinstance(scenario, Mapping) else None
        table = table if isinstance(table, Mapping) else {}
        self._work = _Shipping(path, find_address(table), gzip=table.get("gzip") is True)
        self._work.start()

    def journal(self, entry: Mapping[str, object]) -> None:
        """Ignore the entry: InfluxDB gets points only."""

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int) -> None:
        """Count one point, which the run directory has or will have."""
        del measurement, tags, fields, time_ns
        self._told_points += 1

    def close(self) -> None:
        """Ship the remaining points; raises `RunError` for points that are left after `LAST_S`, or were refused."""
        if self._work is not None:
            self._work.finish(self._told_points, LAST_S)


class _Shipping(threading.Thread):
    """Ships one run until all its points are shipped, or until the timeout of `close`."""

    def __init__(self, run: Path, address: Address, *, gzip: bool) -> None:
        # a daemon thread, so that an unresponsive server does not keep the process alive
        super().__init__(name="ship to InfluxDB", daemon=True)
        self._run_path = run
        self._address = address
        self._gzip = gzip
        self._wake = threading.Event()
        self._said_s = -SAY_AGAIN_S
        self._expected_points: int | None = None  # known when the run has ended
        self._found_end = False  # the run had ended, and no point was left in its directory
        self._given_up = False
        self._shipper: Shipper | None = None
        self._problem: str | None = None
        self._back_off = BackOff()

    def finish(self, points: int, within_s: float) -> None:
        """Ship the rest of a run that has ended with `points` points; raises `RunError` for points that are left."""
        self._expected_points = points
        self._wake.set()
        self.join(within_s)
        self._given_up = True
        self._wake.set()
        reached = self._shipper.reached if self._shipper is not None else Shipped()
        left = points_left(self._run_path, reached.segment, reached.offset_bytes)
        problems = []
        if left > 0:
            why = f" ({self._problem})" if self._problem else ""
            problems.append(f"{left} points not shipped yet{why}; `testbed ingest {self._run_path}` ships them")
        if self._shipper is not None and reached.refused_points:
            problems.append(
                f"{reached.refused_points} points refused by the server; they are in {self._shipper.refused_path}"
            )
        if problems:
            raise RunError("; ".join(problems))

    def run(self) -> None:
        try:
            self._shipper = Shipper(
                self._run_path, self._address, InfluxWriter(self._address, gzip=self._gzip), _log.warning
            )
        except TestbedError as error:
            self._say(str(error))
            return
        try:
            while not self._given_up and not self._complete():
                self._wake.clear()
                wait_s = self._try(self._shipper)
                # after the end of the run, which sets the event, waits must be short
                self._wake.wait(wait_s if self._expected_points is None else min(wait_s, POLL_S))
        finally:
            self._shipper.close()

    def _complete(self) -> bool:
        if self._expected_points is None or self._shipper is None:
            return False
        # The run directory is durable by now: points that are not in it were refused by a full disk and never arrive.
        return self._found_end or self._shipper.reached.read_points >= self._expected_points

    def _try(self, shipper: Shipper) -> float:
        """Ship a batch; return the seconds to wait before the next one."""
        ended = self._expected_points is not None  # before the step: after the end of the run no points are added
        try:
            more = shipper.step()
        except ServerRefusesError as error:
            self._say(f"points wait in {self._run_path}: {error}; trying again every {MEND_S:g} s")
            return MEND_S
        except (ServerAwayError, RunError) as error:
            self._say(str(error))
            return self._back_off.after(error)
        except Exception as error:  # noqa: BLE001  # other errors of client or disk are reported, and retried
            self._say(f"{type(error).__name__}: {error}")
            _log.debug("shipping %s", self._run_path, exc_info=True)
            return self._back_off.after(error)
        self._back_off.reset()
        self._problem = None
        self._found_end = ended and not more
        return 0.0 if more or self._found_end else POLL_S

    def _say(self, text: str) -> None:
        """Report a new problem, unless another one was reported shortly before."""
        if self._problem is None and time.monotonic() >= self._said_s + SAY_AGAIN_S:
            self._said_s = time.monotonic()
            _log.warning("InfluxDB: %s", text)
        self._problem = text
