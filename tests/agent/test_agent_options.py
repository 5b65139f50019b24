"""Invalid options of `node-agent`: one line, exit code 2, and no files on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agent.agent_command import node_agent


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cpus", "nan"), "--cpus nan: expected 0.01 to 4096 cores"),
        (("--cpus", "inf"), "--cpus inf: expected 0.01 to 4096 cores"),
        (("--cpus", "-1"), "--cpus -1: expected"),
        (("--cpus", "0"), "--cpus 0: expected"),
        (("--cpus", "1e308"), "--cpus 1e+308: expected"),
        (("--memory-mib", "9" * 30), f"--memory-mib {'9' * 30}: expected 1 to 67108864 MiB"),
        (("--memory-mib", "0"), "--memory-mib 0: expected"),
        (("--memory-mib", "-5"), "--memory-mib -5: expected"),
        (("--keep-guests-s", "nan"), "--keep-guests-s nan: expected 0 to 604800 seconds"),
        (("--keep-guests-s", "-1"), "--keep-guests-s -1: expected"),
    ],
)
def test_a_size_that_no_machine_has_is_refused(options: tuple[str, ...], words: str, tmp_path: Path) -> None:
    result = node_agent(tmp_path, *options)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"node-agent: {words}")
    assert list(tmp_path.iterdir()) == []


def test_a_state_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").touch()
    result = node_agent(tmp_path, "--state-dir", "jobs.csv")
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"node-agent: --state-dir {tmp_path}/jobs.csv: ")
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.csv"]


def test_an_image_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    result = node_agent(tmp_path, "--image-dir", "/proc/x/y")
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("node-agent: --image-dir /proc/x/y: No such file or directory: expected a folder")
    assert list(tmp_path.iterdir()) == []


def test_an_address_of_another_machine_is_named(tmp_path: Path) -> None:
    result = node_agent(tmp_path, "--address", "203.0.113.7")
    assert result.returncode == 2, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("node-agent: ")]
    assert "--address 203.0.113.7: images cannot be served there: " in line
    assert "Traceback" not in result.stderr


def test_a_broker_that_is_not_there_and_a_driver_that_is_unknown_are_mistakes_of_the_user(tmp_path: Path) -> None:
    result = node_agent(tmp_path)
    assert result.returncode == 2, result.stderr
    assert "broker mqtt://127.0.0.1:1: connection refused" in result.stderr.splitlines()[-1]
    result = node_agent(tmp_path, "--driver", "proces")
    assert result.returncode == 2, result.stderr
    assert result.stderr.splitlines()[-1].startswith("node-agent: driver 'proces': expected one of docker, libvirt")
