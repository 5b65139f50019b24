"""Times of accounting: local times by the rules of a time zone, and times that never existed."""

import logging
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.workload.workload_strategies import deterministic

from testbed.errors import InputError, UserError
from testbed.scheduling.workload.accounting import SiteNode
from testbed.scheduling.workload.accounting_values import Cell, find_clock
from testbed.scheduling.workload.sites import accounting_jobs, read_accounting

BERLIN = find_clock("Europe/Berlin")
HEAD = "JobIDRaw|Submit|ElapsedRaw|NCPUS\n"


def unix_time_s(text, clock=BERLIN, notes=None):
    return clock.unix_time_s(Cell("f:1", "Submit", text), notes)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-31T12:00:00", 1769857200.0),
        ("2026-07-31T12:00:00", 1785492000.0),
        ("2026-07-31 12:00:00.25", 1785492000.25),
        ("07/31/2026 12:00:00.250", 1785492000.25),
        ("Fri Jul 31 12:00:00 2026", 1785492000.0),
        ("2026-07-31T12:00:00Z", 1785499200.0),
        ("2026-07-31T12:00:00+0200", 1785492000.0),
        ("2026-07-31T12:00:00+02:00", 1785492000.0),
        ("1785492000", 1785492000.0),
        ("Unknown", None),
        ("None", None),
        ("-/-", None),
        ("0", None),
        ("1970-01-01T01:00:00", None),
    ],
)
def test_forms_of_a_time(text, seconds):
    assert unix_time_s(text) == seconds


def test_hours_that_clocks_showed_twice_or_never():
    notes = Counter()
    assert unix_time_s("2026-10-25T02:30:00", notes=notes) == unix_time_s("2026-10-25T01:30:00", notes=notes) + 3600
    assert unix_time_s("2026-10-25T03:30:00", notes=notes) == unix_time_s("2026-10-25T01:30:00") + 3 * 3600
    assert notes == {"were submitted in an hour that the clocks showed twice, taken as the first": 1}
    with pytest.raises(
        InputError, match=r"f:1: Submit = '2026-03-29T02:30:00': expected a time that the clocks of Eur"
    ):
        unix_time_s("2026-03-29T02:30:00")


def test_without_a_zone_every_day_has_24_hours(caplog):
    rows = "1|2026-10-24T12:00:00|60|1\n2|2026-10-25T12:00:00|60|1\n3|2026-10-25T02:30:00|60|1\n"
    spans = {}
    for name in (None, "Europe/Berlin"):
        with caplog.at_level(logging.WARNING):
            jobs = accounting_jobs(HEAD + rows, "s.txt", "sacct", SiteNode(4), find_clock(name))
        spans[name] = [job.submit_time_s / 3600 for job in jobs]
    assert spans == {None: [0.0, 14.5, 24.0], "Europe/Berlin": [0.0, 14.5, 25.0]}
    twice = "s.txt: sacct: 1 of 3 records were submitted in an hour that the clocks showed twice, taken as the first"
    assert caplog.messages.count(twice) == 1


@deterministic
@given(st.datetimes(), st.sampled_from(["Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "UTC", None]))
def test_any_moment_of_any_zone_is_a_number_or_an_error_of_the_user(moment, zone):
    try:
        seconds = unix_time_s(moment.strftime("%Y-%m-%dT%H:%M:%S").zfill(19), find_clock(zone))
    except InputError:
        return
    assert seconds is None or seconds > 0


@pytest.mark.parametrize("name", ["Europe/Berlim", "", "/etc/passwd", "../UTC", "x\0y", "x" * 10**5, "Europe"])
def test_unknown_time_zones_are_refused(name, tmp_path):
    with pytest.raises(UserError, match=r"^--timezone '.*: expected a time zone such as Europe/Berlin") as caught:
        read_accounting(tmp_path / "none.txt", "sacct", SiteNode(4), name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_unknown_sources_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"--from sact: expected sacct or qacct; nearest: sacct"):
        read_accounting(tmp_path / "none.txt", "sact", SiteNode(4))
    with pytest.raises(UserError, match=r"--task cores: expected core or node"):
        SiteNode(4, task="cores")
