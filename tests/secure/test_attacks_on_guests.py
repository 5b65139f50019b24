"""Attacks on an agent whose guests are real virtual machines; `attacks` has the list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.libvirt_box import driver_options, libvirt_box, needs_hypervisor
from support.secure.attacks import ATTACKS, Attack, attack_name, play
from support.secure.doors import Doors, open_doors

pytestmark = [needs_hypervisor, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with libvirt_box(f"t{os.getpid():x}a", tmp_path_factory.mktemp("lab")) as journal:
        yield journal


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with open_doors(tmp_path_factory.mktemp("doors"), log_denied=True) as opened:
        yield opened


@pytest.mark.parametrize("attack", ATTACKS, ids=attack_name)
def test_nothing_happens_the_agent_lives_and_it_is_seen(
    lab: object, doors: Doors, tmp_path: Path, attack: Attack
) -> None:
    from node_agent.drivers.virt.driver import LibvirtDriver

    play(attack, doors, tmp_path, LibvirtDriver(**driver_options(lab, "a")), memory_mib=128)
