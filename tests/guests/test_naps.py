"""Sleeps of waiting ranks: messages are found soon, and polling for them costs little."""

from __future__ import annotations

import itertools
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.programs.naps import FORESEEN_S, LONGEST_S, Naps

SOURCES = Path(__file__).parents[2] / "testbed/host/guest_sources"
COUNT = 2000
PRINTS = """
#include <stdio.h>
#include "naps.h"
int main(void)
{
    struct naps naps = first_naps(LAST_S);
    for (int i = 0; i < COUNT; i++) {
        printf("%.17g\\n", next_nap_s(&naps));
        printf("%.17g\\n", naps_waited_s(&naps));
    }
}
"""


def ends_s(naps: Naps, longest_s: float = math.inf) -> Iterator[float]:
    """Return the times at which a rank looks for its messages, from the begin of the wait."""
    return itertools.accumulate(naps.next_s(longest_s) for _ in range(COUNT))


@given(st.floats(0, 5))
def test_a_message_is_found_soon_after_it_came(came_s: float) -> None:
    found_s = next(at_s for at_s in ends_s(Naps()) if at_s >= came_s)
    late_frac = (found_s - came_s) / max(came_s, 0.02)
    assert late_frac <= 0.05 + 1e-9  # at most a millisecond of 20, and 5 % of longer waits
    assert found_s <= came_s + LONGEST_S + 1e-12


@given(st.floats(0, 5), st.floats(0, 5))
def test_after_another_wait_it_is_found_as_soon_or_within_half_of_that_wait(last_s: float, came_s: float) -> None:
    naps = Naps(last_s)
    found_s = next(at_s for at_s in ends_s(naps) if at_s >= came_s)
    sooner_s = min(last_s / 2, FORESEEN_S)
    assert found_s <= max(came_s + max(1e-3, 0.05 * came_s) + 1e-9, sooner_s)


@given(st.floats(1e-3, 5))
def test_a_message_that_is_there_at_the_first_look_says_nothing_about_the_next_wait(last_s: float) -> None:
    naps = Naps(last_s)
    first_s = naps.next_s()
    assert naps.waited_s() == 0.0
    second_s = naps.next_s()
    assert naps.waited_s() == first_s + second_s


def test_a_long_wait_takes_few_looks() -> None:
    looks = next(number for number, at_s in enumerate(ends_s(Naps()), 1) if at_s >= 2.0)
    assert looks < 150  # sleeps of at most a millisecond would need 2000


@pytest.mark.parametrize("wait_s", [0.01, 0.1, 1.0])
def test_a_wait_like_the_last_one_takes_a_few_looks(wait_s: float) -> None:
    looks = next(number for number, at_s in enumerate(ends_s(Naps(wait_s)), 1) if at_s >= wait_s)
    assert looks <= 16


def test_a_rank_under_orders_sleeps_shorter_and_foresees_nothing() -> None:
    naps = Naps(1.0)
    assert max(naps.next_s(0.005) for _ in range(COUNT)) == 0.005
    assert naps.waited_s() == 0.0


@pytest.mark.parametrize("last_s", [0.0, 0.25, 3.0])
def test_guests_nap_the_same(tmp_path: Path, last_s: float) -> None:
    (tmp_path / "prints.c").write_text(PRINTS)
    program = tmp_path / "prints"
    numbers = [f"-DCOUNT={COUNT}", f"-DLAST_S={last_s}"]
    command = ["gcc", *numbers, "-I", str(SOURCES), "-o", str(program), str(tmp_path / "prints.c")]
    subprocess.run(command, check=True)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    naps = Naps(last_s)
    expected = [number for _ in range(COUNT) for number in (naps.next_s(), naps.waited_s())]
    assert [float(line) for line in told.split()] == expected
