"""A domain's virtual CPUs in the kernel's accounting: quotas of their control groups (version 1 or 2), CPU time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import libvirt

from node_agent.drivers.caps.cgroup import (
    LEAST_QUOTA_US,
    LEAST_SHARES,
    MOST_SHARES,
    MOST_WEIGHT,
    PERIOD_US,
    read_cap,
    read_throttled_s,
    read_weight,
)
from node_agent.drivers.caps.mounts import mount_points
from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt.platform import DomainSample
from testbed.host.kernel_files import read_kernel_file

PIDS = Path("/run/libvirt/qemu")


@dataclass(frozen=True, slots=True)
class VcpuGroups:
    """See `Vcpus`: set through libvirt, read from the kernel's files.

    `quotas` are the folders of the control groups, `times` the files that count the CPU time of the threads.
    """

    pid: int
    quotas: tuple[Path, ...]
    times: tuple[Path, ...]

    def set_cap(self, domain: libvirt.virDomain, each_cores: float) -> None:
        """See `Vcpus.set_cap`."""
        # one core per virtual CPU is all it can use, and the node's own quota allows no larger value
        quota_us = -1 if each_cores >= 1 else max(LEAST_QUOTA_US, round(each_cores * PERIOD_US))
        values = {"vcpu_period": PERIOD_US, "vcpu_quota": quota_us}
        domain.setSchedulerParametersFlags(values, libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def cap_cores(self) -> float | None:
        """Return the sum of the quotas in cores, or None if a CPU has none; raises `OSError` if the domain has gone."""
        total = 0.0
        for cap_cores in map(read_cap, self.quotas):
            if cap_cores is None:
                return None
            total += cap_cores
        return total

    def set_part(self, domain: libvirt.virDomain, part_frac: float) -> None:
        """See `Vcpus.set_part`."""
        domain.setSchedulerParametersFlags({"cpu_shares": self._weight(part_frac)}, libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def _weight(self, part_frac: float) -> int:
        is_version_1 = (self._whole / "cpu.shares").exists()
        least, most = (LEAST_SHARES, MOST_SHARES) if is_version_1 else (1, MOST_WEIGHT)
        return max(least, round(part_frac * most))

    @property
    def _whole(self) -> Path:
        """The group of the domain, above those of its virtual CPUs."""
        above = self.quotas[0].parent
        return above.parent if above.name == "libvirt" else above

    def part_frac(self) -> float:
        """See `Vcpus.part_frac`."""
        return read_weight(self._whole)

    def seen_part_frac(self) -> float:
        """See `Vcpus.seen_part_frac`."""
        return self.part_frac()

    def cpu_s(self) -> float:
        """Return the CPU time of the virtual CPUs in seconds; raises `OSError` if the domain has gone."""
        return sum(int(read_kernel_file(path).split()[0]) / 1e9 for path in self.times)

    def look(self) -> None:
        """See `Vcpus.look`: files are read on demand."""

    def seen(self) -> DomainSample:
        """See `Vcpus.seen`."""
        throttled_s = read_throttled_s(self.quotas[0]) if len(self.quotas) == 1 else None
        return DomainSample(self.cap_cores(), self.cpu_s(), resident_mib(self.pid), throttled_s=throttled_s)


def pid_path(guest: str) -> Path:
    """Return the file that libvirt keeps of a domain's process."""
    return PIDS / f"{guest}.pid"


def vcpu_groups(pid_file: Path) -> VcpuGroups:
    """Find the groups of a domain's virtual CPUs through its threads; raises `DriverError`."""
    try:
        pid = int(pid_file.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise DriverError(f"{pid_file}: no process id of a guest: {error}") from error
    points = mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    kind = "cpu" if "cpu" in points else ""
    root, point = points.get(kind, ("/", Path("/sys/fs/cgroup")))
    folders: set[Path] = set()
    times: list[Path] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for line in (task / "cgroup").read_text(encoding="utf-8").splitlines():
                _, controllers, path = line.split(":", 2)
                if kind in controllers.split(",") and path.rpartition("/")[2].startswith("vcpu"):
                    folders.add(point / path.removeprefix(root.rstrip("/")).lstrip("/"))
                    times.append(task / "schedstat")
    if not folders:
        raise DriverError(f"{pid_file}: no control group of a virtual CPU: is cpu in cgroup_controllers of qemu.conf?")
    return VcpuGroups(pid, tuple(sorted(folders)), tuple(times))


def resident_mib(pid: int) -> float:
    """Return a process's resident memory; 0 if it has gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(read_kernel_file(f"/proc/{pid}/statm").split()[1]) * 4096 / (1 << 20)
    return 0.0
