"""A real InfluxDB for tests: Debian's influxd 1.x, and an adapter that speaks the 2.x write path in front of it.

The adapter can cause disturbances: be away, hang, answer 429 or 503, cut a connection in the middle of a request, lose
answers after the server has written, or refuse long bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.live import HANG_S, wait_until

INFLUXD = shutil.which("influxd")
_PRECISIONS = {"ns": "n", "us": "u", "ms": "ms", "s": "s"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Influxd:
    """One influxd with separate folders and ports on loopback."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{free_port()}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "influxdb.conf").write_text(
            f"""
reporting-disabled = true
bind-address = "127.0.0.1:{free_port()}"
[meta]
dir = "{folder}/meta"
logging-enabled = false
[data]
dir = "{folder}/data"
wal-dir = "{folder}/wal"
query-log-enabled = false
[monitor]
store-enabled = false
[http]
enabled = true
bind-address = "{self.url.removeprefix("http://")}"
log-enabled = false
[[graphite]]
enabled = false
[continuous_queries]
enabled = false
"""
        )

    def start(self) -> None:
        assert INFLUXD is not None
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [INFLUXD, "-config", str(self._folder / "influxdb.conf")],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        wait_until(self.answers, f"influxd ({self._folder / 'log'})")

    def answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(self.url + "/ping", timeout=HANG_S) as answer:  # noqa: S310  # loopback
                return bool(answer.status == 204)
        except OSError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)
            self._process.wait(HANG_S)

    def query(self, text: str, database: str | None = None) -> list[dict[str, Any]]:
        """Return the series of a statement; numbers have the text of the answer."""
        data = urllib.parse.urlencode({"q": text, "epoch": "ns", **({"db": database} if database else {})}).encode()
        with urllib.request.urlopen(self.url + "/query", data=data, timeout=HANG_S) as answer:  # noqa: S310  # loopback
            value = json.load(answer, parse_int=_Number, parse_float=_Number)
        (result,) = value["results"]
        assert "error" not in result, result
        return list(result.get("series", ()))

    def create(self, database: str) -> None:
        self.query(f'CREATE DATABASE "{database}"')


class _Number(str):
    """A number as the server wrote it; its text shows the type of the field."""

    __slots__ = ()


Key = tuple[str, tuple[tuple[str, str], ...], int]
_READERS: Mapping[str, Callable[[Any], object]] = {"float": float, "integer": int, "string": str, "boolean": bool}


def read_back(influxd: Influxd, database: str) -> dict[Key, dict[str, object]]:
    """Return every point of the database: measurement, sorted tags and ns to fields, with their types."""
    found: dict[Key, dict[str, object]] = {}
    kinds = {
        series["name"]: dict(series["values"]) for series in influxd.query("SHOW FIELD KEYS", database)
    }  # fmt: skip
    for name, fields in kinds.items():
        for series in influxd.query(f'SELECT * FROM "{name}" GROUP BY *', database):  # noqa: S608  # names of ours
            tags = tuple(sorted((key, value) for key, value in series.get("tags", {}).items() if value))
            for row in series["values"]:
                values = dict(zip(series["columns"], row, strict=True))
                key = (name, tags, int(values.pop("time")))
                found[key] = {n: _READERS[fields[n]](v) for n, v in values.items() if v is not None}
    return found


