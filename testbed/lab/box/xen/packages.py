"""The Debian packages of a nested Xen node: names, versions, and this machine's repositories for them."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import UserError
from testbed.lab.box.commands import CommandError, run
from testbed.lab.guest_image.recipe_debian import Package

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_HYPERVISOR_META = "xen-system-amd64"
_KERNEL_META = "linux-image-amd64"  # the cloud kernels cannot be a control domain
_IN_DOM0 = (
    "xen-utils-common", "libvirt-daemon", "libvirt-daemon-driver-xen", "libvirt-clients",
    "python3", "python3-libvirt", "busybox-static", "mount", "kmod", "iproute2", "procps", "openssh-server",
)  # fmt: skip
_ASK_WITHIN_S = 600.0  # only against hanging: guests may occupy both cores meanwhile


@dataclass(frozen=True, slots=True)
class Ingredients:
    """Packages of a node: hypervisor and kernel are unpacked, `installed` are installed in the control domain."""

    hypervisor: Package
    kernel: Package
    installed: tuple[Package, ...]
    sources: tuple[str, ...]
    release: str

    @property
    def packages(self) -> tuple[Package, ...]:
        """All packages that are requested by name."""
        return (self.hypervisor, self.kernel, *self.installed)


def gather() -> Ingredients:
    """Return a node's current packages by the package lists; raises `UserError` if the lists lack one."""
    hypervisor = _depends(_HYPERVISOR_META, r"xen-hypervisor-[0-9.]+-amd64")
    utilities = _depends(_HYPERVISOR_META, r"xen-utils-[0-9.]+")
    kernel = _depends(_KERNEL_META, r"linux-image-[0-9]\S*")
    known = packages((hypervisor, kernel, utilities, *_IN_DOM0))
    check_python(known["python3"].version)
    sources = _sources()
    if not sources:
        raise UserError("xen node: no Debian repository in the package lists: expected one: apt-get update")
    installed = tuple(known[name] for name in (utilities, *_IN_DOM0))
    return Ingredients(known[hypervisor], known[kernel], installed, tuple(sources), _release())


def packages(names: tuple[str, ...]) -> dict[str, Package]:
    """Return the packages that would be installed now, by name; raises `UserError` if a package is unknown."""
    try:
        text = run("apt-cache", "show", "--no-all-versions", *names, timeout_s=_ASK_WITHIN_S)
    except CommandError as error:
        raise UserError(f"xen node: {error.said}: expected it in the package lists: apt-get update") from error
    found = {}
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", paragraph, re.MULTILINE))
        if {"Package", "Version", "SHA256"} <= fields.keys():
            found[fields["Package"]] = Package(fields["Package"], fields["Version"], fields["SHA256"])
    missing = [name for name in names if name not in found]
    if missing:
        raise UserError(f"xen node: package {missing[0]}: expected it in the package lists: apt-get update")
    return found


def check_python(version: str) -> None:
    """Raise `UserError` unless dom0's Python, of the package version `version`, can load this Python's packages."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not version.startswith(f"{own}."):
        raise UserError(
            f"xen node: its control domain has Python {version}, the agent's packages here are for {own}: "
            f"expected the testbed to be installed with Python {'.'.join(version.split('.')[:2])}"
        )


def _depends(name: str, pattern: str) -> str:
    said = run("apt-cache", "depends", name, timeout_s=_ASK_WITHIN_S)
    found = re.search(rf"Depends: ({pattern})$", said, re.MULTILINE)
    if found is None:
        raise UserError(f"xen node: package {name}: expected it in the package lists: apt-get update")
    return found[1]


def _sources() -> list[str]:
    """Return this machine's Debian repositories as lines of sources.list, without those of third parties."""
    told = run(
        *("apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)"),
        "Created-By: Packages",
        timeout_s=_ASK_WITHIN_S,
    )
    trust = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    repositories = [line.split() for line in told.splitlines()]
    return sorted({f"deb {trust}{' '.join(words[1:])}" for words in repositories if words and words[0] == "Debian"})


def _release() -> str:
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    found = re.search(r"^VERSION_CODENAME=(\S+)$", text, re.MULTILINE)
    if found is None:
        raise UserError("xen node: /etc/os-release names no release: expected a Debian system")
    return found[1]
