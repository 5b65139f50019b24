"""Removes a lab: all recorded parts, then all resources with the lab's names, recorded or not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from testbed.errors import TestbedError
from testbed.lab.box.hypervisor import domains
from testbed.lab.box.order import Removal, remove_in_order
from testbed.lab.box.plan import layers_of
from testbed.lab.box.spec import STORE_ROOT
from testbed.lab.box.state import BoxState, Journal, find
from testbed.lab.box.sweep import leftovers
from testbed.lab.box.xen.dom0 import Dom0


def remove_lab(lab: str, say: Callable[[str], None]) -> Removal:
    """Remove a lab, whether it is complete, incomplete or unrecorded; do nothing if there is none."""
    known = _known(lab, say)
    outcome = Removal()
    if known is not None:
        journal = Journal(known)
        with contextlib.suppress(OSError):  # a full disk must not prevent the removal
            journal.phase("ending")
        outcome = remove_in_order(layers_of(known.spec, journal), say)
    rest = remove_in_order(leftovers(lab), say)
    with contextlib.suppress(OSError):
        STORE_ROOT.rmdir()
    # Failed parts are reported only if the sweep has left something.
    failures = [*rest.failures, *(outcome.failures if leftovers(lab) else [])]
    return Removal([*outcome.removed, *rest.removed], failures)


def list_lab(lab: str) -> list[str]:
    """Return the resources that `remove_lab` would find."""
    found = []
    known = _known(lab, lambda _line: None)
    for node in known.nodes if known is not None else ():
        if node.has_libvirtd and node.socket.exists():
            with contextlib.suppress(TestbedError):
                found += [f"domain {domain} on {node.name}" for domain in domains(node)]
        elif node.is_nested:
            with contextlib.suppress(TestbedError):
                found += [f"domain {domain} on {node.name}" for domain, _cap in Dom0(node).guests()]
    return [*found, *(part.name for layer in reversed(leftovers(lab)) for part in layer)]


def _known(lab: str, say: Callable[[str], None]) -> BoxState | None:
    try:
        return find(lab)
    except TestbedError as error:
        say(f"{error}; finding its parts by their names")
        return None
