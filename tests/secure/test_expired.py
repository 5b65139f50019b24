"""Our own certificate is checked before a broker refuses it: the message has its expiry date and its path."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given
from hypothesis import strategies as st

from testbed.bus import certificate
from testbed.bus.certificate import validity
from testbed.bus.tls import client_context, server_context
from testbed.errors import UserError
from testbed.lab.doctor.certificates import certificates
from testbed.lab.secure.authority import Authority

DAY = dt.timedelta(days=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Authority.create(tmp_path_factory.mktemp("ca"), "lab-1").issue("node", "n1")[0].folder


def dated(folder: Path, since: dt.datetime, until: dt.datetime) -> bytes:
    """Return the node's certificate with other dates, signed by itself, as PEM."""
    found = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    made = (
        x509.CertificateBuilder().subject_name(found.subject).issuer_name(found.subject).public_key(found.public_key())
        .serial_number(7).not_valid_before(since).not_valid_after(until).sign(key, SHA256())
    )  # fmt: skip
    return made.public_bytes(serialization.Encoding.PEM)


def test_dates_of_a_certificate_that_is_valid(folder: Path) -> None:
    found = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
    dates = validity(found.public_bytes(serialization.Encoding.DER))
    assert dates == (found.not_valid_before_utc, found.not_valid_after_utc)
    client_context(folder)
    server_context(folder)


@pytest.mark.parametrize(
    ("since", "until", "words"),
    [
        (dt.datetime(1970, 1, 2, tzinfo=dt.UTC), dt.datetime(2020, 3, 4, 5, 6, tzinfo=dt.UTC), "expired on 2020-03-04"),
        (dt.datetime(2120, 1, 2, tzinfo=dt.UTC), dt.datetime(2121, 1, 1, tzinfo=dt.UTC), "not valid before 2120-01-02"),
    ],
)
def test_a_certificate_that_is_not_valid_now_is_named(
    folder: Path, tmp_path: Path, since: dt.datetime, until: dt.datetime, words: str
) -> None:
    for name in ("ca.pem", "peers.pem", "key.pem"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "key.pem").chmod(0o600)
    (tmp_path / "cert.pem").write_bytes(dated(folder, since, until))
    for open_context in (client_context, server_context):
        with pytest.raises(UserError, match=rf"{tmp_path}/cert\.pem: {words}"):
            open_context(tmp_path)


def test_a_folder_that_is_not_there_is_told_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nope/ca\.pem: no such file: expected a folder of .* as tls_dir, --tls-dir"):
        client_context(tmp_path / "nope")


@given(st.data())
def test_whatever_the_bytes_are_there_are_dates_or_none(folder: Path, data: st.DataObject) -> None:
    der = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes()).public_bytes(serialization.Encoding.DER)
    cut = data.draw(st.integers(0, len(der)))
    noise = data.draw(st.binary(max_size=40))
    found = validity(der[:cut] + noise + der[cut + data.draw(st.integers(0, 40)) :])
    assert found is None or all(isinstance(date, dt.datetime) for date in found)


def ending(folder: Path, there: Path, days: float) -> Path:
    """Return a folder like the node's, whose certificate expires in the given number of days."""
    there.mkdir(parents=True)
    for name in ("ca.pem", "peers.pem", "key.pem"):
        (there / name).write_bytes((folder / name).read_bytes())
    (there / "key.pem").chmod(0o600)
    now = dt.datetime.now(dt.UTC)
    (there / "cert.pem").write_bytes(dated(folder, now - DAY, now + days * DAY))
    return there


def test_an_end_within_thirty_days_is_said_at_a_connection_and_once_a_day(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon, later = ending(folder, tmp_path / "soon", 12.5), ending(folder, tmp_path / "later", 31)
    now_s = 0.0
    monkeypatch.setattr(certificate.time, "monotonic", lambda: now_s)
    for _ in range(3):
        client_context(soon)
        client_context(later)
        server_context(soon)
    (said,) = caplog.messages
    assert said.startswith(f"{soon}/cert.pem: expires in 12 days, on 20")
    assert said.endswith(": testbed ca issue, or ansible-playbook rotate.yml")
    now_s = 86_401.0
    client_context(soon)
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    ("days", "severity", "words"),
    [
        (29.5, "warning", "expires in 29 days, on 20"),
        (31, "ok", "1 valid; the first ends in 3"),
        (-1, "error", "expired on 20"),
    ],
)
def test_the_doctor_tells_when_certificates_end(
    folder: Path, tmp_path: Path, days: float, severity: str, words: str
) -> None:
    ending(folder, tmp_path / "nodes/n1", days)
    found = [each for each in certificates([tmp_path]) if str(tmp_path) in each.found]
    assert [each.severity for each in found] == [severity]
    assert words in found[0].found
    assert bool(found[0].mend) == (severity != "ok")


def test_the_doctor_tells_of_a_folder_without_certificates(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing")
    assert [each.found for each in certificates([tmp_path, tmp_path / "nowhere"]) if each.severity == "error"] == [
        f"{tmp_path}/cert.pem: no certificate", f"{tmp_path}/nowhere: no certificates there",
    ]  # fmt: skip
