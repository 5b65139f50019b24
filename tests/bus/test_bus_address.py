"""A broker's URL from the environment."""

from __future__ import annotations

import pytest

from testbed.bus.address import BrokerAddress
from testbed.errors import UserError


def test_a_variable_stands_for_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_BROKER", "mqtt://testbed:p%40ss@127.0.0.1:1884")
    found = BrokerAddress.parse("$LAB_BROKER")
    assert (found.host, found.port, found.username, found.password) == ("127.0.0.1", 1884, "testbed", "p@ss")


@pytest.mark.parametrize("value", [None, ""])
def test_one_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("LAB_BROKER", raising=False)
    if value is not None:
        monkeypatch.setenv("LAB_BROKER", value)
    with pytest.raises(UserError, match=r"broker = '\$LAB_BROKER': no such variable in the environment"):
        BrokerAddress.parse("$LAB_BROKER")


@pytest.mark.parametrize("url", ["$", "$lab", "$LAB_BROKER/x"])
def test_what_is_no_name_of_a_variable_is_no_address(url: str) -> None:
    with pytest.raises(UserError, match=r"expected mqtts://"):
        BrokerAddress.parse(url)
