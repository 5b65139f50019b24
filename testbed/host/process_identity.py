"""Identity of processes: process id, start time and boot id, as the kernel reuses process ids."""

from __future__ import annotations

from pathlib import Path


def stat_fields(folder: Path) -> list[str]:
    """Return the `stat` fields of a process or thread from the state on, by its /proc folder; [] if it has ended."""
    try:
        text = (folder / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the process name before it may contain spaces and parentheses


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, or None if no process has that id.

    A zombie counts as ended. A process of which only the first thread has ended counts as running: the other threads
    still have its files, locks and sockets.
    """
    fields = stat_fields(Path(f"/proc/{pid}"))
    ended = not fields or fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)
    return None if ended else int(fields[19])


def boot_id() -> str:
    """Return the id of the machine's last boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
