"""Who we are to the broker of a lab: the name in our own certificate, and why a broker does not want it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

_COMMON_NAME = b"\x06\x03\x55\x04\x03"  # the object identifier 2.5.4.3, in DER
_SHORT = 0x80  # a length below is one octet
_CONTROLLER = "controller."  # begins the name of each controller (testbed.secure.authority)
_DOORS = "agents have port 8883, controllers 8884, unless the broker says otherwise"


def common_names(folder: Path) -> tuple[str, str]:
    """Return who signed the certificate in `folder`, and whose it is; empty where that cannot be read."""
    names = []
    with contextlib.suppress(OSError, ValueError):
        text = (folder / "cert.pem").read_text(encoding="ascii")
        end = "-----END CERTIFICATE-----"
        der = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)])
        for found in der.split(_COMMON_NAME)[1:3]:
            length = found[1] if len(found) > 1 and found[1] < _SHORT else 0
            names.append(found[2 : 2 + length].decode("utf-8", "replace"))
    issuer, subject = (*names, "", "")[:2]
    return issuer, subject


def controller_name(folder: Path | None) -> str:
    """Return the name of the controller whose certificate is in `folder`; empty if it is nobody's, or a node's."""
    subject = common_names(folder)[1] if folder is not None else ""
    return subject.removeprefix(_CONTROLLER) if subject.startswith(_CONTROLLER) else ""


async def refusal(host: str, port: int, tls: ssl.SSLContext, folder: Path | None, timeout_s: float) -> str:
    """Return why a broker closes connections right after the handshake, as its TLS alert says; empty if it says none.

    In TLS 1.3 the client has finished before the broker judges its certificate: the alert is read afterwards.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                await reader.read(1)
            finally:
                writer.close()
    except ssl.SSLError as error:
        return _explain(error.reason or "", folder)
    except (OSError, TimeoutError):
        pass
    return ""


def _explain(alert: str, folder: Path | None) -> str:
    issuer, subject = common_names(folder) if folder is not None else ("", "")
    ours = f"our certificate, {folder}/cert.pem of {subject!r}," if folder is not None else "our certificate"
    if "EXPIRED" in alert:
        return f"it says that {ours} has expired: renew it by `testbed ca issue`, and compare the clocks"
    if "REVOKED" in alert:
        return f"it says that {ours} was revoked: `testbed ca issue` makes another one"
    if "UNKNOWN_CA" in alert or "BAD_CERTIFICATE" in alert or "CERTIFICATE_UNKNOWN" in alert:
        return (
            f"it does not trust {issuer or 'the authority'!r}, which signed {ours} on this port: {_DOORS}; "
            "another lab's broker trusts another authority"
        )
    if "CERTIFICATE_REQUIRED" in alert:
        return "it wants a certificate, and we have none: expected tls_dir, --tls-dir or TESTBED_TLS_DIR"
    return f"it ended the connection with the TLS alert {alert}" if "ALERT" in alert else ""
