"""Journal of an agent's replies by command id, so that a repeated command gets its reply and is not executed again."""

from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path
from typing import Self, TextIO

from testbed.bus.messages import BadRecordError, Reply, decode, encode
from testbed.errors import FailureCode
from testbed.host.whole_files import write_whole

_log = logging.getLogger(__name__)


class AnswerJournal:
    """The last `limit` final replies, in memory, and in the file `path` if it is given; open inside `with`.

    The file has one reply per line: `accepted` before a command is executed, and the final reply afterwards. An agent
    that starts with the file of a dead agent gives the same replies, and reports commands that were in progress as
    interrupted. All replies but the last have at most `limit_bytes` together, and the file has at most four times that.
    """

    def __init__(self, path: Path | None = None, limit: int = 4096, limit_bytes: int = 16 << 20) -> None:
        self._path = path
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._answers: OrderedDict[str, Reply] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._begun: dict[str, Reply] = {}
        self._file: TextIO | None = None
        self._file_bytes = 0

    def __enter__(self) -> Self:
        if self._path is not None:
            self._load(self._path)
            self._rewrite(self._path)
        return self

    def _rewrite(self, path: Path) -> None:
        """Rewrite the file with the replies that are still needed."""
        lines = [encode(reply).decode() + "\n" for reply in (*self._answers.values(), *self._begun.values())]
        write_whole(path, "".join(lines), durable=False)
        if self._file is not None:
            self._file.close()
        self._file = path.open("a", encoding="utf-8")
        self._file_bytes = sum(map(len, lines))

    def __exit__(self, *_error: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def get(self, command_id: str) -> Reply | None:
        """Return the final reply to a command, None if there is none (yet, or any more)."""
        return self._answers.get(command_id)

    def begin(self, accepted: Reply) -> None:
        """Record that a command is about to be executed."""
        self._begun[accepted.id] = accepted
        self._write(accepted)

    def finish(self, reply: Reply) -> None:
        """Keep a final reply."""
        self._begun.pop(reply.id, None)
        self._keep(reply)
        self._write(reply)

    def _keep(self, reply: Reply) -> None:
        self._answers[reply.id] = reply
        self._answers.move_to_end(reply.id)
        self._bytes -= self._sizes.get(reply.id, 0)
        self._sizes[reply.id] = len(encode(reply))
        self._bytes += self._sizes[reply.id]
        while len(self._answers) > self._limit or (self._bytes > self._limit_bytes and len(self._answers) > 1):
            oldest, _ = self._answers.popitem(last=False)
            self._bytes -= self._sizes.pop(oldest)

    def _write(self, reply: Reply) -> None:
        # Flushed to the kernel, which outlives the agent; a power cut ends the guests as well, so no fsync.
        if self._file is None or self._path is None:
            return
        line = encode(reply).decode() + "\n"
        self._file.write(line)
        self._file.flush()
        self._file_bytes += len(line)
        if self._file_bytes > 4 * self._limit_bytes:
            self._rewrite(self._path)

    def _load(self, path: Path) -> None:
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        begun: dict[str, Reply] = {}
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                reply = decode(Reply, line, f"{path}:{number}")
            except BadRecordError as error:  # a torn last line, if the agent was killed during a write
                _log.warning("%s", error)
                continue
            if reply.final:
                begun.pop(reply.id, None)
                self._keep(reply)
            else:
                begun[reply.id] = reply
        for reply in begun.values():
            self._keep(
                Reply(
                    id=reply.id,
                    node=reply.node,
                    status="failed",
                    error="interrupted: the agent was restarted",
                    code=FailureCode.AGENT_RESTARTED.value,
                )
            )
