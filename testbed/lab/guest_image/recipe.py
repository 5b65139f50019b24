"""Contents of the guest image: the tree of its files, and the fingerprints of all its ingredients.

The image has the kernel modules for paravirtual devices of the supported hypervisors, a static busybox for `init`, the
programs of `SOURCES`, MPICH with its libraries, and the layer that counts waits. There is no disk: the file system is
in memory, and is saved with the machine.
"""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import RunError, UserError
from testbed.host.guest_image import SOURCES, VERSION, own_fingerprints
from testbed.host.mpich import Mpich, MpichError, mpich
from testbed.lab.guest_image import cpio
from testbed.lab.guest_image.recipe_debian import Package, busybox, fetch, kernel_package, unpack
from testbed.lab.guest_image.recipe_mpi import closure
from testbed.lab.guest_image.recipe_tools import run, sha256

_MODULES = (  # in the order in which they depend on each other
    "drivers/virtio/virtio_ring", "drivers/virtio/virtio", "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev", "drivers/virtio/virtio_pci", "drivers/char/virtio_console",
    "net/core/failover", "drivers/net/net_failover", "drivers/net/virtio_net", "drivers/net/xen-netfront",
)  # fmt: skip
_APPLETS = (
    "cat", "dmesg", "free", "hostname", "insmod", "ip", "ls", "mkdir", "mount", "ping", "ps", "sh", "sleep", "uname",
    "usleep",
)  # fmt: skip
_COMMON = ("life.c", "report.c", "kernel.c", "ballast.c", "wire.c")
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wl,--build-id=none")
_STATIC: dict[str, tuple[str, ...]] = {
    "agent": ("agent.c", "procs.c", "pmi.c", "told.c", "wire.c"),
    "eatcpu": ("eatcpu.c", *_COMMON),
}


@dataclass(frozen=True, slots=True)
class Ingredients:
    """All ingredients of the image: `fingerprints` has the SHA-256 or version of each, `versions` texts for people."""

    kernel: Package
    busybox_file: Path | None
    busybox_package: Package | None
    mpi: Mpich
    loader: Path
    libraries: dict[str, Path]
    fingerprints: dict[str, str]
    versions: dict[str, str]


def gather(downloads: Path) -> Ingredients:
    """Determine the current ingredients of the image without building it; raises `UserError` or `RunError`."""
    kernel, (busybox_file, busybox_package), mpi = kernel_package(downloads), busybox(), _mpich()
    loader, libraries = closure((mpi.library,))
    libraries[mpi.library.name] = mpi.library
    compiler = run(["gcc", "--version"]).splitlines()[0]
    files = {f"mpich {mpi.header.name}": mpi.header}
    files |= {f"library {name}": path for name, path in sorted(libraries.items())}
    files["loader"] = loader
    files |= {f"linked {name}": Path(run(["gcc", f"-print-file-name={name}"]).strip()) for name in ("libc.a", "libm.a")}
    if busybox_file is not None:
        files["busybox"] = busybox_file
    fingerprints = {name: sha256(path) for name, path in files.items()}
    fingerprints |= own_fingerprints()
    fingerprints |= {
        "kernel": kernel.sha256,
        "gcc": compiler,
        "strip": run(["strip", "--version"]).splitlines()[0],
    }
    if busybox_package is not None:
        fingerprints["busybox"] = busybox_package.sha256
    versions = {
        "recipe": str(VERSION),
        "kernel": f"{kernel.name} {kernel.version}",
        "mpich": mpi.version,
        "busybox": busybox_package.version if busybox_package else f"{busybox_file}",
        "compiler": compiler,
    }
    return Ingredients(kernel, busybox_file, busybox_package, mpi, loader, libraries, fingerprints, versions)


def _mpich() -> Mpich:
    try:
        return mpich()
    except MpichError as error:
        raise UserError(f"guest image: {error}") from error


def compile_program(name: str, into: Path, *more: str) -> Path:
    """Compile a static program of the guest, with `more` sources or flags; return its file.

    Raises `UserError` or `RunError`.
    """
    out = into / name
    run(["gcc", *_FLAGS, "-static", "-o", str(out), *_STATIC[name], *more, "-lm", "-lpthread"], cwd=SOURCES)
    return out


