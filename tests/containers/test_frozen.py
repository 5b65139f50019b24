"""Images of whole containers as files: their content, and refusals."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.containers.container_images import PLAIN, SPEC, packed

from node_agent.drivers.containers.frozen import is_frozen, scratch, sweep, unpack
from node_agent.drivers.protocol import DriverError
from node_agent.programs.image import write_image


def test_what_was_packed_is_laid_out_again(tmp_path: Path) -> None:
    image = packed(tmp_path)
    assert is_frozen(image)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files", "g.img"]
    unpack(image, SPEC, PLAIN, tmp_path / "out")
    assert (tmp_path / "out" / "pages-1.img").read_bytes() == b"\x00memory" * 1000
    assert (tmp_path / "out" / "inner" / "descriptors.json").read_text() == "[]"
    assert len([path for path in (tmp_path / "out").rglob("*") if path.is_file()]) == 2


def test_a_programs_own_checkpoint_is_told_apart(tmp_path: Path) -> None:
    image = tmp_path / "own.img"
    write_image(image, {}, [memoryview(b"memory")])
    assert not is_frozen(image)
    with pytest.raises(DriverError, match=r"own\.img"):
        unpack(image, SPEC, PLAIN, tmp_path / "out")
    with pytest.raises(DriverError, match=r"none\.img: No such file"):
        is_frozen(tmp_path / "none.img")


@pytest.mark.parametrize(
    "other",
    [
        {"guest": "h"},
        {"memory_mib": 65},
        {"task": 1},
        {"program": msgspec.structs.replace(SPEC.program, seed=2)},
    ],
)
def test_an_image_of_another_guest_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    with pytest.raises(DriverError, match=r"g\.img: it is of .*; expected"):
        unpack(packed(tmp_path), msgspec.structs.replace(SPEC, **other), PLAIN, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../outside", "/outside", "inner/../../outside", "a//b", ".hidden", "line\nbreak"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    image = packed(tmp_path)
    with tarfile.open(image, "a") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(DriverError, match="expected files with plain names"):
        unpack(image, SPEC, PLAIN, tmp_path / "deep" / "out")
    assert not any(path.name in {"outside", ".hidden"} for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    image = packed(tmp_path)
    with tarfile.open(image, "a") as tar:
        entry = tarfile.TarInfo("link")
        entry.type, entry.linkname = kind, "/etc/passwd"
        tar.addfile(entry)
    with pytest.raises(DriverError, match="expected files with plain names"):
        unpack(image, SPEC, PLAIN, tmp_path / "out")


SPARSE = [
    {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40)},
    {"GNU.sparse.major": "0", "GNU.sparse.minor": "0", "GNU.sparse.numblocks": "0", "GNU.sparse.size": str(1 << 40)},
]


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, **headers: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size, entry.pax_headers = kind, size, headers
    return entry


@pytest.mark.parametrize("headers", SPARSE)
def test_a_file_without_its_bytes_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    """A sparse file of a TiB takes a kilobyte in an archive, but its full size on the disk."""
    image = packed(tmp_path)
    with tarfile.open(image, "a", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member("pages-2.img", **headers))
    with tarfile.open(image) as tar:
        assert tar.getmembers()[-1].issparse()
    with pytest.raises(DriverError, match=r"pages-2|larger than it is"):
        unpack(image, SPEC, PLAIN, tmp_path / "out")
    assert not (tmp_path / "out" / "pages-2.img").exists()


@pytest.mark.parametrize("headers", [*SPARSE, {}])
def test_what_says_whose_it_is_is_small(tmp_path: Path, headers: dict[str, str]) -> None:
    image = tmp_path / "g.img"
    with tarfile.open(image, "w", format=tarfile.PAX_FORMAT) as tar:
        size = 0 if headers else 1 << 17
        tar.addfile(member("dfrs-container.json", size=size, **headers), io.BytesIO(b" " * size))
    with pytest.raises(DriverError, match=r"expected a container's|has 131072 bytes: expected 65536 at most"):
        unpack(image, SPEC, PLAIN, tmp_path / "out")


def test_a_file_is_not_written_twice(tmp_path: Path) -> None:
    image = packed(tmp_path)
    with tarfile.open(image, "a") as tar:
        tar.addfile(tarfile.TarInfo("pages-1.img"))
    with pytest.raises(DriverError, match="File exists"):
        unpack(image, SPEC, PLAIN, tmp_path / "out")


def refusal(image: Path, out: Path) -> str | None:
    try:
        unpack(image, SPEC, PLAIN, out)
    except DriverError as error:
        return str(error)
    return None


@given(cut=st.floats(0, 1, exclude_max=True), junk=st.binary(max_size=2000))
def test_damaged_images_are_refused_or_give_what_they_hold(
    tmp_path_factory: pytest.TempPathFactory, cut: float, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    image = packed(folder)
    whole = image.read_bytes()
    image.write_bytes(whole[: round(cut * len(whole))] + junk)
    told = refusal(image, folder / "out")
    assert told is None or str(image) in told or "an image holds" in told
    for path in (folder / "out").rglob("*"):
        assert path.is_relative_to(folder / "out")


def test_a_folder_beside_an_image_is_gone_afterwards(tmp_path: Path) -> None:
    image = tmp_path / "g.img"
    with scratch(image) as folder:
        (folder / "guest").mkdir()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DriverError, match="No such file"), scratch(tmp_path / "nowhere" / "g.img"):
        pass
    (tmp_path / "killed.img.criu" / "guest").mkdir(parents=True)
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []
