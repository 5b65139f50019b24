"""The file of references: its content, its refusals, and the machine of each figure."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.messages import NodeFacts
from testbed.errors import UserError
from testbed.study.checks.judge import Better
from testbed.study.checks.machine import hypervisor_of, hypervisors_of, machine_facts, machine_key, storage_of
from testbed.study.checks.references import (
    MOST_HISTORY,
    References,
    Stored,
    load_references,
    save_references,
    update_file,
)

NAMES = st.text(min_size=1, max_size=20)
NUMBERS = st.floats(0, 1e12, allow_nan=False)
STORED = st.builds(
    Stored, value=NUMBERS, lower_frac=NUMBERS, upper_frac=NUMBERS, unit=st.text(max_size=10),
    better=st.sampled_from(Better), slack=NUMBERS, condition=st.text(max_size=10), guests=st.integers(0, 99),
)  # fmt: skip
ENTRY = """version = 1
[machine."m".a_s]
value = {}
lower_frac = 0.1
upper_frac = 0.1
unit = "s"
better = "lower"
"""
FACTS = NodeFacts(
    cpus=0.8, memory_mib=1, machine_cores=2, machine_memory_mib=1, cpu_model="Some  CPU @ 2.0GHz", kernel="6.18.3-x",
    driver="libvirt", capabilities=("cap:vcpu_quota", "accel:tcg"), address="",
    versions={"libvirt": "9.0.0", "qemu": "7.2.0", "python": "3.11.7", "testbed": "0.1.0"}, image_port=0,
    image_free_mib=0,
)  # fmt: skip


def saves(value: float, **changes: object) -> Stored:
    known = {"lower_frac": 0.3, "upper_frac": 0.5, "unit": "MiB/s", "better": Better.HIGHER, "condition": "96 MiB"}
    return Stored(value=value, **{**known, **changes})


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, STORED, min_size=1, max_size=3), max_size=3))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, machines: dict) -> None:
    path = tmp_path_factory.mktemp("references") / "references.toml"
    save_references(path, References(machines))
    assert load_references(path).machines == machines


def test_an_update_keeps_tolerances_and_what_was(tmp_path: Path) -> None:
    path = tmp_path / "references.toml"
    assert load_references(path).machines == {}
    update_file(path, "m", "save_mib_per_s", saves(400.0, lower_frac=0.05, written_utc="then", testbed="0.1"))
    for value in range(1, MOST_HISTORY + 3):
        update_file(path, "m", "save_mib_per_s", saves(float(value)))
    found = load_references(path).find("m", "save_mib_per_s", "96 MiB")
    assert found is not None
    assert (found.value, found.lower_frac) == (MOST_HISTORY + 2.0, 0.05)
    assert len(found.history) == MOST_HISTORY
    assert found.history[-1].value == MOST_HISTORY + 1.0
    assert [entry.name for entry in tmp_path.iterdir()] == ["references.toml"]


def test_another_condition_is_another_figure() -> None:
    references = References({"m": {"save_mib_per_s": saves(400.0)}})
    assert references.find("m", "save_mib_per_s", "512 MiB") is None
    assert "one for 96 MiB, not for 512 MiB" in references.why_none("m", "save_mib_per_s", "512 MiB")
    assert "this machine (other)" in references.why_none("other", "save_mib_per_s", "96 MiB")
    assert "none of start_s" in references.why_none("m", "start_s", "")
    changed = references.updated("m", "save_mib_per_s", saves(9.0, condition="512 MiB"))
    assert changed.machines["m"]["save_mib_per_s"].history == ()


def test_sessions_side_by_side_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "references.toml"
    threads = [
        threading.Thread(target=update_file, args=(path, "m", f"figure_{number}_s", saves(1.0))) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load_references(path).machines["m"]) == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = 2", ["version", "2"]),
        ("nonsense", ["not a TOML file"]),
        ("version = 1\nmachines = 1", ["unknown key machines", "nearest: machine"]),
        ('version = 1\n[machine."m".a_s]\nvalue = 1.0', ["missing key machine.m.a_s"]),
        (
            ENTRY.format(-1.0),
            ["machine.m.a_s.value", "-1.0", "greater than or equal to 0"],
        ),
        (
            ENTRY.format(1.0) + "lowerfrac = 1",
            ["unknown key machine.m.a_s.lowerfrac", "nearest: lower_frac"],
        ),
    ],
)
def test_a_wrong_file_is_told_by_name_key_and_value(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "references.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_references(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_the_key_of_a_machine_says_what_its_figures_depend_on() -> None:
    assert machine_key(machine_facts(FACTS, "ext4")) == (
        "Some CPU @ 2.0GHz | 0.8 of 2 cores | Linux 6.18 | libvirt tcg | vcpu_quota | libvirt 9.0.0 qemu 7.2.0 | ext4"
    )
    assert hypervisors_of(FACTS) == {"libvirt", "qemu"}
    assert hypervisor_of(FACTS) == "qemu"


def test_storage_is_the_file_system_of_the_nearest_mount() -> None:
    assert storage_of(Path("/proc/self")) == "proc"
    assert storage_of(None) == "?"
