"""Line protocol: written points can be read back, and values that would be lost silently are refused."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.measure.points import PointError, to_line

TEXT = st.text(st.characters(blacklist_characters="\n", blacklist_categories=("Cs",)), min_size=1, max_size=30)


def split(line: str) -> tuple[str, dict[str, str], dict[str, str], int]:
    """Read a line of line protocol by the protocol's own rules, independently of the writer."""
    head, fields, stamp = re.match(r"((?:\\.|[^ \\])*) (.*) (\d+)$", line, re.DOTALL).groups()  # type: ignore[union-attr]
    unescape = re.compile(r"\\(.)", re.DOTALL)
    name, *tags = re.split(r"(?<!\\)(?:\\\\)*,", head)
    pairs = [re.split(r"(?<!\\)(?:\\\\)*=", tag, maxsplit=1) for tag in tags]
    values = {}
    for match in re.finditer(r'(\w+)=("(?:\\.|[^"\\])*"|[^,]*)(?:,|$)', fields, re.DOTALL):
        values[match[1]] = match[2]
    return unescape.sub(r"\1", name), {k: unescape.sub(r"\1", v) for k, v in pairs}, values, int(stamp)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**53), 2**53))
def test_floats_and_integers_keep_every_bit(seconds: float, number: int) -> None:
    line = to_line("action", {"job": "1", "verb": "save"}, {"elapsed_s": seconds, "bytes": number}, 5)
    _, tags, fields, stamp = split(line)
    assert math.copysign(1, float(fields["elapsed_s"])) == math.copysign(1, seconds)
    assert float(fields["elapsed_s"]) == seconds
    assert fields["bytes"] == f"{number}i"
    assert tags == {"job": "1", "verb": "save"}
    assert stamp == 5


@given(TEXT)
def test_strings_are_quoted(text: str) -> None:
    _, _, fields, _ = split(to_line("job", {"job": "1"}, {"state": text, "trace_s": 1.0}, 1))
    assert re.sub(r"\\(.)", r"\1", fields["state"][1:-1], flags=re.DOTALL) == text


@given(st.text("ab =,é", min_size=1, max_size=12))
def test_special_characters_in_tags_are_escaped(tag: str) -> None:
    line = to_line("node", {"node": tag}, {"cpu_frac": 0.5}, 1)
    assert line.endswith(" cpu_frac=0.5 1")
    escaped = line[len("node,node=") : -len(" cpu_frac=0.5 1")]
    assert re.fullmatch(r"(\\.|[^ ,=\\])+", escaped)
    assert re.sub(r"\\(.)", r"\1", escaped) == tag


@pytest.mark.parametrize(
    ("measurement", "tags", "fields", "named"),
    [
        ("action", {}, {"elapsed_s": math.nan}, "action.elapsed_s"),
        ("action", {}, {"elapsed_s": math.inf}, "action.elapsed_s"),
        ("action", {}, {"bytes": 1.5}, "action.bytes"),
        ("action", {}, {"ok": 1}, "action.ok"),
        ("action", {}, {"speed": 1.0}, "speed"),
        ("action", {"colour": "red"}, {"ok": True}, "colour"),
        ("acton", {}, {"ok": True}, "acton"),
        ("action", {}, {}, "no field"),
        ("job", {}, {"state": "two\nlines"}, "job.state"),
        ("job", {"job": "a\nb"}, {"state": "done"}, "job"),
        ("node", {"node": "a\\b"}, {"cpu_frac": 0.5}, "backslash"),
    ],
)
def test_what_influxdb_would_drop_is_refused_by_name(measurement: str, tags: dict, fields: dict, named: str) -> None:
    with pytest.raises(PointError, match=re.escape(named)):
        to_line(measurement, tags, fields, 1)


def test_an_integer_may_stand_for_a_float_but_not_the_other_way() -> None:
    assert " elapsed_s=2.0 " in to_line("action", {}, {"elapsed_s": 2}, 1)


@given(
    st.fixed_dictionaries(
        {"elapsed_s": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)},
        optional={"bytes": st.integers(-(2**63), 2**63 - 1), "ok": st.booleans()},
    )
)
def test_every_mixture_of_types_is_written_like_each_by_itself(fields: dict) -> None:
    _, _, values, _ = split(to_line("action", {}, fields, 1))
    for name, value in fields.items():
        _, _, alone, _ = split(to_line("action", {}, {name: value}, 1))
        assert values[name] == alone[name]
    assert float(values["elapsed_s"]) == float(fields["elapsed_s"])
    assert ("." in values["elapsed_s"]) or ("e" in values["elapsed_s"]), "a float does not look like an integer"
    if "ok" in fields:
        assert values["ok"] == ("true" if fields["ok"] else "false")
    if "bytes" in fields:
        assert values["bytes"] == f"{fields['bytes']}i"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"bytes": 1 << 63}, "action.bytes = 9223372036854775808: expected a number of 64 bits"),
        ({"elapsed_s": 1.0, "bytes": -(1 << 63) - 1}, "action.bytes = -9223372036854775809"),
        ({"elapsed_s": 10**400}, "action.elapsed_s = 1000"),
        ({"ok": True, "bytes": 1, "waited_s": math.inf}, "action.waited_s = inf: expected a finite number"),
        ({"elapsed_s": "1"}, "action.elapsed_s: expected float, found str"),
        ({"ok": "true"}, "action.ok: expected bool, found str"),
        ({"elapsed_s": True}, "action.elapsed_s: expected float, found bool"),
    ],
)
def test_a_field_that_does_not_fit_is_refused_also_after_one_that_did(fields: dict, named: str) -> None:
    to_line("action", {}, {"elapsed_s": 1.0, "waited_s": 1.0, "bytes": 1, "ok": True}, 1)
    for _ in range(2):
        with pytest.raises(PointError, match=re.escape(named)) as caught:
            to_line("action", {}, fields, 1)
    assert caught.value.where == named.split(" ", 1)[0].rstrip(":")


def test_the_same_tags_in_another_order_are_the_same_series() -> None:
    one = to_line("cap", {"task": "1", "node": "a", "job": "7"}, {"window_s": 1.0}, 1)
    assert one == to_line("cap", {"job": "7", "node": "a", "task": "1"}, {"window_s": 1.0}, 1)
    assert one == "cap,job=7,node=a,task=1 window_s=1.0 1"
