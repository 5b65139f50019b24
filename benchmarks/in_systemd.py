"""The controller in the machine of `under_systemd.py`: prints one line per check, with its result."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus
from testbed.bus.guest_details import GuestReport
from testbed.bus.messages import GuestSpec, ListGuests, ProgramSpec, SetCaps, Start, Stop
from testbed.lab.fleet import Fleet
from testbed.lab.leased import lease_lab
from testbed.lab.replies import Guests, ask
from testbed.scenario.schema import DeadlinesTable

UNIT = "dfrs-agent.service"
GROUP = Path("/sys/fs/cgroup/dfrs.slice", UNIT)
PATIENCE_S = 300.0
MEASURED_S = 20.0
TOLERANCE = 0.05  # as a fraction of the cap
GUESTS = ("dfrs-a", "dfrs-b")


def result(what: str, found: object, expected: object, *, right: bool | None = None) -> None:
    line = {"what": what, "found": found, "expected": expected, "right": found == expected if right is None else right}
    print(f"@ {json.dumps(line)}", flush=True)


def of_unit(name: str) -> str:
    words = ["/bin/systemctl", "show", "-p", name, "--value", UNIT]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def group_of(guest: str) -> Path:
    (found,) = GROUP.glob(f"dfrs-a-*/{guest}")
    return found


def groups() -> list[str]:
    return sorted(path.name for path in GROUP.glob("dfrs-a-*/*/"))


def quota(guest: str) -> str:
    return (group_of(guest) / "cpu.max").read_text().strip()


def processes() -> list[str]:
    return sorted(line for guest in GUESTS for line in (group_of(guest) / "cgroup.threads").read_text().split())


async def check_cap(guest: str, cap_cores: float, when: str) -> None:
    """Measure the CPU use of a guest, and the number of periods in which it exhausted its cap.

    A guest that uses less than its cap, and exhausted it in no period, had no core to run on: the machine was busy.
    """

    def counts() -> dict[str, int]:
        lines = (group_of(guest) / "cpu.stat").read_text().splitlines()
        return {name: int(value) for name, value in (line.split() for line in lines)}

    loop = asyncio.get_running_loop()
    before, begin_s = counts(), loop.time()
    await asyncio.sleep(MEASURED_S)
    after, elapsed_s = counts(), loop.time() - begin_s
    used_us, periods, used_up = (
        after[name] - before[name] for name in ("usage_usec", "nr_periods", "nr_throttled")
    )  # fmt: skip
    found = used_us / 1e6 / elapsed_s
    right = abs(found - cap_cores) <= TOLERANCE * cap_cores
    result(
        f"{when}: cores of a guest",
        f"{found:.4f}; cap used up in {used_up} of {periods} periods in {elapsed_s:.2f} s",
        f"{cap_cores} +- {TOLERANCE:.0%}", right=right,
    )  # fmt: skip


async def check(fleet: Fleet) -> None:
    at_work = {guest: asyncio.Event() for guest in GUESTS}
    changed = asyncio.Event()

    def on_guest_event(_node: int, event: GuestReport) -> None:
        if event.event == "progress":
            at_work[event.guest].set()

    fleet.on_guest_event = on_guest_event
    fleet.on_node_change = lambda _node, _change: changed.set()

    def spec(guest: str) -> GuestSpec:
        program = ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=200, seed=7)
        return GuestSpec(guest=guest, run="t", job=1, task=0, cpu_cores=1.0, memory_mib=96, program=program)

    result("systemd", of_unit("ActiveState"), "active")
    caps = [each for each in fleet.facts(0).capabilities if each.startswith("cap:")]
    result("caps", caps, ["cap:cgroup2"])
    result("type of the unit's group", (GROUP / "cgroup.type").read_text().strip(), "domain threaded")
    for guest in GUESTS:
        await fleet.call(0, Start(spec=spec(guest), cap_cores=0.2), PATIENCE_S)
        await at_work[guest].wait()
    result("quota", quota("dfrs-a"), "20000 100000")
    await check_cap("dfrs-a", 0.2, "started")
    before, boot, main_pid = processes(), fleet.nodes[0].boots[-1], of_unit("MainPID")
    os.kill(int(main_pid), signal.SIGKILL)
    while fleet.nodes[0].boots[-1] == boot:
        changed.clear()
        await changed.wait()
    result("restarts by systemd", of_unit("NRestarts"), "1")
    result("processes of the guests, after SIGKILL of the agent", processes(), before)
    listed = await ask(fleet, 0, ListGuests(), Guests, PATIENCE_S)
    states = {sample.guest: sample.state for sample in listed.guests}
    result("guests of the next agent", states, dict.fromkeys(GUESTS, "running"))
    await check_cap("dfrs-a", 0.2, "taken over")
    await fleet.call(0, SetCaps(caps={"dfrs-a": 0.4}), PATIENCE_S)
    result("quota, set by the next agent", quota("dfrs-a"), "40000 100000")
    await check_cap("dfrs-a", 0.4, "set by the next agent")
    await fleet.call(0, Stop(guest="dfrs-a"), PATIENCE_S)
    result("groups of guests, after one was destroyed", groups(), ["dfrs-b"])
    stop_unit(before)


def stop_unit(before: list[str]) -> None:
    """Stop the agent in order: its guests end with it."""
    subprocess.run(["/bin/systemctl", "stop", UNIT], check=True)
    result("the unit's group, after the agent was stopped in order", GROUP.exists(), False)
    result("processes of the guests, after that", [pid for pid in before if Path("/proc", pid).exists()], [])
    result("the unit's end", of_unit("Result"), "success")


async def main() -> None:
    deadlines = DeadlinesTable(announce_s=PATIENCE_S, command_s=PATIENCE_S, node_silence_s=60, lease_ttl_s=120)
    async with (
        MqttBus(BrokerAddress.parse("mqtt://127.0.0.1:1883", None), "controller", keep_session=False) as bus,
        lease_lab(bus, "local", ["a"], "controller", deadlines=deadlines) as leased,
    ):
        await leased.ready()
        await check(leased.fleet)
    result("end", "reached", "reached")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
