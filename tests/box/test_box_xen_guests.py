"""The Xen driver on a real nested node: what every driver must do, run by pytest in the node's control domain."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from xen_lab import XenLab, needs_xen

from testbed.box.xen.agent_disk import closure
from testbed.box.xen.dom0 import AGENT_FILES, BRIDGE, Dom0

pytestmark = [pytest.mark.slow, pytest.mark.xen, needs_xen]

_TESTS = Path(__file__).parents[1] / "agent"
_THERE = "/var/lib/dfrs/conformance"
_WITHIN_S = 2400
_SETTINGS = "[pytest]\nmarkers = slow: as outside\naddopts = -p no:cacheprovider --strict-markers\n"


def shipment() -> bytes:
    """Return an archive of the suite and of pytest, which control domains have not."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in ("driver_conformance.py", "test_xen_guests.py"):
            archive.add(_TESTS / name, f"suite/{name}")
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


def test_the_driver_does_what_every_driver_must(lab: XenLab, tmp_path: Path) -> None:
    lab.up()
    dom0 = Dom0(lab.node)
    unpack = dom0.command(f"mkdir -p {_THERE} && tar -x -C {_THERE} -f -")
    subprocess.run(unpack, input=shipment(), check=True, timeout=300)
    words = (
        f"cd {_THERE}/suite && export PYTHONPATH={_THERE}/python:{AGENT_FILES}/python LC_ALL=C.UTF-8 "
        f"DFRS_TEST_IMAGE={AGENT_FILES}/guest-image DFRS_TEST_BRIDGE={BRIDGE} && "
        f"python3 -m pytest -v -ra --durations=0 --basetemp={_THERE}/t test_xen_guests.py"
    )
    said = tmp_path / "suite.txt"  # grows while the suite runs, for who waits
    with said.open("wb") as out:
        done = subprocess.run(
            dom0.command(words), stdout=out, stderr=out, timeout=_WITHIN_S, stdin=subprocess.DEVNULL, check=False
        )
    text = said.read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, text
    assert " passed" in text.splitlines()[-1]
    assert dom0.guests() == []
