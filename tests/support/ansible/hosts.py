"""Machines to provision: each has a root file system, an overlay over this machine's, and an sshd.

They are on loopback addresses, or in network namespaces that the caller has made.

A host has this machine's files through the overlay, and keeps its own changes in memory. It has no systemd, and does
not start the services of packages. Debian's packages come from this machine's sources, Python's from a folder of
wheels.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.live import HANG_S, wait_until

ROOT = Path(__file__).resolve().parents[3]
PYTHON = "/usr/bin/python3"  # the hosts' Python; the wheels must match it
WHEELS = "/srv/dfrs-wheels"
ENVIRONMENT = {  # of logins; without byte code pip takes half the time
    "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS, "PIP_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostAt:
    """The address of a host's sshd, and the path of its root on this machine."""

    name: str
    address: str
    port: int
    root: Path


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a host in the network: its address, the port of its sshd, and the prefix of commands there."""

    address: str
    port: int
    enter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ssh:
    """The credentials for logins at the hosts."""

    identity: Path
    known_hosts: Path


def why_not() -> str:
    """Return why this machine cannot have hosts; empty if it can."""
    if os.geteuid() != 0:
        return "hosts need root, for overlays and chroot"
    if shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") is None:
        return "no sshd is installed (scripts/debian-packages test)"
    if subprocess.run([PYTHON, "-c", "import ensurepip"], capture_output=True, check=False).returncode != 0:
        return f"{PYTHON} cannot make environments (apt-get install python3-venv)"
    return _why_no_overlay()


def _why_no_overlay() -> str:
    """Try a host in a temporary mount namespace: a root that is a stack of overlays may support no further one."""
    steps = (
        "mount -t tmpfs tmpfs /mnt", "mkdir /mnt/upper /mnt/work /mnt/root",
        "mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root",
    )  # fmt: skip
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", " && ".join(steps)], capture_output=True, text=True, check=False
    )
    return f"no overlay over this machine's files: {done.stderr.strip()}" if done.returncode else ""


def make_wheels(folder: Path) -> None:
    """Build this project's wheel, and fetch the locked wheels of its requirements on nodes."""
    settings = folder / "build.cfg"
    settings.write_text(f"[build]\nbuild_base = {folder / 'build'}\n")  # the checkout's may hold stale files
    pip = [sys.executable, "-m", "pip", "--python", PYTHON]
    subprocess.run(
        [*pip, "wheel", "-qq", "--no-deps", "--wheel-dir", folder, ROOT],
        check=True, env={**os.environ, "DIST_EXTRA_CONFIG": str(settings)},
    )  # fmt: skip
    locked = ["--require-hashes", "--only-binary=:all:", "-r", ROOT / "testbed/lab/remote/locks/agent.txt"]
    subprocess.run([*pip, "download", "-qq", "--dest", folder, *locked], check=True)


def own_wheel(folder: Path) -> Path:
    """Return this project's wheel in that folder."""
    return next(folder.glob("dfrs_testbed-*.whl"))


@contextlib.contextmanager
def hosts(
    folder: Path, names: tuple[str, ...], wheels: Path, places: Sequence[Place] = ()
) -> Iterator[tuple[Ssh, list[HostAt]]]:
    """Bring up a host for each name, by default on loopback addresses; all of them are removed afterwards."""
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    ssh = Ssh(identity, folder / "known_hosts")
    with contextlib.ExitStack() as stack:
        places = places or [loopback(10 + number) for number in range(len(names))]
        found = [
            stack.enter_context(_host(folder, name, place, ssh, wheels))
            for name, place in zip(names, places, strict=True)
        ]
        yield ssh, found


