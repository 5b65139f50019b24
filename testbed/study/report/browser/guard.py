"""Access control of the dashboard, and the security headers of its responses."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Middleware

from testbed.errors import UserError

SHORTEST_TOKEN = 16
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "testbed",
}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: Path) -> str:
    """Return the token in a file; a missing file is created with a new token, readable by its owner only."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(24)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(token + "\n")
        except OSError as error:
            raise UserError(f"{path}: cannot write a new token: {error.strerror}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the token: {error}") from error
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"{path}: expected a token of at least {SHORTEST_TOKEN} printable ASCII characters without blanks, found "
            f"{len(token)} characters; remove the file to get a new token"
        )
    return token


class Guard:
    """Check of requests: the Host header must name this server, and the token, if there is one, must be valid.

    A web page elsewhere could make its host name resolve to this machine (DNS rebinding), and its requests would then
    have that name. Therefore the host must be an IP address or a name of this server. The token is in the address of
    the first request, and then in a cookie with its digest, which stays valid over a restart with the same token.
    """

    def __init__(self, host: str, token: str | None = None) -> None:
        self._token = token
        self._hosts = {"localhost", host.lower(), socket.gethostname().lower()}
        self._cookie = None if token is None else hashlib.sha256(b"testbed dashboard " + token.encode()).hexdigest()

    def middleware(self) -> Middleware:
        """Return the check as a middleware."""

        @web.middleware
        async def check(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            if request.method != "GET":
                raise web.HTTPMethodNotAllowed(request.method, ["GET"])
            if not self._knows(request.headers.get("Host", "")):
                raise web.HTTPMisdirectedRequest(text="the Host header does not name this server\n")
            if self._token is None or self._is_let_in(request):
                return await handler(request)
            if self._matches(request.query.get("token", ""), self._token):
                return self._let_in(request)
            raise web.HTTPUnauthorized(text="open the address that `testbed dashboard` printed: it has the token\n")

        return check

    def _knows(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.lower() in self._hosts
        return True

    @staticmethod
    def _cookie_name(request: web.Request) -> str:
        # all ports of a host share its cookies, so the name has the port: dashboards must not overwrite each other's
        return f"testbed-dashboard-{request.url.port}"

    def _is_let_in(self, request: web.Request) -> bool:
        return self._matches(request.cookies.get(self._cookie_name(request), ""), self._cookie or "")

    def _let_in(self, request: web.Request) -> web.Response:
        """Set the cookie and redirect the browser to the bare address, so that no history keeps the token."""
        response = web.Response(status=303, headers={"Location": request.path})
        response.set_cookie(self._cookie_name(request), self._cookie or "", httponly=True, samesite="Strict", path="/")
        return response

    @staticmethod
    def _matches(given: str, right: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right.encode())


async def add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Add the security headers to a response."""
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
