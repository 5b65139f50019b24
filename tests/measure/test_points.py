"""Line protocol: what is written can be read back, and what would be lost silently is refused loudly."""

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


@given(st.text("ab =,\\é", min_size=1, max_size=12))
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
    ],
)
def test_what_influxdb_would_drop_is_refused_by_name(measurement: str, tags: dict, fields: dict, named: str) -> None:
    with pytest.raises(PointError, match=re.escape(named)):
        to_line(measurement, tags, fields, 1)


def test_an_integer_may_stand_for_a_float_but_not_the_other_way() -> None:
    assert " elapsed_s=2.0 " in to_line("action", {}, {"elapsed_s": 2}, 1)
