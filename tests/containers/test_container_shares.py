"""Shares of containers: real control groups of a real engine, reports if there are none, and version 2."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.containers.engine import EngineAt, group_of, why_not
from support.containers.suite import Containers
from support.live import until

pytest.importorskip("docker", reason="the SDK of Docker is not installed")

from node_agent.drivers.caps.cgroup import MOST_SHARES, read_cap, read_weight
from node_agent.drivers.caps.mounts import hierarchies
from node_agent.drivers.containers.caps import _group_of as groups_of
from node_agent.drivers.containers.driver import DockerDriver
from node_agent.drivers.containers.engine import Engine
from node_agent.drivers.containers.weights import ContainerWeights, remove_left
from node_agent.drivers.procs.waits import why_not as why_no_waits
from node_agent.drivers.protocol import DriverError, NodeBudget
from testbed.bus.guest_details import Drift, detail_of
from testbed.bus.messages import GuestSpec
from testbed.errors import UserError
from testbed.testing.nodes import Node

HYBRID = """\
29 24 0:25 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
30 29 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
31 29 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 29 0:28 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
33 29 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
34 29 0:26 / /copy/cpu rw,relatime - cgroup cgroup rw,cpu
"""


def weights_of(driver: object) -> ContainerWeights:
    assert isinstance(driver, DockerDriver)
    assert isinstance(driver.weights, ContainerWeights), driver.weights
    return driver.weights


def inside(node: Node) -> list[Path]:
    """Return the groups of the containers that compete on a node."""
    return sorted(folder for folder in weights_of(node.driver).folder.iterdir() if folder.is_dir())


@pytest.fixture
def suite(docker_engine: EngineAt) -> Containers:
    return Containers.at(docker_engine.url)


def there(suite: Containers) -> list[Path]:
    """Return the groups of nodes in the engine's group, in all hierarchies."""
    mounted = hierarchies(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    return [path for one in mounted for path in one.folder(group_of(suite._url)).glob("dfrs-t-*")]


def shared(suite: Containers, guest: str, share_cores: float) -> GuestSpec:
    return msgspec.structs.replace(suite.spec(guest), share_cores=share_cores)


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
class TestShares:
    """With a real engine. If it has no shares, these tests are skipped with the driver's reason."""

    def test_all_containers_of_a_node_are_in_one_group_with_its_cores(self, suite: Containers, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(shared(suite, "a", 0.5), suite.node_cpus)
            await node.driver.start(shared(suite, "b", 1.5), suite.node_cpus)
            weights = weights_of(node.driver)
            assert read_cap(weights.folder) == suite.node_cpus
            folders = inside(node)
            assert sorted(read_weight(folder) for folder in folders) == [0.25, 0.75]
            assert all((folder / "cgroup.procs").read_text() for folder in folders)
            await node.driver.start(suite.spec("c"), 0.5)  # capped: it competes with none of them
            assert inside(node) == folders

        suite.on_nodes(tmp_path, 1, scenario, "shares")
        assert there(suite) == []

    def test_caps_and_memory_limits_leave_a_weight_as_it_is(self, suite: Containers, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(shared(suite, "a", 0.5), suite.node_cpus)
            assert await node.driver.set_cap("a", 0.3) == pytest.approx(0.3)
            assert await node.share("a") == pytest.approx(0.5)
            assert await node.driver.set_cap("a", suite.node_cpus) == 1.0  # its one thread can use no more
            at = await node.saving.hold("a")
            image = node.budget.image_dir / "a.img"
            await node.saving.save("a", at, image)
            await node.saving.restore(shared(suite, "a", 0.7), suite.node_cpus, image)
            assert await node.share("a") == pytest.approx(0.7, abs=1e-3)
            assert node.events("a").count("drift") == 0

        suite.on_nodes(tmp_path, 1, scenario, "shares")

    def test_a_weight_that_somebody_else_has_changed_is_told_and_set_again(
        self, suite: Containers, tmp_path: Path
    ) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(shared(suite, "a", 0.5), suite.node_cpus)
            (folder,) = inside(node)
            version_1 = (folder / "cpu.shares").exists()
            name, value = ("cpu.shares", MOST_SHARES // 2) if version_1 else ("cpu.weight", 5000)
            (folder / name).write_text(str(value))
            assert await node.share("a") == pytest.approx(1.0)
            drift = await node.until("a", "drift")
            assert detail_of("drift", drift.detail) == Drift(of="share", wanted=0.5, found=1.0)
            while await node.share("a") != pytest.approx(0.5):  # noqa: ASYNC110  # the kernel sends no event
                await asyncio.sleep(0.01)
            assert node.events("a").count("drift") == 0

        suite.on_nodes(tmp_path, 1, scenario, "shares")

    def test_a_container_starts_with_the_part_of_the_whole_node(
        self, suite: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Beside guests with much greater weights, a new container would start in minutes."""
        start, found = Engine.start, []

        async def started(self: Engine, container: str, lay: Callable[[Path], None] | None = None) -> int:
            pid = await start(self, container, lay)
            found.append(read_weight(groups_of(pid)))
            return pid

        monkeypatch.setattr(Engine, "start", started)

        async def scenario(node: Node) -> None:
            for number in range(4):
                await node.driver.start(shared(suite, f"g{number}", suite.node_cpus / 4), suite.node_cpus)
            assert found == [1.0] * 4
            assert [await node.share(f"g{number}") for number in range(4)] == pytest.approx([suite.node_cpus / 4] * 4)

        suite.on_nodes(tmp_path, 1, scenario, "shares")

    def test_a_container_outside_of_the_group_has_no_share(self, suite: Containers, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(suite.spec("a"), 0.5)
            with pytest.raises(OSError, match="expected a control group in /sys/fs/cgroup/"):
                weights_of(node.driver).weight("a")
            with pytest.raises(KeyError):
                weights_of(node.driver).weight("b")

        suite.on_nodes(tmp_path, 1, scenario, "shares")

    def test_containers_have_the_cpus_of_their_agent(self, suite: Containers, tmp_path: Path) -> None:
        before = os.sched_getaffinity(0)
        one = {min(before)}

        async def scenario(node: Node) -> None:
            await node.driver.start(shared(suite, "a", 0.5), suite.node_cpus)
            (folder,) = inside(node)
            pids = [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
            assert pids
            assert [os.sched_getaffinity(pid) for pid in pids] == [one for _ in pids]

        os.sched_setaffinity(0, one)
        try:
            suite.on_nodes(tmp_path, 1, scenario, "shares")
        finally:
            os.sched_setaffinity(0, before)

    def test_ranks_in_containers_note_which_ranks_they_wait_for(self, suite: Containers, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            if "waits" not in node.capabilities:
                pytest.skip(f"no layer below MPI: {why_no_waits()}")
            members = [
                (node, msgspec.structs.replace(spec, share_cores=0.5))
                for spec in suite.job(2, topology="linear", imbalance="1/i", units_per_iteration=2000)
            ]
            await suite.start_job(members, cap_cores=suite.node_cpus)

            def waited_s(guest: str) -> tuple[float, ...]:
                return next(sample.waits_s for sample in node.driver.sample() if sample.guest == guest)

            await until(lambda: sum(waited_s("m1")) > 0, "a wait of the rank with less work")
            first, own = waited_s("m1")
            assert first > 0
            assert own == 0

        suite.on_nodes(tmp_path, 1, scenario, "shares", "mpi")

    def test_an_engine_whose_groups_are_systemds_has_none(
        self, suite: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import docker

        info = docker.DockerClient.info
        monkeypatch.setattr(docker.DockerClient, "info", lambda client: {**info(client), "CgroupDriver": "systemd"})

        async def main() -> None:
            (node,) = suite.nodes(tmp_path, 1)
            try:
                await node.open()
                assert "shares" not in node.capabilities
                assert node.facts.lacks["shares"] == (
                    "nothing bounds all containers of this node together: the engine's cgroup driver is systemd: "
                    "expected cgroupfs"
                )
                with pytest.raises(DriverError, match="there are no weights here"):
                    await node.driver.start(shared(suite, "a", 0.5), 1.0)
            finally:
                await node.driver.close()

        suite.run(main())
        assert there(suite) == []

    def test_groups_of_killed_agents_are_removed(self, suite: Containers, tmp_path: Path) -> None:
        mounted = hierarchies(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        dead, living = (f"{group_of(suite._url)}/dfrs-t-n0-{pid}" for pid in (4_194_305, os.getpid()))
        for one in mounted:
            for path in (dead, living):
                one.folder(path).mkdir(parents=True)
        budget = NodeBudget("n0", 1.0, 100, tmp_path / "s", tmp_path / "i", "127.0.0.1", "dfrs-t-")
        try:
            asyncio.run(suite.make().sweep(budget, dry_run=True))
            assert len(there(suite)) == 2 * len(mounted)
            asyncio.run(suite.make().sweep(budget))
            assert {path.name for path in there(suite)} == {living.rpartition("/")[2]}
        finally:
            for path in there(suite):
                path.rmdir()


def test_every_hierarchy_is_found_once() -> None:
    found = hierarchies(HYBRID)
    assert [(str(one.point), one.controllers) for one in found] == [
        ("/sys/fs/cgroup/cpu", ("cpu",)), ("/sys/fs/cgroup/memory", ("memory",)),
        ("/sys/fs/cgroup/systemd", ("name=systemd",)), ("/sys/fs/cgroup/unified", ()),
    ]  # fmt: skip
    assert [str(one.folder("/docker/x")) for one in found[:2]] == [
        "/sys/fs/cgroup/cpu/docker/x", "/sys/fs/cgroup/memory/docker/x",
    ]  # fmt: skip
    (part,) = hierarchies("1 2 0:1 /docker /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    assert str(part.folder("/docker/x")) == "/sys/fs/cgroup/x"
    assert str(part.folder("/dockers/x")) == "/sys/fs/cgroup/dockers/x"


class Version2:
    """A folder as a hierarchy of version 2 without a kernel: reads return what was written."""

    def __init__(self, folder: Path) -> None:
        self.point = folder
        self.mountinfo = f"1 2 0:1 / {folder} rw - cgroup2 cgroup2 rw\n"


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Version2:
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)  # groups have files, which are removed with them
    return Version2(tmp_path)


def test_version_2_passes_the_controller_on_and_counts_weights_in_its_own_way(version_2: Version2) -> None:
    groups = {"a": version_2.point / "docker" / "n" / "one", "b": version_2.point / "docker" / "two"}
    weights = ContainerWeights("/docker/n", groups.__getitem__, version_2.mountinfo)

    async def main() -> None:
        await weights.open(1.5)
        for folder in (version_2.point, version_2.point / "docker", version_2.point / "docker" / "n"):
            assert (folder / "cgroup.subtree_control").read_text() == "+cpu"
        assert (weights.folder / "cpu.max").read_text() == "150000 100000"
        assert [path.name for path in weights.folder.iterdir() if path.is_dir()] == []
        for folder in groups.values():
            folder.mkdir()
        assert await weights.weigh("a", 0.1234) == 0.1234
        assert (groups["a"] / "cpu.weight").read_text() == "1234"
        assert weights.weight("a") == 0.1234
        with pytest.raises(OSError, match=r"docker/two: expected a control group in .*docker/n"):
            await weights.weigh("b", 0.5)
        assert not (groups["b"] / "cpu.weight").exists()
        await weights.close()
        assert not weights.folder.exists()
        assert groups["b"].exists()

    asyncio.run(main())


def test_a_kernel_that_keeps_another_weight_is_found_out(version_2: Version2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.drivers.containers.weights.read_weight", lambda _folder: 0.25)
    weights = ContainerWeights("/docker/n", {}.__getitem__, version_2.mountinfo)
    with pytest.raises(OSError, match=r"trial: a weight of 0\.5 was read back as 0\.25"):
        asyncio.run(weights.open(1.0))


def test_without_a_cpu_controller_there_are_no_weights() -> None:
    with pytest.raises(FileNotFoundError, match="no hierarchy of control groups with a cpu controller is mounted"):
        ContainerWeights("/docker/n", {}.__getitem__, HYBRID.splitlines()[2])


def test_only_groups_whose_agent_has_gone_are_removed(version_2: Version2) -> None:
    dead, other, living = (f"dfrs-n-{rest}" for rest in ("4194305", "a-4194305", os.getpid()))
    for name in (dead, other, living):
        (version_2.point / "docker" / name).mkdir(parents=True)
    remove_left("/docker", "dfrs-n-", version_2.mountinfo)
    assert {path.name for path in (version_2.point / "docker").iterdir()} == {other, living}


@pytest.mark.parametrize("path", ["docker", "/", "/docker/", "/a/../b", "/a b", "", "/a//b", "/."])
def test_a_parent_that_is_no_path_of_a_group_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="expected the absolute path of a control group, such as /docker"):
        DockerDriver(cgroup_parent=path)
