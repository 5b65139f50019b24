"""The Unix socket of a served lab, through which the users of its machine submit jobs, and its client.

The socket is in a folder that users can reach: `/run/dfrs-testbed-queue` for a controller of root, else the user's own
runtime folder. Its mode follows from `ServeTable.access`. The kernel reports the user of a client, so that no user can
act as another one.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from testbed.control.intake import Intake
from testbed.control.line_socket import Counter, NoControllerError, Peer, answering, ask
from testbed.control.queue_messages import MOST_ANSWER_BYTES, Answer, Refused, Request
from testbed.errors import RunError, TestbedError, UserError

FOLDER: Final = Path("/run/dfrs-testbed-queue")
_WAIT_S = 60.0
_DECODER: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)
_ANSWERS: Final[msgspec.json.Decoder[Answer]] = msgspec.json.Decoder(Answer)


class Access(msgspec.Struct, frozen=True):
    """The users who may connect, beside root and the controller's user: a group, or everybody."""

    group: int | None = None
    everybody: bool = False

    @property
    def mode(self) -> int:
        """The mode of the socket."""
        return 0o666 if self.everybody else 0o660 if self.group is not None else 0o600

    @classmethod
    def of(cls, access: str) -> Access:
        """Return the access that `ServeTable.access` describes; raises `UserError` for an unknown group."""
        _, _, group = access.partition("group:")
        if not group:
            return cls(everybody=access == "everybody")
        try:
            return cls(grp.getgrnam(group).gr_gid)
        except KeyError:
            raise UserError(f"serve.access = {access}: expected a group of this machine") from None


def place(lab: str, *, root: bool) -> Path:
    """Return the path of the socket of a lab that root, or this user, serves."""
    return (FOLDER if root else _own_folder()) / f"{lab}.sock"


def _own_folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime or tempfile.gettempdir()) / f"dfrs-testbed-queue-{os.geteuid()}"


@contextlib.asynccontextmanager
async def taking_jobs(intake: Intake, lab: str, access: Access) -> AsyncIterator[Path]:
    """Take jobs at the lab's socket; yields its path. Raises `RunError` if the socket cannot be created."""

    async def answer(line: bytes, peer: Peer) -> bytes:
        try:
            request = _DECODER.decode(line)
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            return _refusal(f"not a request: {error or 'nothing came'}")
        try:
            may_all = peer.uid in (0, os.geteuid())
            return msgspec.json.encode(await intake.carry_out(request, user_name(peer.uid), may_all=may_all))
        except TestbedError as error:
            return _refusal(str(error))

    def may(peer: Peer) -> str:
        del peer  # the mode of the socket restricts access
        return ""

    path = place(lab, root=os.geteuid() == 0)
    try:
        _make_folder(path.parent)
        serving = answering(Counter(answer, _refusal, may, f"jobs for lab {lab}"), path, access.mode, access.group)
        await (stack := contextlib.AsyncExitStack()).enter_async_context(serving)
    except OSError as error:
        raise RunError(f"{path}: cannot create the socket for jobs: {error.strerror or error}") from error
    async with stack:
        yield path


def _make_folder(folder: Path) -> None:
    """Create the folder of sockets, writable by its owner only; raises `OSError` for a folder of another user."""
    folder.mkdir(mode=0o755, exist_ok=True)
    if not _is_own(folder):
        raise OSError(0, f"{folder} is not a folder in which this user alone can write")
    folder.chmod(0o755)


def _is_own(folder: Path) -> bool:
    """Return whether only this user can write in a folder: in a shared place another user may have created it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def user_name(uid: int) -> str:
    """Return the name of a user of this machine, `uid-NUMBER` for one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def send(lab: str, request: Request) -> Answer:
    """Send a request to the controller of a served lab; a lab of this user takes precedence over one of root.

    Raises `RunError` if the lab is not served, or its controller does not answer.
    """
    own, common = place(lab, root=False), place(lab, root=True)
    path = own if _is_own(own.parent) and own.exists() else common
    if not path.exists():
        raise RunError(f"lab {lab} is not served on this machine: start `testbed serve`")
    line = ask(path, msgspec.json.encode(request), _WAIT_S, MOST_ANSWER_BYTES)
    try:
        return _ANSWERS.decode(line)
    except (ValueError, msgspec.DecodeError) as error:
        raise NoControllerError(f"lab {lab}: its controller ended before it answered") from error


def served_labs() -> list[str]:
    """Return the names of the labs whose controllers listen on this machine."""
    folders = [FOLDER, *filter(_is_own, [_own_folder()])]
    sockets = [path for folder in folders if folder.is_dir() for path in folder.glob("*.sock")]
    return sorted({path.stem for path in sockets if _listens(path)})


def _listens(path: Path) -> bool:
    """Return whether a process listens on a socket; a killed controller leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # this user may not ask
            return True
    return True


def _refusal(text: str) -> bytes:
    return msgspec.json.encode(Refused(text=text))
