"""On PYTHONPATH this module hides numba: simulating small traces takes less time than compiling the loops.

`DFRS_TEST_GATE` names a file with a folder and a number. While the file exists, units wait at their beginning once that
number of units is done in the folder. So a test finds an active campaign on a machine of any speed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from functools import wraps
from pathlib import Path

sys.modules["numba"] = None  # type: ignore[assignment]  # the import system's mark for missing modules
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
    """A finder for one module, which makes its `do_unit` wait at the gate."""

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
