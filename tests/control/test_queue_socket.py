"""The socket of a served lab: permitted users and names, and hostile folders and clients."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import pwd
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.live import until

from testbed.cli.bodies.queue import print_answer
from testbed.control import line_socket, queue_socket
from testbed.control.intake import Intake
from testbed.control.line_socket import MOST_OF_USER, Peer
from testbed.control.queue_messages import Accepted, Answer, Delete, Queue, QueuedJob, Refused, Request, Submit
from testbed.control.queue_socket import Access, place, send, served_labs, taking_jobs, user_name
from testbed.errors import RunError, UserError

SELF = pwd.getpwuid(os.geteuid()).pw_name
GROUP = grp.getgrgid(os.getegid()).gr_name
JOB = Submit(tasks=1, cpu_need_frac=1.0, mem_req_frac=0.2, work_s=60.0)
NOBODY = 65534


class Taker(Intake):
    """Takes requests in place of a lab's intake; a request that is `kept` is never answered."""

    def __init__(self, *, kept: bool = False) -> None:
        self.requests: list[tuple[Request, str, bool]] = []
        self._kept = kept

    async def carry_out(self, request: Request, user: str, *, may_all: bool) -> Answer:
        self.requests.append((request, user, may_all))
        if self._kept:
            await asyncio.Event().wait()
        if isinstance(request, Delete):
            raise RunError("the journal is full")
        return Accepted(job=7)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the sockets in a folder of the test."""
    monkeypatch.setattr(queue_socket, "FOLDER", tmp_path / "common")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def served(taker: Taker, act: Callable[[], Awaitable[object]], access: Access = Access()) -> object:  # noqa: B008  # frozen
    async def main() -> object:
        async with taking_jobs(taker, "lab-1", access):
            return await act()

    return asyncio.run(main())


def asking(request: Request) -> Callable[[], Awaitable[object]]:
    return lambda: asyncio.to_thread(send, "lab-1", request)


def raw(data: bytes) -> Answer:
    path = place("lab-1", root=os.geteuid() == 0)
    return msgspec.json.decode(line_socket.ask(path, data, 60.0), type=Answer)


def client() -> socket.socket:
    """Ask for a job, and do not wait for the answer."""
    connection = line_socket.connect(place("lab-1", root=os.geteuid() == 0))
    connection.sendall(msgspec.json.encode(JOB) + b"\n")
    return connection


def test_a_request_comes_with_the_user_whom_the_kernel_names() -> None:
    taker = Taker()
    assert served(taker, asking(JOB)) == Accepted(job=7)
    assert taker.requests == [(JOB, SELF, True)]


@pytest.mark.parametrize(("uid", "may_all"), [(0, True), (NOBODY, False), (4_000_000_000, False)])
def test_only_root_and_who_serves_the_lab_may_end_jobs_of_others(
    monkeypatch: pytest.MonkeyPatch, uid: int, may_all: bool
) -> None:
    monkeypatch.setattr(line_socket, "_peer", lambda _client: Peer(1, uid))
    taker = Taker()
    served(taker, asking(JOB))
    assert taker.requests == [(JOB, user_name(uid), may_all)]


def test_an_error_of_the_lab_is_an_answer() -> None:
    assert served(Taker(), asking(Delete(job=1))) == Refused(text="the journal is full")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[" * 10_000, b'{"type": "delete", "job": -1}', b'{"type": "submit", "tasks": 1}',
        msgspec.json.encode(JOB).replace(b"1.0", b"1e400"), msgspec.json.encode(JOB).replace(b"60.0", b"0"),
        msgspec.json.encode(JOB)[:-1] + b',"by":"root"}', b"\xff" * (line_socket.MOST_BYTES + 1),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(data: bytes) -> None:
    taker = Taker()
    answer = served(taker, lambda: asyncio.to_thread(raw, data))
    assert isinstance(answer, Refused)
    assert answer.text.startswith("not a request: ")
    assert taker.requests == []


@settings(max_examples=25)
@given(st.binary(max_size=200).filter(lambda data: b"\n" not in data))
def test_any_bytes_are_no_request(data: bytes) -> None:
    taker = Taker()
    assert isinstance(served(taker, lambda: asyncio.to_thread(raw, data)), Refused)
    assert taker.requests == []


def test_no_user_keeps_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of one user wait; the next one of this user is refused, while another user's is processed."""
    uids = iter([*[NOBODY] * (MOST_OF_USER + 1), 0])
    monkeypatch.setattr(line_socket, "_peer", lambda _client: Peer(1, next(uids)))
    taker = Taker(kept=True)

    async def act() -> Answer:
        with contextlib.ExitStack() as clients:
            for _ in range(MOST_OF_USER):
                clients.enter_context(client())
            await until(lambda: len(taker.requests) == MOST_OF_USER, "requests of one user")
            refused = await asyncio.to_thread(raw, msgspec.json.encode(JOB))
            clients.enter_context(client())
            await until(lambda: len(taker.requests) > MOST_OF_USER, "a request of another user")
        return refused

    monkeypatch.setattr(line_socket, "CLOSE_S", 0.0)
    answer = served(taker, act)
    assert isinstance(answer, Refused)
    assert answer.text.startswith(f"{MOST_OF_USER} other commands of this user wait")
    assert [user for _, user, _ in taker.requests] == [user_name(NOBODY)] * MOST_OF_USER + ["root"]


