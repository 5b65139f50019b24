"""The Xen driver's parts that need no Xen: domains, saved files, the kernel, and the control channel on a console."""

from __future__ import annotations

import asyncio
import gzip
import lzma
import os
import shutil
import struct
import subprocess
import tty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import HANG_S

from node_agent.drivers.protocol import DriverError
from node_agent.guests.uncompressed import uncompressed, unpack_kernel
from node_agent.guests.wire import Frame, encode, is_frame
from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.host.guest_image import GuestImage
from testbed.lab.guest_image.recipe import compile_program

pytest.importorskip("libvirt", reason="libvirt-python is not installed: pip install 'dfrs-testbed[libvirt]'")

from node_agent.drivers.virt.channel import GuestChannel
from node_agent.drivers.virt.domain import Place, owner_of
from node_agent.drivers.virt.saved_file import xen_text
from node_agent.drivers.virt.xen import Xen, XenDriver, XenVcpus, _Guests, _set_up_dom0, dom0_weight, guest_weight

SPEC = GuestSpec(
    guest="dfrs-ab12-j3-t1", run="ab12", job=3, task=1, cpu_cores=0.5, memory_mib=200, address="10.77.1.5/16",
    lease="host:7/0123456789ab",
    program=ProgramSpec(name="patterns", work_units=9, units_per_iteration=3, seed=5, workers=2, rank=1, ranks=2),
)  # fmt: skip


def xen(guest_type: str = "pv") -> Xen:
    platform = Xen(Place(bridge="xenbr0"), guest_type)
    platform._guests = _Guests(Path("/k/vmlinux"), Path("/k/initramfs"), "credit", 6.0)
    return platform


@pytest.mark.parametrize(("guest_type", "kind", "machine"), [("pv", "linux", "xenpv"), ("pvh", "xenpvh", "xenpvh")])
def test_the_domain_of_a_guest_says_whose_it_is_and_speaks_by_its_console(guest_type: str, kind: str, machine: str):
    text = xen(guest_type).domain_xml(SPEC, "n1")
    root = ET.fromstring(text)  # noqa: S314  # of this project itself
    assert root.get("type") == "xen"
    assert root.findtext("vcpu") == "2"
    assert root.findtext("memory") == "200"
    os_type = root.find("os/type")
    assert (os_type.text, os_type.get("machine")) == (kind, machine)
    assert root.findtext("os/kernel") == "/k/vmlinux"
    words = root.findtext("os/cmdline").split()
    assert {"console=hvc0", "dfrs.name=dfrs-ab12-j3-t1", "dfrs.ip=10.77.1.5/16"} <= set(words)
    assert root.find("devices/interface/source").get("bridge") == "xenbr0"
    assert root.find("devices/interface/mac").get("address") == "52:54:0a:4d:01:05"
    assert root.find("devices/interface/script") is None
    assert {root.findtext(name) for name in ("on_poweroff", "on_reboot", "on_crash")} == {"destroy"}
    owner = owner_of(text)
    assert (owner["guest"], owner["job"], owner["node"], owner["lease"]) == (
        "dfrs-ab12-j3-t1", "3", "n1", "host:7/0123456789ab",
    )  # fmt: skip


def test_a_script_of_the_node_joins_the_card_with_the_bridge():
    platform = Xen(Place(bridge="xenbr0"), "pv", "vif-quick")
    platform._guests = _Guests(Path("/k/vmlinux"), Path("/k/initramfs"), "credit", 6.0)
    root = ET.fromstring(platform.domain_xml(SPEC, "n1"))  # noqa: S314  # of this project itself
    assert root.find("devices/interface/script").get("path") == "vif-quick"


def test_the_terminal_is_that_of_the_running_domain():
    console = "<console type='pty' tty='/dev/pts/4'><source path='/dev/pts/4'/><target type='xen' port='0'/></console>"
    assert xen().control_path(f"<domain><devices>{console}</devices></domain>") == Path("/dev/pts/4")
    with pytest.raises(DriverError, match="no console with a terminal"):
        xen().control_path("<domain><devices><console type='pty'/></devices></domain>")


def test_a_guest_type_that_is_none_is_refused():
    with pytest.raises(DriverError, match="guest_type = 'hvm': expected pv or pvh"):
        XenDriver(guest_type="hvm")


class _Credit:
    """A domain of Xen with some virtual CPUs; it keeps the cap as the hypervisor does, in whole percent."""

    def __init__(self, vcpus: int) -> None:
        self.parameters: dict[str, int] = {}
        self.vcpus = vcpus
        self.scheduler = "credit"

    def schedulerType(self) -> list[str | int]:  # noqa: N802  # libvirt's name
        return [self.scheduler, 2]

    def setSchedulerParameters(self, values: dict[str, int]) -> None:  # noqa: N802  # libvirt's name
        self.parameters = dict(values)

    def schedulerParameters(self) -> dict[str, int]:  # noqa: N802  # libvirt's name
        return dict(self.parameters)

    def info(self) -> list[int]:
        return [1, 204800, 204800, self.vcpus, 12_500_000_000]


