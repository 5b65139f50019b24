"""The reference of scenario files: every key is described, examples are valid, the schema for editors agrees."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from testbed.packaged import packaged_scenarios
from testbed.scenario.reference import all_tables, json_schema, keys_of, markdown

PAGE = Path(__file__).parents[2] / "docs" / "scenario.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == markdown(), "testbed scenarios reference > docs/scenario.md"


@pytest.mark.parametrize(("path", "model"), [(path, model) for path, model, _ in all_tables()])
def test_every_table_and_key_is_described_and_examples_are_valid(path: str, model: type) -> None:
    assert (model.__doc__ or "").strip().endswith("."), path
    for each in keys_of(model):
        assert each.description.endswith((".", "`")), f"{path}.{each.name}"
        field = model.model_fields[each.name]
        adapter = TypeAdapter(field.rebuild_annotation())
        for example in field.examples or []:
            adapter.validate_python(tuple(example) if isinstance(example, list) else example)
        if each.example:
            assert f"x = {each.example}" in tomllib_text(each.example)


def tomllib_text(example: str) -> str:
    """Return a line with a value; assert that a TOML parser accepts it."""
    line = f"x = {example}"
    tomllib.loads(line)
    return line


def test_numbers_have_units_in_their_names_or_beside_them() -> None:
    without = []
    for path, model, _ in all_tables():
        for each in keys_of(model):
            ends = each.name.rpartition("_")[2]
            if ends in ("s", "mib", "bytes") and not each.unit:
                without.append(f"{path}.{each.name}")
    assert without == []


@pytest.mark.parametrize("name", sorted(packaged_scenarios()))
def test_the_json_schema_accepts_packaged_scenarios(name: str) -> None:
    Draft202012Validator.check_schema(json.loads(json_schema()))
    data = tomllib.loads(packaged_scenarios()[name].read_text())
    Draft202012Validator(json.loads(json_schema())).validate(data)


def test_the_json_schema_refuses_unknown_keys_and_wrong_values() -> None:
    data = tomllib.loads(packaged_scenarios()["quickstart"].read_text())
    checker = Draft202012Validator(json.loads(json_schema()))
    assert not checker.is_valid({**data, "polcy": "EASY"})
    assert not checker.is_valid({**data, "time_scale": "fast"})
    assert checker.is_valid({**data, "policy": "EASY"})
