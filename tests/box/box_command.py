"""`testbed` whose agents drive no hypervisor, on nodes that really have one: the lab is tested, not a driver."""

from __future__ import annotations

from testbed.box import services
from testbed.box.spec import NodeSpec
from testbed.box.xen import agent
from testbed.cli.main import main

_real = services.arguments
_real_nested = agent.arguments


def _with_driver(words: list[str], driver: str) -> list[str]:
    words[words.index("--driver") + 1] = driver
    return words[: words.index("--option")] if "--option" in words else words


def _with_processes(node: NodeSpec) -> list[str]:
    return _with_driver(_real(node), "process")


def _with_nothing(node: NodeSpec) -> list[str]:
    return _with_driver(_real_nested(node), "null")


services.arguments = _with_processes
agent.arguments = _with_nothing
main()