@given(st.floats(0.0, 4.0), st.integers(1, 8))
def test_a_cap_is_percent_of_one_physical_cpu_for_the_whole_domain(each_cores: float, vcpus: int):
    domain = _Credit(vcpus)
    domain.setSchedulerParameters({"cap": 0, "weight": 256})
    there = SimpleNamespace(now=lambda _name, function: function(domain))
    cpus = XenVcpus("x", there, vcpus, 6.0)
    cpus.set_cap(domain, each_cores)
    cap = cpus.cap_cores()
    if each_cores >= 1:
        assert cap is None
        assert domain.parameters["cap"] == 0
    else:
        assert cap == pytest.approx(max(0.01, each_cores * vcpus), abs=0.005 + 1e-9)
        assert domain.parameters["cap"] >= 1  # 0 would be no cap at all
    owed_cores = min(cap or vcpus, 6.0)  # a guest without a cap gets no more priority than the node promises
    assert domain.parameters["weight"] == guest_weight(owed_cores, vcpus)
    assert cpus.seen().cap_cores == cap
    assert (cpus.cpu_s(), cpus.seen().rss_mib) == (12.5, 200)


@st.composite
def machines(draw: st.DrawFn) -> tuple[int, float, int, list[tuple[int, int]]]:
    """A machine's cores, the cores for guests, virtual CPUs of domain 0; fitting guests as (cap in percent, vCPUs)."""
    cores = draw(st.integers(1, 64))
    room = most = 100 * cores - 25  # domain 0 has a quarter of a core at least
    guests = []
    for _ in range(draw(st.integers(1, 12))):
        vcpus = draw(st.integers(1, 8))
        percent = draw(st.integers(1, 100 * vcpus))
        if percent <= room:
            guests.append((percent, vcpus))
            room -= percent
    return cores, draw(st.floats((most - room) / 100, most / 100)), draw(st.integers(1, 16)), guests


@given(machines())
def test_no_share_by_weight_is_below_a_cap_while_caps_fit_the_node(machine):
    cores, for_guests, dom0_vcpus, guests = machine
    each = [guest_weight(percent / 100, vcpus) for percent, vcpus in guests]
    counted = [weight * vcpus for weight, (_percent, vcpus) in zip(each, guests, strict=True)]  # as Xen does
    dom0 = dom0_weight(cores, for_guests, dom0_vcpus)
    assert all(1 <= weight <= 65_535 for weight in [*each, dom0])  # the range that Xen accepts
    whole = sum(counted) + dom0 * dom0_vcpus
    rounded = 1 + sum(vcpus for _percent, vcpus in guests) / (4096 * cores)
    for weight, (percent, _vcpus) in zip(counted, guests, strict=True):
        assert cores * weight / whole * rounded >= percent / 100 * (1 - 1e-9)


def test_domain_0_gets_what_is_not_for_guests_and_never_nothing():
    assert (dom0_weight(1, 0.5, 1), dom0_weight(8, 6, 2), dom0_weight(4, 4, 4)) == (2048, 4096, 256)


def test_domain_0_is_set_up_when_the_driver_opens_and_a_scheduler_without_caps_is_refused():
    domain = _Credit(1)
    domain.parameters = {"cap": 0, "weight": 2048}
    domain.scheduler = "credit2"
    connection = SimpleNamespace(lookupByID=[domain].__getitem__, getInfo=lambda: ["x86_64", 900, 1])
    assert _set_up_dom0(connection, 0.25) == "credit2"
    assert domain.parameters == {"cap": 0, "weight": 3072}
    domain.scheduler = "rtds"
    with pytest.raises(DriverError, match="scheduler rtds has no caps: expected credit or credit2"):
        _set_up_dom0(connection, 0.25)


# --- files that libvirt saved


def saved(text: bytes, *, magic: bytes = b"libvirt-xml\n \0 \r", length: int | None = None) -> bytes:
    return struct.pack("<16sII40x", magic, 2, len(text) if length is None else length) + text + b"memory"


def test_the_owner_of_a_saved_guest_is_in_its_file(tmp_path: Path):
    image = tmp_path / "a.img"
    image.write_bytes(saved(xen().domain_xml(SPEC, "n1").encode() + b"\0"))
    assert owner_of(xen_text(image))["guest"] == SPEC.guest


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"rubbish", "cannot be read"),
        (b"r" * 500, "not saved by libvirt from Xen"),
        (saved(b"<domain/>", length=900), "cut off after 15 of 900 bytes"),
    ],
)
def test_a_file_that_is_no_saved_guest_is_refused(tmp_path: Path, content: bytes, says: str):
    image = tmp_path / "a.img"
    image.write_bytes(content)
    with pytest.raises(DriverError, match=says):
        xen_text(image)


# --- the kernel

ELF = b"\x7fELF" + bytes(range(256)) * 40


