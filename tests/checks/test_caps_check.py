"""The packaged checks of caps fail if the cap in force differs from the requested one, even if the CPU time fits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from testbed.lab.outcomes import Progress, Watched
from testbed.study.checks.suite import test_caps

CORES = 1.0


class CappedJob:
    """A guest that uses exactly its cap; `found` is the cap that its node reads back."""

    name = "g"
    cpu_cores = CORES

    def __init__(self, found: float | None) -> None:
        self.found = found
        self.cap_cores = 0.0

    def start(self, yield_frac: float) -> None:
        self.cap_cores = CORES * yield_frac

    def save(self) -> None:
        pass

    def restore(self, *, yield_frac: float) -> None:
        self.cap_cores = CORES * yield_frac

    def watch(self, _every_s: float, for_s: float) -> Watched:
        t_s = [0.0, 1.0, for_s]
        return Watched(t_s=t_s, cpu_s={"g": [self.cap_cores * s for s in t_s]}, units={"g": [0, 0, 0]})

    def progress(self) -> dict[str, Progress]:
        return {"g": Progress(1, 1.0, 1.0, self.found, "running")}


@pytest.mark.parametrize("check", ["honoured", "kept"])
@pytest.mark.parametrize(("found", "well"), [(0.3, True), (0.305, True), (0.6, False), (1.0, False), (None, False)])
def test_the_cap_in_force_is_checked(check: str, found: float | None, *, well: bool) -> None:
    @contextlib.contextmanager
    def guest() -> Iterator[CappedJob]:
        yield CappedJob(found)

    node, lab = SimpleNamespace(name="n1"), SimpleNamespace(idle_cores=lambda _node: 1.0)

    def run() -> None:
        if check == "honoured":
            test_caps.test_a_cap_is_honoured(guest, node, lab, pytest.fail, 0.3)
        else:
            test_caps.test_a_cap_is_kept_over_save_and_restore(guest, node, lab, pytest.fail)

    if well:
        run()
    else:
        with pytest.raises(AssertionError, match="n1: read back"):
            run()
