"""Ends of processes: killed, orphaned, out of disk space, with damaged images; and their use of memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.agent.process_suite import ProcessSuite as _Base
from support.live import HANG_S, until

from node_agent.drivers.process import FLOOR_MIB, ProcessDriver
from node_agent.drivers.protocol import DriverError, SaveReport
from node_agent.programs.segments import segments_of
from testbed.testing.nodes import Node

pytestmark = pytest.mark.slow

# an agent with a job of two tasks, and with a guest whose cap keeps it stopped most of the time
ORPHANAGE = """
import asyncio, json, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from support.agent.process_suite import ProcessDriver, ProcessSuite

async def main():
    suite = ProcessSuite()
    suite.make = lambda: ProcessDriver(caps="duty")
    (node,) = suite.nodes(Path(sys.argv[1]), 1)
    node.driver.keep_s = 0.0
    await node.open()
    await node.driver.start(suite.spec("a"), 0.02)
    await suite.start_job([(node, spec) for spec in suite.job(2)])
    pids = [child.pid for guest in node.driver._guests.values() for child in guest._processes.children]
    pids += [guest._link.pid for guest in node.driver._guests.values()]
    print(json.dumps(sorted(set(pids))), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


# a program that is saved, and ends before it reads the next order
WRITTEN = """
import os, socket
from pathlib import Path
from node_agent.guests.channel import VERSION, Decoder, encode
channel = socket.socket(socket.AF_UNIX)
channel.connect(os.environ["DFRS_CONTROL"])
channel.sendall(encode("hello", v=VERSION, pid=os.getpid()))
decoder, written = Decoder(), False
while data := channel.recv(65536):
    for order in decoder.feed(data):
        match order.kind:
            case "task":
                channel.sendall(encode("ready", ballast_mib=1, touch_s=0))
            case _ if written:
                raise SystemExit
            case "release":
                channel.sendall(encode("released", at=1))
            case "hold":
                channel.sendall(encode("held", at=7))
            case "save":
                Path(order.fields["path"]).write_bytes(b"image")
                channel.sendall(encode("saved", bytes=5, digest="d", run_on_s=0, write_s=0, sync_s=0))
                written = True
"""


class TestEnds:
    suite = _Base()

    def test_a_guest_killed_from_outside_has_failed(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.suite.spec("a"), 1.0)
            await node.until("a", "progress")
            os.kill(node.driver._guests["a"]._link.pid, signal.SIGKILL)
            failed = await node.until("a", "failed")
            assert "killed by SIGKILL" in str(failed.detail["reason"])
            assert node.driver.sample() == []
            with pytest.raises(DriverError, match="guest a is not here"):
                await node.driver.hold("a")

        self.suite.on_nodes(tmp_path, 1, scenario)

    @pytest.mark.parametrize("order", ["hold", "release"])
    def test_a_save_that_is_given_up_too_late_is_told_with_its_report(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
    ) -> None:
        monkeypatch.setattr("node_agent.drivers.process.program_argv", lambda: [sys.executable, "-c", WRITTEN])
        told = []

        async def scenario(node: Node) -> None:
            node.driver.on_saved = lambda *saved: told.append((node.driver.sample(), *saved))
            await node.driver.start(self.suite.spec("a"), 1.0)
            await node.driver.hold("a")
            image = node.budget.image_dir / "a.img"
            save = asyncio.ensure_future(node.driver.save("a", None, image))
            await until(lambda: node.driver._guests["a"]._orders.report, "the report of the save")
            save.cancel()
            with pytest.raises(asyncio.CancelledError):
                await save
            assert node.state("a") == "held"
            with pytest.raises(DriverError, match="guest a"):
                await (node.driver.hold("a") if order == "hold" else node.driver.release("a"))
            await until(lambda: told, "its end")
            assert told == [([], "a", 7, image, SaveReport(5, "d", 0, 0, 0))]
            assert [each.event for each in node.driver_events] == []

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_a_second_answer_to_a_hold_ends_no_save(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An earlier agent had ordered the hold, too."""
        twice = 'case "save":\n                channel.sendall(encode("held", at=7))'
        program = WRITTEN.replace('case "save":', twice).replace("written = True", "raise SystemExit")
        monkeypatch.setattr("node_agent.drivers.process.program_argv", lambda: [sys.executable, "-c", program])

        async def scenario(node: Node) -> None:
            await node.driver.start(self.suite.spec("a"), 1.0)
            await node.driver.hold("a")
            report = await node.driver.save("a", None, node.budget.image_dir / "a.img")
            assert report == SaveReport(5, "d", 0, 0, 0)
            assert node.driver.sample() == []

        self.suite.on_nodes(tmp_path, 1, scenario)

    @pytest.mark.parametrize("order", ["hold", "release", "save", "park"])
    def test_an_order_after_its_program_hung_up_fails_with_the_name_and_the_end_of_the_guest(
        self, tmp_path: Path, order: str
    ) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.suite.spec("a"), 1.0)
            if order != "hold":
                await node.driver.hold("a")
            guest = node.driver._guests["a"]
            closed, hung_up = asyncio.Event(), guest._link._on_closed
            guest._link._on_closed = lambda: (hung_up(), closed.set())
            guest._link.abort()  # its processes end a moment later
            await closed.wait()
            image = node.budget.image_dir / "a.img"
            orders = {
                "hold": lambda: node.driver.hold("a"),
                "release": lambda: node.driver.release("a"),
                "save": lambda: node.driver.save("a", None, image),
                "park": lambda: guest.save_whole(asyncio.Event().wait),
            }
            with pytest.raises(DriverError, match=r"^guest a"):
                await orders[order]()
            await node.until("a", "failed")
            assert node.driver.sample() == []

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_a_killed_agent_whose_guests_are_not_kept_leaves_no_process_not_even_a_stopped_one(
        self, tmp_path: Path
    ) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", ORPHANAGE, str(tmp_path), str(Path(__file__).parents[1])],
            stdout=subprocess.PIPE, start_new_session=True,
        ) as agent:  # fmt: skip
            assert agent.stdout is not None
            pids = json.loads(agent.stdout.readline())
            assert len(pids) == 3  # a program, and two ranks
            descriptors = [os.pidfd_open(pid) for pid in pids]
            segments = {path for pid in pids for path in segments_of(pid)}
            agent.kill()
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], HANG_S)[0], "a process outlived its agent"
            os.close(descriptor)
        assert segments  # only at least one, as an agent of another test may remove segments without an owner

        async def next_agent(_node: Node) -> None:
            assert not [path for path in segments if path.exists()]

        self.suite.on_nodes(tmp_path, 1, next_agent)

    def test_what_a_killed_agent_wrote_down_is_killed_by_the_next(self, tmp_path: Path) -> None:
        with subprocess.Popen(["sleep", "infinity"]) as left:
            (node,) = self.suite.nodes(tmp_path, 1)
            node.budget.state_dir.mkdir()
            driver = ProcessDriver()

            async def first() -> None:
                await driver.open(node.budget, node.hear)
                driver._records.add(left.pid)  # type: ignore[union-attr]
                await driver._caps.close()  # type: ignore[union-attr]  # closes only the caps, as if the agent was killed
                driver._keeping.disconnect()  # type: ignore[union-attr]  # not None, because the driver is open

            asyncio.run(first())
            (node.budget.state_dir / "1.sock").touch()

            async def second(again: Node) -> None:
                assert left.wait(HANG_S) == -9
                assert not (again.budget.state_dir / "1.sock").exists()

            self.suite.on_nodes(tmp_path, 1, second)

    def test_damaged_images_and_too_little_memory_are_told_with_reasons(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.suite.spec("a")
            await node.driver.start(spec, 1.0)
            await node.driver.hold("a")
            image = node.budget.image_dir / "a.img"
            await node.driver.save("a", None, image)
            content = bytearray(image.read_bytes())
            content[len(content) // 2] ^= 1
            image.write_bytes(content)
            with pytest.raises(DriverError, match="it is damaged"):
                await node.driver.restore(spec, 1.0, image)
            image.write_bytes(content[:-100])
            with pytest.raises(DriverError, match=r"a\.img: \d+ bytes; expected \d+"):
                await node.driver.restore(spec, 1.0, image)
            self.suite.memory_mib = 10
            try:
                with pytest.raises(DriverError, match="memory_mib = 10: expected at least"):
                    await node.driver.start(self.suite.spec("a"), 1.0)
            finally:
                del self.suite.memory_mib
            assert "failed" not in node.events("a")  # the order was refused, so there is no event

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_memory_is_what_the_task_should_have_also_while_it_is_saved(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            self.suite.memory_mib = 300
            try:
                spec = self.suite.spec("a")
            finally:
                del self.suite.memory_mib
            await node.driver.start(spec, 1.0)
            await node.until("a", "progress")
            (sample,) = node.driver.sample()
            assert sample.rss_mib == pytest.approx(300, abs=8)
            assert sample.cpu_s > 0
            await node.driver.hold("a")
            saving = asyncio.ensure_future(node.driver.save("a", None, node.budget.image_dir / "a.img"))
            highest_mib = 0.0
            while not saving.done():
                for sample in node.driver.sample():
                    highest_mib = max(highest_mib, sample.rss_mib)
                await asyncio.wait([saving], timeout=0.005)
            report = await saving
            assert 250 < highest_mib < 312
            assert report.bytes == (node.budget.image_dir / "a.img").stat().st_size
            assert report.write_s > 0

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_the_least_guest_that_is_promised_really_lives(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            assert node.facts is not None
            assert node.facts.floor_mib == FLOOR_MIB
            self.suite.memory_mib = FLOOR_MIB
            try:
                members = [(node, spec) for spec in self.suite.job(2, 0.1, topology="all-to-all")]
            finally:
                del self.suite.memory_mib
            await self.suite.start_job(members)
            await self.suite.checksums(*members)

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_two_workers_do_the_work_of_two(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.suite.spec("a", self.suite.throttled_s, workers=2)
            await node.driver.start(spec, 2.0)
            straight = (await node.until("a", "done")).detail
            await self.suite.throttle(node, spec)
            await node.until("a", "progress")
            await node.driver.hold("a")
            await node.driver.save("a", None, node.budget.image_dir / "a.img")
            await node.driver.restore(spec, 0.5, node.budget.image_dir / "a.img")
            again = (await node.until("a", "done")).detail
            assert again["checksum"] == straight["checksum"]
            assert again["units"] == straight["units"] == spec.program.work_units

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_a_start_that_is_given_up_leaves_nothing(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            starting = asyncio.ensure_future(node.driver.start(self.suite.spec("a"), 1.0))
            await asyncio.sleep(0)
            assert node.state("a") is not None
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            assert node.driver.sample() == []
            assert node.driver_events == []
            await node.driver.start(self.suite.spec("a"), 1.0)

        self.suite.on_nodes(tmp_path, 1, scenario)
