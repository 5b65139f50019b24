"""Shipping to a real InfluxDB through the official client: every point is read back and compared, bit for bit."""

from __future__ import annotations

import itertools
import json
import logging
import math
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.live import HANG_S, wait_until
from support.measure.influx_lab import (
    BEGIN_NS,
    INFLUXD,
    TAGS,
    Adapter,
    Comparison,
    Influxd,
    Key,
    Recording,
    compare,
    numbered_point,
    read_back,
    same,
    write_spool,
)

from testbed.measure import influx as recorder_module
from testbed.measure.influx import InfluxRecorder
from testbed.measure.influx_address import find_address
from testbed.measure.influx_writer import InfluxWriter, ServerAwayError, ServerRefusesError
from testbed.measure.points import to_line
from testbed.measure.shipper import Shipper
from testbed.measure.shipping import ShippingCount, ship
from testbed.measure.shipping_position import read_shipped

pytestmark = pytest.mark.skipif(INFLUXD is None, reason="influxd is not installed (Debian: influxdb)")


@pytest.fixture
def adapter(lab: tuple[Influxd, Adapter], server: Influxd) -> Iterator[Adapter]:
    """A new adapter, without disturbances."""
    made = Adapter(server.url)
    made.start()
    yield made
    made.stop()


def shipped(run: Path, adapter: Adapter, patience_s: float = HANG_S, **more: Any) -> ShippingCount:
    address = find_address({"url": adapter.url})
    writer = InfluxWriter(address, **more)
    return ship(run, address, writer, lambda _t: None, lambda _s: None, from_start=False, patience_s=patience_s)


LAST = [numbered_point(number) for number in range(9, 15)]


def whole(count: int) -> Comparison:
    return Comparison(written=count, found=count, lost=0, altered=0, foreign=0)


FLOATS = (
    0.0,
    -0.0,
    0.1,
    1 / 3,
    5e-324,
    -5e-324,
    2.2250738585072014e-308,
    1.7976931348623157e308,
    1e22,
    1e23,
    123456789.0,
)
INTS = (0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63))
TEXTS = (
    "plain", 'a "quoted" one', "back\\slash", "end\\", '\\"', "\\\\", "a,b=c d", "tab\t", "cr\r", "#no comment", " ",
    "ünïcode 日本 😀", "'", "\\n", "x" * 5000, "",
)  # fmt: skip
TAG_TEXTS = (
    "plain",
    "a b",
    "a,b",
    "a=b",
    "=, ",
    'qu"ote',
    "ünï 日本 😀",
    "#x",
    " lead",
    "trail ",
    "a\tb",
    "'",
    "1",
    "true",
)


def odd_points() -> dict[Key, tuple[str, dict[str, Any]]]:
    """Points of every field type at its limits, with odd tags: key to line and fields."""
    rng = random.Random(7)  # noqa: S311  # the same numbers in every run
    points: list[tuple[str, dict[str, str], dict[str, Any]]] = []
    floats = [*FLOATS, *(rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300) for _ in range(500))]
    points += [("action", {"job": "1", "verb": "save"}, {"elapsed_s": number}) for number in floats]
    points += [("action", {"job": "2", "verb": "save"}, {"bytes": number}) for number in INTS]
    points += [("action", {"job": "3", "verb": "save"}, {"ok": truth, "elapsed_s": 1.0}) for truth in (True, False)]
    points += [("job", {"job": "1"}, {"state": text, "trace_s": 2.0}) for text in TEXTS]
    points += [("node", {"node": tag, "run": tag[::-1], "policy": tag * 2}, {"cpu_frac": 0.5}) for tag in TAG_TEXTS]
    found = {}
    for number, (name, tags, fields) in enumerate(points):
        time_ns = BEGIN_NS + number  # one nanosecond apart
        found[name, tuple(sorted(tags.items())), time_ns] = (to_line(name, tags, fields, time_ns), fields)
    return found


@pytest.mark.parametrize("gzip", [False, True])
def test_every_value_is_read_back_exactly(tmp_path: Path, server: Influxd, adapter: Adapter, gzip: bool) -> None:
    points = odd_points()
    run = tmp_path / "run"
    run.mkdir()
    (run / "points.lp").write_text("".join(line + "\n" for line, _ in points.values()), encoding="utf-8", newline="")
    count = shipped(run, adapter, gzip=gzip)
    assert count.complete, count
    found = read_back(server, "testbed")
    assert found.keys() == points.keys()
    wrong = {key: (fields, found[key]) for key, (_, fields) in points.items() if not same(fields, found[key])}
    assert wrong == {}
    minus = next(key for key, (_, fields) in points.items() if fields == {"elapsed_s": -0.0} and key[2] == BEGIN_NS + 1)
    assert math.copysign(1, found[minus]["elapsed_s"]) == -1


