"""Requirements have upper bounds, and the locked versions of the tests satisfy them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "constraints.txt"
ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = ABOUT["project"]["optional-dependencies"]
REQUIREMENTS = [
    Requirement(text)
    for texts in (ABOUT["build-system"]["requires"], ABOUT["project"]["dependencies"], *EXTRAS.values())
    for text in texts
    if not text.startswith("dfrs-testbed[")
]
LOCKED = [Requirement(line) for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
PYTHONS = ("3.11.7", "3.12.4", "3.13.1")
UNLOCKED = {"libvirt-python"}  # compiled at installation, against the local libvirt


def locked(name: str, python: str) -> list[Requirement]:
    """Return the constraints that hold for a package under a Python on Linux."""
    about = {"python_full_version": python, "python_version": python.rpartition(".")[0], "sys_platform": "linux"}
    about |= {"platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython"}
    named = [each for each in LOCKED if canonicalize_name(each.name) == canonicalize_name(name)]
    return [each for each in named if each.marker is None or each.marker.evaluate(about)]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_a_requirement_has_bounds_on_both_sides(requirement: Requirement) -> None:
    operators = {each.operator for each in requirement.specifier}
    assert operators in ({"=="}, {">=", "<"})


@pytest.mark.parametrize("name", ["mypy", "ruff"])
def test_what_judges_style_and_types_is_pinned(name: str) -> None:
    (found,) = (each for each in map(Requirement, EXTRAS["test"]) if each.name == name)
    assert [each.operator for each in found.specifier] == ["=="]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_locked_to_one_version_that_satisfies_it(python: str) -> None:
    for requirement in REQUIREMENTS:
        found = locked(requirement.name, python)
        if requirement.name in UNLOCKED:
            assert found == []
            continue
        assert len(found) == 1, requirement
        (pin,) = found[0].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), f"{requirement}: locked to {pin}; run scripts/lock"


def test_the_constraints_name_no_place() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert not re.search(r"://|@|--|/\w", text.partition("\n")[2])
    assert len(LOCKED) > 100


def test_the_constraints_are_used() -> None:
    assert "-c tests/constraints.txt" in (ROOT / "scripts" / "test").read_text(encoding="utf-8")
