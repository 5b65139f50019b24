"""Shipping: at least once and in order, under faults of server, disk and processes; refused points are kept."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import HANG_S

from testbed.errors import InputError, RunError, UserError
from testbed.measure.influx import InfluxRecorder
from testbed.measure.influx_address import Address, find_address, is_url
from testbed.measure.influx_writer import (
    BatchTooLargeError,
    InfluxWriter,
    PointsRefusedError,
    ServerAwayError,
    ServerRefusesError,
    explain,
    retry_after_s,
)
from testbed.measure.shipper import MOST_WAIT_S, BackOff, Shipper
from testbed.measure.shipping import ship
from testbed.measure.shipping_batches import bytes_left, halves, next_batch, points_left
from testbed.measure.shipping_position import BusyError, Shipped, ShippingPosition, read_shipped
from testbed.scenario.schema import check_scenario

HERE = Address("http://127.0.0.1:1", "lab", "testbed")
QUICK = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  # many examples, each with many fsyncs
LINES = st.lists(st.text("ab ", min_size=1, max_size=30).map(lambda text: text.encode() + b"\n"), max_size=40)


class Server:
    """A database in memory: keeps whole lines except those with `bad`; `faults` apply to the next writes."""

    def __init__(self, faults: tuple[str, ...] = (), most_bytes: int = 1 << 30) -> None:
        self.lines: list[bytes] = []
        self.faults = list(faults)
        self.writes = 0
        self.most_bytes = most_bytes
        self.closed = False

    def write(self, lines: bytes) -> None:
        self.writes += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "away":
            raise ServerAwayError("away")
        if fault == "mend":
            raise ServerRefusesError("no such bucket")
        if len(lines) > self.most_bytes:
            raise BatchTooLargeError("413: too large")
        assert lines.endswith(b"\n")
        each = lines.splitlines(keepends=True)
        self.lines += [line for line in each if b"bad" not in line]
        if fault == "answer lost":
            raise ServerAwayError("connection reset")
        if fault == "killed":
            raise KeyboardInterrupt
        if any(b"bad" in line for line in each):
            raise PointsRefusedError("field type conflict")

    def close(self) -> None:
        self.closed = True


def spool(run: Path, *parts: bytes) -> Path:
    run.mkdir()
    for number, part in enumerate(parts, 1):
        (run / ("points.lp" if number == 1 else f"points.{number}.lp")).write_bytes(part)
    return run


def until_done(make: Callable[[], Shipper], tries: int = 200) -> Shipper:
    """Ship as a series of processes, each of which is killed."""
    for _ in range(tries):
        shipper = make()
        try:
            while shipper.step():
                pass
        except (ServerAwayError, ServerRefusesError, KeyboardInterrupt):
            continue
        finally:
            shipper.close()
        return shipper
    raise AssertionError("shipping never finished")


@given(st.lists(LINES, min_size=1, max_size=4), st.sampled_from([b"", b"torn"]), st.integers(1, 9), st.integers(1, 80))
def test_batches_are_all_whole_lines_in_order(
    segments: list[list[bytes]], torn: bytes, most_lines: int, most_bytes: int
) -> None:
    with tempfile.TemporaryDirectory(dir=QUICK) as folder:
        run = spool(Path(folder) / "run", *(b"".join(lines) for lines in segments))
        last = max(run.iterdir(), key=lambda path: len(path.name)) if len(segments) == 1 else None
        path = last or run / f"points.{len(segments)}.lp"
        path.write_bytes(path.read_bytes() + torn)
        segment, offset, read = 1, 0, b""
        left = points_left(run, 1, 0)
        while batch := next_batch(run, segment, offset, most_lines, most_bytes):
            assert 1 <= batch.points <= most_lines
            assert len(batch.lines) <= most_bytes or batch.points == 1
            segment, offset, read = batch.segment, batch.end_bytes, read + batch.lines
            left -= batch.points
            assert points_left(run, segment, offset) == left
        assert read == b"".join(b"".join(lines) for lines in segments)
        assert left == 0
        with path.open("ab") as file:
            file.write(b" and whole\n")
        more = next_batch(run, segment, offset, most_lines, 1)
        assert more is not None
        assert more.lines == torn + b" and whole\n"
        assert bytes_left(run, more.segment, more.end_bytes) == 0


@given(LINES)
def test_halves_are_whole_lines(lines: list[bytes]) -> None:
    two = halves(b"".join(lines))
    if len(lines) < 2:
        assert two is None
    else:
        assert two is not None
        assert b"".join(two) == b"".join(lines)
        assert all(part.endswith(b"\n") for part in two)


@given(
    st.lists(st.sampled_from([b"good", b"bad"]), max_size=30),
    st.lists(st.sampled_from(["", "away", "mend", "answer lost", "killed"]), max_size=12),
    st.integers(1, 12),
    st.integers(20, 400),
)
def test_nothing_is_lost_and_what_is_refused_is_kept_once(
    kinds: list[bytes], faults: list[str], most_lines: int, most_bytes: int
) -> None:
    lines = [b"%s,n=%d v=1 %d\n" % (kind, number, number) for number, kind in enumerate(kinds)]
    good, bad = [line for line in lines if b"bad" not in line], [line for line in lines if b"bad" in line]
    with tempfile.TemporaryDirectory(dir=QUICK) as folder:
        run = spool(Path(folder) / "run", b"".join(lines[:10]), b"".join(lines[10:]))
        server = Server(tuple(faults), most_bytes)
        shipper = until_done(lambda: Shipper(run, HERE, server, lambda _text: None, most_lines=most_lines))
        assert list(dict.fromkeys(server.lines)) == good  # in order; duplicates changed nothing
        assert shipper.reached.read_points == len(lines)
        assert shipper.reached.shipped_points == len(good)
        assert shipper.reached.refused_points == len(bad)
        kept = (run / "refused.lp").read_bytes().splitlines(keepends=True) if bad else []
        assert kept[1::2] == bad
        assert kept[::2] == [b"# field type conflict\n"] * len(bad)
        assert server.closed


def test_a_refused_point_is_told_of_once_and_a_crash_before_the_position_leaves_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spool(tmp_path / "run", b"a v=1 1\nbad v=2 2\nb v=1 3\nbad v=2 4\n")
    told: list[str] = []
    with monkeypatch.context() as crash:
        crash.setattr(ShippingPosition, "save", lambda _self, _shipped: (_ for _ in ()).throw(KeyboardInterrupt))
        shipper = Shipper(run, HERE, Server(), told.append)
        with pytest.raises(KeyboardInterrupt):
            shipper.step()
        shipper.close()
    assert (run / "refused.lp").read_bytes().count(b"bad") == 2
    shipper = Shipper(run, HERE, Server(), told.append, most_lines=2)
    while shipper.step():
        pass
    shipper.close()
    assert (run / "refused.lp").read_bytes() == b"# field type conflict\nbad v=2 2\n# field type conflict\nbad v=2 4\n"
    assert told[1:] == [f"the server refuses points; they are kept in {run}/refused.lp: field type conflict: bad v=2 2"]


def test_a_single_point_that_is_too_large_is_refused_and_batches_become_smaller(tmp_path: Path) -> None:
    lines = [b"a v=%d %d\n" % (number, number) for number in range(100, 200)]
    run = spool(tmp_path / "run", b"".join([*lines[:50], b"b v=" + b"1" * 300 + b" 1\n", *lines[50:]]))
    server = Server(most_bytes=130)
    shipper = Shipper(run, HERE, server, lambda _text: None)
    while shipper.step():
        pass
    assert server.lines == lines
    assert shipper.reached.refused_points == 1
    before = server.writes
    shipper.restart()
    while shipper.step():
        pass
    shipper.close()
    assert server.writes - before < before  # refused sizes are not tried again
    assert (run / "refused.lp").read_bytes().count(b"\n") == 2


def test_a_position_that_cannot_be_kept_is_told_of_and_does_not_stop_shipping(tmp_path: Path) -> None:
    run = spool(tmp_path / "run", b"".join(b"a v=1 %d\n" % number for number in range(9)))
    (run / "shipped.json.part").mkdir()  # cannot be written, as on a full disk
    told: list[str] = []
    server = Server()
    shipper = Shipper(run, HERE, server, told.append, most_lines=2)
    while shipper.step():
        pass
    assert len(server.lines) == 9
    assert len(told) == 1
    assert "cannot save the shipping position" in told[0]
    assert read_shipped(run) == {}
    (run / "shipped.json.part").rmdir()
    with (run / "points.lp").open("ab") as file:
        file.write(b"b v=1 1\n")
    assert shipper.step()
    shipper.close()
    assert read_shipped(run)[HERE].read_points == 10
    assert len(server.lines) == 10


def test_refused_points_that_cannot_be_kept_wait_in_the_spool(tmp_path: Path) -> None:
    run = spool(tmp_path / "run", b"a v=1 1\nbad v=1 2\n")
    (run / "refused.lp").mkdir()
    shipper = Shipper(run, HERE, Server(), lambda _text: None)
    with pytest.raises(RunError, match=r"refused\.lp: cannot write"):
        shipper.step()
    assert read_shipped(run) == {}
    (run / "refused.lp").rmdir()
    assert shipper.step()
    shipper.close()
    assert read_shipped(run)[HERE].refused_points == 1


def test_shippers_of_a_run_take_turns_and_know_of_each_other(tmp_path: Path) -> None:
    run = spool(tmp_path / "run", b"".join(b"a v=1 %d\n" % number for number in range(120)))
    server = Server()
    shippers = [Shipper(run, HERE, server, lambda _text: None, most_lines=3) for _ in range(2)]

    def work(shipper: Shipper) -> None:
        with contextlib.suppress(BusyError):  # the other process held the lock
            while shipper.step():
                pass

    threads = [threading.Thread(target=work, args=(shipper,)) for shipper in shippers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    work(shippers[0])
    assert server.lines == [b"a v=1 %d\n" % number for number in range(120)]  # each once, in order
    shippers[0].restart()
    work(shippers[1])
    assert len(server.lines) == 240
    assert read_shipped(run)[HERE].read_points == 120
    position = ShippingPosition(run, HERE)
    with position.turn(0.0), pytest.raises(BusyError, match="another shipper"), ShippingPosition(run, HERE).turn(0.05):
        pass
    for each in (*shippers, position):
        each.close()


def test_each_address_has_its_own_position_and_refused_points(tmp_path: Path) -> None:
    run = spool(tmp_path / "run", b"a v=1 1\nbad v=1 2\n")
    there = Address("http://127.0.0.1:2", "lab", "testbed")
    for address, name in ((HERE, "refused.lp"), (there, "refused.2.lp"), (HERE, "refused.lp")):
        server = Server()
        shipper = until_done(lambda at=address, to=server: Shipper(run, at, to, lambda _text: None))
        assert shipper.refused_path == run / name
        assert (run / name).read_bytes() == b"# field type conflict\nbad v=1 2\n"
    assert server.lines == []  # at the third call nothing was left to ship
    assert list(read_shipped(run)) == [HERE, there]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"shipped_to": [{"url": "u"}]}',
        json.dumps({"shipped_to": [{**asdict(HERE), **asdict(Shipped(segment=0, offset_bytes=5))}]}),
        json.dumps({"shipped_to": [{**asdict(HERE), **asdict(Shipped()), "offset_bytes": -1}]}),
    ],
)
def test_a_broken_position_ships_all_again(tmp_path: Path, text: str) -> None:
    run = spool(tmp_path / "run", b"a v=1 1\n")
    (run / "shipped.json").write_text(text)
    server = Server()
    until_done(lambda: Shipper(run, HERE, server, lambda _text: None))
    assert server.lines == [b"a v=1 1\n"]
    assert read_shipped(run) == {HERE: Shipped(1, 8, 1, 0, 0)}


@pytest.mark.usefixtures("own_time")
def test_shipping_a_run_gives_up_when_nothing_is_acknowledged(tmp_path: Path) -> None:
    run = spool(tmp_path / "run", b"a v=1 1\nb v=1 2\n")
    told: list[str] = []
    # speed: simulated time
    away = ship(run, HERE, Server(("away",) * 99), told.append, lambda _s: None, from_start=False, patience_s=0.6)
    assert (away.left, away.shipped, away.problem, away.complete) == (2, 0, "away", False)
    assert told == ["away; trying again for 0.6 s"]
    with pytest.raises(ServerRefusesError):
        ship(run, HERE, Server(("mend",)), told.append, lambda _s: None, from_start=False, patience_s=HANG_S)
    done = ship(run, HERE, Server(("away",)), told.append, lambda _s: None, from_start=False, patience_s=HANG_S)
    assert (done.points, done.shipped, done.left, done.sent, done.complete) == (2, 2, 0, 4, True)
    again = ship(run, HERE, Server(), told.append, lambda _s: None, from_start=False, patience_s=HANG_S)
    assert (again.sent, again.shipped, again.complete) == (0, 2, True)
    all_again = ship(run, HERE, Server(), told.append, lambda _s: None, from_start=True, patience_s=HANG_S)
    assert (all_again.sent, all_again.shipped, all_again.complete) == (2, 2, True)


def test_waits_grow_differ_and_are_as_long_as_the_server_asks() -> None:
    back_off = BackOff()
    waits = [back_off.after(ServerAwayError("x")) for _ in range(10)]
    assert 0.125 <= waits[0] <= 0.25
    assert all(MOST_WAIT_S / 2 <= wait <= MOST_WAIT_S for wait in waits[6:])
    assert len(set(waits)) == 10
    assert back_off.after(ServerAwayError("x", 17.0)) == 17.0
    back_off.reset()
    assert back_off.after(RunError("x")) <= 0.25


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None), ("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("1e9", 120.0), ("soon", None), ("nan", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 10.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, now_s=90.0) == seconds


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, b'{"code":"invalid","message":"field type\\nconflict"}', PointsRefusedError, "field type conflict"),
        (400, b'{"error":"partial write: dropped=1"}', PointsRefusedError, "partial write: dropped=1"),
        (422, b'{"code":"x","message":"out of retention"}', PointsRefusedError, "out of retention"),
        (400, b"<html>The plain HTTP request", ServerRefusesError, "address of an InfluxDB"),
        (401, b'{"message":"unauthorized"}', ServerRefusesError, "INFLUXDB_V2_TOKEN"),
        (403, b"", ServerRefusesError, "INFLUXDB_V2_TOKEN"),
        (404, b'{"message":"bucket not found"}', ServerRefusesError, "bucket 'testbed' of organization 'lab'"),
        (405, b"", ServerRefusesError, "address of an InfluxDB"),
        (301, b"", ServerRefusesError, "address of an InfluxDB"),
        (413, b"", BatchTooLargeError, "413"),
        (429, b'{"message":"slow down"}', ServerAwayError, "slow down"),
        (408, b"", ServerAwayError, "408"),
        (500, b'{"error":"timeout"}', ServerAwayError, "timeout"),
        (503, b"\xff", ServerAwayError, "503"),
    ],
)
def test_answers_mean_what_a_shipper_must_do(status: int, body: bytes, kind: type, words: str) -> None:
    error = explain(HERE, status, body, {"Retry-After": "4"})
    assert type(error) is kind
    assert words in str(error)
    assert "\n" not in str(error)
    if isinstance(error, ServerAwayError):
        assert error.retry_after_s == 4.0


def test_nobody_there_is_a_server_that_is_away() -> None:
    writer = InfluxWriter(HERE, timeout_s=HANG_S)
    with pytest.raises(ServerAwayError, match=r"http://127\.0\.0\.1:1: .*refused"):
        writer.write(b"a v=1 1\n")
    writer.close()


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("http://127.0.0.1:8086", True), ("https://influx.example/path/", True), ("http://[::1]:8086", True),
        ("127.0.0.1:8086", False), ("ftp://host", False), ("http://", False), ("http://host:0", False),
        ("http://host:99999", False), ("http://host:x", False), ("http://me:secret@host", False),
        ("http://host?token=x", False), ("http://ho st", False), ("", False),
    ],
)  # fmt: skip
def test_addresses_are_checked_and_hold_no_secret(text: str, good: bool) -> None:
    assert is_url(text) is good


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://127.0.0.1:8086", "http://127.0.0.1:8086"), ("http://localhost:8086/", "http://localhost:8086"),
        ("http://[::1]:8086", "http://[::1]:8086"), ("https://influx.example", "https://influx.example"),
        ("insecure+http://192.0.2.1:8086", "http://192.0.2.1:8086"), ("http://192.0.2.1:8086", None),
        ("http://influx.example", None), ("http://127.0.0.1.example", None), ("http://localhost.example", None),
        ("insecure+https://influx.example", None), ("insecure+ftp://h", None), ("insecure+http://me:secret@h", None),
    ],
)  # fmt: skip
def test_a_token_goes_in_clear_only_where_that_was_asked_for_by_name(
    text: str, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("URL", "ORG"):
        monkeypatch.delenv(f"INFLUXDB_V2_{name}", raising=False)
    if found is not None:
        assert find_address({"url": text}).url == found
        return
    for table, url, where in (({"url": text}, None, "influx.url"), ({}, text, "--url")):
        with pytest.raises(InputError) as caught:
            find_address(table, url=url)
        assert str(caught.value).startswith(f"{where}: url = '{text}': expected ")
        assert "\n" not in str(caught.value)
        if is_url(text):
            assert "insecure+http:// in a network where everybody is trusted" in str(caught.value)


def test_the_address_is_given_or_of_the_environment_or_the_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "ORG"):
        monkeypatch.delenv(f"INFLUXDB_V2_{name}", raising=False)
    table = {"url": "https://scenario:1/", "org": "s", "bucket": "b"}
    assert find_address(None) == Address("http://127.0.0.1:8086", "lab", "testbed")
    assert find_address(table) == Address("https://scenario:1", "s", "b")
    monkeypatch.setenv("INFLUXDB_V2_URL", "https://environment:1")
    monkeypatch.setenv("INFLUXDB_V2_ORG", "e")
    assert find_address(table) == Address("https://environment:1", "e", "b")
    assert find_address(table, url="https://given:1", org="g", bucket="x") == Address("https://given:1", "g", "x")
    monkeypatch.setenv("INFLUXDB_V2_URL", "nowhere")
    with pytest.raises(InputError, match="INFLUXDB_V2_URL: url = 'nowhere': expected an address like"):
        find_address(table)
    with pytest.raises(InputError, match="INFLUXDB_V2_URL"):
        InfluxRecorder()


def test_a_missing_client_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "influxdb_client", None)
    with pytest.raises(UserError, match=r"pip install 'dfrs-testbed\[influx\]'"):
        InfluxRecorder()


SCENARIO = {"name": "x", "policy": "EASY", "workload": {"trace": "/t.swf"}, "nodes": [{"name": "a"}]}


def test_the_table_of_a_scenario_switches_the_recorder_on() -> None:
    scenario = check_scenario({**SCENARIO, "recorders": ["wall"], "influx": {"bucket": "b"}}, Path("s.toml"))
    assert scenario.recorders == ("wall", "influx")
    assert scenario.model_dump(mode="json")["influx"] == {
        "url": "http://127.0.0.1:8086", "org": "lab", "bucket": "b", "gzip": False,
    }  # fmt: skip
    assert check_scenario({**SCENARIO, "recorders": ["influx"], "influx": {}}, Path("s")).recorders == ("influx",)
    assert check_scenario(SCENARIO, Path("s")).recorders == ()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"urll": "http://h"}, r"s\.toml: unknown key influx\.urll; nearest: url"),
        ({"token": "secret"}, r"s\.toml: unknown key influx\.token; known: url, org, bucket, gzip"),
        ({"url": "http://h:8086"}, r"s\.toml: influx\.url = 'http://h:8086': expected https:// beyond this machine"),
        ({"url": "h:8086"}, r"s\.toml: influx\.url = 'h:8086': expected an address like http://HOST:PORT"),
        ({"bucket": ""}, r"s\.toml: influx\.bucket = ''"),
    ],
)
def test_a_wrong_table_is_told_by_key(table: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_scenario({**SCENARIO, "influx": table}, Path("s.toml"))
