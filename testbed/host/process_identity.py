"""Which process an id means: ids come again, so a process is its id, its start, and the boot of the machine."""

from __future__ import annotations

from pathlib import Path


def stat_fields(folder: Path) -> list[str]:
    """Return the fields of a process or thread from its state on, by its folder in /proc; none if it is not there."""
    try:
        text = (folder / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before may hold spaces and parentheses


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if there is none of that id.

    One that has ended and waits for its parent is none. One of which only the first thread has ended is still there:
    the others have its files, locks and sockets.
    """
    fields = stat_fields(Path(f"/proc/{pid}"))
    ended = not fields or fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)
    return None if ended else int(fields[19])


def boot_id() -> str:
    """Return the name of the machine's life since its last boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