def test_a_type_conflict_costs_only_the_points_that_have_it(tmp_path: Path, server: Influxd, adapter: Adapter) -> None:
    write_spool(tmp_path / "run", 1000)
    lines = (tmp_path / "run/points.lp").read_bytes().splitlines(keepends=True)
    bad = (
        b"guest,job=1 cpu_s=5i %d\n" % BEGIN_NS,
        b'guest,job=1 cap_cores="one" %d\n' % BEGIN_NS,
        b"no point at all\n",
    )
    for number, line in zip((17, 500, 900), bad, strict=True):
        lines.insert(number, line)
    (tmp_path / "run/points.lp").write_bytes(b"".join(lines))
    count = shipped(tmp_path / "run", adapter)
    assert (count.points, count.shipped, count.refused, count.left) == (1003, 1000, 3, 0)
    assert compare(server, "testbed", 1000) == whole(1000)
    kept = (tmp_path / "run/refused.lp").read_bytes().splitlines(keepends=True)
    assert kept[1::2] == list(bad)
    assert b"field type conflict" in kept[0]
    assert b"unable to parse" in kept[4]


def test_answers_that_get_lost_and_cut_requests_lose_nothing(tmp_path: Path, server: Influxd, adapter: Adapter) -> None:
    write_spool(tmp_path / "run", 20_000)
    faults = ["cut after", "500 after", "cut"]
    adapter.behave = lambda number: faults[number] if number < len(faults) else "pass"
    count = shipped(tmp_path / "run", adapter)
    assert count.complete
    assert count.sent > 20_000
    assert adapter.written_points > 20_000  # some points twice, and the database has each once
    assert compare(server, "testbed", 20_000) == whole(20_000)


def test_a_server_may_ask_for_time_and_for_less_at_a_time(tmp_path: Path, server: Influxd, adapter: Adapter) -> None:
    write_spool(tmp_path / "run", 3000)
    adapter.retry_after = "1"
    adapter.most_bytes = 100_000
    adapter.behave = lambda number: "429" if number == 0 else "pass"
    assert shipped(tmp_path / "run", adapter).complete
    assert adapter.times_s[1] - adapter.times_s[0] >= 1.0
    assert compare(server, "testbed", 3000) == whole(3000)


def test_a_server_that_hangs_is_left_and_tried_again(tmp_path: Path, server: Influxd, adapter: Adapter) -> None:
    write_spool(tmp_path / "run", 2000)
    adapter.behave = lambda number: "hang" if number == 0 else "pass"
    began_s = time.monotonic()
    # speed: the product's own limit; the adapter hangs until the test ends, and a slow answer only leads to a retry
    assert shipped(tmp_path / "run", adapter, timeout_s=0.5).complete
    assert time.monotonic() - began_s >= 0.5
    assert compare(server, "testbed", 2000) == whole(2000)


@pytest.mark.parametrize(
    ("behave", "bucket", "words"),
    [
        ("200", "testbed", "answered 200 where InfluxDB answers 204"),
        ("html 400", "testbed", "is that the address of an InfluxDB"),
        ("302", "testbed", "is that the address of an InfluxDB"),
        ("pass", "gone", "404: database not found: .*expected bucket 'gone' of organization 'lab' there"),
        ("401", "testbed", "set INFLUXDB_V2_TOKEN to a token that may write to bucket 'testbed'"),
    ],
)
def test_what_is_no_influxdb_or_has_no_such_bucket_gets_no_point(
    tmp_path: Path, adapter: Adapter, behave: str, bucket: str, words: str
) -> None:
    write_spool(tmp_path / "run", 10)
    adapter.behave = lambda _number: behave
    address = find_address({"url": adapter.url, "bucket": bucket})
    shipper = Shipper(tmp_path / "run", address, InfluxWriter(address, timeout_s=HANG_S), lambda _text: None)
    with pytest.raises(ServerRefusesError, match=words):
        shipper.step()
    shipper.close()
    assert read_shipped(tmp_path / "run") == {}


def test_the_token_is_of_the_environment(
    tmp_path: Path, server: Influxd, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_spool(tmp_path / "run", 10)
    adapter.token = "right"  # noqa: S105  # of a test
    monkeypatch.setenv("INFLUXDB_V2_TOKEN", "wrong")
    with pytest.raises(ServerRefusesError, match="unauthorized"):
        shipped(tmp_path / "run", adapter)
    monkeypatch.setenv("INFLUXDB_V2_TOKEN", "right")
    assert shipped(tmp_path / "run", adapter).complete
    assert compare(server, "testbed", 10) == whole(10)
    assert b"right" not in b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())


def end_of_shipping() -> bool:
    return all(thread.name != "ship to InfluxDB" for thread in threading.enumerate())


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_recorder_ships_while_the_run_goes_on(tmp_path: Path, server: Influxd, adapter: Adapter) -> None:
    run = Recording(tmp_path / "run", adapter.url, rate=500)
    address = find_address({"url": adapter.url})
    for _ in range(5):
        wanted = run.count + 1
        wait_until(lambda: run.count >= wanted, "a point")  # noqa: B023  # waited for at once
        wait_until(
            lambda: read_shipped(tmp_path / "run").get(address, recorder_none).read_points >= wanted,  # noqa: B023  # at once
            "points that are shipped while the run goes on",
        )
    assert run.end() == {}
    assert compare(server, "testbed", run.count) == whole(run.count)
    wait_until(end_of_shipping, "the end of the shipping thread")


