"""The command that lists policies."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from testbed.cli.policies import policies
from testbed.errors import UserError
from testbed.scheduling.policies.catalogue import available, parse


def test_lists_names_and_grammar():
    result = CliRunner().invoke(policies, [])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[: len(available()) + 1] == [*available(), "EQUIPARTITION"]
    for part in ("<on submission>", "/MINVT=s", "EASY/2011"):
        assert any(line.strip().startswith(part) for line in lines[len(available()) :])


def test_filter_and_json():
    result = CliRunner().invoke(policies, ["--json", "greedypm*/per"])
    told = json.loads(result.output)
    assert len(told["policies"]) == 10
    assert all(parse(name).name == name and name.startswith("GreedyPM */per") for name in told["policies"])
    assert "/per" in told["grammar"]


def test_a_filter_without_matches():
    with pytest.raises(UserError, match="'EASI'; nearest: EASY"):
        CliRunner().invoke(policies, ["EASI"], catch_exceptions=False)
