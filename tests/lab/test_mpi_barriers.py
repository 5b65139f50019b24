"""Nodes that lie about barriers of MPI: their job fails with a line that names them. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from support.control.rehearsal import five_jobs, rehearse

from node_agent.agent import Agent
from node_agent.drivers.protocol import DriverEvent
from testbed.bus.messages import AnyAction, MpiJoin, MpiPass, RankKeys
from testbed.bus.mpi_barriers import MOST_BARRIERS, MOST_REPEATS
from testbed.bus.mpi_keys import MOST_KEYS
from testbed.lab.mpi_exchange import MOST_PASS_CHARS, _parts
from testbed.scheduling.workload.jobs import Job

LIAR = "node-1"
PARALLEL = {"2", "4"}  # jobs with a rank on each node
Tell = Callable[[str, dict[str, object]], None]  # the guest, and the report about it
Lie = Callable[[Tell, MpiJoin, int], None]  # the last argument is the liar's own rank


def others(rank: int) -> int:
    return 1 - rank


def lying(monkeypatch: pytest.MonkeyPatch, lie: Lie, *, before: bool, joins: bool) -> list[AnyAction]:
    """Let an agent send lies when it is to start a rank; return all commands about ranks to any agent."""
    perform = Agent.perform
    heard: list[AnyAction] = []

    async def lies(self: Agent, action: AnyAction) -> dict[str, object]:
        if isinstance(action, MpiJoin | MpiPass):
            heard.append(action)
        if self._config.node != LIAR or not isinstance(action, MpiJoin) or "alone" in action.guest:
            return await perform(self, action)

        def tell(guest: str, detail: dict[str, object]) -> None:
            self._events.put(DriverEvent(guest, "mpi-barrier", 0, detail))

        rank = int(action.guest.rpartition("-t")[2])
        if before:
            lie(tell, action, rank)
        if not joins:
            await asyncio.Event().wait()
        reply = await perform(self, action)
        if not before:
            asyncio.get_running_loop().call_later(1.0, lie, tell, action, rank)  # in virtual time: the job works then
        return reply

    monkeypatch.setattr(Agent, "perform", lies)
    return heard


def says(**detail: object) -> Lie:
    """Return a lie about the liar's own rank."""
    return lambda tell, join, _rank: tell(join.guest, {"session": join.session, "number": 1, "keys": {}, **detail})


def puts(key: str, value: str) -> Lie:
    """Return a lie with one key, in which RANK is the liar's own rank and OTHER another one."""

    def lie(tell: Tell, join: MpiJoin, rank: int) -> None:
        name = key.replace("RANK", str(rank)).replace("OTHER", str(others(rank)))
        tell(join.guest, {"session": join.session, "number": 1, "keys": {name: value}})

    return lie


def suspected(journal: list[dict[str, object]]) -> set[tuple[str, str]]:
    """Return the acts that the controller has detected, by party."""
    return {(act["node"], act["kind"]) for entry in journal if entry["kind"] == "suspicious" for act in entry["acts"]}


LAUNCH = "/usr/bin/hydra_pmi_proxy --control-port 203.0.113.9:1 --proxy-id 0"
LIES = [
    (says(keys="all"), "expected `object`, got `str`"),
    (says(keys={"-allgather-1-1": 7}), "expected `str`, got `int`"),
    (says(keys={str(i): "00" for i in range(MOST_KEYS + 1)}), f"expected `object` of length <= {MOST_KEYS}"),
    (says(number="one"), "expected `int`, got `str`"),
    (says(number=2**70), "expected `int`"),
    (says(number=0), "expected `int` >= 1"),
    (says(number=2), "MPI barrier 2 of rank"),
    (says(session=7), "expected `str`, got `int`"),
    (says(launch=[LAUNCH], keys={LAUNCH: LAUNCH}), "expected a key such as -allgather-1-"),
    (puts("-allgather-1-OTHER", "00"), "expected a key such as -allgather-1-"),
    (puts("PMI_process_mapping", "(vector,(0,1,2))"), "MPI key 'PMI_process_mapping' = '(vector,(0,1,2))': expected"),
    (puts("-allgather-1-RANK", LAUNCH), "expected bytes in hexadecimal"),
    (puts("-allgather-1-RANK", "[99999]"), "of 99999 bytes: expected at most"),
    (puts("-allgather-1-RANK", "00" * 600), "expected bytes in hexadecimal, at most 1023 characters"),
    (puts("-allgather-1-RANK", "segments=2"), "expected its segments"),
]


