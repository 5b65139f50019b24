"""Connections in these tests wait for a slow broker: a time limit does not say that a party is refused."""

from __future__ import annotations

import pytest
from support.live import HANG_S

from testbed.bus.client import MqttBus


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = MqttBus.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "connect_timeout_s", HANG_S)
