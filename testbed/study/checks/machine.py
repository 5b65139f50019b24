"""The identity of a machine for references: the facts that change figures, as one readable key."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import testbed
from testbed.bus.drivers import traits_in
from testbed.bus.messages import NodeFacts

_KEY_VERSIONS = ("libvirt", "qemu", "xen", "python")


def accelerator_of(facts: NodeFacts) -> str:
    """Return `kvm`, `tcg` (emulated), `xen-pv` or `xen-pvh` for virtual machines, else an empty text."""
    return next((c.removeprefix("accel:") for c in facts.capabilities if c.startswith("accel:")), "")


def hypervisors_of(facts: NodeFacts) -> frozenset[str]:
    """Return the names of a node's hypervisor in `@pytest.mark.hypervisor(...)`.

    These are the driver's name and the hypervisor's: `kvm`, `qemu` for emulated guests, or `xen`.
    """
    names = {facts.driver}
    if hypervisor := traits_in(facts).hypervisor:
        names.add("kvm" if accelerator_of(facts) == "kvm" else hypervisor)
    return frozenset(names)


def hypervisor_of(facts: NodeFacts) -> str:
    """Return the hypervisor of a node's guests: `kvm`, `qemu`, `xen`, or the driver's name."""
    others = sorted(hypervisors_of(facts) - {facts.driver})
    return others[0] if others else facts.driver


def storage_of(folder: Path | None) -> str:
    """Return the type of the file system of a folder on this machine; `?` if it is unknown."""
    if folder is None:
        return "?"
    best, kind = -1, "?"
    try:
        path = str(folder.resolve())
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _device, point, found, *_ = line.split()
            point = point.replace("\\040", " ")
            if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) > best:
                best, kind = len(point), found
    except (OSError, ValueError):
        return "?"
    return kind


def machine_facts(facts: NodeFacts, storage: str) -> dict[str, str]:
    """Return the facts of a node that its figures depend on, by name."""
    caps = next((c for c in facts.capabilities if c.startswith("cap:")), "")
    versions = {name: facts.versions[name] for name in _KEY_VERSIONS if name in facts.versions}
    if not traits_in(facts).runs_own_programs:
        versions.pop("python", None)  # guests of such drivers run no Python
    return {
        "cpu_model": " ".join(facts.cpu_model.split()),
        "cores": f"{facts.cpus:g} of {facts.machine_cores}",
        "kernel": ".".join(facts.kernel.split("-")[0].split(".")[:2]),
        "driver": facts.driver,
        "accelerator": accelerator_of(facts),
        "caps": caps.removeprefix("cap:"),
        "versions": " ".join(f"{name} {version}" for name, version in versions.items()),
        "storage": storage,
    }


def machine_key(facts: Mapping[str, str]) -> str:
    """Return the facts as one line, the key of the references file."""
    words = [
        facts["cpu_model"], f"{facts['cores']} cores", f"Linux {facts['kernel']}",
        " ".join(filter(None, (facts["driver"], facts["accelerator"]))), facts["caps"], facts["versions"],
        facts["storage"],
    ]  # fmt: skip
    return " | ".join(filter(None, words))


def testbed_version() -> str:
    """Return the version of the testbed, with the Git commit where it runs from a clone (`-dirty` if changed)."""
    root = Path(testbed.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return testbed.__version__
    try:
        found = subprocess.run(  # noqa: S603  # no argument is user input
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--match=-"],  # noqa: S607  # the user's own git
            capture_output=True, text=True, check=False, timeout=10, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return testbed.__version__
    commit = found.stdout.strip()
    return f"{testbed.__version__}+{commit}" if found.returncode == 0 and commit else testbed.__version__
