"""Where this process's own control groups are in the file system."""

from __future__ import annotations

from pathlib import Path


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
