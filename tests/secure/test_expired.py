"""Our own certificate is judged before a broker hangs up on it: when it expired is said, and where it is."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.tls import client_context, server_context, validity
from testbed.errors import UserError
from testbed.secure.authority import Authority

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
