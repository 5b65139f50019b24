"""Sleeps of waiting ranks: messages are found soon, and polling for them costs little."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from node_agent.programs.naps import LONGEST_S, Naps

SOURCES = Path(__file__).parents[2] / "testbed/host/guest_sources"
COUNT = 2000
PRINTS = """
#include <stdio.h>
#include "naps.h"
int main(void)
{
    struct naps naps = FIRST_NAPS;
    for (int i = 0; i < COUNT; i++)
        printf("%.17g\\n", next_nap_s(&naps));
}
"""


def slept_s(count: int) -> list[float]:
    naps = Naps()
    return [naps.next_s() for _ in range(count)]


@given(st.floats(0, 5))
def test_a_message_is_found_soon_after_it_came(came_s: float) -> None:
    found_s = next(at_s for at_s in itertools.accumulate(slept_s(COUNT)) if at_s >= came_s)
    late_frac = (found_s - came_s) / max(came_s, 0.02)
    assert late_frac <= 0.05 + 1e-9  # at most a millisecond of 20, and 5 % of longer waits
    assert found_s <= came_s + LONGEST_S + 1e-12


def test_a_long_wait_takes_few_looks() -> None:
    looks = next(number for number, at_s in enumerate(itertools.accumulate(slept_s(COUNT)), 1) if at_s >= 2.0)
    assert looks < 200  # sleeps of at most a millisecond would need 2000


def test_who_is_ordered_about_may_ask_for_shorter_naps() -> None:
    naps = Naps()
    assert max(naps.next_s(0.005) for _ in range(COUNT)) == 0.005


def test_guests_nap_the_same(tmp_path: Path) -> None:
    (tmp_path / "prints.c").write_text(PRINTS)
    program = tmp_path / "prints"
    command = ["gcc", f"-DCOUNT={COUNT}", "-I", str(SOURCES), "-o", str(program), str(tmp_path / "prints.c")]
    subprocess.run(command, check=True)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert [float(line) for line in told.split()] == slept_s(COUNT)
