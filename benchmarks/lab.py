"""A live lab of local nodes for the benchmarks, and functions that print results."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from node_agent.facts import cpu_model
from testbed.lab.opening import LabOpening, open_lab
from testbed.scenario.schema import check_scenario


def open_nodes(nodes: int = 2, cpus: float = 1.0, memory_mib: int = 1024, broker: str = "auto") -> LabOpening:
    """Return a context that opens a lab of local nodes, as a run does."""
    table: dict[str, object] = {
        "name": "bench",
        "policy": "FCFS",
        "workload": {},
        "broker": {"address": broker},
        "nodes": [{"name": f"node-{index}", "cpus": cpus, "memory_mib": memory_mib} for index in range(nodes)],
    }
    return open_lab(check_scenario(table, Path("bench")))


def print_machine() -> None:
    """Print the machine on which the results were measured."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    user = "root" if os.geteuid() == 0 else "ordinary user"
    machine = f"{cpu_model()}, {os.cpu_count()} cores, kernel {platform.release()}"
    print(f"{machine}, Python {platform.python_version()}, {user}, load {load}")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    cells = [
        list(columns),
        *[[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows],
    ]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        print(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )
        if number == 0:
            print("  ".join("-" * width for width in widths))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
