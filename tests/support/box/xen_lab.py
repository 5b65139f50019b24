"""A lab of nested Xen nodes for tests: made by the command, and checked to be gone afterwards."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.box.lab_command import LabCommand
from testbed.errors import UserError
from testbed.lab.box.network import namespaces
from testbed.lab.box.processes import marked
from testbed.lab.box.spec import lab_dir, store_dir
from testbed.lab.box.state import find
from testbed.lab.box.sweep import leftovers
from testbed.lab.box.xen.recipe import check_tools


def _missing() -> str:
    if os.geteuid() != 0:
        return "a lab in a box needs root"
    try:
        check_tools()
    except UserError as error:
        return str(error)
    return ""


needs_xen = pytest.mark.skipif(bool(_missing()), reason=_missing())

SCENARIO = """
name = "xen-test"
lab = "{lab}"
policy = "FCFS"
[workload.lublin]
nodes = 2
jobs = 3
seed = 1
[box]
guest_network = "10.214.0.0/16"
[[nodes]]
name = "a"
driver = "xen"
cpus = 0.5
memory_mib = {memory_mib}
"""
UP_WITHIN_S = 3600  # the first call builds the image, and the machine boots


class XenLab(LabCommand):
    """One node; its agent uses Xen, or no hypervisor in tests of the lab alone."""

    def __init__(self, name: str, place: Path, memory_mib: int = 256, *, driven: bool = False) -> None:
        super().__init__(name, place / "xen.toml")
        self.file.write_text(SCENARIO.format(lab=name, memory_mib=memory_mib))
        self.real_driver = driven

    @property
    def node(self):
        return find(self.name).nodes[0]

    def assert_gone(self):
        name = f"dfrs-{self.name}-"
        assert marked(self.name) == []
        assert [found for found in namespaces() if found.startswith(name)] == []
        assert not lab_dir(self.name).exists()
        assert not store_dir(self.name).exists()
        assert leftovers(self.name) == []
        links = subprocess.check_output(["ip", "-json", "link", "show"], text=True)
        assert "xen0" not in [link["ifname"] for link in json.loads(links)]

    def end(self) -> None:
        self.run("down", self.name)
        self.assert_gone()