class recorder_none:  # noqa: N801  # nothing is shipped yet
    read_points = -1


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_run_records_on_while_the_server_is_killed_and_comes_back(
    tmp_path: Path, server: Influxd, adapter: Adapter, caplog: pytest.LogCaptureFixture
) -> None:
    run = Recording(tmp_path / "run", adapter.url, rate=1000)
    wait_until(lambda: adapter.written_points > 0, "first points")
    server.kill(signal.SIGKILL)
    before = run.count
    wait_until(lambda: run.count > before + 5000, "recording while the server is away")
    server.start()
    wait_until(lambda: adapter.written_points > before, "points after the server came back")
    assert run.end() == {}
    assert [record.levelno for record in caplog.records if "InfluxDB" in record.message] == [logging.WARNING]
    assert compare(server, "testbed", run.count) == whole(run.count)
    wait_until(end_of_shipping, "the end of the shipping thread")


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_run_ends_in_time_when_the_server_hangs_and_says_what_is_left(
    tmp_path: Path, server: Influxd, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "LAST_S", 0.5)
    monkeypatch.setattr(recorder_module, "InfluxWriter", partial(InfluxWriter, timeout_s=HANG_S))
    # the adapter hangs until it is stopped: the run must end before that
    adapter.behave = lambda number: "pass" if number < 2 else "hang"
    run = Recording(tmp_path / "run", adapter.url, rate=500)
    wait_until(lambda: adapter.writes > 2, "a write that hangs")
    failures = run.end()
    reached = next(iter(read_shipped(run.directory.path).values()))
    left = run.count - reached.read_points
    assert left > 0
    assert failures["influx"].startswith(f"RunError: {left} points not shipped yet")
    assert f"`testbed ingest {run.directory.path}` ships them" in failures["influx"]
    adapter.stop()
    wait_until(end_of_shipping, "the end of the shipping thread")
    again = Adapter(server.url)
    again.start()
    address = find_address({"url": adapter.url})
    rest = find_address({"url": again.url})
    (run.directory.path / "shipped.json").write_text(  # the same server at another port
        (run.directory.path / "shipped.json").read_text().replace(address.url, rest.url)
    )
    count = shipped(run.directory.path, again)
    again.stop()
    assert (count.sent, count.left, count.complete) == (left, 0, True)
    assert compare(server, "testbed", run.count) == whole(run.count)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_points_that_never_came_do_not_hold_up_the_end_nor_does_a_stall_leave_any_behind(
    tmp_path: Path, server: Influxd, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_spool(tmp_path / "run", 9)
    monkeypatch.setattr(recorder_module, "POLL_S", HANG_S)  # it polls again only when the end wakes it
    clock = itertools.count(0, 60)  # as if the process paused for a minute at each reading
    monkeypatch.setattr(recorder_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    recorder = InfluxRecorder()
    recorder.open(tmp_path / "run", {"scenario": {"influx": {"url": adapter.url}}})
    wait_until(lambda: adapter.written_points == 9, "the first points")
    with (tmp_path / "run" / "points.lp").open("a") as file:
        file.write("".join(to_line(name, {**TAGS, **tags}, fields, ns) + "\n" for name, tags, fields, ns in LAST))
    for point in [*LAST, *LAST, *LAST]:  # a full disk accepted only the first of them
        recorder.point(*point)
    recorder.close()
    assert compare(server, "testbed", 9 + len(LAST)) == whole(9 + len(LAST))
    wait_until(end_of_shipping, "the end of the shipping thread")


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_wrong_token_is_told_at_once_and_may_be_mended_during_the_run(
    tmp_path: Path, server: Influxd, adapter: Adapter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder_module, "MEND_S", 0.5)
    adapter.token = "right"  # noqa: S105  # of a test
    run = Recording(tmp_path / "run", adapter.url, rate=100)
    wait_until(lambda: "set INFLUXDB_V2_TOKEN" in caplog.text, "a warning")
    assert json.dumps(list(read_shipped(run.directory.path))) == "[]"
    adapter.token = None
    wait_until(lambda: adapter.written_points > 0, "points after it was mended")
    assert run.end() == {}
    assert compare(server, "testbed", run.count) == whole(run.count)
    wait_until(end_of_shipping, "the end of the shipping thread")


def test_a_network_that_is_cut_is_a_server_that_is_away(tmp_path: Path, server: Influxd, adapter: Adapter) -> None:
    write_spool(tmp_path / "run", 12_000)
    address = find_address({"url": adapter.url})
    shipper = Shipper(tmp_path / "run", address, InfluxWriter(address, timeout_s=HANG_S), lambda _text: None)
    assert shipper.step()
    adapter.cut_network()
    with pytest.raises(ServerAwayError):
        shipper.step()
    adapter.start()
    while shipper.step():
        pass
    shipper.close()
    assert compare(server, "testbed", 12_000) == whole(12_000)
