"""Second copies of images: a saved job outlives the node of its image, and a damaged image is fetched again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from support.control.disturbed import Disturbed
from support.control.rehearsal import Watcher, rehearse
from support.ordered import Operator

from node_agent.drivers.null import NullDriver
from testbed.control.order_messages import Request
from testbed.errors import UserError
from testbed.scenario.schema import check_scenario
from testbed.scheduling.workload.jobs import Job

JOBS = [Job(1, 0, 1, 1.0, 0.6, 3600), Job(2, 600, 2, 1.0, 0.6, 1200)]
"""Job 1 is saved on node 0 from trace second 600 to 1800, as job 2 needs both nodes: wall seconds 10 to 30."""
POLICY = "GreedyP */OPT=MIN"
SAVED_S = 15.0
BACK_S = 35.0  # the same, when job 1 runs again
FOR_GOOD_S = 1e6


def of(journal: list[dict], kind: str, **more: object) -> list[dict]:
    return [entry for entry in journal if entry["kind"] == kind and more.items() <= entry.items()]


def lost(tmp_path: Path, at_s: float, jobs: list[Job] = JOBS, seconds: float = FOR_GOOD_S, **changes: object):
    """Make a dry run of the jobs with node 0 cut off from `at_s` on."""
    world = Disturbed(lambda world: world.cut(seconds, "agent-node-0"), at_s)
    return world.run(tmp_path, jobs, policy=POLICY, **changes)


def test_a_saved_job_goes_on_from_its_copy_when_the_node_of_its_image_is_lost(tmp_path: Path) -> None:
    summary, journal = lost(tmp_path, SAVED_S, images={"replicas": 1})
    assert (summary["done"], list(summary["failed"])) == (1, ["2"])
    (begun, complete, used, alone) = of(journal, "replicated", job=1)
    assert (begun["state"], complete["state"], used["state"], alone["state"]) == (
        "begun", "complete", "used", "failed",
    )  # fmt: skip
    assert begun["node"] == complete["node"] == used["node"] == 1
    assert alone["error"] == "no other node can be reached and has space for it"
    (restored,) = of(journal, "intent", verb="restore", job=1)
    assert restored["nodes"] == [1]
    assert not of(journal, "job", job=1, state="again")
    assert of(journal, "outcome", verb="transfer", job=1) == []


def test_without_a_copy_it_fails_and_the_reason_names_the_node(tmp_path: Path) -> None:
    summary, journal = lost(tmp_path, SAVED_S)
    assert of(journal, "replicated") == []
    assert summary["failed"]["1"].startswith("its image is away: node node-0 is lost")
    assert summary["failure_codes"]["1"] == "node-lost"


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_restart_loses_only_the_work_since_the_last_save(tmp_path: Path, replicas: int) -> None:
    summary, journal = lost(tmp_path, BACK_S, images={"replicas": replicas}, on_node_loss="restart")
    assert (summary["done"], summary["failed"]) == (2, {})
    (again,) = of(journal, "job", job=1, state="again")
    whole = sum(job.run_time_s for job in JOBS[:1]) / 60
    (done,) = of(journal, "job", job=1, state="done")
    ran_s = done["t_s"] - again["t_s"]
    if replicas:
        assert (again["detail"], again["images_on"]) == ("from its last image", [1])
        assert ran_s == pytest.approx(whole - 10.0, abs=0.5), "it had run for 10 s when it was saved"
    else:
        assert again["detail"] == "from the beginning"
        assert ran_s == pytest.approx(whole, abs=0.5)


def test_images_are_kept_until_the_next_save_or_the_end(tmp_path: Path) -> None:
    jobs = [*JOBS, Job(3, 2400, 2, 1.0, 0.6, 600)]
    _, journal = rehearse(tmp_path, jobs, policy=POLICY, images={"replicas": 1}, on_node_loss="restart")
    saves = of(journal, "outcome", verb="save", job=1)
    assert len(saves) == 2
    older, last = of(journal, "images-dropped", job=1)
    assert older["images"] == [saves[0]["images"][0]["name"]]
    assert older["t_s"] == saves[1]["t_s"]
    (done,) = of(journal, "job", job=1, state="done")
    assert (last.get("images", []), last["t_s"]) == ([], done["t_s"])


def test_without_restarts_no_image_is_kept(tmp_path: Path) -> None:
    _, journal = rehearse(tmp_path, JOBS, policy=POLICY, images={"replicas": 1})
    (dropped,) = of(journal, "images-dropped", job=1)
    (done,) = of(journal, "job", job=1, state="done")
    assert dropped["t_s"] < done["t_s"]


def test_a_node_that_returns_with_the_old_image_changes_nothing(tmp_path: Path) -> None:
    jobs = [*JOBS, Job(3, 700, 1, 0.2, 0.3, 24000)]
    summary, journal = lost(tmp_path, SAVED_S, jobs, seconds=100.0, images={"replicas": 1}, on_node_loss="restart")
    assert (summary["done"], summary["failed"]) == (3, {})
    assert of(journal, "replicated", job=1, state="used")
    starts = [entry for entry in journal if entry["kind"] == "intent" and entry["verb"] in ("start", "restore")]
    assert [entry["verb"] for entry in starts if entry["job"] == 1] == ["start", "restore"]


def test_that_no_node_can_take_another_copy_is_said_once(tmp_path: Path) -> None:
    """Job 1 waits for node 1, which is drained, while further jobs are submitted."""
    jobs = [*JOBS, *(Job(number, 4800 + 60 * number, 1, 1.0, 0.1, 60) for number in range(3, 9))]
    orders = [(SAVED_S + 1, Request("drain", node="node-1")), (200.0, Request("return", node="node-1"))]
    with Operator(*orders).at_work():
        summary, journal = lost(tmp_path, SAVED_S, jobs, images={"replicas": 1}, on_guest_loss="restart")
    assert "1" not in summary["failed"]
    assert [entry["state"] for entry in of(journal, "replicated", job=1)] == ["begun", "complete", "used", "failed"]
    assert len(of(journal, "job", state="submitted")) == len(jobs)


def damage(image: Path) -> None:
    image.write_text(image.read_text().replace("units", "Units"))


def spoiled(monkeypatch: pytest.MonkeyPatch, times: int) -> list[Path]:
    """Damage the image of the first restores; returns the files."""
    restore, files = NullDriver.restore, []

    async def from_a_damaged_one(self: NullDriver, spec, cap_cores: float, image: Path) -> None:
        if len(files) < times:
            files.append(image)
            damage(image)
        await restore(self, spec, cap_cores, image)

    monkeypatch.setattr(NullDriver, "restore", from_a_damaged_one)
    return files


def test_a_damaged_image_is_fetched_again_from_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = spoiled(monkeypatch, 1)
    result, journal = rehearse(tmp_path, JOBS, policy=POLICY, images={"replicas": 1})
    assert (result.summary["done"], len(files)) == (2, 1)
    (repaired,) = of(journal, "replicated", state="repaired")
    assert (repaired["job"], repaired["node"]) == (1, 0)
    (retry,) = of(journal, "retry", job=1)
    assert "digest" in retry["error"]


def test_it_is_fetched_again_at_the_last_attempt_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, 1)
    result, _ = rehearse(tmp_path, JOBS, policy=POLICY, images={"replicas": 1}, deadlines={"tries": 1})
    assert result.summary["done"] == 2


@pytest.mark.parametrize(("replicas", "times"), [(0, 9), (1, 9)])
def test_an_image_that_is_damaged_everywhere_fails_its_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int, times: int
) -> None:
    spoiled(monkeypatch, times)
    result, journal = rehearse(tmp_path, JOBS, policy=POLICY, images={"replicas": replicas})
    assert result.summary["failure_codes"] == {"1": "image-lost"}
    assert result.summary["done"] == 1
    (saved,) = of(journal, "outcome", verb="save", job=1)
    image = saved["images"][0]
    text = result.summary["failed"]["1"]
    assert text.startswith("could not restore: node-0: start: failed: ")
    assert image["name"] in text
    assert f"expected {image['digest'][:12]}" in text


def test_one_node_alone_has_no_second_one(tmp_path: Path) -> None:
    jobs = [Job(1, 0, 1, 1.0, 0.6, 3600), Job(2, 600, 1, 1.0, 0.6, 600)]
    result, journal = rehearse(tmp_path, jobs, count=1, policy=POLICY, images={"replicas": 1})
    assert result.summary["done"] == 2
    assert {entry["state"] for entry in of(journal, "replicated")} == {"failed"}


def nodes(*budgets_mib: int) -> list[dict[str, object]]:
    return [
        {"name": f"node-{index}", "memory_mib": 1000, "image_budget_mib": budget}
        for index, budget in enumerate(budgets_mib)
    ]


@pytest.mark.parametrize(
    ("budgets", "place"),
    [((0, 0, 0), 1), ((0, 700, 800), 2), ((0, 800, 800), 1), ((0, 500, 700), 2), ((0, 500, 500), None)],
)
def test_the_copy_is_on_the_node_with_the_most_room(
    tmp_path: Path, budgets: tuple[int, ...], place: int | None
) -> None:
    jobs = [Job(1, 0, 1, 1.0, 0.6, 3600), Job(2, 600, 3, 1.0, 0.6, 1200)]
    result, journal = rehearse(tmp_path, jobs, policy=POLICY, images={"replicas": 1}, nodes=nodes(*budgets))
    assert result.summary["done"] == 2
    told = of(journal, "replicated", job=1)
    assert [entry["state"] for entry in told] == (["failed"] if place is None else ["begun", "complete"])
    assert told[0].get("node") == place


def test_kept_images_give_way_to_a_save_that_needs_their_room(tmp_path: Path) -> None:
    jobs = [*JOBS, Job(3, 2400, 2, 1.0, 0.6, 600)]
    result, journal = rehearse(
        tmp_path, jobs, policy=POLICY, images={"replicas": 1}, on_node_loss="restart", nodes=nodes(1000, 1000)
    )
    assert result.summary["done"] == 3
    saves = of(journal, "outcome", verb="save", job=1)
    assert [save["ok"] for save in saves] == [True, True]
    dropped = of(journal, "images-dropped", job=1)
    assert dropped[0]["t_s"] < saves[1]["t_s"]


@pytest.mark.parametrize("loss", ["fail", "restart"])
def test_the_copies_of_a_job_are_gone_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # folders of the nodes are there
    found: list[set[str]] = []
    watcher = Watcher(lambda _picture: found.append({path.parts[-3] for path in tmp_path.rglob("*.img")}))
    jobs = [*JOBS, Job(3, 2400, 1, 1.0, 0.3, 6000)]
    rehearse(tmp_path, jobs, policy=POLICY, watcher=watcher, images={"replicas": 1}, on_guest_loss=loss)
    assert {"node-0", "node-1"} in found
    assert found[-1] == set()


@pytest.mark.parametrize("table", [{"replicas": 2}, {"replicas": -1}, {"replicas": "x"}, {"copies": 1}])
def test_another_number_of_copies_is_refused(table: dict[str, object]) -> None:
    scenario = {"name": "a", "policy": "EASY", "workload": {}, "nodes": [{"name": "n"}], "images": table}
    with pytest.raises(UserError, match=rf"images\.{next(iter(table))}") as refused:
        check_scenario(scenario, Path("a.toml"))
    assert "\n" not in str(refused.value)
