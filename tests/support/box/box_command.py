"""`testbed` with agents that do not use the hypervisors of their nodes: tests of the lab, not of a driver.

With DFRS_TEST_CUT_AT in the environment, the command pauses before it makes a part of that kind, until SIGTERM. With
DFRS_TEST_REAL_DRIVER the agents use the driver of the scenario. The command waits for locks of concurrent tests for as
long as a test may take, because these may be building images.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager

from testbed.cli.bodies import lab
from testbed.cli.main import main
from testbed.lab.box import services
from testbed.lab.box.spec import NodeSpec
from testbed.lab.box.state import Journal
from testbed.lab.box.xen import agent

_real = services.arguments
_real_nested = agent.arguments


def _with_driver(words: list[str], driver: str) -> list[str]:
    words[words.index("--driver") + 1] = driver
    return words[: words.index("--option")] if "--option" in words else words


def _with_processes(node: NodeSpec) -> list[str]:
    return _with_driver(_real(node), "process")


def _with_nothing(node: NodeSpec) -> list[str]:
    return _with_driver(_real_nested(node), "null")


_intend, _interrupt = Journal.intend, lab._interrupt
_interrupted = threading.Event()


def _stand_still(self: Journal, part: str) -> None:
    _intend(self, part)
    if part.split(maxsplit=1)[0] == os.environ.get("DFRS_TEST_CUT_AT"):
        _interrupted.wait()  # the main thread receives signals, and waits for this thread


def _go_on(*signal: object) -> None:
    _interrupted.set()
    _interrupt(*signal)


_only_command = lab.only_command


def _patient(wait_s: float = 900.0) -> AbstractContextManager[None]:  # as `support.live.HANG_S`
    return _only_command(wait_s)


Journal.intend, lab._interrupt = _stand_still, _go_on
lab.only_command = _patient
if not os.environ.get("DFRS_TEST_REAL_DRIVER"):
    services.arguments = _with_processes
    agent.arguments = _with_nothing
main()
