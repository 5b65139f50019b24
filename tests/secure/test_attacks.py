"""Attacks on an agent whose guests are real processes; `attacks` has the list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.secure.attacks import ATTACKS, Attack, attack_name, play
from support.secure.doors import Doors, open_doors

from node_agent.drivers.process import ProcessDriver


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with open_doors(tmp_path_factory.mktemp("doors"), log_denied=True) as opened:
        yield opened


@pytest.mark.parametrize("attack", ATTACKS, ids=attack_name)
def test_nothing_happens_the_agent_lives_and_it_is_seen(doors: Doors, tmp_path: Path, attack: Attack) -> None:
    play(attack, doors, tmp_path, ProcessDriver(), memory_mib=64)
