"""`testbed` whose agents run processes on nodes with a real libvirtd: the lab is tested, not a driver."""

from __future__ import annotations

from testbed.box import services
from testbed.box.spec import NodeSpec
from testbed.cli.main import main

_real = services.arguments


def _with_processes(node: NodeSpec) -> list[str]:
    words = _real(node)
    words[words.index("--driver") + 1] = "process"
    return words[: words.index("--option")] if "--option" in words else words


services.arguments = _with_processes
main()
