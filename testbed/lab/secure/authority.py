"""Certificate authorities of a lab, in a folder that stays with the owner of the lab.

There are three authorities: for the broker, for agents, and for controllers. Agents and controllers connect to
different listeners of the broker (`testbed.lab.secure.broker`), each of which trusts one authority. So a compromised
node cannot authenticate as a controller under any name. Keys are on the elliptic curve P-256, for TLS 1.3.

    lab.json                        the lab's name
    {broker,agents,controllers}-ca.{pem,key,crl}
    issued.jsonl                    every certificate that was issued (`testbed.lab.secure.revocation`)
    broker/                         cert.pem, key.pem, {agents,controllers}-ca.{pem,crl}
    nodes/NAME/                     cert.pem, key.pem, ca.{pem,crl} (the broker's), peers.{pem,crl} (the other agents'),
                                    farewell-due (empty) from its revocation until its connection was ended
    controllers/NAME/               cert.pem, key.pem, ca.{pem,crl}

The `.crl` beside an authority's `.pem` is its certificate revocation list.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from testbed.bus.topics import check_name
from testbed.errors import UserError, nearest
from testbed.host.whole_files import write_whole
from testbed.lab.secure import revocation

Party = Literal["broker", "node", "controller"]
CONTROLLER_PREFIX = "controller."  # of a common name; names of nodes have no dot, so no node can have such a name
DAYS = 397
_CA_DAYS = 3650
_SKEW = dt.timedelta(minutes=5)  # tolerance for clocks of nodes that are behind
_CA_OF: dict[Party, str] = {"broker": "broker-ca", "node": "agents-ca", "controller": "controllers-ca"}
_FAREWELL = "farewell-due"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Held:
    """A certificate of the lab: its owner and file, the days until its expiry, and whether it was revoked."""

    party: Party
    name: str
    folder: Path
    days_left: float
    hosts: tuple[str, ...]
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Revoked:
    """The result of a revocation: numbers of newly and previously listed certificates, and the written files.

    `written` are the changed files in the authority's folder: its list, and the copies in folders of parties.
    """

    new: int
    before: int
    written: tuple[Path, ...]


class Authority:
    """The certificate authorities of one lab, in a folder that only its owner can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.lab = check_name("lab", str(json.loads((folder / "lab.json").read_text())["lab"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder}: no authority of a lab is there; make one: testbed ca init ({error})") from None

    @classmethod
    def create(cls, folder: Path, lab: str) -> Authority:
        """Create the authorities, or return existing ones; raises `UserError` if those belong to another lab."""
        check_name("lab", lab)
        if (folder / "lab.json").exists():
            found = cls(folder)
            if found.lab != lab:
                raise UserError(f"{folder}: it is the authority of lab {found.lab}, not of {lab}")
            return found
        for place in (folder, folder / "nodes", folder / "controllers"):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for stem in _CA_OF.values():
            key = ec.generate_private_key(ec.SECP256R1())
            name = _name(f"{lab} {stem}")
            cert = (
                _builder(name, name, key.public_key(), _CA_DAYS)
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(_usage(signs=True), critical=True)
                .sign(key, hashes.SHA256())
            )
            _write(folder / f"{stem}.key", _key_bytes(key))
            _write(folder / f"{stem}.pem", _cert_bytes(cert))
            revocation.ensure_list(folder / f"{stem}.crl", cert, key)
        _write(folder / "lab.json", json.dumps({"lab": lab}).encode() + b"\n")  # last: it marks the folder as complete
        return cls(folder)

    def issue(
        self,
        party: Party,
        name: str = "",
        *,
        hosts: Sequence[str] = (),
        days: int = DAYS,
        renew_before_days: float = 30,
        readmit: bool = False,
    ) -> tuple[Held, bool]:
        """Return the certificate of a party, and whether it was issued now.

        A new certificate is issued if there is none, if it expires within `renew_before_days`, or if it is for other
        hosts. `hosts` are the names and addresses of the party: the broker needs at least one, a node has those of its
        image server. For a party whose certificate was revoked, `UserError` is raised without `readmit`.
        """
        folder = self._folder(party, name)
        found = self._held(party, folder)
        if (since := self._out_since(party, name)) is not None:
            if not readmit:
                raise UserError(
                    f"{_who(party, name)}: its certificate was revoked on {since:%Y-%m-%d %H:%M} UTC: expected "
                    "--readmit to let it in again with a new one; else take it out of the lab's inventory"
                )
            found = None
        wanted = tuple(sorted({_checked_host(host) for host in hosts}))
        if party == "broker" and not wanted:
            raise UserError("broker: expected at least one name or address at which it is reached (--host)")
        if found is not None and found.days_left > renew_before_days and found.hosts == wanted:
            self._hand_out(party, folder)
            return found, False
        self._make(party, name, folder, wanted, days)
        if party == "node":
            self.farewell_said(name)  # a pending farewell must not disconnect a readmitted node
        made = self._held(party, folder)
        if made is None:
            raise UserError(f"{folder}: the certificate that was written there cannot be read")
        return made, True

    def stand_in(self, name: str, folder: Path) -> None:
        """Issue a certificate of a node's name for our own use, valid for a day, into `folder`."""
        self._make("node", name, folder, (), 1)

    def _make(self, party: Party, name: str, folder: Path, hosts: tuple[str, ...], days: int) -> None:
        """Issue a party's certificate, write it with the party's trusted authorities, and log it."""
        ca, ca_key = self._load(_CA_OF[party])
        key = ec.generate_private_key(ec.SECP256R1())
        both = party == "node"  # a node fetches images from other nodes, and serves its own
        uses = [ExtendedKeyUsageOID.SERVER_AUTH] if party == "broker" or both else []
        uses += [ExtendedKeyUsageOID.CLIENT_AUTH] if party != "broker" else []
        builder = (
            _builder(_name(_common_name(party, name)), ca.subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            # Not critical for nodes: libvirt and QEMU refuse a critical usage without key encipherment.
            .add_extension(_usage(signs=False), critical=not both)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alt_name(host) for host in hosts]), False)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        cert = builder.sign(ca_key, hashes.SHA256())
        self._hand_out(party, folder)
        known = {each.serial for each in revocation.issued(self.folder)}
        for serial in sorted((self._serials(party, name) | {cert.serial_number}) - known):  # also those before the log
            revocation.note_issued(self.folder, party, name, serial)
        _write(folder / "key.pem", _key_bytes(key))
        _write(folder / "cert.pem", _cert_bytes(cert))

    def revoke(self, party: Party, name: str = "") -> Revoked:
        """Revoke every certificate that a party ever got, and copy the list to the folders of all parties that use it.

        The method is idempotent: a repeated call only adds missing entries. Raises `UserError` for a party that has no
        certificate.
        """
        serials = self._serials(party, name)
        if not serials:
            known = {held.name for held in self.held() if held.party == party}
            raise UserError(
                f"{_who(party, name)}: no certificate of this name was issued: expected one of "
                f"{', '.join(sorted(known)) or '(none yet)'}{nearest(name, known)}"
            )
        stem = _CA_OF[party]
        path = self.folder / f"{stem}.crl"
        if party == "node" and not serials <= set(revocation.revoked(path)):
            self._farewell(name).parent.mkdir(mode=0o700, exist_ok=True)
            _write(self._farewell(name), b"")  # first, so that a later command completes an interrupted revocation
        new = revocation.revoke_serials(path, *self._load(stem), serials)
        written = [path] if new else []
        for held in self.held():
            written += self._hand_out(held.party, held.folder)
        return Revoked(len(new), len(serials) - len(new), tuple(written))

    def farewell_due(self, name: str) -> bool:
        """Whether a node was revoked and its connection to the broker has not been ended since."""
        return self._farewell(name).exists()

    def farewell_said(self, name: str) -> None:
        """Record that a node has no connection any more from before its revocation."""
        self._farewell(name).unlink(missing_ok=True)

    def lists(self) -> None:
        """Create missing revocation lists, for all parties that use them, in a lab from before there were lists."""
        for held in list(self.held()):
            self._hand_out(held.party, held.folder)

    def held(self) -> Iterator[Held]:
        """Yield the current certificate of each party: the broker's, then those of nodes and controllers by name."""
        places: list[tuple[Party, Path]] = [("broker", self.folder / "broker")]
        places += [("node", path) for path in sorted((self.folder / "nodes").glob("*"))]
        places += [("controller", path) for path in sorted((self.folder / "controllers").glob("*"))]
        for party, path in places:
            found = self._held(party, path)
            if found is not None:
                yield found

    def let_in(self, party: Party) -> list[str]:
        """Return the names of a kind of party in certificates that are not revoked, for the broker's access rules."""
        return [held.name for held in self.held() if held.party == party and not held.revoked]

    def _hand_out(self, party: Party, folder: Path) -> list[Path]:
        """Copy a party's trusted authorities into its folder, and return the files that changed."""
        changed = []
        for name_there, stem in _TRUSTS[party].items():
            revocation.ensure_list(self.folder / f"{stem}.crl", *self._load(stem))
            for ending in (".pem", ".crl"):
                path, content = folder / (name_there + ending), (self.folder / (stem + ending)).read_bytes()
                if not path.exists() or path.read_bytes() != content:
                    _write(path, content)
                    changed.append(path)
        return changed

    def _serials(self, party: Party, name: str) -> set[int]:
        """Return the serials of all known certificates of a party."""
        serials = {each.serial for each in revocation.issued(self.folder) if (each.party, each.name) == (party, name)}
        cert = _certificate(self._folder(party, name))
        return serials if cert is None else serials | {cert.serial_number}

    def _out_since(self, party: Party, name: str) -> dt.datetime | None:
        """Return when the last of a party's certificates was revoked (UTC), None if one of them is not revoked.

        The certificate of an interrupted farewell is ignored.
        """
        listed = revocation.revoked(self.folder / f"{_CA_OF[party]}.crl")
        serials = self._serials(party, name)
        gone = serials & set(listed)
        out = gone == serials or (party == "node" and self.farewell_due(name))
        return max(listed[each] for each in gone) if gone and out else None

    def _farewell(self, name: str) -> Path:
        return self._folder("node", name) / _FAREWELL

    def _folder(self, party: Party, name: str) -> Path:
        if party == "broker":
            return self.folder / "broker"
        return self.folder / f"{party}s" / check_name(party, name)

    def _held(self, party: Party, folder: Path) -> Held | None:
        cert = _certificate(folder)
        if cert is None:
            return None
        left = cert.not_valid_after_utc - dt.datetime.now(dt.UTC)
        try:
            alternatives = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            hosts: tuple[str, ...] = ()
        else:
            hosts = tuple(sorted(str(each.value) for each in alternatives))
        name = "" if party == "broker" else folder.name
        listed = cert.serial_number in revocation.revoked(self.folder / f"{_CA_OF[party]}.crl")
        return Held(party, name, folder, left.total_seconds() / 86400.0, hosts, listed)

    def _load(self, stem: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        try:
            cert = x509.load_pem_x509_certificate((self.folder / f"{stem}.pem").read_bytes())
            key = serialization.load_pem_private_key((self.folder / f"{stem}.key").read_bytes(), None)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.folder}: {stem}.pem and {stem}.key cannot be read: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{self.folder / f'{stem}.key'}: expected a key by elliptic curve")
        return cert, key


_TRUSTS: dict[Party, dict[str, str]] = {  # file names without their endings, .pem and .crl
    "broker": {"agents-ca": "agents-ca", "controllers-ca": "controllers-ca"},
    "node": {"ca": "broker-ca", "peers": "agents-ca"},
    "controller": {"ca": "broker-ca"},
}


def _who(party: Party, name: str) -> str:
    return f"{party} {name}".strip()


def _certificate(folder: Path) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
    except (OSError, ValueError):
        return None


def _common_name(party: Party, name: str) -> str:
    return {"broker": "broker", "node": name, "controller": CONTROLLER_PREFIX + name}[party]


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs, crl_sign=signs, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _checked_host(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST.fullmatch(host):
        raise UserError(f"host = {host!r}: expected a name or an address, such as head.example or 192.0.2.1")
    return host.lower()


def _alt_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _cert_bytes(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, readable only for its owner."""
    write_whole(path, content, mode=0o600)
