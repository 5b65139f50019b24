"""The doctor on this machine, and on simulated faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed.cli.doctor import doctor
from testbed.lab.doctor import examine, hypervisors, machine, storage
from testbed.lab.doctor.finding import SEVERITIES, Finding, worst


def test_a_healthy_machine_is_looked_at_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypervisors, "KVM", tmp_path / "none")  # booting a kernel takes too long here
    result = CliRunner().invoke(doctor, ["--folder", str(tmp_path), "--json"], standalone_mode=False)
    told = json.loads(result.stdout)
    checks = {each["check"] for each in told["findings"]}
    assert {"testbed", "kernel", "control groups", "steal", "core speed", "memory", "clock", "storage rate"} <= checks
    assert told["worst"] == worst(Finding(**each) for each in told["findings"])
    assert result.return_value == {"ok": 0, "note": 0, "warning": 1, "error": 2}[told["worst"]]
    assert all(each["found"] and each["severity"] in SEVERITIES for each in told["findings"])
    assert not list(tmp_path.iterdir()), "the doctor removes its files"


def test_a_sick_one_is_told_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypervisors, "KVM", tmp_path / "none")
    arguments = [
        "--folder",
        str(tmp_path / "nowhere"),
        "--broker",
        "mqtt://127.0.0.1:9",
        "--influx",
        "http://127.0.0.1:9",
    ]
    result = CliRunner().invoke(doctor, arguments, standalone_mode=False)
    assert result.return_value == 2
    for words in ("nowhere: cannot be written", "fix: mkdir -p", "connection refused; does a broker run there?",
                  "systemctl restart mosquitto", "InfluxDB"):  # fmt: skip
        assert words in result.stdout


def test_a_check_that_fails_itself_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        raise ZeroDivisionError("a machine like no other")
        yield

    monkeypatch.setattr(machine, "processors", broken)
    monkeypatch.setattr(hypervisors, "KVM", tmp_path / "none")
    found = [each for each in examine.examine(tmp_path) if each.check == "processors"]
    assert [(each.severity, each.found) for each in found] == [
        ("error", "the check itself failed: ZeroDivisionError: a machine like no other")
    ]


@pytest.mark.parametrize(("free_mib", "severity"), [(100, "warning"), (100_000, "ok")])
def test_room_for_images_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, severity: str
) -> None:
    class Usage:
        free = free_mib << 20

    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _folder: Usage)
    room = next(each for each in storage.storage(tmp_path) if each.check == "storage room")
    assert (room.severity, room.values) == (severity, {"free_mib": free_mib})
    assert bool(room.mend) == (severity == "warning")


@pytest.mark.parametrize(
    ("release", "severity"), [("4.19.0-27-amd64", "warning"), ("5.4.0", "ok"), ("6.12.1-cloud", "ok")]
)
def test_old_kernels_are_told(monkeypatch: pytest.MonkeyPatch, release: str, severity: str) -> None:
    monkeypatch.setattr(machine.platform, "release", lambda: release)
    assert [each.severity for each in machine.kernel()] == [severity]
