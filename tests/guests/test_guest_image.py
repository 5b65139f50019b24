"""The image: its inputs determine its key, its key determines its bytes, and it boots and works under emulation."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.guests.guest_end import NEEDS_GCC, NEEDS_QEMU, QEMU, Machine, Ranks, missing
from support.guests.twins import expected, task

from node_agent.guests.image import command_line
from testbed.cli.main import cli
from testbed.errors import UserError
from testbed.host.guest_image import own_fingerprints
from testbed.lab.guest_image.image import build, build_key, current

FINGERPRINTS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), min_size=1)


@given(FINGERPRINTS, st.data())
def test_the_key_changes_with_any_ingredient_and_not_with_their_order(fingerprints, data):
    key = build_key(fingerprints)
    assert len(key) == 20
    assert build_key(dict(reversed(fingerprints.items()))) == key
    name = data.draw(st.sampled_from(sorted(fingerprints)))
    assert build_key({**fingerprints, name: fingerprints[name] + "x"}) != key


def test_without_an_image_the_command_that_builds_it_is_named(tmp_path):
    with pytest.raises(UserError, match="testbed image build"):
        current(tmp_path)


@pytest.mark.parametrize("changed", ["recipe", "source agent.c"])
def test_an_image_of_another_release_is_refused(tmp_path, changed):
    folder = tmp_path / "0123"
    folder.mkdir()
    ours = own_fingerprints()
    manifest = {"key": "0123", "floor_mib": 1, "versions": {}, "outputs": {}, "ingredients": ours}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "current").symlink_to("0123")
    assert current(tmp_path).key == "0123"
    ours[changed] += "x"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=f"{changed} is that of another release: expected our own: testbed image build"):
        current(tmp_path)


def test_the_command_line_names_the_guest_and_its_address():
    assert command_line("a", "10.77.1.5/16").endswith("dfrs.name=a dfrs.ip=10.77.1.5/16")
    assert "dfrs.ip" not in command_line("a")


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    if missing("gcc"):
        pytest.skip(NEEDS_GCC)
    return build(tmp_path_factory.mktemp("image"))


@pytest.mark.slow
def test_building_again_elsewhere_gives_the_same_bytes(image, tmp_path):
    (tmp_path / "downloads").symlink_to(image.folder.parent / "downloads")
    steps = []
    again = build(tmp_path, steps.append)
    assert steps
    assert again.key == image.key
    assert again.initramfs.read_bytes() == image.initramfs.read_bytes()
    assert again.kernel.read_bytes() == image.kernel.read_bytes()
    shown = CliRunner().invoke(cli, ["image", "build", "--json", "--cache", str(tmp_path)])
    assert json.loads(shown.stdout)["built"] is False
    assert current(tmp_path) == again


@pytest.mark.slow
@pytest.mark.skipif(missing(QEMU), reason=NEEDS_QEMU)
def test_a_guest_boots_and_works(image, short_path):
    one = task(work_units=300, units_per_iteration=50, workers=2)
    with contextlib.closing(Machine(image, short_path, "alone", 160)) as machine:
        machine.attach()
        host = machine.host
        host.order("task", *asdict(one).items())
        pid = host.run("/bin/eatcpu")
        assert host.kind("ready").count("ballast_mib") > 30
        host.order("go")
        done = host.kind("done")
        assert done.text("checksum") == expected(one)[0]
        assert host.until(lambda f: f.kind == "exit" and f.count("pid") == pid).count("status") == 0


@pytest.mark.slow
@pytest.mark.skipif(missing(QEMU), reason=NEEDS_QEMU)
def test_a_guest_boots_although_no_tick_of_its_timer_comes_in_time(image, short_path):
    """On a busy machine an emulated guest may miss the ticks that its kernel checks for; here there are no ticks."""
    machine = Machine(image, short_path, "g", image.floor_mib, machine="pc,pit=off,hpet=off")
    with contextlib.closing(machine):
        machine.attach()


@pytest.mark.slow
@pytest.mark.skipif(missing(QEMU), reason=NEEDS_QEMU)
def test_ranks_in_guests_of_the_least_size_exchange_messages(image, short_path):
    tasks = [task(name="patterns", rank=r, ranks=4, topology="all-to-all", message_bytes=4096) for r in range(4)]
    addresses = [f"10.77.1.{one.rank + 1}" for one in tasks]
    network = f"socket,mcast=230.77.1.1:{20000 + os.getpid() % 20000},localaddr=127.0.0.1"
    with contextlib.ExitStack() as stack:
        machines = [
            stack.enter_context(
                contextlib.closing(Machine(image, short_path, f"g{n}", image.floor_mib, f"{address}/16", network))
            )
            for n, address in enumerate(addresses)
        ]
        for machine, one in zip(machines, tasks, strict=True):
            machine.attach()
            machine.host.order("task", *asdict(one).items())
        ranks = Ranks([machine.host for machine in machines])
        ranks.start("/bin/patterns")
        ranks.until("ready")
        for machine in machines:
            machine.host.order("go")
        for done, one in zip(ranks.until("done"), tasks, strict=True):
            assert (done.text("checksum"), done.count("messages")) == expected(one)
        assert {end.count("status") for end in ranks.until("exit")} == {0}
