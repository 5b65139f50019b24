"""The quarantine rule: a dry run has no findings, and each disturbance leads to its own finding and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
from support.compare.compared_runs import Entry, add, add_offline, dry_run, repeat

from testbed import Run as RunDirectory
from testbed.study.compare.live import conditions_of, read_live
from testbed.study.compare.load import machines
from testbed.study.compare.quarantine import Health, Limits, examine


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dry_run(tmp_path_factory.mktemp("quarantine"))


def health(path: Path, **limits: float) -> Health:
    return examine(read_live(path), Limits(**limits))


def names(found: Health) -> list[str]:
    return [reason.name for reason in found.reasons]


def value(found: Health, name: str) -> float | None:
    return next(finding.value for finding in found.findings if finding.name == name)


def test_a_rehearsed_run_is_well_and_its_hardware_is_not_asked(run: Path) -> None:
    found = health(run)
    assert names(found) == []
    assert {finding.name for finding in found.findings} == {
        "jobs", "nodes_lost", "retries", "failures", "doubts", "restarts", "missing", "gap", "dropped", "drift",
        "late", "clock",
    }  # fmt: skip
    assert value(found, "late") < 0.001
    assert value(found, "clock") is None
    assert "not recorded (the journal has no entry `clock`" in str(found.findings[-1])


def fail_cap(entries: list[Entry]) -> list[Entry]:
    """Insert a failed change of caps after the start of a job."""
    at, start = next((i, each) for i, each in enumerate(entries, 1) if each["kind"] == "outcome" and each["ok"])
    cap = {"t_s": start["t_s"], "action": 99, "verb": "cap", "job": start["job"], "nodes": start["nodes"]}
    intent, outcome = {**cap, "kind": "intent"}, {**cap, "kind": "outcome", "ok": False, "error": "refused"}
    return [*entries[:at], intent, outcome, *entries[at:]]


DISTURBANCES = {
    "nodes_lost": add_offline,
    "retries": add(kind="retry", job=2, verb="start", error="no room"),
    "failures": fail_cap,
    "doubts": add(kind="doubt", job=2, task=0, node=1, reason="it is done with 100 work units in 0 s"),
    "dropped": add(kind="telemetry", node=0, dropped=3),
    "clock": add(kind="clock", unix_ns=10**15),
}


@pytest.mark.parametrize("name", DISTURBANCES)
def test_what_the_journal_tells(run: Path, name: str) -> None:
    found = health(repeat(run, f"disturbed-{name}", journal=DISTURBANCES[name]))
    assert names(found) == [name]
    assert found.usable
    assert "limit" in str(found.reasons[0])


@pytest.mark.parametrize("verb", ["cap", "save", "migrate"])
def test_an_operation_that_meets_the_end_of_a_guest_is_no_disturbance(run: Path, verb: str) -> None:
    """A guest may end a moment before it is to be saved, and a rank of an MPI job before the others get another cap."""

    def failing(entries: list[Entry], before_s: float) -> list[Entry]:
        at, done = next((i, each) for i, each in enumerate(entries) if (each["kind"], each.get("event"))
                        == ("guest", "done"))  # fmt: skip
        own = {"t_s": done["t_s"] - before_s, "action": 99, "job": done["job"]}
        intent = {**own, "kind": "intent", "verb": verb, "nodes": [done["node"]]}
        retry = {**own, "kind": "retry", "attempt": 1, "error": "no such guest"}
        outcome = {**intent, "kind": "outcome", "ok": False, "error": "no such guest"}
        return [*entries[:at], intent, retry, outcome, *entries[at:]]

    def found(name: str, before_s: float) -> list[str]:
        return names(health(repeat(run, f"{verb}-{name}", journal=lambda entries: failing(entries, before_s))))

    assert found("met", 0.5) == []
    assert found("earlier", 5.0) == ["retries", "failures"]
    assert found("later", -5000.0) == ["retries", "failures"]


def test_a_late_answer_is_the_controllers(run: Path) -> None:
    def late(entries: list[Entry]) -> list[Entry]:
        first = next(entry for entry in entries if entry["kind"] == "decision" and entry["event"]["submitted"] == [2])
        first["view"]["time_s"] += 30.0
        return entries

    found = health(repeat(run, "late", journal=late))
    assert names(found) == ["late"]
    assert value(found, "late") == pytest.approx(0.5, abs=1e-6)  # 30 trace s at time scale 60
    assert names(health(run.with_name("late"), loop_late_s=0.6)) == []


def test_jobs_that_did_not_end_leave_nothing_to_compare(run: Path) -> None:
    path = repeat(run, "failed", journal=lambda entries: [
        entry | {"state": "failed"} if entry["kind"] == "job" and entry["state"] == "done" and entry["job"] == 3
        else entry for entry in entries
    ])  # fmt: skip
    found = health(path)
    assert names(found) == ["jobs"]
    assert not found.usable
    killed = repeat(run, "killed")
    (killed / "summary.json").unlink()
    assert names(health(killed)) == ["jobs"]


def test_gaps_and_restarts_are_in_the_samples(run: Path) -> None:
    def silence(lines: list[str]) -> list[str]:
        kept, seen = [], 0
        for line in lines:
            if line.startswith("node,") and "node=node-1" in line:
                seen += 1
                if 10 <= seen < 20:
                    continue
            kept.append(line)
        return kept

    found = health(repeat(run, "silent", points=silence))
    assert set(names(found)) == {"gap", "missing"}
    assert value(found, "gap") == pytest.approx(11.0, abs=0.1)

    def restart(lines: list[str]) -> list[str]:
        own = [index for index, line in enumerate(lines) if line.startswith("node,") and "node=node-0" in line]
        lines[own[20]] = re.sub(r"agent_cpu_s=[0-9.e-]+", "agent_cpu_s=0.0", lines[own[20]])
        return lines

    assert names(health(repeat(run, "restarted", points=restart))) == ["restarts"]

    def mute(lines: list[str]) -> list[str]:
        return [line for line in lines if not line.startswith("node,")]

    found = health(repeat(run, "mute", points=mute))
    assert names(found) == []
    assert value(found, "gap") is None


def test_agents_that_look_less_often_miss_nothing(run: Path) -> None:
    def seldom(lines: list[str]) -> list[str]:
        own: dict[str, int] = {}
        kept = []
        for line in lines:
            series = line.split(" ")[0]
            own[series] = own.get(series, 0) + 1
            if not line.startswith(("node,", "guest,")) or own[series] % 6 == 0:
                kept.append(line)
        return kept

    found = health(repeat(run, "seldom", points=seldom))
    assert not {"missing", "gap"} & set(names(found))
    assert value(found, "missing") < 0.1
    assert value(found, "gap") == pytest.approx(6.0, abs=0.1)

    def silent(lines: list[str]) -> list[str]:
        kept = seldom(lines)
        own = [line for line in kept if line.startswith("node,") and "node=node-1" in line]
        return [line for line in kept if line not in own[2:4]]

    found = health(repeat(run, "seldom-and-silent", points=silent))
    assert {"missing", "gap"} <= set(names(found))
    assert value(found, "gap") == pytest.approx(18.0, abs=0.1)


def test_drift_is_found(run: Path) -> None:
    def drift(lines: list[str]) -> list[str]:
        tags, _, time_ns = next(line for line in lines if line.startswith("guest,")).rsplit(" ", 2)
        return [*lines, f"cap_drift{tags.removeprefix('guest')} found_cores=-1.0,expected_cores=0.5 {time_ns}"]

    assert names(health(repeat(run, "drifted", points=drift))) == ["drift"]


def real(busy_frac: float, achieved: float = 1.0) -> dict[str, Callable]:
    """Return changes that make a dry run look like one of real nodes, on a machine with the given load."""

    def manifest(about: Entry) -> None:
        for facts in about["nodes"].values():
            facts |= {"driver": "process", "machine_cores": 4, "traits": {"simulated": False}}

    def points(lines: list[str]) -> list[str]:
        lines = [re.sub(r"cpu_frac=[0-9.e-]+", f"cpu_frac={busy_frac}", line) for line in lines]
        lines = [re.sub(r"agent_cpu_s=[0-9.e-]+", "agent_cpu_s=1.0", line) for line in lines]
        return [re.sub(r"achieved_cores=[0-9.e-]+", f"achieved_cores={achieved}", re.sub(
            r"requested_cores=[0-9.e-]+", "requested_cores=1.0", line)) for line in lines]  # fmt: skip

    return {"manifest": manifest, "points": points}


def test_foreign_load_is_what_nothing_of_the_lab_used_and_no_reason_by_itself(run: Path) -> None:
    idle = health(repeat(run, "idle", **real(0.0)))
    assert names(idle) == []
    assert value(idle, "foreign_mean") == 0.0
    # guests use at most 2 of the 4 cores: at a load of 0.5 there is no foreign load if both nodes are full
    full = health(repeat(run, "full", **real(1.0)))
    assert names(full) == []
    live = read_live(run)
    used_s = guest_cpu_s(run)
    begin_s, end_s = 0.0, max(job.end_time_s for job in live.facts.jobs) / live.facts.time_scale
    assert value(full, "foreign_mean") == pytest.approx(1 - used_s / 4 / (end_s - begin_s), abs=0.05)

    def own_load(lines: list[str]) -> list[str]:
        """Let the controller and its broker use a core each."""
        nodes = [line.rsplit(" ", 1)[1] for line in real(1.0)["points"](lines) if line.startswith("node,")]
        first_ns = min(map(int, nodes))
        used = [(int(at) - first_ns) / 1e9 for at in nodes]
        return [*real(1.0)["points"](lines), *(
            f"controller,lab=local,policy=EASY,run=r cpu_s={s!r},broker_cpu_s={s!r} {at}"
            for s, at in zip(used, nodes, strict=True)
        )]  # fmt: skip

    own = health(repeat(run, "own-load", manifest=real(1.0)["manifest"], points=own_load))
    assert value(own, "foreign_mean") == pytest.approx(value(full, "foreign_mean") - 0.5, abs=0.02)


def test_a_control_domain_says_nothing_of_foreign_load(run: Path) -> None:
    changes = real(1.0)

    def manifest(about: Entry) -> None:
        changes["manifest"](about)
        for facts in about["nodes"].values():
            facts["capabilities"] = ["start", "dom0"]

    found = health(repeat(run, "dom0", **{**changes, "manifest": manifest}))
    assert value(found, "foreign_mean") is None


def probed(
    speed_before: float | None, *speeds_in_replay: float, guests: float = 1.0, quantile: float | None = None
) -> dict[str, Callable]:
    """Return changes that make a dry run look like one of real nodes whose agents probed their cores.

    The probes in the replay find these speeds in turn. The programs of `guests` work at that speed, relative to the
    time when rates were measured. The speed before is that `quantile` of the probes, by default as in older journals.
    """
    base = real(0.0)

    def work(line: str) -> str:
        cpu_s = float(re.search(r"\bcpu_s=([0-9.e-]+)", line)[1])
        return re.sub(r"units_done=[0-9]+i", f"units_done={round(1e6 * guests * cpu_s)}i", line)

    def points(lines: list[str]) -> list[str]:
        turns = cycle(f",core_units_per_s={speed!r} " for speed in speeds_in_replay)
        lines = base["points"](lines)
        lines = [next(turns).join(line.rsplit(" ", 1)) if line.startswith("node,") else line for line in lines]
        return [work(line) if line.startswith("guest,") else line for line in lines]

    def journal(entries: list[Entry]) -> list[Entry]:
        first = {"kind": "calibration", "t_s": 0.0, "trace_s": 0.0, "core_units_per_s": 1.0}
        rates = {"probed_units_per_s": speed_before, "units_per_core_s": {"serial, need 1": 1e6}}
        by = {} if quantile is None else {"probed_quantile": quantile}
        return [entries[0], first | rates | by, *entries[1:]]

    return {**base, "points": points, "journal": journal}


def test_cores_that_became_slower_are_a_disturbance(run: Path) -> None:
    """The simulation follows the probes, so only a difference between guests and probes remains."""
    assert names(health(repeat(run, "told", **probed(1000.0, 800.0, guests=0.8)))) == []
    slower = health(repeat(run, "slower", **probed(1000.0, 1000.0, guests=0.8)))
    assert names(slower) == ["core_speed"]
    assert value(slower, "core_speed") == pytest.approx(0.2, abs=0.01)
    unknown = health(repeat(run, "unknown", **probed(None, 800.0)))
    assert names(unknown) == []
    assert value(unknown, "core_speed") is None


def test_interrupted_probes_are_no_slower_cores(run: Path) -> None:
    """The speed in the replay is the same quantile of the probes as before, which the journal records."""
    speeds = [1000.0, 1000.0, 500.0, 500.0, 500.0]  # of one node and the other in turn; three of five were interrupted
    assert names(health(repeat(run, "fast", **probed(1000.0, *speeds, quantile=0.9)))) == []
    assert names(health(repeat(run, "slow", **probed(500.0, *speeds, quantile=0.1)))) == []
    assert names(health(repeat(run, "median", **probed(1000.0, *speeds)))) == ["core_speed"]


def guest_cpu_s(run: Path) -> float:
    """Return the CPU time of all guests for their work, at the rate of the null driver."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["complete"]
    live = read_live(run)
    return sum(job.run_time_s * job.tasks * job.cpu_need_frac for job in live.facts.jobs) / live.facts.time_scale


