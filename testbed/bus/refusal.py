"""Why a broker does not want us, as far as its TLS says."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from testbed.bus.certificate import names_of

_UNTRUSTED = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "DECRYPT_ERROR")  # the last: one of the same name
_DOORS = "agents have port 8883, controllers 8884, unless the broker says otherwise"


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
    issuer, subject = names_of(folder)
    ours = f"our certificate, {folder}/cert.pem of {subject!r}," if folder is not None else "our certificate"
    if "EXPIRED" in alert:
        return f"it says that {ours} has expired: renew it by `testbed ca issue`, and compare the clocks"
    if "REVOKED" in alert:
        return f"it says that {ours} was revoked: `testbed ca issue` makes another one"
    if any(name in alert for name in _UNTRUSTED):
        return (
            f"it does not trust {issuer or 'the authority'!r}, which signed {ours} on this port: {_DOORS}; "
            "another lab's broker trusts another authority"
        )
    if "CERTIFICATE_REQUIRED" in alert:
        return "it wants a certificate, and we have none: expected tls_dir, --tls-dir or TESTBED_TLS_DIR"
    return f"it ended the connection with the TLS alert {alert}" if "ALERT" in alert else ""
