"""Jobs for dry runs, and invariants of their journals."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import strategies as st

from testbed.scheduling.workload.jobs import Job

MEMORY_MIB = 1000


@st.composite
def workloads(draw: st.DrawFn) -> list[Job]:
    count = draw(st.integers(1, 6))
    submits = sorted(draw(st.lists(st.integers(0, 4000), min_size=count, max_size=count)))
    return [
        Job(
            index + 1,
            float(submit),
            draw(st.integers(1, 3)),
            draw(st.sampled_from([0.25, 0.5, 1.0])),
            draw(st.sampled_from([0.1, 0.3, 0.5, 0.7, 1.0])),
            float(draw(st.integers(1, 1500))),
        )
        for index, submit in enumerate(submits)
    ]


def check_memory(journal: list[dict], jobs: list[Job]) -> None:
    """No node is over its memory; a task occupies it from the intent of its start to its save or its job's end."""
    memory = {job.job_id: int(job.mem_req_frac * MEMORY_MIB + 1e-6) for job in jobs}
    held: dict[int, tuple[int, ...]] = {}
    for entry in journal:
        if entry["kind"] == "intent" and entry["verb"] in ("start", "restore"):
            held[entry["job"]] = tuple(entry["nodes"])
        elif entry["kind"] == "intent" and entry["verb"] == "migrate":
            # tasks that migrate occupy memory on both nodes
            arriving = [b for a, b in zip(held[entry["job"]], entry["nodes"], strict=True) if a != b]
            held[entry["job"]] += tuple(arriving)
        elif entry["kind"] == "outcome" and entry["verb"] == "migrate" and entry["ok"]:
            held[entry["job"]] = tuple(entry["nodes"])
        elif (entry["kind"] == "outcome" and entry["verb"] == "save" and entry["ok"]) or (
            entry["kind"] == "job" and entry["state"] in ("done", "failed")
        ):
            held.pop(entry["job"], None)
        used: dict[int, int] = defaultdict(int)
        for job, nodes in held.items():
            for node in nodes:
                used[node] += memory[job]
        assert all(mib <= MEMORY_MIB for mib in used.values()), entry


def check_one_operation_a_job(journal: list[dict]) -> None:
    """Operations on a job do not overlap, and none repeats what is already done."""
    busy: set[int] = set()
    ended_meanwhile: set[int] = set()  # for example, a task finished during the hold: nothing is left to save
    yields: dict[int, float] = {}
    for entry in journal:
        if entry["kind"] == "intent":
            assert entry["job"] not in busy | ended_meanwhile
            busy.add(entry["job"])
            if entry["verb"] == "cap":
                assert entry["yield_frac"] != yields[entry["job"]]
            yields[entry["job"]] = entry["yield_frac"]
        elif entry["kind"] == "outcome":
            busy.remove(entry["job"])
            if not entry["ok"]:
                ended_meanwhile.add(entry["job"])
            assert (entry["bytes"] > 0) == (entry["ok"] and entry["verb"] in ("save", "transfer", "restore", "migrate"))
    assert not busy
