"""The Xen driver on a real nested node: the conformance suite of drivers, run by pytest in the node's control domain.

The whole suite takes half an hour there. A few of its tests run with the everyday tests: a guest starts, works to its
end, is capped, and is saved and restored with the same result.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from support.box.xen_lab import XenLab, needs_xen
from support.live import HANG_S

from testbed.lab.box.xen.agent_disk import closure
from testbed.lab.box.xen.dom0 import AGENT_FILES, BRIDGE, Dom0

pytestmark = [pytest.mark.slow, needs_xen]

_TESTS = Path(__file__).parents[1] / "agent"
_THERE = "/var/lib/dfrs/conformance"
_WITHIN_S = 10_800.0  # speed: the whole suite on an emulated machine takes longer than one test may
_A_FEW = "test_caps_are_read_back or test_a_saved_guest_goes_on_elsewhere_to_the_same_end"
_SETTINGS = "[pytest]\nmarkers = slow: as outside\naddopts = -p no:cacheprovider --strict-markers\n"


def shipment() -> bytes:
    """Return an archive of the tests and of pytest, which control domains lack; the agent has the suite itself."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(_TESTS / "test_xen_guests.py", "suite/test_xen_guests.py")
        settings = tarfile.TarInfo("suite/pytest.ini")
        settings.size = len(_SETTINGS)
        archive.addfile(settings, io.BytesIO(_SETTINGS.encode()))
        for name in sorted(closure(["pytest"])):
            for file in distribution(name).files or ():
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    archive.add(str(file.locate()), f"python/{file}")
    return data.getvalue()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[XenLab]:
    made = XenLab(f"xeng{os.getpid()}", tmp_path, 1024, driven=True)
    yield made
    made.end()


def run_suite(lab: XenLab, folder: Path, chosen: str) -> int:
    """Run the chosen tests of the suite (an expression for pytest's -k) in a control domain; return how many passed."""
    lab.up()
    dom0 = Dom0(lab.node)
    unpack = dom0.command(f"mkdir -p {_THERE} && tar -x -C {_THERE} -f -")
    subprocess.run(unpack, input=shipment(), check=True, timeout=HANG_S)
    words = (
        f"cd {_THERE}/suite && export PYTHONPATH={_THERE}/python:{AGENT_FILES}/python LC_ALL=C.UTF-8 "
        f"DFRS_TEST_IMAGE={AGENT_FILES}/guest-image DFRS_TEST_BRIDGE={BRIDGE} && "
        f"python3 -m pytest -v -ra --durations=0 --basetemp={_THERE}/t -k {shlex.quote(chosen)} test_xen_guests.py"
    )
    said = folder / "suite.txt"  # grows while the suite runs, so that a person can follow it
    with said.open("wb") as out:
        done = subprocess.run(
            dom0.command(words), stdout=out, stderr=out, timeout=_WITHIN_S, stdin=subprocess.DEVNULL, check=False
        )
    text = said.read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, text
    assert dom0.guests() == []
    passed = re.search(r"(\d+) passed", text.splitlines()[-1])
    assert passed is not None, text
    return int(passed[1])


@pytest.mark.long
def test_a_guest_is_capped_and_goes_on_from_its_image_to_the_same_end(lab: XenLab, tmp_path: Path) -> None:
    assert run_suite(lab, tmp_path, _A_FEW) == 2


@pytest.mark.xen
def test_the_driver_does_what_every_driver_must(lab: XenLab, tmp_path: Path) -> None:
    assert run_suite(lab, tmp_path, "test") > 10