def bzimage(payload: bytes) -> bytes:
    setup = bytearray(5 * 512)
    setup[0x1F1] = 4
    setup[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", setup, 0x248, 32, len(payload))
    return bytes(setup) + b"\x90" * 32 + payload + b"trailer"


def _by(program: str) -> bytes:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    legacy = ["-l"] if program == "lz4" else []
    return subprocess.run([program, *legacy, "-c"], input=ELF, capture_output=True, check=True).stdout


@pytest.mark.parametrize("packing", ["gzip", "xz", "lz4", "zstd"])
def test_a_packed_kernel_comes_out_as_it_was(packing: str, tmp_path: Path):
    packed = {"gzip": lambda: gzip.compress(ELF), "xz": lambda: lzma.compress(ELF)}
    image = bzimage(packed.get(packing, lambda: _by(packing))() + struct.pack("<I", len(ELF)))
    assert unpack_kernel(image) == ELF
    (tmp_path / "vmlinuz").write_bytes(image)
    guest_image = GuestImage(tmp_path, tmp_path / "vmlinuz", tmp_path / "initramfs", "key", 128, {})
    made = uncompressed(guest_image)
    assert made.read_bytes() == ELF
    assert uncompressed(guest_image) == made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vmlinux", "vmlinuz"]


@pytest.mark.parametrize("image", [b"", b"MZ" * 600, bzimage(b"unknown"), bzimage(gzip.compress(b"no ELF file"))])
def test_a_kernel_that_nobody_can_unpack_boots_as_it_is(image: bytes, tmp_path: Path):
    (tmp_path / "vmlinuz").write_bytes(image)
    guest_image = GuestImage(tmp_path, tmp_path / "vmlinuz", tmp_path / "initramfs", "key", 128, {})
    assert uncompressed(guest_image) == tmp_path / "vmlinuz"
    assert [path.name for path in tmp_path.iterdir()] == ["vmlinuz"]


# --- the channel on a console


class Console:
    """A guest's console: the real agent behind a terminal whose other end is the host's, and a kernel that prints."""

    def __init__(self, agent: Path, folder: Path) -> None:
        self.guest, host = os.openpty()
        tty.setraw(self.guest)
        self.path = Path(os.ttyname(host))
        self._host = host  # otherwise the terminal is closed when the channel detaches
        self.process = subprocess.Popen([str(agent), str(self.guest), str(folder)], pass_fds=[self.guest])

    def print(self, text: str) -> None:
        os.write(self.guest, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.guest)
        os.close(self._host)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    return compile_program("agent", tmp_path_factory.mktemp("programs"))


@asynccontextmanager
async def console(agent: Path, folder: Path) -> AsyncIterator[tuple[Console, GuestChannel, list[Frame], asyncio.Event]]:
    heard: list[Frame] = []
    news = asyncio.Event()

    def hear(frame: Frame) -> None:
        if frame.kind != "beat":
            heard.append(frame)
            news.set()

    there = Console(agent, folder)
    channel = GuestChannel("g", hear)
    try:
        await channel.attach(there.path, HANG_S)
        yield there, channel, heard, news
    finally:
        channel.detach()
        there.close()


def test_orders_and_words_go_through_a_terminal(agent: Path, tmp_path: Path):
    async def main() -> None:
        async with asyncio.timeout(HANG_S), console(agent, tmp_path) as (_, channel, heard, news):
            long = "x" * 6000  # more than a terminal can buffer
            await channel.order("run", [("arg", "/bin/echo"), ("arg", long)], HANG_S)
            while not [frame for frame in heard if frame.kind == "exit"]:
                news.clear()
                await news.wait()
            assert "".join(frame.text("text") for frame in heard if frame.kind == "out") == long
            assert next(frame.kind for frame in heard) == "hello"
            assert channel.overheard == []

    asyncio.run(main())


def test_what_the_kernel_prints_into_a_frame_is_told_again(agent: Path, tmp_path: Path):
    async def main() -> None:
        async with asyncio.timeout(HANG_S), console(agent, tmp_path) as (there, channel, heard, news):
            damaged = encode("done", [("seq", 2), ("units", 5)])[:-9]
            there.print(f"{damaged.decode()}[   12.3] a driver has something to say\n")
            there.print("[   12.4] and more\n")
            await channel.order("run", [("arg", "/bin/echo"), ("arg", "after it")], HANG_S)
            while not [frame for frame in heard if frame.kind == "exit"]:
                news.clear()
                await news.wait()
            numbered = [frame.count("seq") for frame in heard if "seq" in frame.fields]
            assert numbered == sorted(set(numbered))  # each once, none missing
            assert numbered == list(range(1, len(numbered) + 1))
            assert channel.overheard[-1] == "[   12.4] and more"
            assert [line for line in channel.overheard if not is_frame(line)] == ["[   12.4] and more"]

    asyncio.run(main())


def test_a_terminal_whose_guest_has_gone_is_noticed(agent: Path, tmp_path: Path):
    async def main() -> None:
        async with console(agent, tmp_path) as (there, channel, _, _):
            there.process.kill()
            there.process.wait()
            with pytest.raises(DriverError, match="did not answer go within"):
                await channel.order("go", [], 0.1)
            channel.detach()
            assert not channel.attached
            with pytest.raises(DriverError, match="control channel"):
                await channel.attach(tmp_path / "nothing", 0.2)

    asyncio.run(main())
