"""Runs whose controller loses power: `python benchmarks/power_loss.py [--times 20] [--first 1] [--out FILE.jsonl]`.

The controller runs in a virtual machine (`power_machine.py`); the broker and two agents with real processes run on the
host. In each repetition twelve jobs start, are saved, moved to the other node and restored. At a moment that the number
of the repetition determines, the machine loses power: right after a command or a reply of a certain kind, or at any
time. Every third repetition loses power a second time, right after the resumed controller has asked a node for its
guests, or after a later command. The machine is switched on again, and runs `testbed resume`.

A repetition passes if all jobs are done with correct results, and the journal that survived each loss is readable and
has the intent of every command that any agent has received. The file has one line per repetition; repetitions that
passed with the same code are skipped. Needs QEMU, Mosquitto and the parts of the guest image, but not root. The exit
code is 1 if a repetition failed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from lab import print_machine, print_table
from power_machine import (
    DATA,
    HOST,
    Machine,
    add_plugin,
    after_power_loss,
    files_of,
    make_data,
    make_initramfs,
    make_root,
)

from testbed.bus.client import MqttBus
from testbed.bus.messages import (
    Adopt,
    Command,
    FetchImage,
    Hold,
    ImageRef,
    ListGuests,
    Reply,
    Save,
    SetCaps,
    Start,
    decode,
)
from testbed.bus.mosquitto import find_mosquitto, mosquitto_broker
from testbed.bus.topics import ANY, node_topic
from testbed.host.interpreter import module_argv
from testbed.measure.torn_lines import cut_torn_lines
from testbed.run import events
from testbed.run.reader import read_history

ROOT = Path(__file__).resolve().parents[1]
POLICY = ROOT / "tests/support/control/interrupting.py"  # interrupts every job once
LAB = "power"
NODES = ("node-a", "node-b")
CPUS, MEMORY_MIB = 0.4, 512
SCENARIO = f"""
name = "power-loss"
lab = "{LAB}"
policy = "Interrupting"
period_s = 60
time_scale = 15
on_controller_loss = "keep"
[broker]
address = "$DFRS_BROKER"
[programs]
units_per_core_s = 48000.0 # about the rate of a core
iteration_s = 0.05
check_results_s = 600
[workload]
trace = "{DATA}/jobs.csv"
[deadlines] # an emulated controller is ten times as slow
announce_s = 120
command_s = 180
node_silence_s = 60
node_lost_s = 600
lease_ttl_s = 60
""" + "".join(
    f'[[nodes]]\nname = "{name}"\nspawn = false\ncpus = {CPUS}\nmemory_mib = {MEMORY_MIB}\n' for name in NODES
)
JOBS = 12  # of one task and of two in turns, a new one every 4 s, each with 4 s of work at full speed
TRACE = "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n" + "".join(
    f"{job},{60 * (job - 1)},{1 + job % 2},1.0,0.2,60\n" for job in range(1, JOBS + 1)
)
PHASES = ("starting", "started", "holding", "saving", "saved", "transferring", "restoring", "any")
ANY_UNTIL_S = 60.0
_NAMES: dict[type, tuple[str, str]] = {  # by command: the phase that it begins, and the phase that its reply begins
    Start: ("starting", "started"), SetCaps: ("capping", "capped"), Hold: ("holding", "held"),
    Save: ("saving", "saved"), FetchImage: ("transferring", "transferred"), ListGuests: ("asking", "asked"),
}  # fmt: skip
FOREVER_S = 1800.0  # a repetition that takes longer hangs
_UNKEPT = shutil.ignore_patterns("images*", "password*", "broker*", "*.sock", "*.img", "writes.log")


@dataclass(frozen=True)
class Seen:
    """A command or a final reply on the bus, by the clock of the host."""

    at_s: float
    command: Command
    reply: Reply | None = None

    @property
    def phase(self) -> str:
        """The phase that this message begins or ends."""
        began, ended = _NAMES.get(type(self.command.action), ("", ""))
        if isinstance(self.command.action, Start) and self.command.action.image is not None:
            began, ended = "restoring", "restored"
        return began if self.reply is None else ended


@dataclass(frozen=True)
class Moment:
    """The moment of a power loss: `delay_s` after the `nth` message of the phase since the machine was switched on.

    In the phase `any`, `delay_s` counts from the first command that starts, restores or adopts a guest.
    """

    phase: str
    nth: int
    delay_s: float

    @classmethod
    def chosen(cls, dice: random.Random, phase: str, most: int) -> Moment:
        """Draw a moment; half of the moments after a message have no delay."""
        if phase == "any":
            return cls(phase, 1, round(dice.uniform(0.0, ANY_UNTIL_S), 3))
        return cls(phase, dice.randint(1, most), dice.choice([0.0, round(dice.uniform(0.0, 0.5), 3)]))

    def __str__(self) -> str:
        return f"{self.phase} {self.nth} + {self.delay_s:g} s"


def moments(number: int) -> list[Moment]:
    """Return the power losses of a repetition."""
    dice = random.Random(number)  # noqa: S311  # not for secrets
    found = [Moment.chosen(dice, PHASES[(number - 1) % len(PHASES)], 8)]
    if number % 3 == 0:
        found.append(Moment.chosen(dice, dice.choice(["asking", "asked", "saving", "restoring", "any"]), 2))
    return found


@dataclass
class Ear:
    """Receives all commands and replies of the lab."""

    seen: list[Seen] = field(default_factory=list)
    _commands: dict[str, Command] = field(default_factory=dict)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def hear(self, topic: str, payload: bytes) -> None:
        """Record a message of the bus."""
        now_s = asyncio.get_running_loop().time()
        if topic.endswith("/command"):
            command = decode(Command, payload)
            self._commands[command.id] = command
            found = Seen(now_s, command)
        else:
            reply = decode(Reply, payload)
            if not reply.final or reply.id not in self._commands:
                return
            found = Seen(now_s, self._commands[reply.id], reply)
        async with self._news:
            self.seen.append(found)
            self._news.notify_all()

    async def until(self, moment: Moment, since: int) -> None:
        """Wait for a moment; messages before number `since` do not count."""
        first = {"starting", "restoring", "asking"} if moment.phase == "any" else {moment.phase}

        def there() -> bool:
            return sum(seen.phase in first for seen in self.seen[since:]) >= moment.nth

        async with self._news:
            await self._news.wait_for(there)
        await asyncio.sleep(moment.delay_s)


def missing_intents(run: Path, seen: list[Seen]) -> list[str]:
    """Return the commands that agents have received, but whose intent is not in the journal."""
    named: set[tuple[str, str]] = set()

    def keep(event: events.Known, _history: object) -> None:
        if isinstance(event, events.Intent):
            named.update((event.verb, name) for name in (*event.guests, *event.images))

    history = read_history(run / "events.jsonl", (), keep)
    lives = {guest: job.generation for job in history.jobs.values() for guest in job.guests}
    missing = set()
    for each in seen:
        wanted = wanted_intent(each.command.action)
        if wanted is not None and wanted not in named:
            missing.add(f"no intent: {wanted[0]} of {wanted[1]}")
        if isinstance(each.command.action, Start | Adopt):
            spec = each.command.action.spec
            if lives.get(spec.guest, spec.generation) < spec.generation:
                missing.add(f"{spec.guest}: generation {spec.generation}, but {lives[spec.guest]} in the journal")
    return sorted(missing)


def wanted_intent(action: object) -> tuple[str, str] | None:
    """Return verb and name of the guest or image of the intent that must precede a command, None if there is none."""
    match action:
        case Start(spec=spec, image=image):
            return "start" if image is None else "restore", spec.guest
        case Hold(guest=guest):
            return "save", guest
        case Save(image=name):
            return "save", name
        case FetchImage(image=ImageRef(image=name)):
            return "transfer", name
    return None


class World:
    """The host's part of a repetition: broker, two agents, a listener on the bus, the machine and its data disk."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.folder = folder
        self.machine = machine
        self.ear = Ear()
        self._disk, self._log = folder / "data.img", folder / "writes.log"
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._begin()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def _begin(self) -> None:
        program = find_mosquitto()
        if program is None:
            sys.exit("power_loss.py: mosquitto is not installed")
        address = await self._stack.enter_async_context(mosquitto_broker(program, self.folder / "broker"))
        for node in NODES:
            await self._stack.enter_async_context(self._agent(node, address.url))
        bus = await self._stack.enter_async_context(MqttBus(address, "ear", keep_session=False))
        await bus.subscribe(node_topic(LAB, ANY, "command"), self.ear.hear)
        await bus.subscribe(f"testbed/v1/{LAB}/controller/{ANY}/reply/{ANY}", self.ear.hear)
        self._stack.push_async_callback(self.machine.lose_power)
        files = self.folder / "data"
        files.mkdir()
        (files / "scenario.toml").write_text(SCENARIO)
        (files / "jobs.csv").write_text(TRACE)
        (files / "broker").write_text(address.url.replace("127.0.0.1", HOST).replace("mqtt://", "insecure+mqtt://"))
        await asyncio.to_thread(make_data, files, self._disk)

    @asynccontextmanager
    async def _agent(self, node: str, url: str) -> AsyncIterator[None]:
        with (self.folder / f"{node}.log").open("ab") as log:
            agent = await asyncio.create_subprocess_exec(
                *module_argv("node_agent", "--lab", LAB, "--node", node, "--cpus", str(CPUS), "--broker-from-stdin"),
                *("--memory-mib", str(MEMORY_MIB), "--state-dir", str(self.folder / node)),
                stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT,
            )  # fmt: skip
        try:
            if agent.stdin is not None:
                agent.stdin.write(f"{url}\n".encode())
                agent.stdin.close()
            yield
        finally:
            with suppress(ProcessLookupError):
                agent.terminate()
            await agent.wait()

    async def switch_on(self) -> float:
        """Switch the machine on; return when its controller began."""
        await asyncio.to_thread(shutil.copyfile, self._disk, self.folder / "before.img")
        await self.machine.start(self._disk, self._log)
        return await self.machine.line("@ begin")

    async def lose_power(self) -> tuple[int, int]:
        """Kill the machine, and apply the loss to its disk; return the numbers of kept and of lost writes."""
        await self.machine.lose_power()
        return await asyncio.to_thread(after_power_loss, self.folder / "before.img", self._log, self._disk)

    def run(self, name: str) -> Path:
        """Copy the files of the data disk, while the machine is off, to a new folder; return the run directory."""
        (run,) = (files_of(self._disk, self.folder / name) / "runs").iterdir()
        return run


