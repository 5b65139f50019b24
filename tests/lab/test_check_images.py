"""Nodes of one lab must take back what others of them have saved."""

from __future__ import annotations

import pytest

from testbed.errors import UserError
from testbed.lab.guests import check_images


@pytest.mark.parametrize(
    "able",
    [
        {"a": ("start", "save"), "b": ("start", "save", "save:program")},
        {"a": ("save:criu",), "b": ("save:criu",)},
        {"a": ("whole", "live"), "b": ("whole",)},
    ],
)
def test_nodes_of_one_kind_are_a_lab(able: dict[str, tuple[str, ...]]) -> None:
    check_images(able)


def test_nodes_that_could_not_exchange_guests_are_told_by_name() -> None:
    able = {"a": ("save:criu",), "b": ("save:program",), "c": ("save:criu",)}
    with pytest.raises(UserError, match="images of whole containers on a, c; programs on b: expected one kind"):
        check_images(able)
    with pytest.raises(UserError, match="virtual machines on a; programs on b"):
        check_images({"a": ("whole",), "b": ()})
