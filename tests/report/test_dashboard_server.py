"""The dashboard's server: access control, the contents of the stream, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, CookieJar, web
from aiohttp.test_utils import TestClient, TestServer
from blockbuster import blockbuster_ctx
from click.testing import CliRunner
from support.live import HANG_S
from support.report.rehearsed_run import GrowingRun, rehearse

from testbed.cli.dashboard import dashboard
from testbed.errors import UserError
from testbed.run.newest import newest_run
from testbed.study.report.browser import hub as hub_module
from testbed.study.report.browser.app import make_app
from testbed.study.report.browser.follow import Follower
from testbed.study.report.browser.guard import Guard, read_token
from testbed.study.report.browser.hub import QUEUE_MESSAGES, Hub

TOKEN = "a-token-of-some-length"  # noqa: S105  # used by this test only
CODE = (
    "import sys; from testbed.cli import main; main._COMMANDS['dashboard'] = ('testbed.cli.dashboard', ''); main.main()"
)
COMMAND = [sys.executable, "-c", CODE, "dashboard"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rehearse(tmp_path_factory.mktemp("runs") / "2026-11-21T10-00-00-quickstart")


@contextlib.asynccontextmanager
async def page_of(
    choose: Callable[[], Path | None], token: str | None = None
) -> AsyncIterator[tuple[TestClient[web.Request, web.Application], Follower]]:
    follower = Follower(choose)
    await follower.look()
    server = TestServer(make_app(follower, Guard("127.0.0.1", token)))
    async with TestClient(server, cookie_jar=CookieJar(unsafe=True)) as client:
        yield client, follower


async def next_event(response: ClientResponse) -> dict[str, Any]:
    """Read one server-sent event as event, id and data; the syntax is checked on the way."""
    event: dict[str, Any] = {}
    async with asyncio.timeout(HANG_S):
        while True:
            line = (await response.content.readline()).decode()
            assert line.endswith("\n")
            if line == "\n" and "data" in event:
                return event
            name, _, value = line.rstrip("\n").partition(": ")
            if name in {"event", "id"}:
                event[name] = value
            elif name == "data":
                assert "data" not in event
                event["data"] = json.loads(value)


async def raw_status(client: TestClient[web.Request, web.Application], path: str) -> int:
    """Request a path without changes, because a client library would normalise it."""
    reader, writer = await asyncio.open_connection(client.server.host, client.server.port)
    writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    await writer.wait_closed()
    return status


def test_only_what_belongs_to_the_page_is_served_and_with_strict_headers(run: Path) -> None:
    async def main() -> None:
        async with page_of(lambda: run) as (client, _):
            for path in ("/", "/style.css", "/main.js", "/icon.svg"):
                answer = await client.get(path)
                assert answer.status == 200
                assert "'unsafe" not in answer.headers["Content-Security-Policy"]
                assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                again = await client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
                assert again.status == 304
            text = await (await client.get("/")).text()
            assert "<style" not in text
            assert " style=" not in text
            assert " on" not in {part[:3] for part in text.split('"')}
            assert "://" not in text
            for path in (
                "/index.html", "/../state.py", "/%2e%2e/state.py", "/..%2fstate.py", "//etc/passwd", "/page/main.js",
            ):  # fmt: skip
                assert await raw_status(client, path) == 404, path
            for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
                answer = await client.request(method, "/")
                assert (answer.status, answer.headers["Allow"]) == (405, "GET")
                assert answer.headers["X-Content-Type-Options"] == "nosniff"

    asyncio.run(main())


def test_a_request_for_another_host_is_refused(run: Path) -> None:
    async def main() -> None:
        async with page_of(lambda: run) as (client, _):
            for host, status in (
                ("localhost:80", 200), ("127.0.0.1", 200), ("[::1]:9", 200), (socket.gethostname(), 200),
                ("evil.example:8765", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example", 421), ("", 421),
            ):  # fmt: skip
                for path in ("/", "/events"):
                    answer = await client.get(path, headers={"Host": host})
                    assert answer.status == status, host
                    answer.close()

    asyncio.run(main())


def test_the_token_is_needed_once_and_then_the_cookie(run: Path) -> None:
    async def main() -> None:
        async with page_of(lambda: run, TOKEN) as (client, _):
            for path in ("/", "/events", "/main.js", "/nothing", "/?token=", "/?token=" + TOKEN[:-1], "/?token=ü"):
                answer = await client.get(path)
                assert answer.status == 401, path
                assert "Set-Cookie" not in answer.headers
            first = await client.get("/", params={"token": TOKEN}, allow_redirects=False)
            assert (first.status, first.headers["Location"]) == (303, "/")
            cookie = first.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert TOKEN not in cookie
            for path in ("/", "/main.js", "/events"):
                answer = await client.get(path)
                assert answer.status == 200
                answer.close()
            name = cookie.partition("=")[0]
            client.session.cookie_jar.clear()
            answer = await client.get("/", headers={"Cookie": f"{name}={TOKEN}"})
            assert answer.status == 401

    asyncio.run(main())


def test_a_token_file_is_made_private_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = read_token(path)
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(path) == token
    for text in ("", "short", "with a blank in the middle of it"):
        path.write_text(text)
        with pytest.raises(UserError, match="expected a token of at least 16"):
            read_token(path)
    with pytest.raises(UserError, match="cannot write a new token"):
        read_token(tmp_path / "nowhere" / "token")


def test_the_stream_begins_with_the_page_goes_on_with_changes_and_resumes(run: Path, tmp_path: Path) -> None:
    async def main() -> None:
        growing = GrowingRun(run, tmp_path / "2026-01-01T00-00-00-a")
        middle_s = growing.second_of('"paused"')
        growing.advance(middle_s - 1)
        async with page_of(lambda: newest_run(tmp_path)) as (client, follower):
            response = await client.get("/events")
            assert response.headers["Content-Type"] == "text/event-stream"
            assert response.headers["Cache-Control"] == "no-store"
            first = await next_event(response)
            assert first["event"] == "snapshot"
            assert first["data"]["head"]["state"] == "running"
            assert first["data"]["queue"]["counts"]["paused"] == 0
            growing.advance(middle_s)
            await follower.look()
            second = await next_event(response)
            assert (second["event"], second["id"].partition(".")[0]) == ("update", first["id"].partition(".")[0])
            assert second["data"]["queue"]["counts"]["paused"] > 0
            assert "head" not in second["data"]
            assert len(json.dumps(second)) < len(json.dumps(first))
            response.close()
            await follower.look()  # without news, nothing is sent
            growing.advance(middle_s + 5)
            await follower.look()
            async with client.get("/events", headers={"Last-Event-ID": second["id"]}) as resumed:
                third = await next_event(resumed)
                assert third["event"] == "update"
                assert int(third["id"].partition(".")[2]) == int(second["id"].partition(".")[2]) + 1
            for unknown in ("00000000.1", first["id"].partition(".")[0] + ".99", "nonsense", "\u00e4.1"):
                async with client.get("/events", headers={"Last-Event-ID": unknown}) as other:
                    assert (await next_event(other))["event"] == "snapshot"
            assert len(follower.hub) <= 6

    asyncio.run(main())


def test_the_next_run_takes_over_when_it_begins(run: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with page_of(lambda: newest_run(tmp_path)) as (client, follower), client.get("/events") as response:
            first = await next_event(response)
            assert first["data"]["head"]["state"] == "no run yet"
            for name, share in (("2026-01-01T00-00-00-a", 1.0), ("2026-01-02T00-00-00-b", 0.5)):
                growing = GrowingRun(run, tmp_path / name)
                growing.advance(growing.end_s * share)
                await follower.look()
                event = await next_event(response)
                assert event["event"] == "snapshot"
                assert event["data"]["head"]["run"] == name
                assert event["data"]["head"]["state"] == ("finished" if share == 1.0 else "running")

    asyncio.run(main())


def test_following_blocks_the_loop_nowhere(run: Path) -> None:
    async def main() -> None:
        follower = Follower(lambda: newest_run(run.parent))
        with blockbuster_ctx():
            await follower.look()
            await follower.look()
        assert follower.snapshot()["queue"]["counts"]["done"] == 12

    asyncio.run(main())


def test_a_slow_browser_gets_the_page_anew_and_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        state = {"value": 0}
        hub = Hub(lambda: dict(state))
        slow, quick = hub.subscribe(), hub.subscribe()
        await slow.next(HANG_S)
        for value in range(1, 500):
            state["value"] = value
            hub.publish({"value": value})
            assert len(slow._waiting) <= QUEUE_MESSAGES
            message = await quick.next(HANG_S)
            assert message is not None
            assert b'"value":%d,' % value in message
        assert slow.drops == 1
        message = await slow.next(HANG_S)
        assert message is not None
        assert message.startswith(b"event: snapshot\n")
        assert b'"value":499,' in message
        message = await slow.next(0.0)
        assert message is not None
        assert message.startswith(b"event: beat\n")
        assert sum(len(kept) for _, kept in hub._history) <= hub_module.HISTORY_BYTES
        hub.close()
        assert await slow.next(HANG_S) is None

    asyncio.run(main())


def test_a_browser_that_reads_nothing_does_not_stop_the_others(run: Path, tmp_path: Path) -> None:
    async def main() -> None:
        growing = GrowingRun(run, tmp_path / "2026-01-01T00-00-00-a")
        async with page_of(lambda: newest_run(tmp_path)) as (client, follower):
            host, port = client.server.host, client.server.port
            reader, writer = await asyncio.open_connection(host, port, limit=1024)
            writer.write(f"GET /events HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            await writer.drain()
            async with client.get("/events") as response:
                await next_event(response)
                async with asyncio.timeout(HANG_S):
                    while len(follower.hub) < 2:  # noqa: ASYNC110  # the server has no event for a new stream
                        await asyncio.sleep(0.005)
                step_s = growing.end_s / 100
                for number in range(1, 102):
                    growing.advance(step_s * number)
                    await follower.look()
                while (event := await next_event(response))["data"].get("head", {}).get("state") != "finished":
                    assert event["event"] in {"update", "snapshot"}
            assert all(len(each._waiting) <= QUEUE_MESSAGES for each in follower.hub._subscriptions)
            del reader
            writer.transport.abort()

    asyncio.run(main())


def test_what_the_user_got_wrong_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, text in (
        (["nowhere"], "nowhere: expected a run directory, found nothing"),
        ([str(tmp_path / "file")], "expected a run directory, found a file"),
        ([str(tmp_path), "--runs", str(tmp_path)], "RUN and --runs: expected one of them"),
        (["--runs", str(tmp_path), "--host", "no-such-host.invalid"], "no-such-host.invalid:8765: cannot listen there"),
    ):
        result = CliRunner().invoke(dashboard, arguments)
        assert isinstance(result.exception, UserError)
        assert text in str(result.exception)
    help_text = CliRunner().invoke(dashboard, ["--help"]).output
    assert "testbed dashboard" in help_text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_the_streams_and_ends_the_process_with_130(run: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*COMMAND, str(run), "--port", "0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            host, port = url.removeprefix("http://").rstrip("/").split(":")
            busy = subprocess.run(
                [*COMMAND, str(run), "--port", port], capture_output=True, text=True, timeout=HANG_S, check=False
            )
            assert busy.returncode == 2
            assert busy.stderr.count("\n") == 1
            assert f"127.0.0.1:{port}: cannot listen there" in busy.stderr
            with socket.create_connection((host, int(port)), HANG_S) as stream:
                stream.settimeout(HANG_S)
                stream.sendall(f"GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                heard = stream.recv(4096)
                assert heard.startswith(b"HTTP/1.1 200")
                process.send_signal(number)
                while heard:
                    heard = stream.recv(65536)
            assert process.wait(HANG_S) == 130
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_another_host_needs_a_token_even_when_none_was_given(run: Path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*COMMAND, str(run), "--port", "0", "--host", "0.0.0.0"],  # noqa: S104  # the test is about this address
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            base, _, token = url.partition("/?token=")
            assert len(token) >= 32
            port = int(base.rpartition(":")[2])
            for path, status in (("/", b"401"), (f"/?token={token}", b"303")):
                with socket.create_connection(("127.0.0.1", port), HANG_S) as client:
                    client.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
                    assert client.recv(64).split()[1] == status
        finally:
            process.kill()
