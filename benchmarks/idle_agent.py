"""Cost of an idle agent of virtual machines: `python benchmarks/idle_agent.py [--repeats 6]`.

Needs root. The benchmark makes a lab in a box, and removes it afterwards. It reads the CPU time and the resident memory
of the agents' processes from the kernel. Goals: at most 1 % of a core and 60 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
from guest_lab import box, say
from intervals import cells
from lab import print_machine, print_table

from testbed.errors import TestbedError
from testbed.lab.box.status import report

WINDOW_S = 10.0
TARGET_PERCENT, TARGET_MIB = 1.0, 60.0


def measure(agents: dict[str, psutil.Process], repeats: int) -> dict[str, dict[str, list[float]]]:
    """Measure windows one after the other."""
    found: dict[str, dict[str, list[float]]] = {node: {"cpu_percent": [], "rss_mib": []} for node in agents}
    for number in range(repeats):
        before = {node: (time.monotonic(), sum(agent.cpu_times()[:2])) for node, agent in agents.items()}
        time.sleep(WINDOW_S)
        for node, agent in agents.items():
            since_s, used_s = before[node]
            cpu_s = sum(agent.cpu_times()[:2]) - used_s
            found[node]["cpu_percent"].append(100 * cpu_s / (time.monotonic() - since_s))
            found[node]["rss_mib"].append(agent.memory_info().rss / 2**20)
        say(f"idle: {number + 1} of {repeats}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6, help=f"windows of {WINDOW_S:g} s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single measurement there")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a lab in a box needs root")
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    try:
        with box(1536) as journal:
            print_machine()
            pids = {node.node: node.agent_pid for node in report(journal.state.lab).nodes}
            found = measure({node: psutil.Process(pid) for node, pid in pids.items() if pid}, options.repeats)
    except TestbedError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    rows = [
        (node, *cells(values["cpu_percent"]), f"{max(values['rss_mib']):.1f}",
         "yes" if max(values["cpu_percent"]) <= TARGET_PERCENT and max(values["rss_mib"]) <= TARGET_MIB else "NO")
        for node, values in found.items()
    ]  # fmt: skip
    heads = ("node", "n", "CPU % of a core", "95 %", "RSS MiB", f"<= {TARGET_PERCENT:g} % and {TARGET_MIB:g} MiB")
    print_table(f"An agent without virtual machines, windows of {WINDOW_S:g} s", heads, rows)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