@pytest.mark.parametrize(
    ("access", "mode"), [("owner", 0o600), ("everybody", 0o666), (f"group:{GROUP}", 0o660)]
)  # fmt: skip
def test_the_mode_of_the_socket_says_who_may_ask(access: str, mode: int) -> None:
    path = place("lab-1", root=os.geteuid() == 0)

    async def act() -> tuple[int, int]:
        return stat.S_IMODE(path.stat().st_mode), path.parent.stat().st_mode & 0o022

    assert served(Taker(), act, Access.of(access)) == (mode, 0)
    assert not path.exists()


def test_a_group_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(UserError, match=r"^serve\.access = group:no-such-group: expected a group of this machine$"):
        Access.of("group:no-such-group")


@pytest.mark.parametrize("fault", ["others may write there", "a link", "a file"])
def test_a_folder_that_somebody_else_may_have_made_holds_no_socket(fault: str, tmp_path: Path) -> None:
    folder = place("lab-1", root=os.geteuid() == 0).parent
    if fault == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif fault == "a file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(RunError, match="cannot create the socket for jobs"):
        served(Taker(), asking(JOB))


def test_the_socket_of_a_killed_controller_is_no_lab(tmp_path: Path) -> None:
    path = place("lab-1", root=False)
    path.parent.mkdir()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()
        assert served_labs() == ["lab-1"]
    assert path.exists()
    assert served_labs() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="root can give a folder away, others cannot")
def test_nobody_is_asked_in_a_folder_of_somebody_else(tmp_path: Path) -> None:
    """A user's folder may be in a shared place, where another user can create it first."""
    own = place("lab-1", root=False)
    own.parent.mkdir()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
        listener.bind(str(own))
        listener.listen()
        assert served_labs() == ["lab-1"]
        os.chown(own.parent, NOBODY, NOBODY)
        assert served_labs() == []
        with pytest.raises(RunError, match="lab lab-1 is not served on this machine"):
            send("lab-1", JOB)


def test_words_of_nodes_and_users_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    job = QueuedJob(
        job=1, user="[bold]eve", state="failed", tasks=1, cpu_need_frac=1.0, mem_req_frac=0.2, work_s=60.0,
        done_frac=0.5, urgent=False, program="eatcpu", since_submit_s=1.0, waited_s=0.0, reason="[/] it said [red]",
    )  # fmt: skip
    print_answer("[lab]", Queue(lab="lab", policy="[p]", state="running", jobs=(job,)))
    shown = capsys.readouterr().out
    for words in ("[p]", "[bold]eve", "[/] it said [red]"):
        assert words in shown
