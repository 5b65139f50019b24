"""Images that would be restored outside of a container: next to CRIU, in the machine's file system."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.containers.container_images import core, field, written

from node_agent.drivers.containers.likeness import check_like, likeness_of
from node_agent.drivers.protocol import DriverError, SuspectError

PSTREE, IDS, INVENTORY, CORE = 0x50273030, 0x54432030, 0x58313116, 0x55053847
ROOT = {kind: kind + 1 for kind in range(1, 13)}  # CRIU's own numbers
HERE = {1: 100, 2: 101, 3: 102, 4: 103, 5: 104, 6: 105, 7: 106, 8: 107, 9: 108, 10: 11, 11: 109, 12: 13}  # user, time
RUN = b"0b5f0f6e-2f0e-4f3f-9a3b-0123456789ab"


def ids(numbers: Mapping[int, int]) -> bytes:
    return b"".join(field(kind, number) for kind, number in numbers.items())


def inventory(root: Mapping[int, int] = ROOT, group: int = 1, *more: bytes) -> bytes:
    return field(1, 2) + field(2, 1) + field(3, ids(root)) + field(4, 1) + field(5, group) + b"".join(more)


def task(group: int) -> bytes:
    """Return a core whose task is in a set of control groups."""
    (length,) = struct.unpack_from("<I", core(), 8)
    record = core()[12 : 12 + length].replace(
        field(3, field(6, b"python")), field(3, field(6, b"python") + field(9, group))
    )
    return struct.pack("<III", 0x54564319, CORE, len(record)) + record


def container(
    folder: Path, processes: Mapping[int, Mapping[int, int]] | None = None, told: bytes = b"", group: int = 2
) -> Path:
    """Write the files that CRIU writes for a container of processes; without numbers, leave out their file."""
    processes = {1: HERE} if processes is None else processes
    written(folder, PSTREE, "pstree.img", *(field(1, pid) + field(2, int(pid != 1)) for pid in processes))
    for pid, numbers in processes.items():
        (folder / f"core-{pid}.img").write_bytes(task(group))
        if numbers:
            written(folder, IDS, f"ids-{pid}.img", ids(numbers))
    told = told or inventory()
    (folder / "inventory.img").write_bytes(struct.pack("<II", INVENTORY, len(told)) + told)
    return folder


def test_containers_of_other_nodes_are_like_ours(tmp_path: Path) -> None:
    own = likeness_of(container(tmp_path / "own"))
    assert "mount namespace" in own.places.apart
    assert "user namespace" not in own.places.apart
    root, here = {kind: number + 50 for kind, number in ROOT.items()}, {kind: 7 * kind + 300 for kind in HERE}
    here |= {10: root[10], 12: root[12]}
    other = container(tmp_path / "other", {1: here, 9: {**here, 1: 900, 2: 901, 3: 902, 4: 903}, 12: {}},
                      inventory(root, 5, field(8, 1234), field(13, RUN)), 6)  # fmt: skip
    check_like(other, own)


@pytest.mark.parametrize(
    ("kind", "words"),
    [(1, "memory"), (2, "files"), (5, "pid namespace"), (6, "network namespace"), (7, "ipc namespace"),
     (8, "uts namespace"), (9, "mount namespace"), (11, "cgroup namespace")],
)  # fmt: skip
def test_a_process_in_a_place_of_the_machine_is_refused(tmp_path: Path, kind: int, words: str) -> None:
    own = likeness_of(container(tmp_path / "own"))
    outside = {**HERE, kind: ROOT[kind]}
    without = {each: number for each, number in HERE.items() if each != kind}
    for name, processes, told in (
        ("equal", {1: outside}, b""),
        ("neither", {1: without}, inventory({each: number for each, number in ROOT.items() if each != kind})),
        ("by-the-inventory", {1: HERE}, inventory({**ROOT, kind: HERE[kind]})),
    ):
        with pytest.raises(SuspectError, match=f"share with CRIU: {words}; expected their own"):
            check_like(container(tmp_path / name, processes, told), own)


@pytest.mark.parametrize(
    ("processes", "told", "group", "words"),
    [
        ({1: {}}, b"", 2, "process 1 without ids-1.img"),
        ({1: HERE, 2: {**HERE, 9: 999}}, b"", 2, "in several namespaces"),
        ({}, b"", 2, "no process"),
        ({1: {**HERE, 10: 999}}, b"", 2, "have of their own: user namespace"),
        ({1: {**HERE, 77: 1}}, b"", 2, "with fields"),
        (None, b"", 1, "in CRIU's control group"),
        (None, b"", 0, "in CRIU's control group"),
        (None, inventory() + field(6, 2), 2, "inventory says"),  # another security module
        (None, inventory() + field(3, ids(HERE)), 2, "field 3 twice"),
        (None, inventory() + field(11, 1), 2, "inventory says"),  # another method to lock the network
        (None, inventory() + field(13, b"x; add table y"), 2, "inventory says"),
    ],
)
def test_what_no_container_of_ours_has_is_refused(
    tmp_path: Path, processes: Mapping[int, Mapping[int, int]] | None, told: bytes, group: int, words: str
) -> None:
    own = likeness_of(container(tmp_path / "own"))
    with pytest.raises(SuspectError, match=words) as refused:
        check_like(container(tmp_path / "other", processes, told, group), own)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("missing", ["inventory.img", "pstree.img", "ids-1.img", "core-1.img"])
def test_an_image_that_lacks_one_of_these_files_is_refused(tmp_path: Path, missing: str) -> None:
    own = likeness_of(container(tmp_path / "own"))
    other = container(tmp_path / "other")
    (other / missing).unlink()
    with pytest.raises(SuspectError):
        check_like(other, own)


@given(name=st.sampled_from(["inventory.img", "pstree.img", "ids-1.img"]), junk=st.binary(max_size=200))
def test_junk_is_refused_and_no_other_exception(
    tmp_path_factory: pytest.TempPathFactory, name: str, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("places")
    own = likeness_of(container(folder / "own"))
    other = container(folder / "other")
    content = (other / name).read_bytes()
    (other / name).write_bytes(content[:8] + junk if name != "inventory.img" else content[:4] + junk)
    with pytest.raises(DriverError):
        check_like(other, own)
