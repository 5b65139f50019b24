"""Where control groups are in the file system: hierarchies by kind, and the group of a process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy: the part that its mount shows, the mount point, and its controllers (none for version 2)."""

    root: str
    point: Path
    controllers: tuple[str, ...]

    def folder(self, path: str) -> Path:
        """Return the folder of the group at a path from the root of the hierarchy."""
        inside = path == self.root or path.startswith(self.root.rstrip("/") + "/")
        return self.point / (path[len(self.root) :] if inside else path).lstrip("/")


def own_group(kind: str, mountinfo: str, cgroup: str) -> Path | None:
    """Return the folder of the caller's cpu group of `kind` ("cgroup" or "cgroup2"), or None if none is mounted.

    `mountinfo` and `cgroup` are the texts of /proc/self/mountinfo and /proc/self/cgroup.
    """
    own = None
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if (kind == "cgroup2" and not controllers) or (kind == "cgroup" and "cpu" in controllers.split(",")):
            own = path
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        root, mount_point = left.split()[3:5]
        found, _, options = right.split(" ", 2)
        if own is None or found != kind or (kind == "cgroup" and "cpu" not in options.split(",")):
            continue
        inside = own == root or own.startswith(root.rstrip("/") + "/")
        return Path(mount_point) / (own[len(root) :].lstrip("/") if inside else "")
    return None


def group_of(kind: str, pid: int | str = "self") -> Path | None:
    """Return the folder of a process's cpu group of `kind`, or None if none is mounted; raises `OSError`."""
    mounts, groups = Path("/proc/self/mountinfo"), Path(f"/proc/{pid}/cgroup")
    return own_group(kind, mounts.read_text(encoding="utf-8"), groups.read_text(encoding="utf-8"))


def mount_points(mountinfo: str) -> dict[str, tuple[str, Path]]:
    """Return, for cpu (version 1) and "" (version 2), the root inside the hierarchy and the mount point.

    The first mount is taken: others are copies, as in the roots of containers, and may vanish at any time.
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


def hierarchies(mountinfo: str) -> list[Hierarchy]:
    """Return every hierarchy once, at its first mount, see `mount_points`."""
    found: dict[str, Hierarchy] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            own = tuple(one for one in options.split(",") if one not in ("rw", "ro")) if kind == "cgroup" else ()
            found.setdefault(",".join(own), Hierarchy(root, Path(point), own))
    return list(found.values())
