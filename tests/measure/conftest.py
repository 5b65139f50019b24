from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.live import HANG_S
from support.measure.influx_lab import Adapter, Influxd, influx

from testbed.measure import influx as influx_recorder
from testbed.measure import recorders, shipping


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Influxd, Adapter]]:
    """A database server and its adapter."""
    with influx(tmp_path_factory.mktemp("influx")) as pair:
        yield pair


@pytest.fixture
def server(lab: tuple[Influxd, Adapter]) -> Influxd:
    """The server with an empty database; its adapter does not disturb yet."""
    server, adapter = lab
    server.query('DROP DATABASE "testbed"')
    server.create("testbed")
    adapter.behave = lambda _number: "pass"
    adapter.written_points = 0
    return server


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder may ship for any time after the end of its run, and warns of a server only once."""
    monkeypatch.setattr(recorders, "CLOSE_WITHIN_S", HANG_S)
    monkeypatch.setattr(influx_recorder, "LAST_S", HANG_S)
    monkeypatch.setattr(influx_recorder, "SAY_AGAIN_S", HANG_S)


class OwnTime:
    """A clock that advances only during sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shipping waits in simulated time: its timeout comes after the same number of attempts on every machine."""
    monkeypatch.setattr(shipping, "time", OwnTime())
