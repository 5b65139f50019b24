"""Events and their JSON lines: of this version, of older and later journals, and invalid lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect as shapes
from support.old_runs.old_run_archive import RUNS, unpack

from testbed.errors import UserError
from testbed.run import events
from testbed.run.events import KINDS, Guest, Job, Teardown, Unknown, kind_of, upgrade
from testbed.run.journal import BadEntryError, convert, decode, encode, is_decision, plain, read_events
from testbed.run.journal_page import markdown, with_kinds

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
COUNTS = st.integers(-(2**63), 2**63 - 1)
DETAILS = st.dictionaries(TEXT, st.none() | st.booleans() | COUNTS | st.floats(-1e9, 1e9) | TEXT, max_size=4)


PLAIN = {
    shapes.FloatType: st.floats(allow_nan=False, allow_infinity=False),
    shapes.IntType: COUNTS,
    shapes.BoolType: st.booleans(),
    shapes.StrType: TEXT,
    shapes.NoneType: st.none(),
    shapes.CustomType: st.none() | st.booleans() | COUNTS | st.floats(-1e9, 1e9) | TEXT,  # `object`: data of a guest
}


def values(shape: shapes.Type) -> st.SearchStrategy[Any]:
    """Return the values of a field of an event."""
    match shape:
        case shapes.Metadata():
            found = values(shape.type)
        case shapes.UnionType():
            found = st.one_of(*map(values, shape.types))
        case shapes.VarTupleType():
            found = st.lists(values(shape.item_type), max_size=3).map(tuple)
        case shapes.DictType():
            found = st.dictionaries(TEXT, values(shape.value_type), max_size=3)
        case shapes.StructType():
            found = structs(shape.cls)
        case _:
            found = PLAIN[type(shape)]
    return found


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    shape = shapes.type_info(kind)
    assert isinstance(shape, shapes.StructType)
    return st.fixed_dictionaries(
        {field.name: values(field.type) for field in shape.fields if field.required},
        optional={field.name: values(field.type) for field in shape.fields if not field.required},
    ).map(lambda fields: kind(**fields))


def outcome(line: bytes | str) -> events.Known | str:
    """Return the event of a line, or the error in it."""
    try:
        return decode(line)
    except BadEntryError as error:
        return str(error)


def some_event() -> st.SearchStrategy[events.Event]:
    return st.one_of(*map(structs, KINDS.values()))


@pytest.mark.parametrize("kind", KINDS.values())
def test_an_event_encodes_and_decodes_to_itself(kind: type[events.Entry]) -> None:
    @given(structs(kind))
    def check(event: events.Event) -> None:
        line = encode(event)
        assert b"\n" not in line
        assert decode(line) == event
        assert type(decode(line)) is kind
        assert json.loads(line) == plain(event) == plain(convert(json.loads(line)))
        assert kind_of(event) == plain(event)["kind"]

    check()


@given(some_event(), st.dictionaries(st.text(min_size=30), JSON, max_size=2))
def test_keys_of_a_later_version_are_ignored(event: events.Event, more: dict[str, object]) -> None:
    assert decode(json.dumps({**more, **plain(event)})) == event


def test_kinds_are_told_apart_by_one_word() -> None:
    assert len(KINDS) == len(set(KINDS.values())) == 39
    assert all(kind_of(decode(line)) == json.loads(line)["kind"] for line in (b'{"t_s":1,"kind":"later","trace_s":2}',))


@given(JSON.filter(lambda each: not isinstance(each, str) or each not in KINDS), DETAILS)
def test_an_entry_of_a_later_kind_is_kept_as_it_is(kind: object, detail: dict[str, object]) -> None:
    line = json.dumps({"t_s": 1.5, "detail": detail, "kind": kind})
    if not isinstance(kind, str):
        with pytest.raises(BadEntryError, match="no `kind`"):
            decode(line)
        return
    event = decode(line)
    assert isinstance(event, Unknown)
    assert (event.t_s, event.trace_s, kind_of(event)) == (1.5, 0.0, kind)
    assert plain(event) == json.loads(line)


@given(st.binary() | st.text().map(lambda text: text.encode(errors="surrogatepass")) | JSON.map(json.dumps))
def test_whatever_a_line_is_it_is_an_event_or_one_line_says_what_is_wrong(line: bytes | str) -> None:
    found = outcome(line)
    if isinstance(found, str):
        assert found.startswith("not ")
        assert "\n" not in found


@given(some_event(), st.data())
def test_an_event_with_a_value_of_another_form_is_one_clear_line(event: events.Event, data: st.DataObject) -> None:
    entry = plain(event)
    key = data.draw(st.sampled_from(sorted(set(entry) - {"kind"})))
    line = json.dumps({**entry, key: object.__name__ if isinstance(entry[key], int | float | bool) else 7.5})
    found = outcome(line)
    if isinstance(found, str):
        assert found.startswith(f"not an entry of a run's journal: {entry['kind']}: ")
        assert f"$.{key}`" in found
    else:  # a number where a number may be
        assert plain(found) == json.loads(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "not a JSON object: Expecting value"),
        ("[1]", "not a JSON object: list"),
        ('{"t_s":1', "not a JSON object: Expecting"),
        ("[" * 100_000, "not a JSON object"),
        ('{"t_s":1,"trace_s":2}', "not an entry of a run's journal: no `kind`"),
        ('{"kind":"job","t_s":1,"trace_s":0,"state":"done"}', "job: Object missing required field `job`"),
        ('{"kind":"job","t_s":1,"trace_s":0,"job":"1","state":"done"}', "job: Expected `int`, got `str` - at `$.job`"),
        ('{"kind":"job","t_s":null,"trace_s":0,"job":1,"state":"done"}', "Expected `float`, got `null` - at `$.t_s`"),
        ('{"kind":"a\\nb"}', "'a\\nb': Object missing required field `t_s`"),
    ],
)
def test_what_is_wrong_with_a_line_is_named(line: str, words: str) -> None:
    with pytest.raises(BadEntryError) as caught:
        decode(line)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lone_surrogates_do_not_end_a_run() -> None:
    event = Job(1.0, 2.0, job=3, state="failed", code="unknown", detail="cannot open b\udcffd ü")
    assert decode(encode(event)) == Job(1.0, 2.0, job=3, state="failed", code="unknown", detail="cannot open b?d ü")
    old = decode(b'{"t_s":1.0,"kind":"job","trace_s":2.0,"job":3,"state":"failed","detail":"b\\udcffd"}')
    assert old == Job(1.0, 2.0, job=3, state="failed", detail="b\udcffd")


def test_the_bits_of_numbers_are_kept() -> None:
    numbers = (0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 1e22, 2.0)
    found = decode(encode(Guest(1.0, 2.0, job=1, task=0, node=0, event="x", detail={"n": numbers, "i": 2**63 - 1})))
    assert isinstance(found, Guest)
    told = found.detail["n"]
    assert isinstance(told, list)
    assert [number.hex() for number in told] == [number.hex() for number in numbers]
    assert found.detail["i"] == 2**63 - 1


# --- journals of other versions ----------------------------------------------------------------------------

FIRST_VERSION = [
    {"t_s": 0.1, "kind": "begin", "scenario": "s", "policy": "FCFS", "run_tag": "abc"},
    {"t_s": 1, "kind": "calibration", "trace_s": 0.0, "units_per_core_s": [20000.0, 21000.0]},
    {"t_s": 1, "kind": "replay", "trace_s": 0.0, "jobs": 1},
    {"t_s": 2, "kind": "node", "trace_s": 1.0, "node": "a", "online": False, "reason": "silent"},
    {"t_s": 2, "kind": "job", "trace_s": 1.0, "job": 1, "state": "failed", "detail": "no progress for 60 s"},
    {
        "t_s": 3, "kind": "rescheduling", "trace_s": 1.0, "job": 1, "reason": "preemption", "moved_tasks": 0,
        "saved_bytes": 1, "transferred_bytes": 0, "restored_bytes": 1, "save_s": 0.5, "paused_s": 1.0, "wait_s": 0.0,
        "transfer_s": 0.0, "restore_s": 0.5, "first_progress_s": 0.1, "penalty_s": 1.1,
    },
]  # fmt: skip


@pytest.mark.parametrize("entry", FIRST_VERSION, ids=lambda entry: entry["kind"])
def test_entries_of_the_first_version_are_upgraded(entry: dict[str, Any]) -> None:
    event = decode(json.dumps(entry))
    assert kind_of(event) == entry["kind"]
    kept = {key: value for key, value in entry.items() if not isinstance(value, list)}
    assert kept.items() <= plain(event).items()
    assert upgrade(plain(event)) == plain(event), "an event of this version needs no upgrade"


def test_a_journal_without_a_version_has_version_1() -> None:
    begin = decode(json.dumps(FIRST_VERSION[0]))
    assert isinstance(begin, events.Begin)
    assert begin.version == 1
    assert "version" not in plain(begin)


@pytest.mark.parametrize("name", RUNS)
def test_every_line_of_an_old_journal_decodes_and_encodes_to_the_same_json(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path) / "events.jsonl"
    lines = path.read_bytes().splitlines()
    assert len(lines) > 100
    for line in lines:
        event = decode(line)
        assert not isinstance(event, Unknown)
        assert json.loads(encode(event)) == json.loads(line)
        assert is_decision(line) == is_decision(encode(event)) == isinstance(event, events.Decision)
    assert [encode(event) for event in read_events(path)] == [encode(decode(line)) for line in lines]


# --- files -------------------------------------------------------------------------------------------------

LINES = [encode(Teardown(float(number), 0.0, elapsed_s=1.0)) + b"\n" for number in range(3)]


def journal(tmp_path: Path, *lines: bytes) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(lines))
    return path


@pytest.mark.parametrize("kept", range(1, len(LINES[2]) + 1))
def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path, kept: int) -> None:
    path = journal(tmp_path, *LINES[:2], LINES[2][:kept])
    whole = kept >= len(LINES[2]) - 1  # all but its line break
    assert [event.t_s for event in read_events(path)] == [0.0, 1.0] + [2.0] * whole


def test_a_bad_line_before_the_last_is_named_with_its_number(tmp_path: Path) -> None:
    path = journal(tmp_path, LINES[0], b"\n", b'{"t_s":1,"kind":"job"}\n', LINES[1])
    with pytest.raises(UserError) as caught:
        list(read_events(path))
    assert str(caught.value).startswith(f"{path}:3: not an entry of a run's journal: job: ")


def test_skipped_lines_are_not_decoded(tmp_path: Path) -> None:
    path = journal(tmp_path, LINES[0], b'{"t_s":1,"kind":"decision"}\n', LINES[1])
    assert [event.t_s for event in read_events(path, is_decision)] == [0.0, 1.0]


def test_a_journal_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read: No such file or directory; expected the journal of a run"):
        list(read_events(tmp_path / "events.jsonl"))


# --- fields ------------------------------------------------------------------------------------------------


def fields_of(kind: type[msgspec.Struct]) -> list[tuple[str, shapes.Field]]:
    shape = shapes.type_info(kind)
    assert isinstance(shape, shapes.StructType)
    return [(f"{kind.__name__}.{field.name}", field) for field in shape.fields]


def described(type_: shapes.Type) -> bool:
    return isinstance(type_, shapes.Metadata) and bool((type_.extra_json_schema or {}).get("description"))


@pytest.mark.parametrize("kind", [*KINDS.values(), events.View, events.Trigger, events.Choice, events.TraceJob])
def test_every_kind_and_every_key_is_described(kind: type[msgspec.Struct]) -> None:
    assert kind.__doc__
    assert all(described(field.type) for _, field in fields_of(kind)), kind
    assert kind.__struct_config__.frozen


# --- the page ----------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "journal.md"
UNITS = {
    "_s": "s",
    "_ns": "ns",
    "_mib": "MiB",
    "_bytes": "B",
    "_cores": "cores",
    "_frac": "1",
    "_per_s": "units/s",
    "_per_core_s": "units/s",
}


def test_the_page_is_of_these_events() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_kinds(page) == page, "stale: python -m testbed.run.journal_page docs/journal.md"
    assert with_kinds(page.replace("| `verb` |", "| `verbs` |")) == page


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the lines"):
        with_kinds("# Journal\n")


def test_the_page_has_every_kind_and_every_key_with_the_unit_of_its_name() -> None:
    sections = {part.split("\n", 1)[0]: part for part in markdown().split("\n### ")[1:]}
    assert sections.keys() == KINDS.keys()
    for word, kind in KINDS.items():
        rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in sections[word].splitlines() if "| `" in row]
        names = {row[0].strip("`") for row in rows}
        assert names >= set(kind.__struct_fields__) - {"t_s", "trace_s"}, word
        for name, type_, unit, meaning in rows:
            assert meaning, f"{word} {name}"
            assert type_, f"{word} {name}"
            ends = [end for end in UNITS if f"_{name.strip('`')}".endswith(end)]
            if ends:
                wanted = UNITS[max(ends, key=len)]
                assert unit == wanted or unit.startswith("trace s"), f"{word} {name}"
