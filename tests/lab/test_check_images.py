"""The nodes of a lab must be able to restore each other's images."""

from __future__ import annotations

import pytest

from testbed.bus.messages import NodeFacts
from testbed.errors import UserError
from testbed.lab.guests import check_images


def facts(*capabilities: str, driver: str = "of-a-plug-in") -> NodeFacts:
    return NodeFacts(
        cpus=1, memory_mib=1, machine_cores=1, machine_memory_mib=1, cpu_model="", kernel="", driver=driver,
        capabilities=("start", "cap", *capabilities), versions={}, address="", image_port=1, image_free_mib=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    "nodes",
    [
        {"a": facts("save", "save:program"), "b": facts("save", "save:program")},
        {"a": facts("save", "save:criu"), "b": facts("save", "save:criu")},
        {"a": facts("save", "save:qemu", "whole", "live"), "b": facts("save", "save:qemu", "whole")},
        {"a": facts(), "b": facts()},
        # agents of earlier releases reported the kind of their images only if there was a choice
        {"a": facts("save", driver="process"), "b": facts("save", "save:program")},
        {"a": facts("save", "whole", driver="libvirt"), "b": facts("save", "save:qemu", "whole")},
        {"a": facts("save", "whole", driver="xen"), "b": facts("save", "save:xen", "whole")},
    ],
)
def test_nodes_of_one_kind_are_a_lab(nodes: dict[str, NodeFacts]) -> None:
    check_images(nodes)


def test_nodes_that_could_not_exchange_guests_are_told_by_name() -> None:
    criu, program = facts("save", "save:criu"), facts("save", "save:program")
    with pytest.raises(UserError, match="images of kind criu on a, c; program on b: expected one kind in a lab"):
        check_images({"a": criu, "b": program, "c": criu})
    with pytest.raises(UserError, match="program on b; xen on a"):  # of a box with docker beside nested Xen nodes
        check_images({"a": facts("save", "save:xen", "whole", driver="xen"), "b": program})
    with pytest.raises(UserError, match="none on b; program on a"):
        check_images({"a": program, "b": facts()})
    with pytest.raises(UserError, match="qemu on a; xen on b"):
        check_images({"a": facts("save", "whole", driver="libvirt"), "b": facts("save", "whole", driver="xen")})
