"""A domain's virtual CPUs as the kernel sees them: quotas of their control groups (version 1 or 2), and CPU time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from node_agent.drivers.protocol import DriverError

PIDS = Path("/run/libvirt/qemu")


@dataclass(frozen=True, slots=True)
class VcpuGroups:
    """Folders of the control groups of a domain's virtual CPUs, and the files that count their threads' CPU time."""

    pid: int
    quotas: tuple[Path, ...]
    times: tuple[Path, ...]

    def cap_cores(self) -> float | None:
        """Return the sum of the quotas in cores, or None if a CPU has none; raises `OSError` if the domain has gone."""
        total = 0.0
        for folder in self.quotas:
            try:
                quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            except FileNotFoundError:
                quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")
                period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
            if quota == "max" or int(quota) < 0:
                return None
            total += int(quota) / int(period)
        return total

    def cpu_s(self) -> float:
        """Return the CPU time of the virtual CPUs in seconds; raises `OSError` if the domain has gone."""
        return sum(int(path.read_text(encoding="ascii").split()[0]) / 1e9 for path in self.times)


def mount_points(mountinfo: str) -> dict[str, tuple[str, Path]]:
    """Return, for cpu (version 1) and "" (version 2), the root inside the hierarchy and the mount point.

    The first one: others are copies, in the roots of containers and the like, and may go at any time.
    """
    found: dict[str, tuple[str, Path]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("", (root, Path(point)))
        elif kind == "cgroup" and "cpu" in options.split(","):
            found.setdefault("cpu", (root, Path(point)))
    return found


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
        raise DriverError(f"{pid_file}: no control group a virtual CPU: is cpu in cgroup_controllers of qemu.conf?")
    return VcpuGroups(pid, tuple(sorted(folders)), tuple(times))


def resident_mib(pid: int) -> float:
    """Return a process's resident memory; 0 if it has gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096 / (1 << 20)
    return 0.0
