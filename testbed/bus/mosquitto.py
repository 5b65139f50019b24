"""Runs Mosquitto as a child process on the loopback interface, with its files in one private directory."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from testbed.bus.address import BrokerAddress
from testbed.bus.connection import connect, disconnect
from testbed.bus.protocol import BusError
from testbed.bus.quotas import mosquitto_quotas

_USER = "testbed"
_START_TIMEOUT_S = 60.0  # it takes a fraction of a second, but machines can stall for seconds
_STOP_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 0.02
_PLACES = os.pathsep.join(("/usr/local/sbin", "/usr/sbin"))  # folders of distribution packages, often not in PATH

# Asks the kernel for SIGTERM at the death of the parent, then executes the broker under the same process id.
_TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def find_mosquitto() -> Path | None:
    """Return the path of the installed broker, or None."""
    return _find("mosquitto")


@asynccontextmanager
async def mosquitto_broker(
    program: Path, state_dir: Path, port: int = 0, *, sys_interval_s: int = 10
) -> AsyncIterator[BrokerAddress]:
    """Run Mosquitto until the end of the block; a later run with the same `state_dir` restores its sessions.

    Mosquitto publishes its load under $SYS every `sys_interval_s` seconds. Raises `BusError` with the last line of the
    log if Mosquitto does not accept connections within a minute.
    """
    await asyncio.to_thread(state_dir.mkdir, mode=0o700, parents=True, exist_ok=True)
    address = await _address(state_dir, port or free_port())
    config = state_dir / "mosquitto.conf"
    config.write_text(_config(address, state_dir, sys_interval_s))
    log = state_dir / "mosquitto.log"
    with log.open("ab") as sink:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-ISc", _TIED, str(os.getpid()), str(program), "-c", str(config)),
            stdin=DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,  # not reached by the terminal's Ctrl-C: destroying guests needs this broker
        )
    try:
        await _wait_until_up(child, address, log)
        yield address
    finally:
        await _end(child)


def _find(program: str) -> Path | None:
    found = shutil.which(program) or shutil.which(program, path=_PLACES)
    return Path(found) if found else None


def free_port() -> int:
    """Return a free TCP port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _address(state_dir: Path, port: int) -> BrokerAddress:
    hasher = _find("mosquitto_passwd")
    if hasher is None:
        return BrokerAddress("127.0.0.1", port)
    secret, hashed = state_dir / "password", state_dir / "passwords"
    if not secret.exists():
        password = secrets.token_urlsafe(24)
        for path, text in ((hashed, f"{_USER}:{password}\n"), (secret, password)):
            path.touch(mode=0o600)
            path.write_text(text)
        # Hashes the file in place: on a command line the password would be visible to all users.
        child = await asyncio.create_subprocess_exec(
            str(hasher), "-U", str(hashed), stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
        if await child.wait() != 0:
            secret.unlink()
            raise BusError(f"{hasher} -U {hashed}: failed with exit code {child.returncode}")
    return BrokerAddress("127.0.0.1", port, _USER, secret.read_text())


def _config(address: BrokerAddress, state_dir: Path, sys_interval_s: int) -> str:
    secured = address.password is not None
    lines = [
        f"listener {address.port} 127.0.0.1",
        f"allow_anonymous {'false' if secured else 'true'}",
        *([f"password_file {state_dir / 'passwords'}"] if secured else []),
        f"user {getpass.getuser()}",  # a change of user would clear the parent-death signal
        "set_tcp_nodelay true",
        "persistence true",
        f"persistence_location {state_dir}/",
        "autosave_interval 5",  # so that a killed broker also restarts with the sessions of its clients
        *mosquitto_quotas(),
        f"sys_interval {sys_interval_s}",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
    ]
    return "\n".join(lines) + "\n"


async def _wait_until_up(child: Process, address: BrokerAddress, log: Path) -> None:
    ended = asyncio.create_task(child.wait(), name="mosquitto: early end")
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not ended.done():
                try:
                    client = await connect(
                        address,
                        f"probe-{os.getpid()}",
                        None,
                        _ignore,
                        session_s=0.0,
                        timeout_s=1.0,
                        keepalive_s=5,
                    )
                except BusError:
                    await asyncio.wait([ended], timeout=_LOOK_EVERY_S)
                else:
                    await disconnect(client)
                    return
    except TimeoutError:
        raise BusError(f"mosquitto: not up after {_START_TIMEOUT_S:g} s: {_last_line(log)}") from None
    finally:
        ended.cancel()
        await asyncio.wait([ended])
    raise BusError(f"mosquitto: ended with exit code {child.returncode}: {_last_line(log)}")


def _ignore(_topic: str, _payload: bytes) -> None:
    """Drop a message: a probe has no subscriptions."""


async def _end(child: Process) -> None:
    for number, timeout_s in ((signal.SIGTERM, _STOP_TIMEOUT_S), (signal.SIGKILL, _STOP_TIMEOUT_S)):
        if child.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await child.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