def compile_patterns(mpi: Mpich, into: Path) -> Path:
    """Compile `patterns` against an MPICH; return its file. Raises `UserError` or `RunError`."""
    out = into / "patterns"
    beside = f"-Wl,-rpath-link,{mpi.library.parent / 'mpich'}"  # folder of libraries that MPICH's library needs
    run(
        ["gcc", *_FLAGS, f"-I{mpi.header.parent}", "-o", str(out), "patterns.c", "topology.c", *_COMMON,
         str(mpi.library), beside, "-lm", "-lpthread"],
        cwd=SOURCES,
    )  # fmt: skip
    return out


def compile_waits(mpi: Mpich, into: Path) -> Path:
    """Compile the layer that counts waits against an MPICH; return its file. Raises `UserError` or `RunError`."""
    out = into / "waits.so"
    beside = f"-Wl,-rpath-link,{mpi.library.parent / 'mpich'}"
    run(
        ["gcc", *_FLAGS, "-fPIC", "-shared", f"-I{mpi.header.parent}", "-o", str(out), "waits.c", str(mpi.library),
         beside, "-lpthread"],
        cwd=SOURCES,
    )  # fmt: skip
    return out


def make(
    ingredients: Ingredients, downloads: Path, scratch: Path, progress: Callable[[str], None]
) -> tuple[bytes, bytes]:
    """Return the kernel and the initramfs archive; `scratch` is an empty folder for temporary files."""
    progress(f"kernel: {ingredients.versions['kernel']}")
    kernel = unpack(fetch(ingredients.kernel, downloads), scratch / "kernel")
    box = ingredients.busybox_file
    if box is None and ingredients.busybox_package is not None:
        progress(f"busybox: {ingredients.busybox_package.version}")
        box = unpack(fetch(ingredients.busybox_package, downloads), scratch / "busybox") / "bin/busybox"
    if box is None:
        raise RunError("guest image: no busybox")
    progress(f"programs: {ingredients.versions['compiler']}, MPICH {ingredients.mpi.version}")
    build = scratch / "programs"
    build.mkdir()
    ours = [compile_program(name, build) for name in _STATIC]
    ours.append(compile_patterns(ingredients.mpi, build))
    layer = compile_waits(ingredients.mpi, build)
    entries = [
        *(cpio.folder(name) for name in ("bin", "dev", "etc", "lib", "lib/modules", "lib64", "proc", "root", "run",
                                         "sys", "usr", "usr/bin", "usr/lib")),
        cpio.folder("tmp", 0o1777),
        cpio.device("dev/console", 5, 1), cpio.device("dev/null", 1, 3, 0o666),
        cpio.file("init", (SOURCES / "init").read_bytes(), 0o755),
        cpio.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"), cpio.file("etc/group", b"root:x:0:\n"),
        cpio.file("bin/busybox", box.read_bytes(), 0o755),
        *(cpio.link(f"bin/{name}", "busybox") for name in _APPLETS),
        *(cpio.file(f"bin/{path.name}", _stripped(path, scratch), 0o755) for path in ours),
        *(cpio.file(f"usr/lib/{name}", _stripped(path, scratch), 0o755)
          for name, path in ingredients.libraries.items()),
        cpio.file(f"usr/lib/{layer.name}", _stripped(layer, scratch), 0o755),
        cpio.file(f"lib64/{ingredients.loader.name}", _stripped(ingredients.loader, scratch), 0o755),
        *_modules(kernel),
    ]  # fmt: skip
    (vmlinuz,) = (kernel / "boot").glob("vmlinuz-*")
    progress("archive")
    return vmlinuz.read_bytes(), cpio.archive(entries)


def _stripped(path: Path, scratch: Path) -> bytes:
    copy = scratch / "stripped"
    shutil.copyfile(path, copy)
    run(["strip", "--strip-unneeded", str(copy)])
    return copy.read_bytes()


def _modules(kernel: Path) -> list[cpio.Entry]:
    """Return the modules' files and the list of them that `init` reads."""
    (root,) = (kernel / "lib/modules").glob("*")
    built_in = (root / "modules.builtin").read_text(encoding="ascii").split()
    entries, order = [], []
    for module in _MODULES:
        plain, packed = root / f"kernel/{module}.ko", root / f"kernel/{module}.ko.xz"
        if plain.exists() or packed.exists():
            data = plain.read_bytes() if plain.exists() else lzma.decompress(packed.read_bytes())
            order.append(module.rpartition("/")[2])
            entries.append(cpio.file(f"lib/modules/{order[-1]}.ko", data))
        elif f"kernel/{module}.ko" not in built_in:
            raise RunError(f"kernel {root.name}: no module {module}: expected it as a file or built in")
    return [*entries, cpio.file("lib/modules/order", "".join(f"{name}\n" for name in order).encode())]
