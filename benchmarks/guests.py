"""Real virtual machines through the libvirt driver: `python benchmarks/guests.py [--repeats 10] [--sizes 128,512]`.

Needs root. The benchmark makes a lab in a box of two nodes, and removes it afterwards. It measures the driver, which
runs in this process, on the hypervisors of that lab.

  save   hold, save, restore and release of one guest, through the driver and by bare virsh, in random order; and the
         rate of a save against a plain write + fsync of as many random bytes in the same folder
  start  from the order to start a guest to its first progress
  skew   time between the holds of the two members of a parallel job on two nodes, and between their releases
  caps   CPU use of a capped guest, compared with its cap

Every interval of a median is a 95 % interval by the ranks of the values, that of a ratio is by bootstrap.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from statistics import median

import libvirt
import libvirt_qemu
import msgspec
import psutil
from guest_lab import NEWS_WITHIN_S, Node, box, eatcpu, join, opened, say
from intervals import cells, interval, ratio_of_medians
from lab import percentile, print_machine, print_table

from node_agent.facts import cpu_model
from testbed.bus.messages import GuestSpec
from testbed.errors import RunError, TestbedError
from testbed.lab.box.state import Journal

MEASURES = ("save", "start", "skew", "caps")
VIRSH_WITHIN_S = 300.0
SKEW_TARGET_MS, CAP_TARGET_PP, CAP_WINDOWS_S, CAP_SETTLE_S = 50.0, 1.0, (1.0, 10.0), 0.3
CAPS_CORES = (0.1, 0.25, 0.5, 0.75, 0.9)
BLOCK_BYTES = 4 << 20
QEMU_EVENTS_BY_REGEX = 1  # VIR_CONNECT_DOMAIN_QEMU_MONITOR_EVENT_REGISTER_REGEX


# --- save and restore


async def timed(into: dict[str, float], part: str, doing: Awaitable[object]) -> None:
    begin_s = time.monotonic()
    await doing
    into[part] = time.monotonic() - begin_s


async def virsh(uri: str, *words: str) -> None:
    def run() -> None:
        argv = ["virsh", "-q", "-c", uri, *words]
        done = subprocess.run(argv, check=False, capture_output=True, timeout=VIRSH_WITHIN_S)
        if done.returncode:
            raise RunError(f"{' '.join(argv)}: {done.stderr.decode(errors='replace').strip()}")

    await asyncio.to_thread(run)


async def through_testbed(node: Node, spec: GuestSpec) -> dict[str, float]:
    """The steps of a rescheduling to the same node, from the hold to the release; all in seconds."""
    image = node.images / f"{spec.guest}.img"
    parts: dict[str, float] = {}
    begin_s = time.monotonic()
    await timed(parts, "hold_s", node.driver.hold(spec.guest))
    report = await node.driver.save(spec.guest, None, image)
    parts |= {"write_s": report.write_s, "sync_s": report.sync_s}
    await timed(parts, "restore_s", node.driver.restore(spec, 1.0, image))
    await timed(parts, "release_s", node.driver.release(spec.guest))
    parts["total_s"] = time.monotonic() - begin_s
    parts["bytes"] = report.bytes
    image.unlink()
    return parts


async def by_virsh(node: Node, spec: GuestSpec) -> dict[str, float]:
    """Do the same four steps on the same guest by virsh, while the driver ignores the guest."""
    uri, image = node.spec.libvirt_uri, node.images / "virsh.img"
    guest = node.driver._guests[spec.guest]  # noqa: SLF001  # the driver has no public method for this
    guest.leaving = True  # so that the driver does not report the end of the domain as a failure
    guest.detach()
    parts: dict[str, float] = {}
    begin_s = time.monotonic()
    await timed(parts, "hold_s", virsh(uri, "suspend", spec.guest))
    await timed(parts, "write_s", virsh(uri, "save", spec.guest, str(image)))
    await timed(parts, "restore_s", virsh(uri, "restore", str(image), "--paused"))
    await timed(parts, "release_s", virsh(uri, "resume", spec.guest))
    parts["total_s"] = time.monotonic() - begin_s
    parts["bytes"] = image.stat().st_size
    image.unlink()
    await guest.appear()
    guest.attach_beside()
    return parts


async def plain_write(node: Node, data: bytes) -> dict[str, float]:
    """Write as many bytes to a new file in the same folder, with fsync of file and folder as a save does."""
    path = node.images / "plain"

    def write() -> float:
        view = memoryview(data)
        begin_s = time.monotonic()
        with path.open("xb", buffering=0) as file:
            while view:
                view = view[file.write(view[:BLOCK_BYTES]) :]
            os.fsync(file.fileno())
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return time.monotonic() - begin_s

    try:
        return {"total_s": await asyncio.to_thread(write), "bytes": len(data)}
    finally:
        path.unlink(missing_ok=True)


async def works(node: Node, guest: str) -> None:
    """Wait until the driver has the guest's channel again, and a sample has shown progress of the guest."""
    known = node.driver._guests[guest]  # noqa: SLF001  # the driver attaches in the background, without an event
    channel = known._channel  # noqa: SLF001  # as above
    seen_units = node.sample(guest).units_done
    async with asyncio.timeout(NEWS_WITHIN_S):
        while not channel.attached or node.sample(guest).units_done <= seen_units:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.02)
    known.leaving = False


