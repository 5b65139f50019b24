"""Identity of processes: ids are reused, so a process is its id, its start, and the boot of the machine."""

from __future__ import annotations

from pathlib import Path


def stat_fields(folder: Path) -> list[str]:
    """Return the fields of a process or thread from its state on, by its folder in /proc; none if it does not exist."""
    try:
        text = (folder / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before may hold spaces and parentheses


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if no process has that id.

    A zombie does not count. A process whose first thread alone has ended still counts: the other threads have its
    files, locks and sockets.
    """
    fields = stat_fields(Path(f"/proc/{pid}"))
    ended = not fields or fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)
    return None if ended else int(fields[19])


def boot_id() -> str:
    """Return the id of the machine's last boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
