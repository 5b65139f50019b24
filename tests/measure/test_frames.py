"""A run read back as frames: every value bit for bit, by columns or by lines; errors name broken lines."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import struct
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.measure import frames
from testbed.measure.frames import load_jobs, load_journal, load_points, run_name
from testbed.measure.line_protocol import LineError, Point, parse_line
from testbed.measure.points import to_line
from testbed.measure.rundir import JOB_COLUMNS
from testbed.measure.schema import MEASUREMENTS, RUN_TAGS, TAGS
from testbed.measure.tables import JOBS, TABLES

AWKWARD = ' ,="\\é\x01\r\t\0#日n🙂'
WORD = st.one_of(
    st.text(AWKWARD.replace("\\", ""), min_size=1, max_size=6), st.text("abc-_./*", min_size=1, max_size=12)
)
TEXT = st.one_of(
    st.text(AWKWARD, max_size=8), st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)))
)
VALUES = {
    float: st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 1e6)),
    int: st.integers(-(2**63), 2**63 - 1),
    str: TEXT,
    bool: st.booleans(),
}


@st.composite
def points(draw: st.DrawFn) -> Point:
    measurement = draw(st.sampled_from(sorted(MEASUREMENTS)))
    schema = MEASUREMENTS[measurement]
    tags = {
        "run": "r",
        "lab": draw(WORD),
        "policy": draw(st.sampled_from(["EASY", "GreedyPM */per/OPT=MIN/MINVT=600"])),
    }
    for tag in schema.tags:
        if draw(st.integers(0, 9)):
            number = st.integers(0, 10**17).map(str)
            word = st.sampled_from(TAGS[tag].values) if TAGS[tag].values else WORD
            tags[tag] = draw(number if TAGS[tag].kind is int else word)
    chosen = draw(
        st.sampled_from([schema.fields, schema.fields[:1], schema.fields[::-1], schema.fields[1:] or schema.fields])
    )
    return Point(
        measurement, tags, {field.name: draw(VALUES[field.kind]) for field in chosen}, draw(st.integers(0, 2**62))
    )


def line_of(point: Point) -> str:
    return to_line(point.measurement, point.tags, point.fields, point.time_ns)


def row_of(point: Point) -> dict[str, object]:
    """Return the expected row of a point, from the schema alone."""
    schema = MEASUREMENTS[point.measurement]
    row: dict[str, object] = {"time": point.time_ns}
    for tag in (*schema.tags, *RUN_TAGS):
        value = point.tags.get(tag)
        row[tag] = int(value) if value is not None and TAGS[tag].kind is int else value
    for field in schema.fields:
        row[field.name] = point.fields.get(field.name)
    return bits(row)


def bits(row: dict[str, object]) -> dict[str, object]:
    return {name: struct.pack("d", value) if isinstance(value, float) else value for name, value in row.items()}


def rows_of(frame: pl.DataFrame) -> list[dict[str, object]]:
    return [bits(row) for row in frame.with_columns(pl.col("time").cast(pl.Int64)).to_dicts()]


def write(folder: Path, *segments: str) -> Path:
    for number, text in enumerate(segments, 1):
        name = "points.lp" if number == 1 else f"points.{number}.lp"
        (folder / name).write_bytes(text.encode())
    return folder


@given(points())
@example(Point("job", {"run": "r", "lab": 'a"b'}, {"state": ' a="1",b=2 3', "trace_s": -0.0}, 0))
@example(Point("job", {"run": "r", "lab": "="}, {"state": "\\"}, 5))
def test_a_line_is_read_back_as_it_was_written(point: Point) -> None:
    read = parse_line(line_of(point))
    assert (read.measurement, read.tags, read.time_ns) == (point.measurement, point.tags, point.time_ns)
    assert bits(dict(read.fields)) == bits(dict(point.fields))


@settings(max_examples=30)
@given(st.lists(points(), max_size=25), st.integers(0, 3))
def test_frames_hold_every_point_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, written: list[Point], cuts: int
) -> None:
    lines = [line_of(point) + "\n" for point in written]
    step = max(len(lines) // (cuts + 1), 1)
    segments = ["".join(lines[at : at + step]) for at in range(0, len(lines), step)] or [""]
    loaded = load_points(write(tmp_path_factory.mktemp("run"), *segments))
    assert list(loaded) == list(MEASUREMENTS)
    for name, frame in loaded.items():
        expected = sorted((point for point in written if point.measurement == name), key=lambda point: point.time_ns)
        assert rows_of(frame) == [row_of(point) for point in expected]
        assert frame.schema == {column.name: KINDS[column.kind] for column in TABLES[name].columns}


KINDS = {
    "time": pl.Datetime("ns", "UTC"), "float": pl.Float64, "int": pl.Int64, "str": pl.String, "bool": pl.Boolean,
}  # fmt: skip


@settings(max_examples=10)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=200, max_size=200))
def test_columns_of_floats_keep_every_bit(tmp_path_factory: pytest.TempPathFactory, seconds: list[float]) -> None:
    lines = [to_line("bus", {"node": "a"}, {"round_trip_s": value}, at) + "\n" for at, value in enumerate(seconds)]
    frame = load_points(write(tmp_path_factory.mktemp("run"), "".join(lines)), ["bus"])["bus"]
    assert [struct.pack("d", value) for value in frame["round_trip_s"]] == [
        struct.pack("d", value) for value in seconds
    ]


def test_blocks_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(
        to_line("bus", {"node": f"knoten-ä{at % 3}"}, {"round_trip_s": at / 7}, at) + "\n" for at in range(49)
    )
    write(tmp_path, text, text)
    whole = load_points(tmp_path)["bus"]
    for size in (7, 100, 1000):
        monkeypatch.setattr(frames, "_BLOCK_BYTES", size)
        assert load_points(tmp_path)["bus"].equals(whole)
    assert len(whole) == 98
    assert whole["time"].is_sorted()


NODE = to_line("node", {"node": "a"}, {"cpu_frac": 0.5}, 1) + "\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("node,node=a cpu_frac=0.5", "not a point"),
        ("node,node=a cpu_frac=0.5 12a", "not a point"),
        ("node,node=a  12", "not a point"),
        ("", "not a point"),
        ("node,node=a cpu_frac=1i 5", "node.cpu_frac = 1: expected float, found int"),
        ("node,node=a cpu_frac=nan 5", "field value 'nan'"),
        ("node,node=a cpu_frac=1e999 5", "field value '1e999'"),
        ("guest,job=x,task=1 rss_mib=1 5", "guest: tag job = 'x': expected a whole number"),
        ("guest,job=1,task=1 units_done=9223372036854775808i 5", "field value '9223372036854775808i'"),
        ("guest,job=1,task=1 job=2 5", "guest.job: expected another name"),
        ('job,job=1 state="cut off 5', "not a point"),
        ('job,job=1 state="a"b" 5', "not a point"),
        ("job,job=1 state=done 5", "field value 'done'"),
        ("bus,node=a round_trip_s=1.0 9223372036854775808", "time 9223372036854775808"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    write(tmp_path, NODE * 2, f"{NODE}{line}\n{NODE}")
    with pytest.raises(UserError, match=r"points\.2\.lp:2: ") as error:
        load_points(tmp_path)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "points.lp").write_bytes((NODE * 3).encode() + b"node,node=\xff cpu_frac=1 5\n")
    with pytest.raises(UserError, match=r"points\.lp:4: not UTF-8"):
        load_points(tmp_path)


@pytest.mark.parametrize("cut", range(1, len(NODE)))
def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path, cut: int) -> None:
    write(tmp_path, NODE + NODE[:-cut])
    assert len(load_points(tmp_path)["node"]) == 1


def test_many_orders_of_fields_are_all_read(tmp_path: Path) -> None:
    names = [field.name for field in MEASUREMENTS["rescheduling"].fields if field.kind is float]
    written = [
        Point("rescheduling", {"job": "1"}, {name: float(at) for name in names[at:] + names[:at]}, at)
        for at in range(len(names))
    ]
    loaded = load_points(write(tmp_path, "".join(line_of(point) + "\n" for point in written)), ["rescheduling"])
    assert rows_of(loaded["rescheduling"]) == [row_of(point) for point in written]
    assert list(loaded) == ["rescheduling"]


def test_what_the_schema_does_not_know_is_kept(tmp_path: Path) -> None:
    write(tmp_path, 'new,site=x a=1,b=2i,c=true,d="t" 1\nnew,site=y b=3i,a=0.5 2\nnode,rack=7,node=a later=1 3\n')
    loaded = load_points(tmp_path)
    assert loaded["new"].drop("time").to_dicts() == [
        {"site": "x", "a": 1.0, "b": 2, "c": True, "d": "t"},
        {"site": "y", "a": 0.5, "b": 3, "c": None, "d": None},
    ]
    assert loaded["node"].select("rack", "node", "later", "cpu_frac").rows() == [("7", "a", 1.0, None)]
    write(tmp_path, "new a=1 1\nnew a=2i 2\n")
    with pytest.raises(UserError, match=r"points\.lp:2: new\.a = 2: expected float, found int"):
        load_points(tmp_path)


def test_a_measurement_that_is_none_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no measurement 'gest'; nearest: guest"):
        load_points(write(tmp_path, NODE), ["gest"])
    with pytest.raises(UserError, match=r"no points\.lp"):
        load_points(tmp_path / "nowhere")


def test_a_line_error_shows_little_of_a_long_line() -> None:
    with pytest.raises(LineError) as error:
        parse_line("x" * 100_000)
    assert len(str(error.value)) < 200


def test_jobs_and_journal(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"run": "the-run"}')
    (tmp_path / "jobs.csv").write_text(f"{','.join(JOB_COLUMNS)}\n72,0.0,2,1.0,0.1,23,,,,0.0,0,0,0,7,0\n")
    entries = [{"t_s": 0.5, "kind": "begin"}, {"t_s": 1, "trace_s": 7, "kind": "job", "job": 72, "state": "running"}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries) + '{"t_s": 2, "ki')
    jobs = load_jobs(tmp_path)
    assert jobs.select("job_id", "run_time_s", "end_time_s", "bytes_moved", "run").rows() == [
        (72, 23.0, None, 7, "the-run")
    ]
    journal = load_journal(tmp_path)
    assert journal.drop("entry").rows() == [
        (0.5, None, "begin", None, "the-run"),
        (1.0, 7.0, "job", 72, "the-run"),
    ]
    assert [json.loads(entry) for entry in journal["entry"]] == entries


def test_a_run_that_has_not_ended_has_no_jobs_yet(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    jobs = load_jobs(run)
    assert jobs.is_empty()
    assert jobs.columns == [column.name for column in JOBS.columns]
    assert run_name(run) == "x"
    shutil.rmtree(run)
    with pytest.raises(UserError, match="no such run directory"):
        load_jobs(run)


@pytest.mark.parametrize("text", ["job_id,submit_time_s\nx,1\n", "job_id\n1,2,3\n"])
def test_broken_jobs_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "jobs.csv").write_text(text)
    with pytest.raises(UserError, match=r"jobs\.csv: cannot read: "):
        load_jobs(tmp_path)


def test_a_journal_of_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"t_s": "late", "kind": 5}\n')
    with pytest.raises(UserError, match=r"events\.jsonl: not the journal of a run"):
        load_journal(tmp_path)


def test_every_column_is_explained() -> None:
    assert [column.name for column in JOBS.columns[:-1]] == list(JOB_COLUMNS)
    for table in TABLES.values():
        assert table.meaning
        assert all(column.meaning for column in table.columns)
        assert len({column.name for column in table.columns}) == len(table.columns)


def test_times_keep_their_nanoseconds(tmp_path: Path) -> None:
    write(tmp_path, to_line("bus", {"node": "a"}, {"round_trip_s": 1.0}, 1795256990423314466) + "\n")
    time = load_points(tmp_path)["bus"]["time"]
    assert time.dt.nanosecond().to_list() == [423314466]
    naive = dt.datetime(2026, 11, 21, 10, 29, 50, tzinfo=dt.UTC).replace(tzinfo=None)
    assert time.dt.replace_time_zone(None).dt.truncate("1s").to_list() == [naive]
