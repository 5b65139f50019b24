"""A machine that can lose power: QEMU without KVM, a Debian kernel, ext4 disks, and in it this testbed's controller.

The root disk is read-only and holds this interpreter, this testbed and the distributions that it needs. The data disk
(ext4, data=ordered) holds the run directory. When the host kills QEMU, writes that the machine's kernel has not sent to
the disk are lost. Writes that were sent, but not flushed, are lost, too: QEMU logs all writes and flushes of the data
disk, and `after_power_loss` rebuilds the disk from the log up to the last flush.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import lzma
import os
import re
import shutil
import signal
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from testbed.host.guest_image import default_cache
from testbed.lab.guest_image import cpio
from testbed.lab.guest_image.image import build
from testbed.lab.guest_image.recipe_debian import fetch, kernel_package, unpack
from testbed.lab.guest_image.recipe_mpi import closure
from testbed.lab.guest_image.recipe_tools import run

HOST = "10.0.2.2"  # the host's loopback interface, as QEMU's user network shows it
SITE = "/opt/site"  # where the machine has distributions
DATA = "/data"  # where the machine has the data disk
DATA_MIB = 128
_MEMORY_MIB = 768
CPU = "kvm64,+ssse3,+sse4.1,+sse4.2,+popcnt,+lahf-lm,+cx16"  # numpy needs these
_ROOT_SPARE_MIB = 64
_UNUSED = ("test", "tests", "idlelib", "ensurepip", "lib2to3", "turtledemo", "config-*", "*.a", "include", "f2py")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
# The beginning of every `init`: it loads the drivers.
INIT_BEGIN = """#!/bin/sh
busybox=/bin/busybox
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys
$busybox mount -t devtmpfs dev /dev
for module in $($busybox cat /lib/modules/order) virtio_blk; do
    [ $module = xen-netfront ] || $busybox insmod /lib/modules/$module.ko
done
"""
# Prints marks, which the host reads, and runs or resumes the only run of the data disk.
_INIT = (
    INIT_BEGIN
    + """\
$busybox hostname controller
$busybox ip link set lo up
$busybox ip addr add 10.0.2.15/24 dev eth0
$busybox ip link set eth0 up
$busybox ip route add default via 10.0.2.2
until [ -e /dev/vda ] && [ -e /dev/vdb ]; do $busybox usleep 20000; done
$busybox mkdir -p /disk
$busybox mount -t ext4 -o ro /dev/vda /disk || $busybox poweroff -f
$busybox mount -t ext4 -o data=ordered /dev/vdb /disk@DATA@ || $busybox poweroff -f
$busybox mount -t tmpfs tmpfs /disk/tmp
$busybox mount -t proc proc /disk/proc
$busybox mount -t sysfs sys /disk/sys
$busybox mount --bind /dev /disk/dev
$busybox mkdir -p /dev/shm
$busybox mount -t tmpfs tmpfs /dev/shm
export PYTHONPATH=@SITE@:@SITE@/own PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp LANG=C.UTF-8 PATH=/bin
DFRS_BROKER=$($busybox cat /disk@DATA@/broker)
export DFRS_BROKER
cd /disk@DATA@
if [ -e runs ]; then
    words="resume @DATA@/$(echo runs/*)"
else
    words="run @DATA@/scenario.toml --out @DATA@/runs"