def test_caps_that_guests_do_not_reach_are_a_disturbance(run: Path) -> None:
    found = health(repeat(run, "starved", **real(0.0, achieved=0.7)))
    assert names(found) == ["owed"]
    assert value(found, "owed") == pytest.approx(0.3)


def test_nodes_on_one_machine_are_told_by_who_spawned_them_and_by_address(run: Path) -> None:
    live = read_live(run)
    assert machines(live) == {"the controller's machine": ["node-0", "node-1"]}

    def apart(about: Entry) -> None:
        for node in about["scenario"]["nodes"]:
            node["spawn"] = False
        for number, facts in enumerate(about["nodes"].values()):
            facts["address"] = f"192.0.2.{number}"

    other = read_live(repeat(run, "apart", manifest=apart))
    assert machines(other) == {"192.0.2.0": ["node-0"], "192.0.2.1": ["node-1"]}


def test_conditions_are_jobs_nodes_scale_and_seed_and_not_of_the_policy(run: Path) -> None:
    def other(**changes: object) -> str:
        def change(about: Entry) -> None:
            for key, new in changes.items():
                table = about["clocks"] if key == "time_scale" else about
                table[key] = new

        return conditions_of(read_live(repeat(run, "-".join(changes), manifest=change)).facts)

    own = conditions_of(read_live(run).facts)
    assert other(policy="EASY", period_s=None) == own
    assert len({own, other(seed=77), other(time_scale=61.0), other(nodes={})}) == 4


def test_the_noise_of_a_run_is_a_row_for_each_node_and_second(run: Path) -> None:
    path = repeat(run, "noisy", **probed(1000.0, 800.0))
    found = RunDirectory(path).noise
    assert found.columns == ["node", "t_s", "core_speed", "foreign_cores"]
    assert set(found["node"]) == {"node-0", "node-1"}
    assert found["core_speed"].to_list() == [0.8] * found.height
    assert found["foreign_cores"].max() == 0.0
    busy = RunDirectory(repeat(run, "busy-noise", **real(1.0))).noise
    assert busy["core_speed"].count() == 0, "no core was probed"
    assert 2.0 <= busy["foreign_cores"].mean() <= 4.0