async def measure_save(one: Node, two: Node, options: argparse.Namespace) -> dict[str, object]:
    del two
    order = random.Random(options.seed)  # noqa: S311  # the same order each time
    version_s: list[float] = []
    for _ in range(10):
        found: dict[str, float] = {}
        await timed(found, "s", virsh(one.spec.libvirt_uri, "version"))
        version_s.append(found["s"])
    sizes: dict[str, object] = {}
    for memory_mib in options.sizes:
        spec = eatcpu(memory_mib)
        await one.driver.start(spec, 1.0)
        await one.progress(spec.guest)
        runs: dict[str, list[dict[str, float]]] = {"testbed": [], "virsh": [], "plain": []}
        data = b""
        for repeat in range(options.repeats + 1):  # the first is a warm-up, gives the size, and does not count
            kinds = ["testbed", "virsh", *(["plain"] if data and repeat <= options.plain_repeats else [])]
            order.shuffle(kinds)
            for kind in kinds:
                await asyncio.to_thread(os.sync)  # so that pending writes of others do not count
                if kind == "plain":
                    result = await plain_write(one, data)
                else:
                    result = await (through_testbed if kind == "testbed" else by_virsh)(one, spec)
                    await works(one, spec.guest)
                if repeat:
                    runs[kind].append(result)
                elif kind == "testbed":
                    data = await asyncio.to_thread(os.urandom, int(result["bytes"]))
            say(f"save, {memory_mib} MiB: {repeat} of {options.repeats}")
        await one.driver.stop(spec.guest)
        sizes[str(memory_mib)] = {"runs": runs, "summary": table_of_save(memory_mib, runs)}
    print_table(
        "Start of a virsh process and its connection, contained in each of its four steps above; nothing is deducted",
        ("s", "n", "median", "95 %"),
        [("virsh version", *cells(version_s, 4))],
    )
    return {"sizes": sizes, "virsh_version_s": version_s}


