"""The libvirtd of a node, with private files, a host UUID of its own, and a listener for migrations."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import RunError, TestbedError
from testbed.lab.box.commands import HANG_S, CommandError, program, run
from testbed.lab.box.control_group import within
from testbed.lab.box.namespaces import enter, is_on_network
from testbed.lab.box.parts import ProcessPart
from testbed.lab.box.processes import alive, end, last_line, mark, marked, wait_until
from testbed.lab.box.spec import NodeSpec
from testbed.lab.box.state import Journal
from testbed.lab.secure.hypervisor import libvirtd_settings, qemu_settings

_PID_FILE = ("--pid-file", "/run/libvirt/libvirtd.pid")  # another daemon may use the default path
_SOCKET_WITHIN_S = HANG_S
_ANSWER_WITHIN_S = HANG_S  # the daemon probes every emulator before its first reply
_CALL_WITHIN_S = HANG_S
_SILENT_AFTER_S = 30.0  # then the daemon counts as not answering
_HOSTS = uuid.UUID("b0a1c5e2-6d1f-5c3a-9f0e-2d7c4b8e9a11")  # UUID namespace of this project's nodes


def daemon_settings(node: NodeSpec, others: Sequence[str]) -> dict[str, object]:
    """Return the content of a node's libvirtd.conf; `others` are the nodes that may send guests to it, by name."""
    return {
        "host_uuid": str(uuid.uuid5(_HOSTS, f"{node.lab}/{node.name}")),
        "auth_unix_rw": "none",
        "auth_unix_ro": "none",
        "unix_sock_rw_perms": "0700",
        **libvirtd_settings(node.transport, node.host, others),  # reachable only from this lab's network
        "max_client_requests": 64,  # the agent's concurrent calls; a lower limit delays replies to its keepalive
        "log_outputs": "3:file:/var/log/libvirt/libvirtd.log",
    }


def driver_settings(node: NodeSpec) -> dict[str, object]:
    """Return the content of a node's qemu.conf."""
    return {
        "user": "root",  # without access to /dev/kvm libvirtd would probe the emulator again at every call
        "group": "root",
        "dynamic_ownership": 0,
        "remember_owner": 0,
        "security_driver": "none",
        "namespaces": [],
        "stdio_handler": "file",  # so that no virtlogd is needed
        "cgroup_controllers": ["cpu", "cpuacct", "cpuset"],
        **qemu_settings(node.transport, node.host),
    }


def _text(settings: dict[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


def cap_cores(node: NodeSpec, domain: str) -> float | None:
    """Return the cap of one vCPU of a domain in cores, as read back by its libvirtd; None is no cap."""
    printed = run("virsh", "-c", node.libvirt_uri, "schedinfo", domain, timeout_s=_CALL_WITHIN_S)
    values = dict(line.replace(" ", "").split(":", 1) for line in printed.splitlines() if ":" in line)
    quota_us, period_us = int(values.get("vcpu_quota", "-1")), int(values.get("vcpu_period", "100000"))
    return quota_us / period_us if 0 < quota_us < 1 << 50 else None


def domains(node: NodeSpec) -> list[str]:
    """Return the names of the domains that run on a node; raises `CommandError` if its libvirtd does not answer."""
    printed = run("virsh", "-c", node.libvirt_uri, "list", "--name", timeout_s=_CALL_WITHIN_S)
    return printed.split()


@dataclass(frozen=True, slots=True)
class Libvirtd(ProcessPart):
    """The libvirtd of one node."""

    grace_s = 8.0
    node: NodeSpec
    journal: Journal

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"libvirtd {self.node.full_name}"

    @property
    def _others(self) -> list[str]:
        nodes = self.journal.state.nodes
        return [node.name for node in nodes if node.has_libvirtd and node.name != self.node.name]

    def answers(self, timeout_s: float = _SILENT_AFTER_S) -> bool:
        """Whether the daemon answers requests."""
        try:
            run("virsh", "-c", self.node.libvirt_uri, "version", timeout_s=timeout_s)
        except CommandError:
            return False
        return True

    def there(self) -> bool:
        """See `Part.there`."""
        return is_on_network(self.process, self.node) and self._is_told() and self.answers()

    def _files(self) -> dict[Path, str]:
        """Return the content of the daemon's configuration files, by path."""
        folder = self.node.run_dir / "etc"
        return {
            folder / "libvirtd.conf": _text(daemon_settings(self.node, self._others)),
            folder / "qemu.conf": _text(driver_settings(self.node)),
        }

    def _is_told(self) -> bool:
        """Whether the files have the intended settings; the listener of an earlier release may be open to all."""
        try:
            return all(path.read_text(encoding="utf-8") == text for path, text in self._files().items())
        except OSError:
            return False

    def make(self) -> None:
        """See `Part.make`. Guests outlive their daemon: a new daemon finds them by its private files."""
        node = self.node
        # End a daemon that did not answer or was not recorded. Its pid file and port stay in use until its last thread
        # has ended, which may wait for the disk, and may have no environment any more.
        end([*filter(None, [self.process]), *marked(node.lab, node.name, "libvirtd")], self.grace_s)
        for path, text in self._files().items():
            path.write_text(text, encoding="utf-8")
        node.socket.unlink(missing_ok=True)
        log = node.store_dir / "log" / "libvirtd.out"
        inside = [*within(node.lab), *enter(node, self.journal, network=True)]
        argv = [*inside, program("libvirtd"), "--listen", *_PID_FILE]
        process = self.started(argv, mark(node.lab, node.name, "libvirtd"), log)
        if not wait_until(lambda: node.socket.exists() or not alive(process), _SOCKET_WITHIN_S):
            raise RunError(f"{self.name}: no socket after {_SOCKET_WITHIN_S:g} s{last_line(log)}")
        if not alive(process):
            said = last_line(log) or last_line(node.store_dir / "log" / "libvirtd.log")
            raise RunError(f"{self.name}: it ended{said}")
        run("virsh", "-c", node.libvirt_uri, "version", timeout_s=_ANSWER_WITHIN_S)

    def remove(self) -> list[str]:
        """See `Part.remove`; the domains are destroyed first."""
        process = self.process
        if process is None or not alive(process):
            return []
        removed, failures = [], []
        try:
            left = domains(self.node)
        except TestbedError as error:
            left = []
            failures.append(str(error))
        for domain in left:
            try:
                run("virsh", "-c", self.node.libvirt_uri, "destroy", domain, timeout_s=_CALL_WITHIN_S)
                removed.append(f"domain {domain} on {self.node.name}")
            except TestbedError as error:
                failures.append(str(error))
        end([process], self.grace_s)
        if failures:  # the emulators of these domains end with the node's namespaces
            raise RunError(f"{self.name} ended; {'; '.join(failures)}")
        return [*removed, self.name]