@dataclass(slots=True)
class Adapter:
    """`/api/v2/write` in front of a 1.x server. The attributes are the disturbances, and the observed writes.

    `behave` gets the number of a write from 0, and returns what to do with it: "pass", "503", "429", "500 after",
    "cut", "cut after", "hang", "hang after", "200", "html 400", or any status.
    """

    upstream: str
    behave: Callable[[int], str] = lambda _number: "pass"
    most_bytes: int = 64 << 20
    retry_after: str | None = None
    token: str | None = None
    writes: int = 0
    written_points: int = 0
    times_s: list[float] = field(default_factory=list)
    port: int = field(default_factory=free_port)
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _stop: asyncio.Event | None = None
    _transports: set[Any] = field(default_factory=set)
    _failed: BaseException | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name="influx adapter", daemon=True)
        self._thread.start()
        assert ready.wait(HANG_S)
        assert self._failed is None, self._failed

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(HANG_S)
            assert not self._thread.is_alive()

    def cut_network(self) -> None:
        """Accept no connections, and break the open ones."""
        self.stop()

    def _serve(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._main(ready))
        except BaseException as error:  # noqa: BLE001  # the starter of the thread shows it
            self._failed = error
            ready.set()

    async def _main(self, ready: threading.Event) -> None:
        from aiohttp import ClientSession, web

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with ClientSession(auto_decompress=False) as session:
            app = web.Application(client_max_size=256 << 20)

            async def write(request: web.Request) -> web.StreamResponse:
                return await self._write(request, session)

            async def ping(request: web.Request) -> web.Response:
                return web.Response(status=204)

            app.router.add_post("/api/v2/write", write)
            app.router.add_get("/ping", ping)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, auto_decompress=False)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
            ready.set()
            await self._stop.wait()
            for transport in list(self._transports):
                transport.abort()
            await runner.cleanup()

    async def _write(self, request: Any, session: Any) -> Any:  # noqa: PLR0911  # one exit per disturbance
        from aiohttp import web

        number, self.writes = self.writes, self.writes + 1
        self.times_s.append(time.monotonic())
        self._transports.add(request.transport)
        todo = self.behave(number)
        if todo == "cut":
            request.transport.abort()
            return web.Response(status=500)
        body = await request.read()
        if todo == "hang":
            return await self._hang()
        if todo == "html 400":
            return web.Response(status=400, text="<html>The plain HTTP request was sent to HTTPS port</html>")
        if todo.isdigit():
            headers = {"Retry-After": self.retry_after} if self.retry_after is not None else {}
            return web.json_response(
                {"code": "told", "message": f"told to say {todo}"}, status=int(todo), headers=headers
            )
        if self.token is not None and request.headers.get("Authorization") != f"Token {self.token}":
            return web.json_response({"code": "unauthorized", "message": "unauthorized access"}, status=401)
        if len(body) > self.most_bytes:
            return web.json_response({"code": "request too large", "message": "too large"}, status=413)
        status, said = await self._forward(session, request, body)
        if status == 204:
            self.written_points += _lines(request, body)
        if todo == "hang after":
            return await self._hang()
        if todo == "cut after":
            request.transport.abort()
        if todo == "500 after":
            return web.json_response({"code": "internal error", "message": "lost"}, status=500)
        return web.Response(status=status, body=said, content_type="application/json" if said else None)

    async def _hang(self) -> Any:
        """Answer when the adapter is stopped."""
        from aiohttp import web

        assert self._stop is not None
        await self._stop.wait()
        return web.Response(status=503)

    async def _forward(self, session: Any, request: Any, body: bytes) -> tuple[int, bytes]:
        from aiohttp import ClientError

        params = {"db": request.query["bucket"], "precision": _PRECISIONS[request.query.get("precision", "ns")]}
        headers = {k: v for k, v in request.headers.items() if k == "Content-Encoding"}
        try:
            async with session.post(f"{self.upstream}/write", params=params, data=body, headers=headers) as answer:
                return answer.status, await answer.read()
        except (ClientError, OSError) as error:
            return 503, json.dumps({"code": "unavailable", "message": str(error)}).encode()


def _lines(request: Any, body: bytes) -> int:
    if request.headers.get("Content-Encoding") == "gzip":
        import gzip

        body = gzip.decompress(body)
    return body.count(b"\n")


@contextlib.contextmanager
def influx(folder: Path, database: str = "testbed") -> Iterator[tuple[Influxd, Adapter]]:
    """A running server with a database, and its adapter."""
    server = Influxd(folder)
    adapter = Adapter(server.url)
    try:
        server.start()
        server.create(database)
        adapter.start()
        yield server, adapter
    finally:
        adapter.stop()
        server.kill(signal.SIGTERM)


TAGS = {"run": "a run, with = and é", "lab": "local", "policy": "GreedyPM */per/OPT=MIN/MINVT=600"}
BEGIN_NS = 1_795_256_989_891_437_081


