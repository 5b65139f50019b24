"""Checks the expiry of certificates on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from testbed.bus.certificate import RENEW, SOON, dates_of
from testbed.bus.tls import FOLDER_VARIABLE
from testbed.host.agents import claims
from testbed.lab.doctor.finding import Finding

BROKER_FOLDER = Path("/etc/mosquitto/dfrs/certificates")  # by ansible/roles/broker


def certificates(given: Sequence[Path] = ()) -> Iterator[Finding]:
    """Report the certificates that expire within 30 days or have expired.

    The checked certificates are those in and below the `given` folders, those of this user's agents, of the folder in
    the environment, and of a broker on this machine.
    """
    files = sorted({path for folder in (*given, *_known()) for path in _below(folder)})
    ends: list[tuple[datetime, Path]] = []
    for path in files:
        try:
            dates = dates_of(path)
        except OSError as error:
            yield Finding("certificates", "warning", f"{path}: {error.strerror}", "run as the owner of this file")
            continue
        if dates is None:
            yield Finding("certificates", "error", f"{path}: no certificate", RENEW)
        else:
            ends.append((dates[1], path))
    yield from _judge(sorted(ends))
    if not files:
        yield Finding("certificates", "ok", "none here")
    for folder in given:
        if not any(path.is_relative_to(folder) for path in files):
            yield Finding("certificates", "error", f"{folder}: no certificates there", "testbed ca issue")


def _judge(ends: Sequence[tuple[datetime, Path]]) -> Iterator[Finding]:
    """Report each certificate that expires soon, or the first one if none does; `ends` is in the order of time."""
    now = datetime.now(UTC)
    soon = [each for each in ends if each[0] - now < SOON]
    for until, path in soon:
        days = (until - now).days
        if until <= now:
            yield Finding("certificates", "error", f"{path}: expired on {until:%Y-%m-%d}", RENEW)
        else:
            words = f"{path}: expires in {days} days, on {until:%Y-%m-%d}"
            yield Finding("certificates", "warning", words, RENEW, {"days_left": days})
    if ends and not soon:
        until, path = ends[0]
        days = (until - now).days
        words = f"{len(ends)} valid; the first ends in {days} days: {path}"
        yield Finding("certificates", "ok", words, values={"days_left": days})


def _known() -> Iterator[Path]:
    if named := os.environ.get(FOLDER_VARIABLE):
        yield Path(named).expanduser()
    yield from (Path(claim.tls_dir) for _, claim in claims() if claim.alive and claim.tls_dir)
    yield BROKER_FOLDER


def _below(folder: Path) -> Iterator[Path]:
    """Return the certificates in a party's folder, or in the folder of an authority."""
    for pattern in ("cert.pem", "*-ca.pem", "broker/cert.pem", "nodes/*/cert.pem", "controllers/*/cert.pem"):
        yield from folder.glob(pattern)
