"""The disk with the agent for control domains: this installation's code, its dependencies, and the guest image.

The disk is created for each lab, and is mounted after a saved state was loaded, so the state stays valid when the code
changes.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from testbed.errors import RunError
from testbed.host.guest_image import GuestImage
from testbed.host.interpreter import module_argv
from testbed.lab.box.commands import run
from testbed.lab.box.spec import BoxSpec, store_dir
from testbed.lab.box.xen.dom0 import AGENT_FILES
from testbed.lab.box.xen.hardware import AGENT_DISK_MIB
from testbed.lab.guest_image.image import current

PROJECT = "dfrs-testbed"
PACKAGES = ("testbed", "node_agent")
# The project's requirements that the agent imports. The control domain has Debian's libvirt with its bindings.
ROOTS = ("aiomqtt", "click", "msgspec", "numpy", "psutil", "xxhash")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyi")
_MAKE_WITHIN_S = 120.0


def disk_of(lab: str) -> Path:
    """Return the agents' disk of a lab."""
    return store_dir(lab) / "agent.img"


@dataclass(frozen=True, slots=True)
class AgentDisk:
    """The disk of one lab, which all of its nodes read. A lab that is up keeps the code from its creation."""

    spec: BoxSpec

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"agent disk {self.spec.lab}"

    def there(self) -> bool:
        """See `Part.there`."""
        return disk_of(self.spec.lab).exists()

    def make(self) -> None:
        """See `Part.make`."""
        disk = disk_of(self.spec.lab)
        with tempfile.TemporaryDirectory(prefix="agent-", dir=disk.parent) as scratch:
            root = Path(scratch) / "root"
            fill(root, current())
            whole = Path(scratch) / disk.name
            features = ("-O", "^has_journal", "-m", "0", "-E", "root_owner=0:0")
            size = f"{AGENT_DISK_MIB}M"
            run("mke2fs", "-q", "-F", "-t", "ext4", *features, "-d", str(root), str(whole), size,
                timeout_s=_MAKE_WITHIN_S)  # fmt: skip
            whole.replace(disk)

    def remove(self) -> list[str]:
        """See `Part.remove`."""
        if not self.there():
            return []
        disk_of(self.spec.lab).unlink()
        return [self.name]


def fill(root: Path, image: GuestImage) -> None:
    """Fill a new folder with the agent's compiled code (`python`), and `guest-image` with its unpacked kernel."""
    python = root / "python"
    python.mkdir(parents=True)
    for name in PACKAGES:
        shutil.copytree(folder_of(name), python / name, ignore=_LEFT_OUT)
    for name in sorted(closure(ROOTS)):
        _copy(distribution(name), python, everything=True)
    _copy(distribution(PROJECT), python, everything=False)  # the metadata that maps names to drivers
    # Compiled here, because the control domain mounts the disk read-only, and its emulated processor is slow.
    settings = ("-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", AGENT_FILES)
    run(*module_argv("compileall", *settings, str(python)), timeout_s=_MAKE_WITHIN_S)
    shutil.copytree(image.folder, root / "guest-image" / image.key)
    (root / "guest-image" / "current").symlink_to(image.key)
    run(*module_argv("node_agent.guests", str(root / "guest-image")), timeout_s=_MAKE_WITHIN_S)


def folder_of(package: str) -> Path:
    """Return the folder of an installed package, without importing it; raises `RunError` if there is none."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RunError(f"agent disk: {package} is not installed here: expected it, as the agent needs it")
    return Path(spec.origin).parent


def closure(roots: Iterable[str]) -> set[str]:
    """Return these distributions and their dependencies; raises `RunError` if one is not installed."""
    found: set[str] = set()
    wanted = [(name, "") for name in roots]
    while wanted:
        name, condition = wanted.pop()
        if name in found or "extra" in condition:
            continue
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError as error:
            if condition:  # for another Python or another system
                continue
            raise RunError(f"agent disk: {name} is not installed here: expected it, as the agent needs it") from error
        found.add(name)
        for text in requirements:
            requirement, _, condition = text.partition(";")
            wanted.append((re.split(r"[^\w.-]", requirement, maxsplit=1)[0], condition))
    return found


def _copy(source: Distribution, into: Path, *, everything: bool) -> None:
    """Copy an installed distribution, or only its metadata (`everything=False`, for editable installs)."""
    for file in source.files or ():
        is_metadata = file.parts[0].endswith((".dist-info", ".egg-info"))
        if {"..", "__pycache__", "tests"} & set(file.parts) or not (everything or is_metadata):
            continue
        target = into.joinpath(*file.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(str(source.locate_file(file))), target)
