"""Recorders: they receive everything in order, in separate threads, and are left out after a failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.live import HANG_S

from testbed.errors import UserError
from testbed.measure import recorders as module
from testbed.measure.recorders import Recorders, find_recorders, make_recorders
from testbed.measure.rundir import RunDirectory, read_journal
from testbed.run.events import Aborted, Guest, Job, Teardown

Install = Callable[[str, str, str], Path]


class Heard:
    """A recorder that keeps its calls; `fails` names the call that raises."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple] = []
        self.threads: set[str] = set()
        self._fails = fails

    def _take(self, *call: object) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)
        if call[0] == self._fails:
            raise ValueError("full\nof it")

    def open(self, path: Path, manifest: Mapping[str, object]) -> None:
        self._take("open", path, manifest)

    def journal(self, entry: Mapping[str, object]) -> None:
        self._take("journal", entry)

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, object], time_ns: int) -> None:
        self._take("point", measurement, tags, fields, time_ns)

    def close(self) -> None:
        self._take("close")


def directory(tmp_path: Path, **recorders: object) -> RunDirectory:
    made = RunDirectory(tmp_path / "run", {"run": "r"}, Recorders(recorders))
    made.open()
    return made


def test_all_is_told_in_order_from_the_manifest_on(tmp_path: Path) -> None:
    heard = Heard()
    run = directory(tmp_path, one=heard)
    detail: dict[str, object] = {"units": 1}
    run.journal(Guest(0.5, 0.0, job=1, task=0, node=2, event="progress", detail=detail))
    detail["units"] = 3  # the recorder has the value at the time of the call, as the file does
    run.write_manifest({"run": "r", "seed": 7})
    run.point("job", {"job": "1"}, {"state": "done", "trace_s": 2.0}, 17)
    run.journal(Job(1.0, 60.0, job=1, state="done"))
    run.recorders.close()
    run.close()
    assert heard.calls == [
        ("open", run.path, {"run": "r", "seed": 7}),
        (
            "journal",
            {
                "kind": "guest",
                "t_s": 0.5,
                "trace_s": 0.0,
                "job": 1,
                "task": 0,
                "node": 2,
                "event": "progress",
                "detail": {"units": 1},
            },
        ),
        ("point", "job", {"run": "r", "job": "1"}, {"state": "done", "trace_s": 2.0}, 17),
        ("journal", {"kind": "job", "t_s": 1.0, "trace_s": 60.0, "job": 1, "state": "done"}),
        ("close",),
    ]
    assert [call[1] for call in heard.calls if call[0] == "journal"] == read_journal(run.path / "events.jsonl")
    assert heard.threads == {"recorder one"}
    assert list(run.recorders.failures()) == []


def test_a_run_that_ends_before_its_manifest_is_not_told(tmp_path: Path) -> None:
    heard = Heard()
    run = directory(tmp_path, one=heard)
    run.journal(Aborted(0.5, 0.0, reason="stopped"))
    run.recorders.close()
    run.close()
    assert heard.calls == []


@pytest.mark.parametrize("fails", ["open", "journal", "point", "close"])
def test_one_that_fails_is_left_out_closed_and_told_of_once(tmp_path: Path, fails: str) -> None:
    good, bad = Heard(), Heard(fails)
    run = directory(tmp_path, good=good, bad=bad)
    run.write_manifest({})
    for number in range(5):
        run.journal(Teardown(float(number), 0.0, elapsed_s=1.0))
        run.point("job", {"job": "1"}, {"state": "x", "trace_s": 2.0}, number)
    run.recorders.close()
    run.close()
    assert list(run.recorders.failures()) == [("bad", "ValueError: full of it")]
    assert list(run.recorders.failures()) == []
    assert [call[0] for call in bad.calls].count(fails) == 1
    assert bad.calls[-1] == ("close",)
    assert len(good.calls) == 12
    assert len(read_journal(run.path / "events.jsonl")) == 5


def test_one_that_hangs_holds_up_nobody_and_one_that_falls_behind_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    monkeypatch.setattr(module, "CLOSE_WITHIN_S", 0.05)
    go_on = threading.Event()

    class Hangs(Heard):
        def open(self, path: Path, manifest: Mapping[str, object]) -> None:
            super().open(path, manifest)
            go_on.wait(HANG_S)

    slow, slower = Hangs(), Hangs()
    run = directory(tmp_path, slow=slow, slower=slower)
    run.write_manifest({})
    run.recorders._feeds[0].put = lambda _call: None  # the feed of the first recorder never ends
    for number in range(50):
        run.journal(Teardown(float(number), 0.0, elapsed_s=1.0))
    run.recorders.close()
    run.close()
    assert dict(run.recorders.failures()) == {
        "slow": "it did not finish within 0.05 s of the end of the run",
        "slower": "it fell 3 records behind",
    }
    assert len(read_journal(run.path / "events.jsonl")) == 50
    go_on.set()
    for feed in run.recorders._feeds:
        feed.join(HANG_S)
    assert [call[0] for call in slower.calls] == ["open", "close"]


def test_recorders_are_found_by_name(install_plugin: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os\nfrom testbed.errors import UserError\n"
        "class Wall:\n    def __init__(self):\n"
        "        if 'WALL_URL' not in os.environ: raise UserError('WALL_URL: expected an address')\n"
    )
    install_plugin("dfrs_wall", code, "[testbed.recorders]\nwall = dfrs_wall:Wall\nbroken = dfrs_wall:Gone\n")
    assert make_recorders(()) == {}
    assert set(find_recorders(["wall"])) == {"wall"}
    for names, words in (
        (["wal"], "recorders: unknown recorder 'wal'; nearest: wall"),
        (["graphite"], "recorders: unknown recorder 'graphite'; installed: broken, influx, wall"),
        (["broken"], "recorder 'broken': cannot load dfrs_wall:Gone: AttributeError"),
        (["wall"], "recorder 'wall': WALL_URL: expected an address"),
    ):
        with pytest.raises(UserError, match=words):
            make_recorders(names)
    monkeypatch.setenv("WALL_URL", "x")
    assert type(make_recorders(["wall"])["wall"]).__name__ == "Wall"


def test_a_journal_entry_is_the_line_that_is_in_the_file(tmp_path: Path) -> None:
    heard = Heard()
    run = directory(tmp_path, one=heard)
    run.write_manifest({"text": "ü\n"})
    run.journal(Guest(1.23456789, 1.0, job=1, task=0, node=0, event="odd", detail={"text": 'a"bü\n', "none": None}))
    run.recorders.close()
    run.close()
    (line,) = (run.path / "events.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found.pop("crc")
    assert heard.calls[1] == ("journal", found)
