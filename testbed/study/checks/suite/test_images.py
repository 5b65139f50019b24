"""Images are complete or absent, and an image that differs from the saved one is refused."""

# ruff: noqa: S101  # a check is made of assertions, which pytest rewrites
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import xxhash

from testbed.bus.messages import ImageRef, Start
from testbed.errors import TestbedError
from testbed.lab.blocking import BlockingLabJob
from testbed.study.checks.lab import LabUnderTest, NodeUnderTest
from testbed.study.checks.suite.helpers import files_of, local_images, processes_of, until

pytestmark = pytest.mark.hypervisor()
MOST_MIB = 512
TRIES = 3
BEGUN_WITHIN_S = 30.0


def reference_of(path: Path) -> ImageRef:
    """Return an image reference with the size and digest of a file as it is now."""
    content = path.read_bytes()
    return ImageRef(image=path.name, bytes=len(content), digest=xxhash.xxh3_128_hexdigest(content))


def kill_in_the_middle(lab: LabUnderTest, node: NodeUnderTest, job: BlockingLabJob, folder: Path) -> bool:
    """Save a job and kill its hypervisor once a part of the image is written; return whether the save failed."""
    running = processes_of(lab, node, job.name)
    assert running, "a running job is a process of this machine"
    with ThreadPoolExecutor(max_workers=1) as beside:
        saving = beside.submit(job.save)
        begun = until(
            lambda: saving.done() or any(path.stat().st_size for path in files_of(folder, job.guests)),
            BEGUN_WITHIN_S,
            0.001,
        )
        assert begun, "no part of an image was written"
        for process in running:
            try:
                process.kill()
            except psutil.Error:  # the process has ended by itself
                continue
        error = saving.exception()
    if error is not None and not isinstance(error, TestbedError):
        raise error
    return error is not None


def test_a_save_that_is_killed_leaves_no_image_that_passes_for_whole(
    guest: Callable[..., BlockingLabJob], node: NodeUnderTest, lab: LabUnderTest
) -> None:
    """A partial image, left when the hypervisor is killed during a save, never becomes a guest.

    The agent refuses even a reference with the digest of the partial file, so that no later mistake of a controller can
    use it. The agent and its node continue. Broken by: an image that is written under its final name.
    """
    folder = local_images(lab, node)
    memory_mib = max(lab.small_mib, min(MOST_MIB, node.facts.memory_mib * 3 // 4))
    for _ in range(TRIES):
        with guest(memory_mib=memory_mib) as job:
            job.start()
            if not kill_in_the_middle(lab, node, job, folder):
                continue
            for path in files_of(folder, job.guests):
                if path.suffix == ".img":
                    order = Start(spec=job.specs[0], cap_cores=job.cpu_cores, image=reference_of(path))
                    with pytest.raises(TestbedError):
                        lab.call(node, order, 120.0)
            assert job.name not in {found.guest for found in lab.guests_on(node)}
        assert files_of(folder, job.guests) == [], "files of the killed save were not removed"
        break
    else:
        pytest.skip(f"{TRIES} saves of {memory_mib} MiB ended before their hypervisors could be killed")
    with guest() as next_one:
        next_one.start()


@pytest.mark.parametrize("damage", ["a bit", "its end"])
def test_a_damaged_image_is_refused(
    guest: Callable[..., BlockingLabJob], node: NodeUnderTest, lab: LabUnderTest, damage: str
) -> None:
    """An image with one inverted bit of memory, or a truncated image, does not become a running guest.

    Broken by: a hypervisor that checks the header of its image, but not the memory in it.
    """
    folder = local_images(lab, node)
    with guest() as job:
        job.start()
        job.save()
        (path,) = files_of(folder, job.guests)
        with path.open("r+b") as file:
            half = path.stat().st_size // 2
            if damage == "a bit":
                file.seek(half)
                (byte,) = file.read(1)
                file.seek(half)
                file.write(bytes([byte ^ 1]))
            else:
                file.truncate(half)
        with pytest.raises(TestbedError):
            job.restore()
        assert job.name not in {found.guest for found in lab.guests_on(node)}
