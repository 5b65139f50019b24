"""Client of QEMU's monitor protocol (QMP): one JSON object per line over a Unix socket."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path
from typing import Any, Self

from testbed.errors import RunError
from testbed.lab.box.processes import wait_until

_ANSWER_WITHIN_S = 30.0
_SAVED_WITHIN_S = 300.0


class Monitor:
    """A connection to the monitor of a running QEMU; all methods block and raise `RunError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_ANSWER_WITHIN_S)
        try:
            self._socket.connect(str(path))
            self._lines = self._socket.makefile("r", encoding="utf-8")
            self._lines.readline()  # QMP's greeting
        except OSError as error:
            self._socket.close()
            raise RunError(f"QEMU's monitor {path}: {error.strerror or error}") from error
        self.ask("qmp_capabilities")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, command: str, **arguments: object) -> Any:
        """Send a command and return its result."""
        try:
            self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            for line in self._lines:
                answer = json.loads(line)
                if "error" in answer:
                    raise RunError(f"QEMU's monitor {self._path}: {command}: {answer['error'].get('desc')}")
                if "return" in answer:
                    return answer["return"]
        except (OSError, ValueError) as error:
            raise RunError(f"QEMU's monitor {self._path}: {command}: {error}") from error
        raise RunError(f"QEMU's monitor {self._path}: {command}: QEMU ended")

    def status(self) -> str:
        """Return the machine's run state: `running`, or why the machine does not run."""
        return str(self.ask("query-status")["status"])

    def go_on(self) -> bool:
        """Resume a loaded machine; return whether the machine runs."""
        if self.status() == "paused":
            self.ask("cont")
        return self.status() == "running"

    def save(self, state: Path) -> None:
        """Stop the machine, and write its whole state, compressed, to a file.

        If an emulated machine runs meanwhile, its saved state is sometimes wrong: pages that it changed are missing.
        """
        self.ask("stop")
        self.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 40})  # the default limit is for slow networks
        place = shlex.quote(str(state))
        self.ask("migrate", uri=f"exec:zstd -3 -T0 -q > {place}.part && mv {place}.part {place}")
        told = ""

        def ended() -> bool:
            nonlocal told
            told = self.ask("query-migrate").get("status", "")
            return told in {"failed", "cancelled"} or (told == "completed" and state.exists())

        if not wait_until(ended, _SAVED_WITHIN_S) or told != "completed":
            raise RunError(f"QEMU's monitor {self._path}: the state was not saved: {told or 'no answer'}")
