"""Downloads the guest image's parts from Debian (the kernel with its modules, busybox), without root rights."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.errors import RunError, UserError
from testbed.host.whole_files import write_whole
from testbed.lab.guest_image.recipe_tools import run, sha256

_META = "linux-image-cloud-amd64"
_BUSYBOX = Path("/bin/busybox")
_LISTS = Path("/var/lib/apt/lists")
_UPDATE = "expected it in the package lists: apt-get update"


@dataclass(frozen=True, slots=True)
class Package:
    """One version of a package, and the expected hash of its file."""

    name: str
    version: str
    sha256: str


def kernel_package(downloads: Path) -> Package:
    """Return the kernel on which the cloud meta package depends now; raises `UserError` if the lists have none.

    The answer is cached in `downloads` while the package lists are unchanged, as the query is the slowest step.
    """
    stamp = _lists_stamp()
    kept = downloads / "kernel.json"
    try:
        answer = json.loads(kept.read_text(encoding="ascii"))
        if answer["lists"] == stamp:
            return Package(**answer["package"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no cached answer, or a damaged one: query again
    package = _ask_kernel_package()
    downloads.mkdir(parents=True, exist_ok=True)
    write_whole(kept, json.dumps({"lists": stamp, "package": asdict(package)}))
    return package


def _lists_stamp() -> str:
    states = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(_LISTS.glob("*_Packages*"))]
    return sha256(json.dumps(states).encode())


def _ask_kernel_package() -> Package:
    depends = _show(_META).get("Depends", "")
    found = re.search(r"linux-image-[0-9][^ ,]*", depends)
    if found is None:
        raise UserError(f"guest image: package {_META}: {_UPDATE}")
    return _package(found[0])


def busybox() -> tuple[Path | None, Package | None]:
    """Return the installed static busybox, else the package that has one."""
    if _BUSYBOX.is_file() and _is_static(_BUSYBOX):
        return _BUSYBOX, None
    return None, _package("busybox-static")


def _show(name: str) -> dict[str, str]:
    try:
        text = run(["apt-cache", "show", "--no-all-versions", name])
    except RunError as error:
        raise UserError(f"guest image: package {name}: {_UPDATE}") from error
    return dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", text.split("\n\n")[0], re.MULTILINE))


def _package(name: str) -> Package:
    fields = _show(name)
    if not {"Version", "SHA256"} <= fields.keys():
        raise UserError(f"guest image: package {name}: {_UPDATE}")
    return Package(name, fields["Version"], fields["SHA256"])


def _is_static(path: Path) -> bool:
    return b"/ld-linux" not in path.read_bytes()[:4096]  # a dynamic ELF file has its interpreter near the beginning


def fetch(package: Package, downloads: Path) -> Path:
    """Return the package's verified file, downloaded if it is missing; raises `RunError`."""
    downloads.mkdir(parents=True, exist_ok=True)
    kept = downloads / f"{package.name}_{package.sha256[:16]}.deb"
    if not kept.exists() or sha256(kept) != package.sha256:
        scratch = downloads / f"get-{os.getpid()}"
        scratch.mkdir()
        try:
            argv = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", f"{package.name}={package.version}"]
            run(argv, cwd=scratch)
            (got,) = scratch.glob("*.deb")
            if sha256(got) != package.sha256:
                raise RunError(
                    f"package {package.name} {package.version}: sha256 {sha256(got)}: expected {package.sha256}"
                )
            got.replace(kept)
        finally:
            for left in scratch.iterdir():
                left.unlink()
            scratch.rmdir()
    return kept


def unpack(deb: Path, into: Path) -> Path:
    """Unpack a package's files into a new folder, and return the folder."""
    into.mkdir(parents=True)
    run(["dpkg-deb", "-x", str(deb), str(into)])
    return into
