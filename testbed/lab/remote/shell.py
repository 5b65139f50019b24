"""Commands and file transfers on one machine over ssh: the host key must be known, and arguments are quoted."""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import RunError, UserError
from testbed.lab.remote.hosts import Host, Hosts

if TYPE_CHECKING:
    from fabric import Connection

CONNECT_S = 10.0
COMMAND_S = 60.0


class RemoteError(RunError):
    """An operation on a machine failed."""

    def __init__(self, host: str, what: str, why: str) -> None:
        self.host = host
        self.what = what
        self.why = why
        super().__init__(f"{host}: {what}: {why}")


@dataclass(frozen=True, slots=True)
class Shell:
    """An open ssh connection to a machine."""

    host: Host
    connection: Connection

    def run(self, *words: str, within_s: float = COMMAND_S, content: bytes | None = None) -> str:
        """Run a command and return its output; `content` is its standard input. Raises `RemoteError`."""
        from invoke.exceptions import CommandTimedOut  # noqa: PLC0415  # heavy, and of an extra

        command = shlex.join(words)
        stream = io.StringIO(content.decode("utf-8")) if content is not None else None
        try:
            done = self.connection.run(
                command, hide=True, warn=True, timeout=within_s, in_stream=stream if stream is not None else False
            )
        except CommandTimedOut:
            raise RemoteError(self.host.name, words[0], f"not done within {within_s:g} s") from None
        except OSError as error:
            raise RemoteError(self.host.name, words[0], str(error)) from None
        if not done.ok:
            last = (done.stderr or done.stdout).strip().splitlines()
            raise RemoteError(self.host.name, words[0], f"exit code {done.exited}: {last[-1] if last else 'no output'}")
        return str(done.stdout)

    def put(self, source: Path, target: str, mode: int = 0o644) -> None:
        """Copy a file to the machine, atomically: under a temporary name until it is complete."""
        part = f"{target}.part"
        try:
            self.connection.put(str(source), part)
            sftp = self.connection.sftp()
            sftp.chmod(part, mode)
            sftp.posix_rename(part, target)
        except OSError as error:
            raise RemoteError(self.host.name, f"copying {source.name}", str(error)) from None

    def write(self, text: str, target: str, mode: int = 0o644) -> bool:
        """Write a text file on the machine, atomically; return whether its content changed."""
        sftp = self.connection.sftp()
        with contextlib.suppress(OSError), sftp.open(target, "r") as file:
            if file.read().decode("utf-8", "replace") == text:
                return False
        try:
            with sftp.open(f"{target}.part", "w") as file:
                file.write(text)
            sftp.chmod(f"{target}.part", mode)
            sftp.posix_rename(f"{target}.part", target)
        except OSError as error:
            raise RemoteError(self.host.name, f"writing {target}", str(error)) from None
        return True


@contextlib.contextmanager
def log_in(hosts: Hosts, host: Host) -> Iterator[Shell]:
    """Log in to a machine with a key or the ssh agent; raises `RemoteError`, also for an unknown host key."""
    try:
        from fabric import Config, Connection  # noqa: PLC0415  # heavy, and an extra
        from paramiko import RejectPolicy, SSHException  # noqa: PLC0415  # as above
    except ImportError:
        raise UserError("operations over ssh need the extra `remote`: pip install 'dfrs-testbed[remote]'") from None
    kwargs: dict[str, object] = {"allow_agent": True, "look_for_keys": hosts.identity is None}
    if hosts.identity is not None:
        kwargs["key_filename"] = str(hosts.identity.expanduser())
    connection = Connection(
        host.machine,
        user=host.user,
        port=host.port,
        config=Config(),
        connect_timeout=int(CONNECT_S),
        connect_kwargs=kwargs,
    )
    client = connection.client
    client.set_missing_host_key_policy(RejectPolicy())  # fabric's default accepts any key
    client.load_system_host_keys(None if hosts.known_hosts is None else str(hosts.known_hosts.expanduser()))
    with connection:
        try:
            connection.open()
        except (SSHException, OSError, EOFError) as error:
            why = str(error) or type(error).__name__
            if "not found in known_hosts" in why:
                why = f"its key is not known: compare it by another way, then ssh-keyscan -p {host.port} {host.machine}"
            raise RemoteError(host.name, f"ssh {host.ssh}", why) from None
        yield Shell(host, connection)
