import gzip

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.workload.workload_strategies import deterministic

from testbed.errors import InputError
from testbed.scheduling.workload.swf import FIELDS, format_swf, parse_swf, read_swf, write_swf

LINE = "   12   342343      5    553   40 552.21    -1   40  43200    -1  1   4   1  -1 -1  1 -1 -1"

_digits = st.integers(0, 10**18 - 1).map(str)
_integers = st.just("-1") | _digits
_amounts = _integers | st.builds("{}.{}".format, _digits, st.text("0123456789", min_size=1, max_size=18))


def _tokens(field):
    if field in ("job_number", "submit_time_s"):
        return _digits
    return _amounts if field.endswith(("_s", "_kib")) else _integers


records = st.tuples(*map(_tokens, FIELDS))
comments = st.text(st.characters(codec="utf-8", exclude_characters="\r\n")).map(";{}".format)


@deterministic
@given(st.lists(comments, max_size=4), st.lists(records, min_size=1, max_size=6))
def test_round_trip_keeps_every_field_byte_for_byte(header, rows):
    log = parse_swf("\n".join([*header, *map(" ".join, rows)]), "t.swf")
    assert list(log.header) == header
    text = format_swf(log)
    lines = text.split("\n")
    assert lines[: len(header)] == header
    assert [tuple(line.split()) for line in lines[len(header) : -1]] == rows
    assert parse_swf(text, "t.swf") == log


@deterministic
@given(
    records, st.sampled_from(FIELDS), st.sampled_from(["x", "nan", "inf", "1e3", "+5", "007", "-2", "1.", "٣", "1_0"])
)
def test_a_bad_field_is_named_with_its_line(row, field, bad):
    tokens = list(row)
    tokens[FIELDS.index(field)] = bad
    with pytest.raises(InputError) as caught:
        parse_swf(f"; comment\n{LINE}\n{' '.join(tokens)}\n", "t.swf")
    assert (caught.value.where, caught.value.field, caught.value.found) == ("t.swf:3", field, bad)


@deterministic
@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n")))
@example("\x0b".join(LINE.split()))
@example(LINE.replace("  ", "\u00a0"))
def test_no_line_is_lost(line):
    assume(line.strip() and not line.lstrip().startswith(";"))
    with pytest.raises(InputError, match=r"t\.swf:2: "):
        parse_swf(f"{LINE}\n{line}", "t.swf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t\.swf: content = '0 comment lines': expected at least one job"),
        ("; a\n; b\n", r"t\.swf: content = '2 comment lines': expected at least one job"),
        ("1 2 3\n", r"t\.swf:1: fields = 3: expected 18 numbers"),
        (LINE + " 5", r"t\.swf:1: fields = 19: expected 18 numbers"),
        (LINE.replace("40 552", "40.5 552"), r"t\.swf:1: allocated_processors = '40.5': expected a plain integer"),
        (LINE.replace("342343", "-1"), r"t\.swf:1: submit_time_s = '-1': expected 0 or more"),
        (LINE.replace("552.21", "1234567890123456789"), r"average_cpu_time_s = .* at most 18 digits"),
    ],
)
def test_a_bad_log_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_swf(text, "t.swf")


def test_values_and_foreign_bytes_in_comments(tmp_path):
    data = b"; Installation: Ume\xe5\r\n\r\n" + LINE.encode() + b"\r\n;late\r\n"
    path = tmp_path / "a.swf.gz"
    path.write_bytes(gzip.compress(data))
    log = read_swf(path)
    (record,) = log.records
    assert (record.job_number, record.submit_time_s, record.run_time_s) == (12, 342343, 553)
    assert (float(record.average_cpu_time_s), record.used_memory_kib, record.requested_processors) == (552.21, -1, 40)
    assert (record.status, record.queue_id, record.partition_id, record.think_time_s) == (1, -1, 1, -1)
    write_swf(tmp_path / "b.swf", log)
    assert (tmp_path / "b.swf").read_bytes() == b"; Installation: Ume\xe5\n;late\n" + LINE.encode() + b"\n"


@pytest.mark.parametrize("token", ["0.00000001", "0.000000000", "100000000000000000.00", "-1.00", "12.50"])
def test_decimals_are_never_respelled(token):
    text = LINE.replace("552.21", token)
    assert format_swf(parse_swf(text, "t.swf")).split() == text.split()


def test_truncated_log_is_refused(tmp_path):
    path = tmp_path / "a.swf.gz"
    path.write_bytes(gzip.compress(LINE.encode())[:-9])
    with pytest.raises(InputError, match="expected a whole gzip file"):
        read_swf(path)


@pytest.mark.parametrize("name", ["CTC-SP2-1996-3.1-cln.swf.gz", "KTH-SP2-1996.swf.gz"])
def test_real_logs_are_rewritten_byte_for_byte(real_log, name):
    path = real_log(name)
    assert format_swf(read_swf(path)).encode() == gzip.decompress(path.read_bytes())


def test_hpc2n_is_rewritten_byte_for_byte(hpc2n_path, hpc2n_log):
    assert len(hpc2n_log.records) == 202_871
    assert format_swf(hpc2n_log).encode() == gzip.decompress(hpc2n_path.read_bytes())