def numbered_point(number: int) -> tuple[str, dict[str, str], dict[str, Any], int]:
    """Return point `number` of a synthetic run: measurement, tags, fields, ns; no two share series and time."""
    time_ns = BEGIN_NS + number * 1_000_003
    if number % 50 == 0:
        return (
            "job",
            {"job": str(number % 7)},
            {"state": ("running", "done")[number % 2], "trace_s": number / 3},
            time_ns,
        )
    if number % 10 == 0:
        fields: dict[str, Any] = {"elapsed_s": number * 1e-7, "waited_s": 0.1, "bytes": number << 30, "ok": True}
        return "action", {"job": str(number % 7), "verb": "save"}, fields, time_ns
    return (
        "guest",
        {"node": f"node-{number % 3}", "job": str(number % 7), "task": str(number % 2)},
        {"cap_cores": 1 / (1 + number % 9), "cpu_s": number * 0.001234, "units_done": number},
        time_ns,
    )


def expected_point(number: int) -> tuple[Key, dict[str, Any]]:
    """Return the expected content of the database for point `number`."""
    measurement, tags, fields, time_ns = numbered_point(number)
    return (measurement, tuple(sorted({**TAGS, **tags}.items())), time_ns), fields


def write_spool(run: Path, count: int) -> None:
    """Make a run directory with `count` points, without a run."""
    from testbed.measure.points import to_line

    run.mkdir(parents=True)
    with (run / "points.lp").open("w", encoding="utf-8", newline="") as file:
        for number in range(count):
            measurement, tags, fields, time_ns = numbered_point(number)
            file.write(to_line(measurement, {**TAGS, **tags}, fields, time_ns) + "\n")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing the points of a run with the database."""

    written: int
    found: int
    lost: int
    altered: int
    foreign: int


def compare(influxd: Influxd, database: str, count: int) -> Comparison:
    """Compare every point of a synthetic run with the database, including types and bits."""
    found = read_back(influxd, database)
    expected = dict(expected_point(number) for number in range(count))
    altered = sum(not same(expected[key], values) for key, values in found.items() if key in expected)
    return Comparison(
        count, len(found), len(expected.keys() - found.keys()), altered, len(found.keys() - expected.keys())
    )


def same(expected: Mapping[str, Any], found: Mapping[str, object]) -> bool:
    """Return whether fields are the same: names, types, and every bit (`repr` distinguishes -0.0 from 0.0)."""
    return {n: (type(v), repr(v)) for n, v in expected.items()} == {n: (type(v), repr(v)) for n, v in found.items()}


class Recording:
    """A synthetic run that records `rate` points per second, with the recorder `influx`, until it is stopped."""

    def __init__(self, path: Path, url: str, rate: float, database: str = "testbed", *, ship: bool = True) -> None:
        from testbed.measure.influx import InfluxRecorder
        from testbed.measure.recorders import Recorders
        from testbed.measure.rundir import RunDirectory

        self.count = 0
        self.longest_s = 0.0
        self.failure: str | None = None
        self.directory = RunDirectory(path, TAGS, Recorders({"influx": InfluxRecorder()} if ship else {}))
        self._rate = rate
        self._end = threading.Event()
        self.directory.open()
        self.directory.write_manifest({"scenario": {"influx": {"url": url, "org": "lab", "bucket": database}}})
        self._thread = threading.Thread(target=self._record, name="recording", daemon=True)
        self._thread.start()

    def _record(self) -> None:
        from testbed.errors import TestbedError

        began_s = time.monotonic()
        while not self._end.is_set():
            due = int((time.monotonic() - began_s) * self._rate)
            while self.count < due:
                before_s = time.monotonic()
                try:
                    self.directory.point(*numbered_point(self.count))
                except TestbedError as error:
                    self.failure = str(error)
                    return
                self.longest_s = max(self.longest_s, time.monotonic() - before_s)
                self.count += 1
            self._end.wait(0.01)

    def end(self) -> dict[str, str]:
        """End the run as the controller does; return the failures of its recorder."""
        self._end.set()
        self._thread.join()
        self.directory.sync()
        self.directory.recorders.close()
        self.directory.close()
        return dict(self.directory.recorders.failures())
