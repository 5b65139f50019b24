"""Checks of QEMU, KVM (by booting a stock kernel), libvirt, Xen and Docker."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.host.guest_image import current
from testbed.lab.doctor.finding import Finding

KVM = Path("/dev/kvm")
_QEMU = {"x86_64": "qemu-system-x86_64", "aarch64": "qemu-system-aarch64"}
_BOOT_WITHIN_S = 20.0
_SIGN = b"Linux version"


def qemu_and_kvm() -> Iterator[Finding]:
    """Report the emulator's version, and whether a guest boots under KVM, which /dev/kvm alone does not prove."""
    program = shutil.which(_QEMU.get(platform.machine(), "qemu-system-x86_64"))
    if program is None:
        yield Finding("QEMU", "note", "not installed: no virtual machines by libvirt here", "./scripts/debian-packages")
        return
    yield Finding("QEMU", "ok", _words(_output([program, "--version"]), r"version (\S+)"))
    if not KVM.exists():
        yield Finding("KVM", "note", f"{KVM} is not there: guests are emulated, about ten times slower",
                      "modprobe kvm_intel or kvm_amd; enable virtualisation in the firmware")  # fmt: skip
        return
    if not os.access(KVM, os.R_OK | os.W_OK):
        yield Finding("KVM", "warning", f"no access to {KVM}", f"adduser {os.environ.get('USER', 'USER')} kvm")
        return
    kernel = _guest_kernel()
    if kernel is None:
        yield Finding("KVM", "note", f"{KVM} is there; not tried without a guest image", "testbed image build")
        return
    took_s = _boots(program, kernel)
    if took_s is None:
        yield Finding(
            "KVM", "warning", f"{KVM} is there, but no stock kernel boots under it: guests are emulated",
            "a machine within a machine needs nested virtualisation: ask its owner",
        )  # fmt: skip
    else:
        yield Finding("KVM", "ok", f"a guest's kernel boots in {took_s:.1f} s", values={"boot_s": round(took_s, 2)})


def _guest_kernel() -> Path | None:
    with contextlib.suppress(Exception):
        return current().kernel
    return None


def _boots(program: str, kernel: Path) -> float | None:
    """Return the seconds until a kernel without a root file system prints its name under KVM; None at the timeout."""
    command = [
        program, "-accel", "kvm", "-m", "128", "-display", "none", "-no-reboot", "-nodefaults", "-serial", "stdio",
        "-kernel", str(kernel), "-append", "console=ttyS0 panic=-1",
    ]  # fmt: skip
    begin_s = time.monotonic()
    with subprocess.Popen(  # noqa: S603  # fixed words
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        said = b""
        try:
            if child.stdout is None:
                return None
            os.set_blocking(child.stdout.fileno(), False)
            while time.monotonic() - begin_s < _BOOT_WITHIN_S and child.poll() is None:
                said += child.stdout.read() or b""
                if _SIGN in said:
                    return time.monotonic() - begin_s
                time.sleep(0.05)
            said += child.stdout.read() or b""
            return time.monotonic() - begin_s if _SIGN in said else None
        finally:
            child.kill()


def libvirt() -> Iterator[Finding]:
    """Report whether libvirt answers."""
    virsh = shutil.which("virsh")
    if virsh is None:
        yield Finding("libvirt", "note", "not installed", "./scripts/debian-packages")
        return
    xen = _on_xen()
    uri = "xen:///system" if xen else "qemu:///system"
    told = _output([virsh, "-c", uri, "version", "--daemon"])
    found = _words(told, r"Running against daemon: (\S+)")
    if found:
        yield Finding("libvirt", "ok", f"{found} at {uri}")
    else:
        yield Finding("libvirt", "note", f"{uri} does not answer; a lab in a box brings its own",
                      "systemctl enable --now libvirtd")  # fmt: skip


def xen() -> Iterator[Finding]:
    """Report Xen's version and scheduler if this machine is its dom0."""
    if not _on_xen():
        return
    told = _output(["xl", "info"])
    scheduler = _words(told, r"xen_scheduler\s*:\s*(\S+)")
    version = _words(told, r"xen_version\s*:\s*(\S+)")
    if scheduler in {"credit", "credit2"}:
        yield Finding("Xen", "ok", f"{version}, scheduler {scheduler}")
    else:
        yield Finding("Xen", "error", f"{version}, scheduler {scheduler or 'unknown'}: it has no caps",
                      "boot Xen with sched=credit2 (ansible-playbook site.yml --tags xen)")  # fmt: skip


def docker() -> Iterator[Finding]:
    """Report whether Docker's engine answers and can save whole containers, if Docker's command is installed."""
    program = shutil.which("docker")
    if program is None:
        return
    told = _output([program, "version", "--format", "{{.Server.Version}} {{.Server.Experimental}}"]).split()
    if not told:
        yield Finding("Docker", "note", "its engine does not answer", "systemctl enable --now docker")
        return
    version, experimental = told[0], told[-1] == "true"
    criu = _words(_output(["criu", "--version"]), r"Version: (\S+)")
    if experimental and criu:
        yield Finding("Docker", "ok", f"{version}, with CRIU {criu}: each agent tests whether CRIU saves containers")
    elif experimental:
        yield Finding("Docker", "ok", f"{version}: guests are saved by their programs, as there is no CRIU")
    else:
        yield Finding("Docker", "ok", f"{version}: guests are saved by their programs, as it is not experimental")


def _on_xen() -> bool:
    with contextlib.suppress(OSError):
        return Path("/sys/hypervisor/type").read_text(encoding="ascii").strip() == "xen"
    return False


def _output(command: Sequence[str]) -> str:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(  # noqa: S603  # fixed words
            command, capture_output=True, text=True, timeout=20, check=False
        ).stdout
    return ""


def _words(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found.group(1) if found else ""
