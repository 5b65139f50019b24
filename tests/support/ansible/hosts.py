"""Machines to provision: each a root file system of its own over this machine's, with an sshd, on loopback addresses.

A host sees this machine's files through an overlay, and keeps what it changes to itself, in memory. It has no systemd,
and starts no service that a package brings. Debian's packages come from wherever this machine gets them, Python's from
a folder of wheels.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.live import HANG_S, wait_until

ROOT = Path(__file__).resolve().parents[3]
PYTHON = "/usr/bin/python3"  # the hosts' own: theirs has to fit the wheels
WHEELS = "/srv/dfrs-wheels"
ENVIRONMENT = {  # of whoever logs in; without byte code pip is done in half the time
    "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS, "PIP_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostAt:
    """Where a host's sshd answers, and its root as this machine sees it."""

    name: str
    address: str
    port: int
    root: Path


@dataclass(frozen=True, slots=True)
class Ssh:
    """How the hosts are logged in at."""

    identity: Path
    known_hosts: Path


def why_not() -> str:
    """Say why there can be no hosts here; empty if there can."""
    if os.geteuid() != 0:
        return "hosts need root, for overlays and chroot"
    if shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") is None:
        return "no sshd is installed (scripts/debian-packages test)"
    if subprocess.run([PYTHON, "-c", "import ensurepip"], capture_output=True, check=False).returncode != 0:
        return f"{PYTHON} cannot make environments (apt-get install python3-venv)"
    return _why_no_overlay()


def _why_no_overlay() -> str:
    """Try one, in a mount namespace that ends with it: a root that is a stack of overlays may bear no other."""
    steps = (
        "mount -t tmpfs tmpfs /mnt", "mkdir /mnt/upper /mnt/work /mnt/root",
        "mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root",
    )  # fmt: skip
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", " && ".join(steps)], capture_output=True, text=True, check=False
    )
    return f"no overlay over this machine's files: {done.stderr.strip()}" if done.returncode else ""


def make_wheels(folder: Path) -> None:
    """Build this project's wheel, and get those of all that it needs on nodes, as locked."""
    settings = folder / "build.cfg"
    settings.write_text(f"[build]\nbuild_base = {folder / 'build'}\n")  # a checkout's own may hold files of yesterday
    pip = [sys.executable, "-m", "pip", "--python", PYTHON]
    subprocess.run(
        [*pip, "wheel", "-qq", "--no-deps", "--wheel-dir", folder, ROOT],
        check=True, env={**os.environ, "DIST_EXTRA_CONFIG": str(settings)},
    )  # fmt: skip
    locked = ["--require-hashes", "--only-binary=:all:", "-r", ROOT / "testbed/lab/remote/locks/agent.txt"]
    subprocess.run([*pip, "download", "-qq", "--dest", folder, *locked], check=True)


def own_wheel(folder: Path) -> Path:
    """Return this project's wheel of that folder."""
    return next(folder.glob("dfrs_testbed-*.whl"))


@contextlib.contextmanager
def hosts(folder: Path, names: tuple[str, ...], wheels: Path) -> Iterator[tuple[Ssh, list[HostAt]]]:
    """Bring up a host for each name; everything is gone afterwards."""
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    ssh = Ssh(identity, folder / "known_hosts")
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(_host(folder, name, f"127.0.77.{10 + number}", ssh, wheels))
            for number, name in enumerate(names)
        ]
        yield ssh, found


@contextlib.contextmanager
def _host(folder: Path, name: str, address: str, ssh: Ssh, wheels: Path) -> Iterator[HostAt]:
    log = folder / f"{name}.sshd.log"
    with contextlib.ExitStack() as stack:
        root = _root(stack, folder / name, wheels)
        port = _free_port(address)
        _let_in(root, address, port, ssh)
        with log.open("wb") as sink:
            child = subprocess.Popen(
                ["chroot", root, "/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/dfrs_sshd_config"],
                stderr=sink, start_new_session=True,
            )  # fmt: skip
        stack.callback(_end, child, root)
        _until_open(child, address, port, log)
        yield HostAt(name, address, port, root)


def _root(stack: contextlib.ExitStack, base: Path, wheels: Path) -> Path:
    """Mount the root of a host: this machine's, without its volatile files, and with wheels."""
    _mount(stack, base, "-t", "tmpfs", "tmpfs")  # an overlay cannot keep its changes in a container's own overlay
    root, upper, work = (base / part for part in ("root", "upper", "work"))
    upper.mkdir()
    work.mkdir()
    _mount(stack, root, "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}")
    for special in ("/proc", "/sys", "/dev"):
        _mount(stack, root / special[1:], "--rbind", special)
    if (
        root / "dev/kvm"
    ).exists():  # whether it can be used takes the doctor long to find out, and hosts have no guests
        _mount(stack, root / "dev/kvm", "--bind", "/dev/null")
    for own, mode in (("run", "755"), ("tmp", "1777"), ("root", "700")):  # by our home pip and shells would do as ours
        _mount(stack, root / own, "-t", "tmpfs", "-o", f"mode={mode}", "tmpfs")
    _mount(stack, root / WHEELS[1:], "--bind", wheels)
    (root / "etc/apt/apt.conf.d/docker-clean").unlink(missing_ok=True)  # apt would read all its lists each time
    forbid = root / "usr/sbin/policy-rc.d"  # a clock's service, say, would change this machine's clock
    forbid.write_text("#!/bin/sh\nexit 101\n")
    forbid.chmod(0o755)
    return root


def _let_in(root: Path, address: str, port: int, ssh: Ssh) -> None:
    """Write what the host's sshd reads, and make its key known."""
    home = root / "root/.ssh"
    home.mkdir(mode=0o700)
    (home / "authorized_keys").write_text((ssh.identity.with_suffix(".pub")).read_text())
    (root / "run/sshd").mkdir(mode=0o755)
    key = root / "etc/ssh/dfrs_host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    kind, text = key.with_suffix(".pub").read_text().split()[:2]
    with ssh.known_hosts.open("a") as file:
        file.write(f"[{address}]:{port} {kind} {text}\n")
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
    """End the host's sshd, and every process that lives in its root."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    child.wait(HANG_S)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "root").readlink() == root:
                os.kill(int(process.name), signal.SIGKILL)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _until_open(child: subprocess.Popen[bytes], address: str, port: int, log: Path) -> None:
    def open_() -> bool:
        assert child.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            socket.create_connection((address, port), HANG_S).close()
            return True
        return False

    wait_until(open_, f"an sshd at {address}:{port}")