async def repeat(number: int, folder: Path, machine: Machine) -> dict[str, Any]:
    """Make one repetition; return its line of the results."""
    began_s = time.monotonic()
    losses: list[dict[str, Any]] = []
    async with asyncio.timeout(FOREVER_S), World(folder, machine) as world:
        resumed_s = await world.switch_on()
        since = 0
        for moment in moments(number):
            waiting = asyncio.ensure_future(world.ear.until(moment, since))
            over = asyncio.ensure_future(machine.off())
            await asyncio.wait({waiting, over}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if over.done():
                break  # the run was over before
            over.cancel()
            seen = list(world.ear.seen)
            kept, lost = await world.lose_power()
            _keep_console(folder, machine)
            run = await asyncio.to_thread(world.run, f"lost-{len(losses)}")
            losses.append({
                "phase": str(moment), "writes_kept": kept, "writes_lost": lost, "messages": len(seen),
                "missing": missing_intents(run, seen), "torn": [str(torn) for torn in cut_torn_lines(run)],
            })  # fmt: skip
            since = len(world.ear.seen)
            resumed_s = await world.switch_on()
        await machine.off()
        _keep_console(folder, machine)
        run = await asyncio.to_thread(world.run, "end")
    goes_on_s = next((at_s for at_s, line in machine.lines if "the run continues" in line), None)
    return {
        "seed": number,
        "losses": losses,
        **outcome(run, None if goes_on_s is None else goes_on_s - resumed_s),
        "minutes": round((time.monotonic() - began_s) / 60, 2),
    }


def _keep_console(folder: Path, machine: Machine) -> None:
    with (folder / "console.log").open("a") as file:
        file.writelines(f"{at_s:.3f} {line}\n" for at_s, line in machine.lines)


def outcome(run: Path, started_s: float | None) -> dict[str, Any]:
    """Return the results of a run; `started_s` is the time from the start of `resume` until the run continued."""
    resumed: list[events.Resumed] = []
    recovered: list[events.Recovered] = []
    decided: list[float] = []

    def keep(event: events.Known, _history: object) -> None:
        match event:
            case events.Resumed():
                resumed.append(event)
                decided.clear()
            case events.Recovered():
                recovered.append(event)
                decided.clear()
            case events.Decision():
                decided.append(event.t_s)

    read_history(run / "events.jsonl", (), keep)
    path = run / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    found: dict[str, Any] = {
        "resumes": len(resumed),
        "blind_s": summary.get("without_controller", {}).get("blind_s"),
        "torn_bytes": sum(event.torn_bytes for event in resumed),
        "adopted": [len(event.adopted) for event in recovered],
        "carried_on": [len(event.carried_on) for event in recovered],
        "done": summary.get("done", 0),
        "right": summary.get("results", {}).get("right", 0),
        "failed": summary.get("failed", {}),
    }
    if resumed and recovered:
        found["recover_s"] = round(recovered[-1].t_s - resumed[-1].t_s, 3)
        if decided and started_s is not None:
            found["to_decision_s"] = round(started_s + decided[0] - recovered[-1].t_s, 3)
    return found


def is_well(line: dict[str, Any]) -> bool:
    """Return whether all jobs ended well, and no entry that had to be durable was lost."""
    losses = line["losses"]
    jobs_are = line["done"] == line["right"] == JOBS
    return jobs_are and line["resumes"] == len(losses) > 0 and not any(loss["missing"] for loss in losses)


def code_digest() -> str:
    """Return a digest of the testbed, the agent and this program."""
    files = [path for folder in ("testbed", "node_agent") for path in (ROOT / folder).rglob("*.py")]
    files += [Path(__file__).resolve(), Path(__file__).resolve().with_name("power_machine.py"), POLICY]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def commit() -> str:
    """Return the commit of this checkout, with a mark if files differ from it."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Read the results, none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--times", type=int, default=20, help="number of repetitions")
    parser.add_argument("--first", type=int, default=1, help="number of the first repetition; it determines the losses")
    parser.add_argument("--out", type=Path, default=Path("power-loss.jsonl"), help="file of the results")
    parser.add_argument("--keep", type=Path, help="folder for journals and logs of the repetitions")
    chosen = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # so that a repetition cleans up after itself
        signal.signal(number, signal.default_int_handler)
    print_machine()
    code, at = code_digest(), commit()
    numbers = range(chosen.first, chosen.first + chosen.times)
    there = {line["seed"] for line in lines_of(chosen.out) if line["code"] == code}
    with tempfile.TemporaryDirectory(prefix="dfrs-p") as room:
        kernel, initramfs = make_initramfs(Path(room))
        entry_point = f"[testbed.policies]\nInterrupting = {POLICY.stem}:interrupting\n"
        root = make_root(Path(room), lambda tree: add_plugin(tree, POLICY, entry_point))
        for number in numbers:
            if number in there:
                continue
            folder = Path(room) / str(number)
            folder.mkdir()
            try:
                line = asyncio.run(repeat(number, folder, Machine(kernel, initramfs, root)))
            finally:
                if chosen.keep is not None:
                    shutil.copytree(folder, chosen.keep / str(number), ignore=_UNKEPT, dirs_exist_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
            line |= {"well": is_well(line), "code": code, "commit": at}
            with chosen.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
    lines = sorted(
        (line for line in lines_of(chosen.out) if line["code"] == code and line["seed"] in numbers),
        key=lambda line: int(line["seed"]),
    )
    print_table(
        "losses of power",
        ["seed", "at", "writes lost", "torn, B", "blind, s", "to decision, s", "done", "right", "minutes", "well"],
        [
            [
                line["seed"], "; ".join(loss["phase"] for loss in line["losses"]),
                "; ".join(str(loss["writes_lost"]) for loss in line["losses"]), line["torn_bytes"], line["blind_s"],
                line.get("to_decision_s"), line["done"], line["right"], line["minutes"], line["well"],
            ]
            for line in lines
        ],
    )  # fmt: skip
    return 0 if all(line["well"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
