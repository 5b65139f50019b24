"""The web application: the page, its files, and the stream of updates."""

from __future__ import annotations

import asyncio
import hashlib
from importlib.resources import files

from aiohttp import web

from testbed.study.report.browser.follow import Follower
from testbed.study.report.browser.guard import Guard, add_headers

BEAT_S = 4.0
STUCK_S = 60.0
MOST_STREAMS = 64
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOLLOWER: web.AppKey[Follower] = web.AppKey("follower", Follower)


class _Asset:
    """One file of the page, read once when the server starts."""

    def __init__(self, name: str, body: bytes) -> None:
        self._body = body
        self._type = _TYPES[name[name.rindex(".") :]]
        self._etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'

    async def get(self, request: web.Request) -> web.Response:
        headers = {"ETag": self._etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == self._etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=self._body, content_type=self._type, charset="utf-8", headers=headers)


async def _stream(request: web.Request) -> web.StreamResponse:
    hub = request.app[FOLLOWER].hub
    if len(hub) >= MOST_STREAMS:
        raise web.HTTPServiceUnavailable(text=f"{MOST_STREAMS} pages are open already\n")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    subscription = hub.subscribe(request.headers.get("Last-Event-ID"))
    try:
        await response.prepare(request)
        await response.write(b"retry: 1000\n\n")
        while (message := await subscription.next(BEAT_S)) is not None:
            async with asyncio.timeout(STUCK_S):  # a browser that reads nothing for so long is gone
                await response.write(message)
    except (ConnectionError, TimeoutError):
        pass
    finally:
        hub.unsubscribe(subscription)
    return response


async def _close_streams(app: web.Application) -> None:
    app[FOLLOWER].hub.close()


def make_app(follower: Follower, guard: Guard) -> web.Application:
    """Return the application: `/` is the page, `/events` the stream, and all other paths are files of the page."""
    app = web.Application(middlewares=[guard.middleware()])
    app[FOLLOWER] = follower
    app.on_response_prepare.append(add_headers)
    app.on_shutdown.append(_close_streams)
    for file in files(__package__).joinpath("page").iterdir():
        if file.name[file.name.rfind(".") :] in _TYPES:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            app.router.add_get(path, _Asset(file.name, file.read_bytes()).get, allow_head=False)
    app.router.add_get("/events", _stream, allow_head=False)
    return app
