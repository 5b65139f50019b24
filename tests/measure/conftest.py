from __future__ import annotations

from collections.abc import Iterator

import pytest
from influx_lab import Adapter, Influxd, influx


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