@contextlib.contextmanager
def _host(folder: Path, name: str, place: Place, ssh: Ssh, wheels: Path) -> Iterator[HostAt]:
    log = folder / f"{name}.sshd.log"
    with contextlib.ExitStack() as stack:
        root = _root(stack, folder / name, wheels)
        _let_in(root, place.address, place.port, ssh)
        with log.open("wb") as sink:
            child = subprocess.Popen(
                [*place.enter, "chroot", root, "/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/dfrs_sshd_config"],
                stderr=sink, start_new_session=True,
            )  # fmt: skip
        stack.callback(_end, child, root)
        _until_open(child, place.address, place.port, log)
        yield HostAt(name, place.address, place.port, root)


def _root(stack: contextlib.ExitStack, base: Path, wheels: Path) -> Path:
    """Mount the root of a host: this machine's, without its volatile files, and with wheels."""
    _mount(stack, base, "-t", "tmpfs", "tmpfs")  # an overlay cannot keep its changes in a container's own overlay
    root, upper, work = (base / part for part in ("root", "upper", "work"))
    upper.mkdir()
    work.mkdir()
    _mount(stack, root, "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}")
    for special in ("/proc", "/sys", "/dev"):
        _mount(stack, root / special[1:], "--rbind", special)
    if (root / "dev/kvm").exists():  # the doctor takes long to examine it, and hosts have no guests
        _mount(stack, root / "dev/kvm", "--bind", "/dev/null")
    for own, mode in (("run", "755"), ("tmp", "1777"), ("root", "700")):  # our home has settings of pip and shells
        _mount(stack, root / own, "-t", "tmpfs", "-o", f"mode={mode}", "tmpfs")
    _mount(stack, root / WHEELS[1:], "--bind", wheels)
    (root / "etc/apt/apt.conf.d/docker-clean").unlink(missing_ok=True)  # apt would read all its lists each time
    forbid = root / "usr/sbin/policy-rc.d"  # for example, a time service would change this machine's clock
    forbid.write_text("#!/bin/sh\nexit 101\n")
    forbid.chmod(0o755)
    return root


def _let_in(root: Path, address: str, port: int, ssh: Ssh) -> None:
    """Write the configuration of the host's sshd, and add its key to the known hosts."""
    home = root / "root/.ssh"
    home.mkdir(mode=0o700)
    (home / "authorized_keys").write_text((ssh.identity.with_suffix(".pub")).read_text())
    (root / "run/sshd").mkdir(mode=0o755)
    key = root / "etc/ssh/dfrs_host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    kind, text = key.with_suffix(".pub").read_text().split()[:2]
    with ssh.known_hosts.open("a") as file:
        file.write(f"{address if port == 22 else f'[{address}]:{port}'} {kind} {text}\n")
    options = {
        "Port": port, "ListenAddress": address, "HostKey": "/etc/ssh/dfrs_host_key", "PasswordAuthentication": "no",
        "UsePAM": "no", "PidFile": "none", "PermitRootLogin": "prohibit-password", "Subsystem": "sftp internal-sftp",
        "SetEnv": " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()),
    }  # fmt: skip
    config = root / "etc/ssh/dfrs_sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))


def _mount(stack: contextlib.ExitStack, target: Path, *words: str | Path) -> None:
    if not target.exists():
        target.mkdir()
    subprocess.run(["mount", *words, target], check=True)
    if words[0] == "--rbind":
        subprocess.run(["mount", "--make-rslave", target], check=True)
    stack.callback(subprocess.run, ["umount", "-l", target], check=True)


def _end(child: subprocess.Popen[bytes], root: Path) -> None:
    """End the host's sshd, and every process whose root is the host's."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    child.wait(HANG_S)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "root").readlink() == root:
                os.kill(int(process.name), signal.SIGKILL)


def loopback(number: int) -> Place:
    """Return the place 127.0.77.`number`, with a free port."""
    address = f"127.0.77.{number}"
    with socket.socket() as probe:
        probe.bind((address, 0))
        return Place(address, probe.getsockname()[1])


def _until_open(child: subprocess.Popen[bytes], address: str, port: int, log: Path) -> None:
    def open_() -> bool:
        assert child.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            socket.create_connection((address, port), HANG_S).close()
            return True
        return False

    wait_until(open_, f"an sshd at {address}:{port}")
