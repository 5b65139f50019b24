"""Shares that agents report as moved: recorded flows, and forbidden reports of nodes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live_jobs import live_job

from testbed.bus.messages import BadRecordError, GuestSpec, ProgramSpec, decode
from testbed.bus.telemetry import BankSample, ExchangeCounts, GuestSample, Telemetry
from testbed.control.cluster import LiveJob
from testbed.control.share_flows import ShareFlows, bank_cores
from testbed.scheduling.workload.jobs import Job

BOOKED_CORES = 0.3


class Recorded:
    """A fake recorder, which keeps the points and the suspicious acts."""

    node_names = ("n0", "n1")

    def __init__(self) -> None:
        self.points: list[tuple[str, dict[str, str], dict[str, float], int]] = []
        self.acts: list[str] = []

    def point(self, name: str, tags: dict[str, str], fields: dict[str, float], time_ns: int) -> None:
        self.points.append((name, tags, fields, time_ns))

    def suspect(self, node: int, kind: str, what: object) -> None:
        self.acts.append(f"{self.node_names[node]} {kind}: {what}")


def job(share_cores: float | None = BOOKED_CORES, life: str = "g") -> LiveJob:
    specs = tuple(
        GuestSpec(
            guest=f"{life}{task}", run="r", job=7, task=task, cpu_cores=1.0, memory_mib=64,
            program=ProgramSpec("patterns", 10, 1, 1), share_cores=share_cores,
        )
        for task in range(2)
    )  # fmt: skip
    return live_job(Job(7, 0.0, 2, 0.3, 0.1, 100.0), specs)


def sample(task: int, life: str = "g", **fields: object) -> GuestSample:
    plain = GuestSample(
        guest=f"{life}{task}", state="running", cap_cores=1.0, cpu_s=0.0, rss_mib=0.0, read_mib=0.0, written_mib=0.0,
        units_done=0, units_mono_ns=0,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **fields)


def test_an_amount_is_recorded_when_it_has_changed() -> None:
    recorded, live = Recorded(), job()
    flows = ShareFlows(recorded)  # type: ignore[arg-type]
    for second, cores in enumerate((0.1, 0.1, 0.15)):
        assert flows.take(live, 1, sample(1, taken_cores={"g0": cores}), 1, second) == {}
    tags = {"node": "n1", "job": "7", "giver": "0", "receiver": "1"}
    assert recorded.points == [
        ("share_transfer", tags, {"taken_cores": 0.1}, 0), ("share_transfer", tags, {"taken_cores": 0.15}, 2)
    ]  # fmt: skip
    assert not recorded.acts


def test_the_next_life_of_a_job_begins_again() -> None:
    recorded = Recorded()
    flows = ShareFlows(recorded)  # type: ignore[arg-type]
    flows.take(job(), 1, sample(1, taken_cores={"g0": 0.1}), 1, 0)
    flows.take(job(life="h"), 1, sample(1, life="h", taken_cores={"h0": 0.1}), 1, 1)
    assert [time_ns for *_, time_ns in recorded.points] == [0, 1]


def test_a_bank_is_recorded_beside_the_first_guest() -> None:
    recorded, live = Recorded(), job()
    flows = ShareFlows(recorded)  # type: ignore[arg-type]
    bank = BankSample(share_cores=0.25, taken_cores={"g0": 0.2, "g1": 0.15})
    assert flows.take(live, 0, sample(0, taken_cores={"bank": 0.1}, bank=bank), 0, 5) == {"bank_cores": 0.25}
    found = {(tags["giver"], tags["receiver"]): fields["taken_cores"] for _, tags, fields, _ in recorded.points}
    assert found == {("bank", "0"): 0.1, ("0", "bank"): 0.2, ("1", "bank"): 0.15}


def test_displays_show_what_a_bank_has_only_if_it_can_be_true() -> None:
    live, bank = job(), BankSample(share_cores=0.25)
    assert bank_cores(live, 0, sample(0, bank=bank)) == 0.25
    assert bank_cores(live, 0, sample(0)) is None
    assert bank_cores(live, 1, sample(1, bank=bank)) is None


BANK_0 = BankSample(share_cores=0.1)
LIES = [
    (BOOKED_CORES, 1, {"taken_cores": {"x0": 0.1}}, "from 'x0': expected another guest of the job, or its bank"),
    (BOOKED_CORES, 1, {"taken_cores": {"g1": 0.1}}, "from 'g1': expected another guest of the job, or its bank"),
    (BOOKED_CORES, 1, {"bank": BANK_0}, "with a bank: expected that of the job's first task"),
    (
        BOOKED_CORES, 0, {"bank": BankSample(share_cores=0.1, taken_cores={"bank": 0.1})},
        "in a bank, from 'bank': expected a guest of the job",
    ),
    (BOOKED_CORES, 0, {"bank": BankSample(share_cores=0.7)}, "in a bank of 0.7 cores: expected at most the job's 0.6"),
    (None, 1, {"taken_cores": {"g0": 0.1}}, "that has none"),
]  # fmt: skip


@pytest.mark.parametrize(("booked_cores", "task", "fields", "words"), LIES)
def test_what_cannot_be_true_is_a_suspicious_act_and_leaves_no_point(booked_cores, task, fields, words) -> None:
    recorded = Recorded()
    flows = ShareFlows(recorded)  # type: ignore[arg-type]
    assert flows.take(job(booked_cores), task, sample(task, **fields), 1, 0) == {}
    assert not recorded.points
    (act,) = recorded.acts
    assert act.startswith("n1 false-report: it reports shares of job 7 task ")
    assert act.partition(f"task {task} ")[2].startswith(words)


def telemetry(guest: str, exchange: str = "null") -> bytes:
    zeros = ", ".join(
        f'"{name}": 0' for name in (
            "mono_ns", "cpu_frac", "memory_used_mib", "disk_read_mib", "disk_written_mib", "net_received_mib",
            "net_sent_mib", "agent_cpu_s", "agent_rss_mib",
        )
    )  # fmt: skip
    plain = '"guest": "g0", "state": "running", "cap_cores": 1, "cpu_s": 0, "rss_mib": 0, "read_mib": 0'
    more = f'"written_mib": 0, "units_done": 0, "units_mono_ns": 0, {guest}'
    return f'{{"v": 1, "node": "n", {zeros}, "guests": [{{{plain}, {more}}}], "exchange": {exchange}}}'.encode()


@given(st.one_of(st.floats(max_value=-1e-9), st.floats(min_value=1.1e15), st.just("NaN"), st.just("1e999")))
def test_amounts_that_are_no_shares_are_refused(amount) -> None:
    for field in (f'"taken_cores": {{"g1": {amount}}}', f'"bank": {{"share_cores": {amount}}}'):
        with pytest.raises(BadRecordError):
            decode(Telemetry, telemetry(field))


def test_counts_of_messages_are_counts() -> None:
    found = decode(Telemetry, telemetry('"taken_cores": {}', '{"sent": 3, "received": 4}'))
    assert found.exchange == ExchangeCounts(sent=3, received=4)
    with pytest.raises(BadRecordError, match="Expected `int` >= 0"):
        decode(Telemetry, telemetry('"taken_cores": {}', '{"sent": -1, "received": 4}'))


def test_a_run_without_shares_has_no_fields_about_them() -> None:
    recorded = Recorded()
    assert ShareFlows(recorded).take(job(None), 0, sample(0), 0, 0) == {}  # type: ignore[arg-type]
    assert not recorded.points
    assert not recorded.acts