@pytest.mark.parametrize(("lie", "words"), LIES)
def test_a_lie_about_a_barrier_fails_the_job_with_a_line_that_names_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Lie, words: str
) -> None:
    heard = lying(monkeypatch, lie, before=True, joins=False)
    result, journal = rehearse(tmp_path, five_jobs())
    failed = result.summary["failed"]
    assert set(failed) == PARALLEL
    assert all(f"node {LIAR}: guest dfrs-" in text and words in text for text in failed.values()), failed
    assert all(len(text.splitlines()) == 1 and len(text) < 500 for text in failed.values())
    assert set(result.summary["failure_codes"].values()) == {"start-failed"}
    assert suspected(journal) == {(LIAR, "false-report")}
    assert not [action for action in heard if isinstance(action, MpiPass) and "alone" not in action.guest]


@pytest.mark.parametrize("number", [3, MOST_BARRIERS + 1])
def test_a_barrier_at_the_wrong_time_fails_a_job_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    lying(monkeypatch, says(number=number), before=False, joins=True)
    result, journal = rehearse(tmp_path, five_jobs())
    failed = result.summary["failed"]
    assert set(failed) == PARALLEL
    assert all(
        f"node {LIAR}: guest dfrs-" in text and f"MPI barrier {number} of rank" in text for text in failed.values()
    )
    assert set(result.summary["failure_codes"].values()) == {"guest-failed"}
    assert suspected(journal) == {(LIAR, "false-report")}


def test_a_barrier_that_is_told_again_and_again_is_answered_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(tell: Tell, join: MpiJoin, rank: int) -> None:
        for _ in range(1000):
            says()(tell, join, rank)

    heard = lying(monkeypatch, lie, before=False, joins=True)
    result, _ = rehearse(tmp_path, five_jobs())
    assert set(result.summary["failed"]) == PARALLEL
    for job, text in result.summary["failed"].items():
        assert f"node {LIAR}: guest dfrs-" in text
        assert f"-j{job}-" in text, "the name of a guest has its job"
        assert f"again: expected at most {MOST_REPEATS} times" in text
    assert set(result.summary["failure_codes"].values()) == {"guest-failed"}
    assert result.summary["done"] == result.summary["jobs"] - len(PARALLEL), "the run continues to its end"
    for guest in {action.guest for action in heard if isinstance(action, MpiPass)}:
        passes = [action for action in heard if isinstance(action, MpiPass) and action.guest == guest]
        assert len(passes) <= 1 + MOST_REPEATS


def test_a_barrier_that_is_told_too_often_before_all_have_entered_fails_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(tell: Tell, join: MpiJoin, rank: int) -> None:
        for _ in range(2 + MOST_REPEATS):
            says()(tell, join, rank)

    lying(monkeypatch, lie, before=True, joins=False)
    result, _ = rehearse(tmp_path, five_jobs())
    assert set(result.summary["failed"]) == PARALLEL
    for job, text in result.summary["failed"].items():
        assert f"node {LIAR}: guest dfrs-" in text
        assert f"-j{job}-" in text
        assert f"again: expected at most {MOST_REPEATS} times" in text


def test_a_node_has_no_say_about_ranks_of_others_and_about_earlier_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(tell: Tell, join: MpiJoin, rank: int) -> None:
        other = join.guest.rpartition("-t")[0] + f"-t{others(rank)}"
        for guest in (other, "dfrs-nobody", ""):
            tell(guest, {"session": join.session, "number": 7, "keys": {"x": "y"}})
        tell(join.guest, {"session": "0" * 16, "number": 7, "keys": {"x": "y"}})

    heard = lying(monkeypatch, lie, before=True, joins=True)
    jobs = [Job(1, 0, 2, 1.0, 0.7, 600), Job(2, 60, 2, 1.0, 0.7, 600)]  # a node has room for one task
    result, _ = rehearse(tmp_path, jobs)
    assert heard
    assert result.summary["failed"] == {}
    assert result.summary["done"] == 2


def test_a_rank_that_never_comes_to_the_barrier_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lying(monkeypatch, lambda _tell, _join, _rank: None, before=True, joins=False)
    result, _ = rehearse(tmp_path, five_jobs())
    failed = result.summary["failed"]
    assert set(failed) == PARALLEL
    for text in failed.values():
        assert "in MPI barrier 1 all wait for dfrs-" in text
        assert text.count("dfrs-") == 1


def test_many_keys_travel_in_parts_that_the_broker_lets_through() -> None:
    keys = [RankKeys(rank=rank, keys={f"-allgather-1-{rank}": "00" * 500}) for rank in range(1000)]
    parts = _parts(keys)
    assert [one for part in parts for one in part] == keys
    assert len(parts) > 3
    assert all(
        len(one.keys[f"-allgather-1-{one.rank}"]) * len(part) <= MOST_PASS_CHARS for part in parts for one in part
    )
    assert _parts([]) == [()]