def table_of_save(memory_mib: int, runs: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    def column(kind: str, part: str) -> list[float]:
        return [run[part] for run in runs[kind]]

    parts = {
        "testbed": ("total_s", "hold_s", "write_s", "sync_s", "restore_s", "release_s"),
        "virsh": ("total_s", "hold_s", "write_s", "restore_s", "release_s"),
        "plain": ("total_s",),
    }
    size_mib = median(column("testbed", "bytes")) / (1 << 20)
    print_table(
        f"Guest of {memory_mib} MiB, image of {size_mib:.0f} MiB: seconds (virsh: each step with a process of its own)",
        ("s", "n", "median", "95 %"),
        [(f"{kind} {part[:-2]}", *cells(column(kind, part))) for kind, names in parts.items() for part in names],
    )
    ours, theirs = column("testbed", "total_s"), column("virsh", "total_s")
    pairwise = [a / b for a, b in zip(ours, theirs, strict=True)]
    undurable = [total_s - sync_s for total_s, sync_s in zip(ours, column("testbed", "sync_s"), strict=True)]
    undurable_pairwise = [a / b for a, b in zip(undurable, theirs, strict=True)]
    plain_s_per_byte = [run["total_s"] / run["bytes"] for run in runs["plain"]]
    durable_s_per_byte = [(run["write_s"] + run["sync_s"]) / run["bytes"] for run in runs["testbed"]]
    virsh_s_per_byte = [run["write_s"] / run["bytes"] for run in runs["virsh"]]
    ratios = {
        "testbed / virsh, save + restore: medians": ratio_of_medians(ours, theirs),
        "same, median of pairs": (median(pairwise), *interval(pairwise)),
        "same without durability (less sync): medians": ratio_of_medians(undurable, theirs),
        "same without durability, median of pairs": (median(undurable_pairwise), *interval(undurable_pairwise)),
        "save rate (durable) / plain write + fsync": ratio_of_medians(plain_s_per_byte, durable_s_per_byte),
        "virsh save rate (not durable) / plain write + fsync": ratio_of_medians(plain_s_per_byte, virsh_s_per_byte),
    }
    print_table(
        f"Ratios, guest of {memory_mib} MiB; plain write + fsync {1 / median(plain_s_per_byte) / (1 << 20):.0f} MiB/s, "
        f"durable save {1 / median(durable_s_per_byte) / (1 << 20):.0f} MiB/s",
        ("ratio", "value", "95 %"),
        [(name, value, f"{low:.3f} .. {high:.3f}") for name, (value, low, high) in ratios.items()],
    )
    return {name: {"value": value, "low": low, "high": high} for name, (value, low, high) in ratios.items()}


# --- start


async def measure_start(one: Node, two: Node, options: argparse.Namespace) -> dict[str, object]:
    del two
    returned_s, progress_s = [], []
    for repeat in range(options.start_repeats):
        spec = eatcpu(128)
        begin_ns = time.monotonic_ns()
        await one.driver.start(spec, 1.0)
        returned_s.append((time.monotonic_ns() - begin_ns) / 1e9)
        progress_s.append(((await one.progress(spec.guest)).mono_ns - begin_ns) / 1e9)
        await one.driver.stop(spec.guest)
        say(f"start: {repeat + 1} of {options.start_repeats}")
    rows = [("order to start returned", *cells(returned_s)), ("order to first progress", *cells(progress_s))]
    print_table("Start of a guest of 128 MiB", ("s", "n", "median", "95 %"), rows)
    return {"returned_s": returned_s, "progress_s": progress_s}


# --- coordinated checkpoint


async def measure_skew(one: Node, two: Node, options: argparse.Namespace) -> dict[str, object]:
    pause = random.Random(options.seed)  # noqa: S311  # the same pauses each time
    base = eatcpu(144)
    specs = [
        msgspec.structs.replace(
            base, guest=f"dfrs-bench-t{rank}", task=rank, address=f"10.77.2.{rank + 1}/16",
            program=msgspec.structs.replace(base.program, name="patterns", rank=rank, ranks=2, message_bytes=5000),
        )
        for rank in range(2)
    ]  # fmt: skip
    members = list(zip((one, two), specs, strict=True))
    await asyncio.gather(*(node.driver.start(spec, 1.0) for node, spec in members))
    await join(members)
    for node, spec in members:
        await node.progress(spec.guest)

    instants = {node.spec.name: QemuInstants(node) for node in (one, two)}
    by_call: dict[str, list[float]] = {"hold": [], "release": []}
    by_qemu: dict[str, list[float]] = {"hold": [], "release": []}
    try:
        for instant in instants.values():
            await asyncio.to_thread(instant.open)
        for repeat in range(options.skew_repeats):
            for verb, event in (("hold", "STOP"), ("release", "RESUME")):
                at_ns = await asyncio.gather(
                    *(returned_ns(getattr(node.driver, verb)(spec.guest)) for node, spec in members)
                )
                by_call[verb].append(abs(at_ns[0] - at_ns[1]) / 1e6)
                told_s = [await instants[node.spec.name].next(event) for node, _ in members]
                by_qemu[verb].append(abs(told_s[0] - told_s[1]) * 1e3)
                if verb == "release":
                    for node, spec in members:
                        await works(node, spec.guest)
                await asyncio.sleep(pause.uniform(0.05, 0.25))  # not in step with the job's rounds
            say(f"skew: {repeat + 1} of {options.skew_repeats}")
    finally:
        for instant in instants.values():
            await asyncio.to_thread(instant.close)
    await asyncio.gather(*(node.driver.stop(spec.guest) for node, spec in members))
    rows = [
        (f"{verb}, {how}", *cells(skews), f"{max(skews):.3f}", "yes" if max(skews) <= SKEW_TARGET_MS else "NO")
        for how, found in (("by QEMU", by_qemu), ("calls returned", by_call))
        for verb, skews in found.items()
    ]
    columns = ("ms", "n", "median", "95 %", "max", f"all <= {SKEW_TARGET_MS:g} ms")
    print_table("Skew of a coordinated checkpoint: 2 ranks on 2 nodes", columns, rows)
    return {
        f"{verb}_skew_ms_{how}": skews
        for how, found in (("qemu", by_qemu), ("calls", by_call))
        for verb, skews in found.items()
    }


async def returned_ns(doing: Awaitable[object]) -> int:
    await doing
    return time.monotonic_ns()


class QemuInstants:
    """The times at which QEMU stopped and resumed the guests of a node, from the time stamps of its events."""

    def __init__(self, node: Node) -> None:
        self._uri = node.spec.libvirt_uri
        self._connection: libvirt.virConnect | None = None
        self._registered: int | None = None
        self._loop = asyncio.get_running_loop()
        self._told: dict[str, asyncio.Queue[float]] = {"STOP": asyncio.Queue(), "RESUME": asyncio.Queue()}

    def open(self) -> None:
        self._connection = libvirt.open(self._uri)
        self._registered = libvirt_qemu.qemuMonitorEventRegister(
            self._connection, None, "^(STOP|RESUME)$", self._hear, None, QEMU_EVENTS_BY_REGEX
        )

    def _hear(
        self, _connection: object, _domain: object, event: str, seconds: int, micros: int, *_rest: object
    ) -> None:
        self._loop.call_soon_threadsafe(self._told[event].put_nowait, seconds + micros / 1e6)

    async def next(self, event: str) -> float:
        async with asyncio.timeout(NEWS_WITHIN_S):
            return await self._told[event].get()

    def close(self) -> None:
        if self._connection is not None:
            if self._registered is not None:
                libvirt_qemu.qemuMonitorEventDeregister(self._connection, self._registered)
            self._connection.close()


# --- caps


async def measure_caps(one: Node, two: Node, options: argparse.Namespace) -> dict[str, object]:
    del two
    spec = eatcpu(128)
    plan = [cap_cores for cap_cores in CAPS_CORES for _ in range(options.cap_repeats)]
    random.Random(options.seed).shuffle(plan)  # noqa: S311  # the same order each time
    await one.driver.start(spec, 1.0)
    await one.progress(spec.guest)
    used_cores: dict[float, dict[float, list[float]]] = {
        window_s: {cap_cores: [] for cap_cores in CAPS_CORES} for window_s in CAP_WINDOWS_S
    }
    for number, cap_cores in enumerate(plan):
        await one.driver.set_cap(spec.guest, cap_cores)
        await asyncio.sleep(CAP_SETTLE_S)
        for window_s in CAP_WINDOWS_S:
            begin_cpu_s, begin_s = one.sample(spec.guest).cpu_s, time.monotonic()
            await asyncio.sleep(window_s)
            cpu_s, end_s = one.sample(spec.guest).cpu_s, time.monotonic()
            used_cores[window_s][cap_cores].append((cpu_s - begin_cpu_s) / (end_s - begin_s))
        say(f"caps: {number + 1} of {len(plan)}")
    await one.driver.stop(spec.guest)
    rows, errors_pp = [], {}
    for window_s, found in used_cores.items():
        for cap, used in found.items():
            errors = [abs(one_used - cap) * 100 for one_used in used]
            rows.append((f"{window_s:g}", f"{cap:.2f}", f"{median(used):.4f}", *cells(errors), f"{max(errors):.3f}"))
            errors_pp.setdefault(window_s, []).extend(errors)
    print_table(
        "Caps: error in percentage points of a core",
        ("window s", "cap (cores)", "used", "n", "|error| pp", "95 %", "max"), rows,
    )  # fmt: skip
    print_table(
        "All caps",
        ("window s", "n", "p95 pp", f"p95 <= {CAP_TARGET_PP:g} pp"),
        [
            (f"{window_s:g}", len(errors), percentile(errors, 0.95),
             "yes" if percentile(errors, 0.95) <= CAP_TARGET_PP else "NO")
            for window_s, errors in errors_pp.items()
        ],
    )  # fmt: skip
    told = {
        f"{window_s:g} s": {f"{cap:g}": used for cap, used in found.items()} for window_s, found in used_cores.items()
    }
    return {"used_cores": told}


# --- all of it


def filesystem_of(path: Path) -> str:
    mounts = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    found = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return "unknown" if found is None else f"{found.fstype} on {found.device}"


async def measure(journal: Journal, options: argparse.Namespace, results: dict[str, object]) -> None:
    todo = {"save": measure_save, "start": measure_start, "skew": measure_skew, "caps": measure_caps}
    with tempfile.TemporaryDirectory(prefix="dfrs-bench-") as folder:
        async with (
            asyncio.timeout(options.deadline_s),
            opened(journal, "a", Path(folder)) as one,
            opened(journal, "b", Path(folder)) as two,
        ):
            accelerator = next(c.partition(":")[2] for c in one.facts.capabilities if c.startswith("accel:"))
            print_machine()
            versions = ", ".join(f"{name} {one.facts.versions[name]}" for name in ("qemu", "libvirt"))
            filesystem = filesystem_of(one.images)
            print(f"{versions}, accelerator {accelerator}; images on {filesystem}; seed {options.seed}")
            results["machine"] = {
                "cpu": cpu_model(), "cores": os.cpu_count(), "kernel": os.uname().release,
                "versions": one.facts.versions, "accelerator": accelerator, "images_on": filesystem,
                "load_1min": os.getloadavg()[0],
            }  # fmt: skip
            for name in options.only:
                results[name] = await todo[name](one, two, options)
            results["load_1min_at_end"] = os.getloadavg()[0]


def _numbers(text: str) -> list[int]:
    sizes = [int(word) for word in text.split(",")]
    if min(sizes) < 128:
        raise argparse.ArgumentTypeError(f"{text}: expected guests of at least 128 MiB")
    return sizes


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected at least 1")
    return count


def _measures(text: str) -> list[str]:
    if unknown := [word for word in text.split(",") if word not in MEASURES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {','.join(MEASURES)}")
    return text.split(",")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_measures, default=list(MEASURES), help="measures, of save,start,skew,caps")
    parser.add_argument("--sizes", type=_numbers, default=[128, 512, 1024], help="MiB of the guests that are saved")
    parser.add_argument("--repeats", type=_count, default=10, help="repeats of save and restore, by method and size")
    parser.add_argument("--plain-repeats", type=_count, default=5, help="repeats of the plain write; at most --repeats")
    parser.add_argument("--start-repeats", type=_count, default=10)
    parser.add_argument("--skew-repeats", type=_count, default=10)
    parser.add_argument("--cap-repeats", type=_count, default=8, help="repeats of each cap")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random order")
    parser.add_argument("--deadline-s", type=float, default=3600.0, help="time limit for all measures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single measurement there")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a lab in a box needs root")
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    chosen = {name: value for name, value in vars(options).items() if name != "json"}
    results: dict[str, object] = {"options": chosen}
    try:
        with box(max([1536, *(size + 512 for size in options.sizes)])) as journal:
            asyncio.run(measure(journal, options, results))
    except TestbedError as error:
        say(f"error: {error}")
        return 1
    except TimeoutError:
        say(f"error: a wait of {NEWS_WITHIN_S:g} s for a guest, or the deadline of {options.deadline_s:g} s, is over")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    finally:
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
