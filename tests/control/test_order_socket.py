"""The socket on which a controller takes orders: hostile and careless clients, stale files, long paths."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.live import until

from testbed import Run
from testbed.cli.control import control, drain
from testbed.control import line_socket
from testbed.control.line_socket import MOST_BYTES, NoControllerError, Peer
from testbed.control.order_client import give, running_run
from testbed.control.order_messages import Answer, Request
from testbed.control.order_socket import SOCKET, send, takes_orders, taking_orders
from testbed.errors import RunError, UserError

BEGIN = {"kind": "begin", "t_s": 0, "trace_s": 0, "scenario": "s", "policy": "p", "run_tag": "t", "version": 4}
REPLAY = {"kind": "replay", "t_s": 1, "trace_s": 0, "jobs": 0}
TEARDOWN = {"kind": "teardown", "t_s": 2, "trace_s": 1, "elapsed_s": 0.5}
DONE = Answer(done=True, text="the run is paused: 2 jobs are saved", state="paused", changed=True)


class Taker:
    """Takes orders in place of a run's `Orders`; an order that is `kept` is never answered."""

    def __init__(self, answer: Answer | Exception = DONE, *, kept: bool = False) -> None:
        self.requests: list[tuple[Request, str]] = []
        self._answer = answer
        self._kept = kept

    async def carry_out(self, request: Request, by: str) -> Answer:
        self.requests.append((request, by))
        if self._kept:
            await asyncio.Event().wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def run_directory(path: Path, *entries: dict) -> Path:
    path.mkdir(parents=True)
    (path / "events.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries or (BEGIN, REPLAY)))
    return path


def with_taker(run: Path, taker: Taker, act: Callable[[], Awaitable[object]]) -> object:
    async def main() -> object:
        async with taking_orders(taker, run):
            return await act()

    return asyncio.run(main())


def in_thread(function: Callable[..., object], *arguments: object) -> Callable[[], Awaitable[object]]:
    return lambda: asyncio.to_thread(function, *arguments)


def raw(run: Path, data: bytes) -> Answer:
    """Send bytes, and return the answer."""
    with line_socket.connect(run / SOCKET) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answers:
            return msgspec.json.decode(answers.readline(), type=Answer)


def test_an_order_is_carried_out_and_answered(tmp_path: Path) -> None:
    run, taker = run_directory(tmp_path / "run"), Taker()
    request = Request("drain", node="node-a", wait_s=5.0)
    assert with_taker(run, taker, in_thread(send, run, request)) == DONE
    assert taker.requests == [(request, f"user {os.geteuid()}, process {os.getpid()}")]


def test_an_order_is_given_from_python(tmp_path: Path) -> None:
    run, taker = run_directory(tmp_path / "run"), Taker()
    assert with_taker(run, taker, in_thread(Run(run).order, "drain", "node-a")) == DONE
    assert taker.requests[0][0] == Request("drain", node="node-a")


def test_the_socket_is_for_its_user_alone_and_goes_with_the_run(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run")

    async def look() -> int:
        return stat.S_IMODE((run / SOCKET).stat().st_mode)

    assert with_taker(run, Taker(), look) == 0o600
    assert not (run / SOCKET).exists()


@pytest.mark.parametrize("late", [False, True])
def test_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Also if the order arrives when the controller has already answered and closed the connection."""
    run, taker = run_directory(tmp_path / "run"), Taker()
    if late:
        connect = line_socket.connect

        def connect_late(path: Path) -> socket.socket:
            client, over = connect(path), select.poll()
            over.register(client, select.POLLHUP)
            over.poll()
            return client

        monkeypatch.setattr(line_socket, "connect", connect_late)
    monkeypatch.setattr(line_socket, "_peer", lambda _client: Peer(1, os.geteuid() + 1))
    answer = with_taker(run, taker, in_thread(send, run, Request("pause")))
    assert not answer.done
    assert answer.text == f"user {os.geteuid() + 1} may not give orders to a run of user {os.geteuid()}"
    assert taker.requests == []


def test_paths_may_be_longer_than_addresses_of_sockets(tmp_path: Path) -> None:
    run = run_directory(tmp_path / ("d" * 120) / ("e" * 120) / "run")
    assert len(str(run / SOCKET)) > 107
    assert with_taker(run, Taker(), in_thread(send, run, Request("pause"))) == DONE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"pause\n",
        b"[]\n",
        b'{"order": "restart"}\n',
        b'{"order": "pause", "force": true}\n',
        b'{"order": "pause", "wait_s": -1}\n',
        b'{"order": "pause", "wait_s": 1e300}\n',
        b'{"order": "drain", "node": "' + b"n" * 300 + b'"}\n',
        b"[" * MOST_BYTES,
        b'{"order": "' + b"x" * (2 * MOST_BYTES) + b'"}\n',
        b'{"order": "pause"',
        b"\xff\xfe\n",
    ],
)
def test_what_is_no_order_is_refused(data: bytes, tmp_path: Path) -> None:
    run, taker = run_directory(tmp_path / "run"), Taker()

    def ask() -> Answer | None:
        try:
            return raw(run, data)
        except OSError:  # the controller closed the connection before all was sent
            return None

    answer = with_taker(run, taker, in_thread(ask))
    assert answer is None or (not answer.done and answer.text.startswith("not a request: "))
    assert taker.requests == []


@settings(max_examples=25)
@given(st.binary(max_size=200).filter(lambda data: b'"order"' not in data))
def test_any_bytes_are_no_order(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    run, taker = run_directory(tmp_path_factory.mktemp("runs") / "run"), Taker()
    answer = with_taker(run, taker, in_thread(raw, run, data))
    assert not answer.done
    assert taker.requests == []


def test_a_client_that_goes_away_or_says_nothing_disturbs_nobody(tmp_path: Path) -> None:
    run, taker = run_directory(tmp_path / "run"), Taker()

    async def act() -> object:
        with line_socket.connect(run / SOCKET) as silent, line_socket.connect(run / SOCKET) as gone:
            gone.close()
            answer = await asyncio.to_thread(send, run, Request("pause"))
            silent.close()
            return answer

    assert with_taker(run, taker, act) == DONE


def test_clients_that_wait_when_the_run_ends_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, taker = run_directory(tmp_path / "run"), Taker(kept=True)
    monkeypatch.setattr(line_socket, "CLOSE_S", 0.01)
    waiting: list[asyncio.Future[Answer]] = []

    async def main() -> Answer:
        async with taking_orders(taker, run):
            waiting.append(asyncio.ensure_future(asyncio.to_thread(send, run, Request("drain", node="a"))))
            await until(lambda: taker.requests, "the order")
        return await waiting[0]

    answer = asyncio.run(main())
    assert (answer.done, answer.text) == (False, "the run is over")


def test_an_order_that_cannot_be_journalled_is_answered(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run")
    answer = with_taker(run, Taker(RunError("the disk is full")), in_thread(send, run, Request("pause")))
    assert (answer.done, answer.text) == (False, "the disk is full")


def test_a_directory_without_room_for_a_socket_takes_no_orders_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_directory(tmp_path / "run")
    (run / SOCKET).write_text("something else")
    with_taker(run, Taker(), in_thread(takes_orders, run))
    assert "the run takes no orders" in caplog.text
    assert (run / SOCKET).read_text() == "something else", "foreign files stay"


def stale_socket(run: Path) -> None:
    """Leave a stale socket, as a killed controller does."""
    with line_socket._directory(run) as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}/{SOCKET}")


@pytest.mark.parametrize(
    ("entries", "stale", "words"),
    [
        ((BEGIN,), False, "its journal ends before the replay begins: a run takes orders from then on"),
        ((BEGIN, REPLAY), True, "its controller is gone: it was killed, or its machine was restarted"),
        ((BEGIN, REPLAY), False, "no controller takes orders there; its journal does not say that the run is over"),
        ((BEGIN, REPLAY, TEARDOWN), False, "the run is over"),
        ((BEGIN, {**TEARDOWN, "kind": "aborted", "reason": "disk full"}), True, "the run is over: disk full"),
    ],
)
def test_a_run_that_takes_no_orders_says_why(
    entries: tuple[dict, ...], stale: bool, words: str, tmp_path: Path
) -> None:
    run = run_directory(tmp_path / "run", *entries)
    if stale:
        stale_socket(run)
    with pytest.raises(RunError, match=words) as caught:
        give(run, Request("pause"))
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_a_controller_that_ends_before_it_answers_is_named(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run")

    async def main() -> None:
        listener = await asyncio.to_thread(line_socket._listen, run / SOCKET, 0o600, None)
        with listener:
            order = asyncio.ensure_future(asyncio.to_thread(send, run, Request("pause")))
            client, _ = await asyncio.get_running_loop().sock_accept(listener)
            client.close()
            with pytest.raises(NoControllerError, match=r"ended before it answered|does not answer"):
                await order

    asyncio.run(main())


@pytest.mark.parametrize("name", ["absent", "foreign"])
def test_what_is_no_run_directory_is_a_mistake(name: str, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    with pytest.raises(UserError, match="no run directory"):
        give(tmp_path / name, Request("pause"))


def test_the_newest_run_that_goes_on_is_found(tmp_path: Path) -> None:
    runs = [run_directory(tmp_path / f"2026-11-2{day}T10-00-00-x") for day in (1, 2, 3)]
    stale_socket(runs[2])
    assert with_taker(runs[0], Taker(), in_thread(running_run, tmp_path)) == runs[0]

    async def both() -> object:
        async with taking_orders(Taker(), runs[1]):
            return await asyncio.to_thread(running_run, tmp_path)

    assert with_taker(runs[0], Taker(), both) == runs[1]
    with pytest.raises(RunError, match="no run there takes orders"):
        running_run(tmp_path)
    with pytest.raises(UserError, match="expected the folder of run directories"):
        running_run(tmp_path / "absent")


def invoke(command: object, *words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(command, [*words], catch_exceptions=False, standalone_mode=False)
    return done.return_value, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (DONE, 0, "the run is paused: 2 jobs are saved\n"),
        (Answer(done=True, text="the run goes on", state="running"), 0, "the run goes on (already)\n"),
        (Answer(done=False, text="the run is being stopped", state="stopping"), 1, "the run is being stopped\n"),
        (Answer(done=False, text="no node 'x'", state="running", mistaken=True), 2, "no node 'x'\n"),
        (Answer(done=False, text="\x1b[31mred", state=""), 1, "\N{REPLACEMENT CHARACTER}[31mred\n"),
    ],
)
def test_the_command_prints_the_answer(answer: Answer, code: int, words: str, tmp_path: Path) -> None:
    run = run_directory(tmp_path / "runs" / "run")
    found, out, err = with_taker(run, Taker(answer), in_thread(invoke, control, str(run), "pause"))
    assert found == code
    assert (out or err).endswith(words)
    assert bool(out) is answer.done


def test_the_command_finds_the_run_and_prints_json(tmp_path: Path) -> None:
    run, taker = run_directory(tmp_path / "runs" / "run"), Taker()
    words = ("node-a", "--runs", str(tmp_path / "runs"), "--json", "--wait-s", "3")
    code, out, _ = with_taker(run, taker, in_thread(invoke, drain, *words))
    assert code == 0
    assert json.loads(out) == {
        "run": str(run), "order": "drain", "node": "node-a", "done": True, "changed": True, "state": "paused",
        "jobs": [], "text": DONE.text,
    }  # fmt: skip
    assert taker.requests[0][0] == Request("drain", node="node-a", wait_s=3.0)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), "found nothing"),
        (("pausee",), "found pausee; nearest: pause"),
        (("a", "b", "pause"), "found a b pause"),
        (("runs/x", "drain"), "found runs/x drain"),
    ],
)
def test_a_command_that_is_no_order_is_a_mistake(words: tuple[str, ...], found: str) -> None:
    with pytest.raises(UserError, match=found):
        CliRunner().invoke(control, [*words], catch_exceptions=False, standalone_mode=False)


def test_the_answer_to_a_stop_comes_with_the_results(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run")

    async def act() -> object:
        order = asyncio.ensure_future(asyncio.to_thread(give, run, Request("stop")))
        await until(lambda: taker.requests, "the order")
        assert not order.done()
        (run / "summary.json").write_text("{}")
        return await order

    taker = Taker()
    assert with_taker(run, taker, act) == DONE
