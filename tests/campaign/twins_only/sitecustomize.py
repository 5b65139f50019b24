"""On PYTHONPATH it hides numba: small traces are simulated sooner than their loops are compiled.

While the file that `DFRS_TEST_GATE` names is there, units stop at their beginning once as many as it says are done, in
the folder that it names: a test then meets a campaign that is at work, however fast or slow the machine is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from functools import wraps
from pathlib import Path

sys.modules["numba"] = None  # type: ignore[assignment]  # how the import system marks what is not to be found
_GATED = "testbed.scheduling.campaign.work"
_POLL_S = 0.02


def _wait_at(gate: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # the gate was removed
        while True:
            least, _, folder = gate.read_text().partition(" ")
            if len(list(Path(folder).glob("*.json"))) < int(least):
                return
            time.sleep(_POLL_S)


class _Gate:
    """Finds one module, and lets its `do_unit` wait at the gate."""

    def find_spec(self, name: str, *_more: object) -> object:
        if name != _GATED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_gated(module: object) -> None:
            execute(module)
            do_unit = module.do_unit

            @wraps(do_unit)
            def gated(*arguments: object) -> object:
                _wait_at(Path(os.environ["DFRS_TEST_GATE"]))
                return do_unit(*arguments)

            module.do_unit = gated

        spec.loader.exec_module = execute_gated
        return spec


if "DFRS_TEST_GATE" in os.environ:
    sys.meta_path.insert(0, _Gate())
