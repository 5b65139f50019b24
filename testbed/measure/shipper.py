"""Ships the points of a run directory in batches, from the last shipping position: at least once, and in order.

The position passes a point only after the server has acknowledged it, or has refused it and the point is kept, with the
reason, in the file of refused points.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import RunError
from testbed.measure.influx_address import Address
from testbed.measure.influx_writer import BatchTooLargeError, PointsRefusedError, ServerAwayError, Writer
from testbed.measure.shipping_batches import Batch, SegmentReader, halves, next_batch
from testbed.measure.shipping_position import Shipped, ShippingPosition

MOST_BYTES = 1 << 20
LEAST_BYTES = 1 << 14
MOST_LINES = 5_000
BUSY_WITHIN_S = 1.0
FIRST_WAIT_S, MOST_WAIT_S = 0.25, 5.0


@dataclass(slots=True)
class BackOff:
    """Exponential back-off: the delay doubles with each failure, and is reduced by a random part of up to a half.

    The random part prevents that many shippers return to a server at once.
    """

    next_s: float = FIRST_WAIT_S

    def reset(self) -> None:
        """Reset the delay after a success."""
        self.next_s = FIRST_WAIT_S

    def after(self, error: Exception) -> float:
        """Return the seconds to wait, at least as long as the server requested."""
        wait_s = self.next_s * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
        self.next_s = min(2 * self.next_s, MOST_WAIT_S)
        asked_s = error.retry_after_s if isinstance(error, ServerAwayError) else None
        return max(wait_s, asked_s or 0.0)


class Shipper:
    """Ships the points of `run` to `address`; for one thread. `tell` gets messages for people, one of each kind."""

    def __init__(
        self, run: Path, address: Address, writer: Writer, tell: Callable[[str], None], *,
        most_lines: int = MOST_LINES, most_bytes: int = MOST_BYTES,
    ) -> None:  # fmt: skip
        self.run = run
        self.sent_points = 0
        self.reached = Shipped()
        self._position = ShippingPosition(run, address)
        self._segments = SegmentReader()
        self._writer = writer
        self._tell = tell
        self._told: set[str] = set()
        self._most_lines = most_lines
        self._ceiling_bytes = most_bytes
        self._most_bytes = most_bytes

    def close(self) -> None:
        """Close connection, segment and lock."""
        self._writer.close()
        self._segments.close()
        self._position.close()

    @property
    def refused_path(self) -> Path:
        """The file of refused points."""
        return self._position.refused_path

    def restart(self) -> None:
        """Reset the position to the first point, to ship all points again; raises `RunError` if it cannot be saved."""
        with self._position.turn(BUSY_WITHIN_S):
            try:
                self._position.save(Shipped())
            except OSError as error:
                raise RunError(f"{self.run}: cannot save the shipping position: {error.strerror}") from error

    def step(self) -> bool:
        """Ship one batch; return whether there was one.

        Raises `ServerAwayError`, `BusyError` or `RunError` (retry later), or `ServerRefusesError` (a person has to fix
        something). After an error the position is unchanged.
        """
        with self._position.turn(BUSY_WITHIN_S) as shipped:
            self.reached = shipped
            batch = next_batch(
                self.run, shipped.segment, shipped.offset_bytes, self._most_lines, self._most_bytes, self._segments
            )
            if batch is None:
                with contextlib.suppress(OSError):  # an error was reported when the position was saved
                    self._position.make_durable()
                return False
            try:
                refused = self._deliver(batch)
            except ServerAwayError:
                self._most_bytes = max(LEAST_BYTES, self._most_bytes // 2)  # the batch may have exceeded the timeout
                raise
            self._most_bytes = min(self._ceiling_bytes, self._most_bytes * 2)
            self._leave_behind(shipped, batch, refused)
        return True

    def _deliver(self, batch: Batch) -> list[tuple[bytes, str]]:
        """Write all lines of the batch; return those that the server refuses, each with the reason."""
        refused: list[tuple[bytes, str]] = []
        pieces = [batch.lines]
        while pieces:
            piece = pieces.pop()
            self.sent_points += piece.count(b"\n")
            try:
                self._writer.write(piece)
            except (PointsRefusedError, BatchTooLargeError) as error:
                two = halves(piece)
                if isinstance(error, BatchTooLargeError) and two is not None:
                    self._ceiling_bytes = max(1, min(self._ceiling_bytes, len(piece) // 2))
                if two is None:
                    refused.append((piece, str(error)))
                else:
                    pieces += (two[1], two[0])
        return refused

    def _leave_behind(self, shipped: Shipped, batch: Batch, refused: list[tuple[bytes, str]]) -> None:
        refused_bytes = shipped.refused_bytes
        if refused:
            # the reason is a comment in line protocol, so that the corrected file can be written as it is
            text = b"".join(b"# " + reason.encode() + b"\n" + line for line, reason in refused)
            try:
                refused_bytes = self._position.refuse(shipped, text)
            except OSError as error:
                raise RunError(f"{self.refused_path}: cannot write: {error.strerror}; shipping waits") from error
            line, reason = refused[0]
            said = f"{reason}: {line.decode(errors='replace').strip()}"
            self._tell_once("refused", f"the server refuses points; they are kept in {self.refused_path}: {said}")
        self.reached = Shipped(
            batch.segment,
            batch.end_bytes,
            shipped.read_points + batch.points,
            shipped.refused_points + len(refused),
            refused_bytes,
        )
        try:
            self._position.save(self.reached)
        except OSError as error:
            self._tell_once(
                "position",
                f"{self.run}: cannot save the shipping position: {error.strerror}; shipping continues, and after a "
                "restart it begins at an earlier point",
            )

    def _tell_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            with contextlib.suppress(OSError):
                self._tell(text)
