"""The daemons that serve a node's guests: found by their files, verified by their names, with their CPU time."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.live import wait_until

from node_agent.drivers.virt.daemons import daemon_pids
from node_agent.telemetry import NodeSampler


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the name libvirtd, until the end of the block."""
    program = tmp_path / "libvirtd"
    shutil.copy("/bin/cat", program)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
        name = Path(f"/proc/{process.pid}/comm")
        wait_until(lambda: name.read_text() == "libvirtd\n", "its name")  # the kernel sets it last of all
        yield process


def hypervisor(root: Path, uri: str = "qemu:///system") -> SimpleNamespace:
    return SimpleNamespace(uri=uri, file=lambda path: root / path.relative_to("/"))


def test_a_daemon_is_found_by_its_file_and_believed_by_its_name(
    tmp_path: Path, daemon: subprocess.Popen[bytes]
) -> None:
    files = tmp_path / "root/run/libvirt"
    files.mkdir(parents=True)
    (files / "libvirtd.pid").write_text(f"{daemon.pid}\n")
    (tmp_path / "root/run/virtlogd.pid").write_text(str(os.getpid()))  # stale: now the id of another process
    (tmp_path / "root/run/libvirtd.pid").write_text("none\n")
    assert daemon_pids(hypervisor(tmp_path / "root")) == (daemon.pid,)
    assert daemon_pids(hypervisor(tmp_path / "root", "xen+ssh://root@node/system")) == (), "on another machine"


def test_the_cpu_time_of_daemons_is_told_and_one_that_has_ended_counts_no_more(
    daemon: subprocess.Popen[bytes],
) -> None:
    sampler = NodeSampler("n0", "boot", "clock", time.monotonic, daemons=(daemon.pid, 2**22 + 1, os.getpid()))
    assert sampler.sample(()).daemons_cpu_s >= time.process_time() * 0.5
    alone = NodeSampler("n0", "boot", "clock", time.monotonic, daemons=(daemon.pid,))
    daemon.kill()
    daemon.wait()
    assert alone.sample(()).daemons_cpu_s == 0.0