fi
echo "@ begin $words"
($busybox chroot /disk @PYTHON@ -m testbed $words; echo "@ end $?") 2>&1 | $busybox cat
cd /
$busybox umount /disk@DATA@ && echo "@ unmounted"
$busybox poweroff -f
"""
)


def make_root(scratch: Path, add: Callable[[Path], None]) -> Path:
    """Make the root disk: this interpreter, this testbed, and the files that `add` puts into its folder."""
    tree, disk = scratch / "root", scratch / "root.img"
    stdlib = Path(sysconfig.get_path("stdlib"))
    ignore = shutil.ignore_patterns(*_UNUSED)
    shutil.copytree(stdlib, tree / stdlib.relative_to("/"), ignore=shutil.ignore_patterns(*_UNUSED, "site-packages"))
    python = python_path()
    (tree / python.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(python, tree / python.relative_to("/"))
    site = tree / SITE.lstrip("/")
    site.mkdir(parents=True)
    for name in _needed("dfrs-testbed"):
        _copy_distribution(name, site)
    here = Path(__file__).resolve().parents[1]
    for package in ("testbed", "node_agent"):  # from this checkout, even if another version is installed
        shutil.rmtree(site / package, ignore_errors=True)
        shutil.copytree(here / package, site / package, ignore=ignore)
    for folder in ("proc", "sys", "dev", "tmp", "etc", DATA.lstrip("/")):
        (tree / folder).mkdir(exist_ok=True)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost controller\n")
    _copy_libraries(tree, python)
    add(tree)
    run([str(python), "-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash", "-s", str(tree),
         str(site), str(tree / stdlib.relative_to("/"))])  # fmt: skip
    size_mib = sum(path.lstat().st_size + 4096 for path in tree.rglob("*")) // 2**20 + _ROOT_SPARE_MIB
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", str(tree), str(disk), f"{size_mib * 5 // 4}M"])
    shutil.rmtree(tree)
    return disk


def add_plugin(tree: Path, plugin: Path, entry_point: str) -> None:
    """Add a plug-in of one module with its entry point."""
    own = tree / SITE.lstrip("/") / "own"
    about = own / f"{plugin.stem}-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy2(plugin, own)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {plugin.stem}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_point)


def add_program(tree: Path, program: Path) -> None:
    """Add a program of this system, with the libraries that it needs."""
    loader, libraries = closure((program.resolve(),))
    for path in {program, loader, *libraries.values()}:
        target = tree / path.relative_to("/")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path.resolve(), target)


def python_path() -> Path:
    """Return the path of the interpreter, which is the same in the machine."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def _needed(name: str) -> set[str]:
    """Return a distribution and all that it requires without extras, by name."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        try:
            requires = importlib.metadata.requires(each) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # a requirement of another platform or version of Python
        found.add(each)
        waiting += [match[0] for text in requires if "extra ==" not in text and (match := _NAME.match(text))]
    return found


def _copy_distribution(name: str, site: Path) -> None:
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        source = Path(str(file.locate()))
        if ".." not in file.parts and source.is_file():
            target = site / Path(*file.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _copy_libraries(tree: Path, python: Path) -> None:
    """Copy the libraries of this system that the interpreter and its extensions need."""
    loader, libraries = closure((python,))
    for extension in tree.rglob("*.so*"):
        with suppress(Exception):  # a wheel's library that is not loaded here may lack dependencies
            libraries |= closure((extension,))[1]
    for path in {loader, *libraries.values()}:
        target = tree / path.relative_to("/")
        if tree not in path.parents and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path.resolve(), target)


def make_initramfs(scratch: Path, init: str | None = None) -> tuple[Path, Path]:
    """Return kernel and initramfs: those of the guest image, with a driver for disks and with another `init`.

    The default `init` runs or resumes the run of the data disk.
    """
    image = build()
    downloads = default_cache() / "downloads"
    kernel = unpack(fetch(kernel_package(downloads), downloads), scratch / "kernel")
    (driver,) = kernel.glob("lib/modules/*/kernel/drivers/block/virtio_blk.ko*")
    data = driver.read_bytes()
    if driver.suffix == ".xz":
        data = lzma.decompress(data)
    init = init or _INIT.replace("@PYTHON@", str(python_path())).replace("@SITE@", SITE).replace("@DATA@", DATA)
    more = cpio.archive([
        cpio.file("init", init.encode(), 0o755), cpio.folder("lib"), cpio.folder("lib/modules"),
        cpio.file("lib/modules/virtio_blk.ko", data),
    ])  # fmt: skip
    path = scratch / "initramfs"
    path.write_bytes(image.initramfs.read_bytes() + more)  # a later archive replaces files of an earlier one
    shutil.rmtree(scratch / "kernel")
    return image.kernel, path


def make_data(folder: Path, disk: Path) -> None:
    """Make the data disk with the files of a folder."""
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-d", str(folder), str(disk), f"{DATA_MIB}M"])


def files_of(disk: Path, into: Path) -> Path:
    """Copy all files of a disk of a machine that is off to a folder; the disk itself stays as it is."""
    copy = into.with_suffix(".img")
    shutil.copyfile(disk, copy)
    with suppress(Exception):  # exit code 1: its journal was replayed
        run(["e2fsck", "-p", str(copy)])
    into.mkdir()
    run(["debugfs", "-R", f"rdump / {into}", str(copy)])
    copy.unlink()
    return into


class Machine:
    """The machine while it is on; `lines` are those of its console, each with the time of its arrival."""

    def __init__(self, kernel: Path, initramfs: Path, root: Path) -> None:
        self._boot = (kernel, initramfs, root)
        self.lines: list[tuple[float, str]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()

    async def start(self, data: Path, log: Path) -> None:
        """Switch the machine on; writes and flushes of the data disk go to `log`."""
        kernel, initramfs, root = self._boot
        await asyncio.to_thread(log.write_bytes, b"")
        self.lines = []
        self._process = await asyncio.create_subprocess_exec(
            *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-machine", "pc", "-accel", "tcg,tb-size=256", "-cpu", CPU, "-m", str(_MEMORY_MIB), "-smp", "1"),
            *("-serial", "stdio", "-kernel", str(kernel), "-initrd", str(initramfs)),
            # on a busy host the kernel's check of its timer may fail
            *("-append", "console=ttyS0 quiet mitigations=off no_timer_check panic=-1"),
            *("-drive", f"if=none,id=root,format=raw,readonly=on,file={root}", "-device", "virtio-blk-pci,drive=root"),
            *("-blockdev", f"driver=file,node-name=disk,filename={data}"),
            *("-blockdev", f"driver=file,node-name=log,filename={log}"),
            *("-blockdev", "driver=blklogwrites,node-name=logged,file=disk,log=log,log-super-update-interval=1"),
            *("-device", "virtio-blk-pci,drive=logged,write-cache=on"),
            *("-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        if self._process.stdout is not None:
            self._reader = asyncio.create_task(self._read(self._process.stdout), name="console")

    async def _read(self, console: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        async for line in console:
            async with self._news:
                self.lines.append((loop.time(), line.decode(errors="replace").rstrip()))
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    async def line(self, words: str) -> float:
        """Wait for a line with these words; return its time. Raises `RuntimeError` if the machine ends before."""

        def found() -> list[float]:
            return [at_s for at_s, line in self.lines if words in line]

        async with self._news:
            await self._news.wait_for(lambda: found() or (self._reader is not None and self._reader.done()))
        if not found():
            raise RuntimeError(f"the machine never said {words!r}: {self.said()}")
        return found()[0]

    def said(self) -> list[str]:
        """The lines of the console."""
        return [line for _, line in self.lines]

    @property
    def on(self) -> bool:
        """Whether the machine is on."""
        return self._process is not None and self._process.returncode is None

    async def lose_power(self) -> None:
        """Kill the machine; pending writes are not carried out."""
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)
        await self.off()

    async def off(self) -> None:
        """Wait until the machine is off."""
        if self._process is not None and self._reader is not None:
            await self._process.wait()
            await self._reader


# --- the log of QEMU's driver `blklogwrites`, which has the format of Linux's dm-log-writes ---------------------------

_MAGIC = 0x6A736677736872
_FLUSH, _DISCARD = 1, 4
_HEAD = struct.Struct("<QQQI")  # head of the log: magic, version, entries, bytes of a sector
_ENTRY = struct.Struct("<QQQQ")  # first sector, sectors, flags, bytes of data that follow


def _entries(log: Path) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield offset, length, flags and data of each complete write in a log."""
    with log.open("rb") as file:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return
        magic, _version, count, sector = _HEAD.unpack(head)
        if magic != _MAGIC:
            return
        position = sector
        for _ in range(count):
            file.seek(position)
            first, sectors, flags, _ = _ENTRY.unpack(file.read(_ENTRY.size))
            position += sector
            data = b""
            if not flags & _DISCARD:
                file.seek(position)
                data = file.read(sectors * sector)
                position += sectors * sector
            yield first * sector, sectors * sector, flags, data


def after_power_loss(before: Path, log: Path, disk: Path) -> tuple[int, int]:
    """Make the disk without the writes since the last flush; return the numbers of kept and of lost writes.

    `before` is the disk as it was when the machine was switched on.
    """
    entries = list(_entries(log))
    flushed = max((number for number, entry in enumerate(entries) if entry[2] & _FLUSH), default=-1)
    shutil.copyfile(before, disk)
    with disk.open("r+b") as file:
        for offset, length, flags, data in entries[: flushed + 1]:
            file.seek(offset)
            if flags & _DISCARD:
                file.write(bytes(length))
            elif data:
                file.write(data)
    return flushed + 1, len(entries) - flushed - 1
