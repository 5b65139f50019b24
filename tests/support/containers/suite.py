"""The conformance suite of drivers, for containers of a real engine."""

from __future__ import annotations

from node_agent.drivers.protocol import Driver
from support.containers.engine import group_of
from testbed.testing import DriverConformance


class Containers(DriverConformance):
    """Parameters of the suite for containers, for any way of saving them; `_url` is the URL of an engine."""

    memory_mib = 96
    units_a_second = 40_000
    units_per_iteration = 200
    throttled_s = 2.0
    _url: str
    _save = "program"

    @classmethod
    def at(cls, url: str) -> Containers:
        """Return nodes with the engine at a URL, for tests that are not methods of the suite."""
        suite = cls()
        suite._url = url
        return suite

    def make(self) -> Driver:
        from node_agent.drivers.containers.driver import DockerDriver

        return DockerDriver(url=self._url, save=self._save, cgroup_parent=group_of(self._url))
