"""Processes outlive their agent: under the best caps of this machine, and under caps that the agent itself enforces."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agent.adopted_shares import AdoptedShares
from support.agent.adoption import AdoptionSuite, Bench

pytestmark = pytest.mark.slow


class TestProcesses(AdoptionSuite, AdoptedShares):
    @pytest.fixture(params=["", pytest.param("duty", marks=pytest.mark.long)])
    def bench(self, tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
        return Bench(tmp_path, request.param)
