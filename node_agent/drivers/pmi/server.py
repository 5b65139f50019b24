"""The process manager's state and answers for one rank. Keys of other ranks come through the controller.

Each rank counts as alone on its machine (`PMI_process_mapping`), so ranks share no memory that MPI would map by a name
from another rank. A rank sends one request at a time and waits for the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from node_agent.drivers.pmi.wire import ForeignPassError, PmiCommand, PmiError, parse
from testbed.bus.messages import RankKeys
from testbed.bus.mpi_barriers import MOST_BARRIERS
from testbed.bus.mpi_keys import MOST_KEYS, MOST_VALUE_CHARS, BadKeysError, check_keys
from testbed.errors import shown

_ANSWERS = {
    "get_maxes": f"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={MOST_VALUE_CHARS + 1}",
    "get_appnum": "cmd=appnum appnum=0",
    "finalize": "cmd=finalize_ack",
}
_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class Barrier:
    """The rank waits in barrier `number` of `session`, and published `keys` since the one before."""

    session: str
    number: int
    keys: dict[str, str]

    def detail(self) -> dict[str, object]:
        """Return the detail of the event."""
        return {"session": self.session, "number": self.number, "keys": self.keys}


@dataclass(slots=True)
class PmiServer:
    """Serves one rank of `ranks`.

    Only `session` and `barriers` (the number entered so far) outlive MPI's start. When a rank's virtual machine moves
    to another node, a new server with both values serves it there. The next agent needs all fields.
    """

    rank: int
    ranks: int
    session: str
    barriers: int = 0
    waiting: bool = False  # in barrier number `barriers`
    aborted: bool = False
    entered_with: dict[str, str] = field(default_factory=dict)  # keys published in barrier number `barriers`
    published: dict[str, str] = field(default_factory=dict)  # since the last barrier
    own_sizes: dict[str, int] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)

    def take(self, line: bytes) -> str | Barrier | None:
        """Return the answer to a line of the rank, the barrier that it enters, or None if no answer is due.

        Raises `PmiError`.
        """
        if self.waiting:
            raise PmiError(f"MPI speaks in barrier {self.barriers}: expected nothing before the barrier is passed")
        command = parse(line)
        if command.name == "barrier_in":
            return self._enter()
        if command.name == "abort":
            self.aborted = True
            return None
        return self._answer(command)

    def _answer(self, command: PmiCommand) -> str:
        constant = _ANSWERS.get(command.name)
        if constant is not None:
            return constant
        match command.name:
            case "init" if command.word("pmi_version") == "1":
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_my_kvsname":  # MPICH makes the names of its shared memory from it: no two jobs may have the same
                return f"cmd=my_kvsname kvsname=dfrs_{self.session}"
            case "get_universe_size":
                return f"cmd=universe_size size={self.ranks}"
            case "put":
                return self._put(command)
            case "get":
                return self._get(command)
        words = "".join(f" {key}={value}" for key, value in command.words.items())
        said = shown(f"cmd={command.name}{words}", _SHOWN_CHARS)
        raise PmiError(f"MPI says {said}: expected a command of PMI version 1, of a rank that starts no others")

    def _put(self, command: PmiCommand) -> str:
        key, value = command.word("key"), command.word("value")
        if len(self.published) >= MOST_KEYS or len(value) > MOST_VALUE_CHARS:
            raise PmiError(f"MPI puts {len(self.published) + 1} keys, the last of {len(value)} characters: expected "
                           f"at most {MOST_KEYS} keys of {MOST_VALUE_CHARS} characters")  # fmt: skip
        self.published[key] = value
        return "cmd=put_result rc=0 msg=success"

    def _get(self, command: PmiCommand) -> str:
        key = command.word("key")
        if key == "PMI_process_mapping":
            value: str | None = f"(vector,(0,{self.ranks},1))"
        else:
            value = self.known.get(key)
        if value is None:
            return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={value}"

    def _enter(self) -> Barrier:
        self.barriers += 1
        if self.barriers > MOST_BARRIERS:
            raise PmiError(f"MPI enters barrier {self.barriers}: expected at most {MOST_BARRIERS}")
        try:
            self.own_sizes = check_keys(self.rank, self.published)
        except BadKeysError as error:
            raise PmiError(str(error)) from error
        self.known |= self.published
        self.entered_with, self.published = self.published, {}
        self.waiting = True
        return self.barrier()

    def barrier(self) -> Barrier:
        """Return the barrier that the rank entered last."""
        return Barrier(self.session, self.barriers, self.entered_with)

    def pass_barrier(self, session: str, number: int, keys: Iterable[RankKeys], *, last: bool) -> str | None:
        """Take the keys that other ranks published in a barrier; return the answer to the rank after the last part.

        A pass of an earlier session or barrier changes nothing. Raises `ForeignPassError` for one of a later barrier,
        and for keys that are not those of their rank, or not of the size of this rank's own.
        """
        if session != self.session or number < self.barriers or (number == self.barriers and not self.waiting):
            return None
        if number > self.barriers:
            raise ForeignPassError(
                f"a pass of MPI barrier {number} for rank {self.rank} in {self.barriers}: expected that"
            )
        for one in keys:
            self._learn(one)
        if not last:
            return None
        self.waiting = False
        return "cmd=barrier_out"

    def _learn(self, one: RankKeys) -> None:
        if one.rank == self.rank:
            return
        if one.rank >= self.ranks:
            raise ForeignPassError(f"MPI keys of rank {one.rank}: expected a rank below {self.ranks}")
        try:
            sizes = check_keys(one.rank, one.keys)
        except BadKeysError as error:
            raise ForeignPassError(str(error)) from error
        for gather, size in sizes.items():
            if size != self.own_sizes.get(gather):
                raise ForeignPassError(f"MPI key {gather}-{one.rank} of {size} bytes: expected "
                               f"{self.own_sizes.get(gather, 0)} bytes as of rank {self.rank} itself")  # fmt: skip
        self.known |= one.keys
