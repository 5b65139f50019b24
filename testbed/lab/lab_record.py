"""The file `lab.json` in the run directory, by which the next controller of a run takes over a lost controller's lab.

The file has the lease's token and, for a lab on this machine, the broker's password, so only its owner may read it. The
file is deleted at the end of the run.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import msgspec

from testbed.errors import UserError
from testbed.host.process_identity import boot_id, start_ticks
from testbed.host.whole_files import write_whole
from testbed.measure.append_file import sync_directory

FILE = "lab.json"
_MOST_TOKENS = 8  # of controllers that died before their lease was published


class AgentRecord(msgspec.Struct, frozen=True):
    """The process of a node's agent on this machine."""

    pid: int
    started_ticks: int


class _Record(msgspec.Struct):
    """The content of the file. `tokens` are those of leases that may be in force, the newest last.

    `taking_over`: a controller is about to resume the run; if it fails, agents and guests stay for the next controller.
    """

    machine: str
    boot: str
    tokens: list[str] = []
    folder: str = ""
    broker: str = ""
    agents: dict[str, AgentRecord] = {}
    taking_over: bool = False


class LabRecord:
    """The file of one run, written durably at each change. Several objects may change the file, one after the other."""

    def __init__(self, path: Path, record: _Record) -> None:
        self._path = path
        self._record = record

    @classmethod
    def open(cls, run_path: Path) -> LabRecord:
        """Read the record of a run, or begin one; raises `UserError` for an unreadable one."""
        path = run_path / FILE
        here = _Record(socket.gethostname(), boot_id())
        try:
            record = msgspec.json.decode(path.read_bytes(), type=_Record)
        except FileNotFoundError:
            return cls(path, here)
        except (OSError, msgspec.MsgspecError) as error:
            raise UserError(f"{path}: cannot read: {error}; expected the record of a run's lab") from error
        if (record.machine, record.boot) != (here.machine, here.boot):  # no recorded process runs any more
            record = _Record(here.machine, here.boot, record.tokens if record.machine == here.machine else [])
        return cls(path, record)

    @classmethod
    def of(cls, run_path: Path) -> LabRecord:
        """Return an object for the record of a run without reading the file, to remove it."""
        return cls(run_path / FILE, _Record("", ""))

    @property
    def folder(self) -> Path | None:
        """The folder with the state of broker and agents, None if it does not exist (any more)."""
        folder = Path(self._record.folder)
        return folder if self._record.folder and folder.is_dir() else None

    @property
    def broker(self) -> str:
        """The URL of the broker, with its password; empty if it is unknown."""
        return self._record.broker

    def agent(self, node: str) -> int | None:
        """Return the process id of a node's agent, None if the agent does not run."""
        agent = self._record.agents.get(node)
        return agent.pid if agent is not None and start_ticks(agent.pid) == agent.started_ticks else None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes whose agents were started."""
        return tuple(self._record.agents)

    def alive(self) -> list[tuple[int, int]]:
        """Return the running agents as (process id, start in clock ticks since boot)."""
        every = self._record.agents.values()
        return [(each.pid, each.started_ticks) for each in every if start_ticks(each.pid) == each.started_ticks]

    @property
    def taking_over(self) -> bool:
        """Whether a controller is about to resume the run, and has not queried all nodes yet."""
        self._reload()
        return self._record.taking_over

    def take_over(self) -> None:
        """Record that a controller is about to resume the run."""
        self._reload()
        self._record.taking_over = True
        self._write()

    def taken_over(self) -> None:
        """Record that a controller has resumed the run."""
        self._reload()
        self._record.taking_over = False
        self._write()

    def note_lab(self, folder: Path, broker: str) -> None:
        """Record the broker's URL, and the folder with the state of broker and agents."""
        self._reload()
        self._record.folder, self._record.broker = str(folder), broker
        self._write()

    def note_agent(self, node: str, pid: int) -> None:
        """Record the process of a node's agent."""
        self._reload()
        self._record.agents[node] = AgentRecord(pid, start_ticks(pid) or 0)
        self._write()

    def begin(self, token: str) -> tuple[str, ...]:
        """Record the token of a lease that is about to be taken; return the tokens of earlier leases."""
        self._reload()
        earlier = tuple(self._record.tokens)
        self._record.tokens = [*earlier, token][-_MOST_TOKENS:]
        self._write()
        return earlier

    def taken(self) -> None:
        """Record that the newest lease is in force."""
        self._reload()
        self._record.tokens = self._record.tokens[-1:]
        self._write()

    def remove(self) -> None:
        """Delete the file: the run is over."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _reload(self) -> None:
        """Read the file again, as another object may have changed it."""
        if self._path.exists():
            self._record = LabRecord.open(self._path.parent)._record  # noqa: SLF001  # of the same class

    def _write(self) -> None:
        try:
            write_whole(self._path, msgspec.json.format(msgspec.json.encode(self._record)), mode=0o600)
            sync_directory(self._path.parent)
        except OSError as error:
            raise UserError(f"{self._path}: cannot write: {error.strerror}") from error
