"""Guests that send arbitrary messages: these harm only the guest, not its agent's memory or its node's reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node_agent.agent import GuestSampler
from node_agent.drivers.pmi.server import PmiServer
from node_agent.drivers.procs.guest import ProcessGuest
from node_agent.drivers.protocol import DriverError, DriverEvent, SuspectError
from node_agent.guests.channel import Decoder
from node_agent.guests.wire import Frame, Reader, encode
from testbed.bus.messages import GuestSpec, ProgramSpec, convert, decode
from testbed.bus.messages import encode as encode_record
from testbed.bus.telemetry import GuestSample, Telemetry, guests_in

pytest.importorskip("libvirt", reason="libvirt-python is not installed: pip install 'dfrs-testbed[libvirt]'")

from node_agent.drivers.virt.guest import State, VirtualGuest
from node_agent.drivers.virt.output import GuestOutput
from node_agent.drivers.virt.platform import Timeouts

SPEC = GuestSpec(
    guest="dfrs-t-j0-t0", run="t", job=0, task=0, cpu_cores=1.0, memory_mib=128,
    program=ProgramSpec(name="eatcpu", work_units=9, units_per_iteration=1, seed=5),
)  # fmt: skip
NUMBERS = st.one_of(
    st.sampled_from(
        ["9999999999999999999", "9223372036854775807", "9223372036854775808", "-1", "0", "1e16", "-1e16", "1e15", "inf",
         "-inf", "nan", "1" * 400, "9" * 4000, "0.0", "1e308", "-0", "1_0", "٣", ""]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),
)  # fmt: skip
KINDS = ["beat", "progress", "done", "ready", "exit", "out"]
STEPS = ("units", "mono_ns", "messages", "steps", "longest_s", "compute_s", "comm_s")
frames = st.builds(
    lambda kind, numbers: Frame(kind, {name: (number,) for name, number in zip(STEPS, numbers, strict=True)}),
    st.sampled_from(KINDS),
    st.lists(NUMBERS, min_size=len(STEPS), max_size=len(STEPS)),
)
json_numbers = NUMBERS.map(lambda text: {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(text, text))
lines = st.builds(
    lambda kind, numbers: (
        f'{{"kind":"{kind}","checksum":"0","v":1,"pid":1,"ballast_mib":1,"touch_s":0,'
        + ",".join(f'"{name}":{number or 0}' for name, number in zip(STEPS, numbers, strict=True))
        + "}\n"
    ).encode(),
    st.sampled_from(["progress", "done", "ready"]),
    st.lists(json_numbers, min_size=len(STEPS), max_size=len(STEPS)),
)


class Nothing:
    """A fake domain, with its platform and its machine."""

    timeouts = Timeouts()

    def file(self, path: Path) -> Path:
        return path

    def console_path(self, _guest: str) -> Path:
        return Path("/nowhere/console")

    async def find(self, _name: str, _deadline_s: float) -> None:
        return None

    find_own = find

    def read(self, _guest: str) -> float:
        raise KeyError

    async def remove(self, _guest: str) -> None:
        return None


def virtual(told: list[DriverEvent]) -> VirtualGuest:
    guest = VirtualGuest(SPEC, 1.0, Nothing(), Nothing(), told.append, lambda _guest: None, 1.0)
    guest.state = State.RUNNING
    return guest


def process(told: list[DriverEvent], folder: Path) -> ProcessGuest:
    guest = ProcessGuest(
        SPEC, 1.0, None, folder / "s", folder / "log", Nothing(), SimpleNamespace(), told.append, lambda _guest: None
    )
    guest._kill = lambda: None
    return guest


def passes(sample: GuestSample) -> None:
    """Send the sample to a controller by telemetry, and by the reply to a list."""
    record = Telemetry(
        node="n1", mono_ns=1, cpu_frac=0.0, memory_used_mib=0.0, disk_read_mib=0.0, disk_written_mib=0.0,
        net_received_mib=0.0, net_sent_mib=0.0, agent_cpu_s=0.0, agent_rss_mib=0.0,
        guests=GuestSampler(lambda: [sample]).take(),
    )  # fmt: skip
    decode(Telemetry, encode_record(record), "telemetry")
    reply = msgspec.json.decode(msgspec.json.encode({"guests": [msgspec.to_builtins(sample)]}))
    guests_in(convert(reply, dict[str, object]))


@given(st.lists(frames, max_size=6))
@example([Frame("beat", {"units": ("9999999999999999999",)})])
@example([Frame("beat", {"units": ("1",), "steps": ("1",), **dict.fromkeys(STEPS[4:], ("1e16",))})])
def test_whatever_a_virtual_machine_says_its_node_is_believed(said: list[Frame]) -> None:
    async def main() -> None:
        told: list[DriverEvent] = []
        guest = virtual(told)
        for frame in said:
            guest._hear(frame)
            passes(guest.sample())
        if guest._ending is not None:
            await guest._ending
        assert len(told) <= 2  # its first progress, its end

    asyncio.run(main())


@given(st.lists(lines, max_size=6))
@example([b'{"kind":"progress","units":-1,"mono_ns":0}\n'])
@example([b'{"kind":"progress","units":1,"mono_ns":%d}\n' % 10**3999])
@example([b'{"kind":"progress","units":1,"mono_ns":0,"steps":1,"longest_s":Infinity,"compute_s":0,"comm_s":0}\n'])
def test_whatever_a_program_says_its_node_is_believed(said: list[bytes]) -> None:
    async def main() -> None:
        guest = process([], Path("/nowhere"))
        for message in Decoder().feed(b"".join(said)):
            guest._heard(message)
            passes(guest.sample())

    asyncio.run(main())


@pytest.mark.parametrize(("name", "value"), [("units", "9999999999999999999"), ("longest_s", "1e16")])
def test_a_virtual_machine_that_says_an_absurd_number_has_failed(name: str, value: str) -> None:
    async def main() -> None:
        told: list[DriverEvent] = []
        guest = virtual(told)
        fields = {"units": ("1",), "steps": ("1",), **dict.fromkeys(STEPS[4:], ("0",)), name: (value,)}
        guest._hear(Frame("beat", fields))
        assert guest._ending is not None
        await guest._ending
        (failed,) = told
        assert failed.event == "failed"
        assert f"protocol violation: beat: {name} = '{value}': expected" in str(failed.detail["reason"])

    asyncio.run(main())


@pytest.mark.parametrize("value", ["-1", "9" * 19, "Infinity", "NaN", "1e16", "1" * 3000])
@pytest.mark.parametrize("name", ["units", "longest_s"])
def test_a_program_that_says_an_absurd_number_has_failed(name: str, value: str, tmp_path: Path) -> None:
    if (name, value) == ("longest_s", "-1"):
        pytest.skip("this is a valid number")

    async def main() -> None:
        guest = process([], tmp_path)
        fields = {"units": "1", "mono_ns": "0", "steps": "1", "longest_s": "0", "compute_s": "0", "comm_s": "0"}
        said = ",".join(f'"{key}":{value if key == name else number}' for key, number in fields.items())
        for message in Decoder().feed(f'{{"kind":"progress",{said}}}\n'.encode()):
            guest._heard(message)
        assert guest._status.trouble.startswith(f"protocol violation: progress: {name} = ")
        assert len(guest._status.trouble) < 300
        assert guest.told is None

    asyncio.run(main())


# --- many words


def feed(guest: VirtualGuest, *said: bytes) -> None:
    for frame in Reader().feed(b"".join(said)):
        guest._hear(frame)


def test_progress_is_told_once_for_each_time_that_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        told: list[DriverEvent] = []
        guest = virtual(told)

        async def attached(_path: Path, _deadline_s: float) -> None:
            return None

        async def described(*_arguments: object) -> str:
            return ""

        monkeypatch.setattr(guest._channel, "attach", attached)
        monkeypatch.setattr(guest, "on_domain", described)
        monkeypatch.setattr(Nothing, "control_path", lambda _self, _xml: Path("/nowhere"), raising=False)
        for life in (1, 2):  # lives of a host
            await guest.attach(1.0)
            feed(guest, *[encode("progress", [("units", number)]) for number in range(1000)])
            assert [driver_event.event for driver_event in told] == ["progress"] * life
        assert guest.sample().units_done == 999

    asyncio.run(main())


def test_ends_of_processes_that_nobody_started_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        guest = virtual([])
        starts, ends = asyncio.Event(), asyncio.Event()

        async def order(_kind: str, _fields: object) -> Frame:
            starts.set()
            await ends.wait()
            return Frame("ok", {"pid": ("7",)})

        monkeypatch.setattr(guest, "_order", order)
        running = asyncio.create_task(guest.run(["/bin/true"]))
        await starts.wait()
        others = [encode("exit", [("pid", pid), ("status", 0)]) for pid in range(100, 3000)]
        feed(guest, *others, encode("exit", [("pid", 7), ("status", 0)]))  # before its process id is known
        ends.set()
        assert await running == 7
        assert await guest.exit_of(7) == 0
        feed(guest, *others)
        assert len(guest._exits) < 50

    asyncio.run(main())


def test_lines_that_are_listened_to_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        guest = virtual([])

        async def order(_kind: str, _fields: object) -> Frame:
            return Frame("ok", {"pid": ("7",)})

        monkeypatch.setattr(guest, "_order", order)
        heard: list[str] = []
        await guest.run(["/bin/eatcpu", "calibrate"], heard.append)
        feed(guest, *[encode("out", [("pid", 7), ("text", f"{number}" + "x" * 5000)]) for number in range(1000)])
        assert sum(map(len, heard)) < 1 << 20

    asyncio.run(main())


def test_shared_memory_that_a_program_reports_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        guest = process([], tmp_path)
        shared: list[int] = []
        guest._processes._records = SimpleNamespace(share=lambda paths: shared.append(len(paths)))
        for number in range(200):
            names = [f"/dev/shm/mpich_{number}_{index}" for index in range(500)]  # noqa: S108  # never opened
            for message in Decoder().feed(json.dumps({"kind": "joined", "segments": names}).encode() + b"\n"):
                guest._heard(message)
        assert len(guest._processes.segments) <= 1000
        assert len(shared) <= 2

    asyncio.run(main())


def test_only_the_end_of_a_console_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        guest = virtual([])
        console = tmp_path / "console"
        guest._output = GuestOutput(console)
        with console.open("wb") as file:
            file.truncate(1 << 40)  # a sparse file: reading it whole would exhaust the memory
            file.seek(0, 2)
            file.write(b"\n" * (1 << 14) + b"Kernel panic\n")
        assert guest.words() == "; it printed: Kernel panic"

    monkeypatch.setattr(Path, "read_bytes", no_whole_file(Path.read_bytes))
    asyncio.run(main())


def no_whole_file(read: Callable[[Path], bytes]) -> Callable[[Path], bytes]:
    def refuses(path: Path) -> bytes:
        if path.stat().st_size > 1 << 30:
            raise DriverError(f"{path}: the whole file is read")
        return read(path)

    return refuses


@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING, State.HELD])
def test_a_second_join_is_no_honest_one_whatever_the_guest_does(state: State) -> None:
    async def main() -> None:
        guest = virtual([])
        guest.rank._server = PmiServer(0, 2, "0" * 16)
        guest.state = state
        with pytest.raises(SuspectError, match="has joined its MPI job already"):
            await guest.join("/bin/patterns", "0" * 16)

    asyncio.run(main())
