"""Checks of the broker and the database: whether they answer, and the broker's response time."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus
from testbed.bus.mosquitto import find_mosquitto
from testbed.bus.protocol import BusError
from testbed.errors import UserError
from testbed.lab.doctor.finding import Finding


def mosquitto() -> Iterator[Finding]:
    """Report whether the broker is installed."""
    program = find_mosquitto()
    if program is None:
        yield Finding("mosquitto", "note", "not installed: runs use the embedded broker", "apt-get install mosquitto")
    else:
        yield Finding("mosquitto", "ok", str(program))


def broker(address: BrokerAddress) -> Iterator[Finding]:
    """Connect to a broker, and report how long that took."""
    begin_s = time.monotonic()

    async def connect() -> None:
        async with MqttBus(address, f"doctor-{time.monotonic_ns()}", keep_session=False):
            pass

    try:
        asyncio.run(connect())
    except (BusError, UserError) as error:
        yield Finding("broker", "error", str(error), "systemctl restart mosquitto; journalctl -u mosquitto")
    else:
        yield Finding("broker", "ok", f"{address}: connected in {1000 * (time.monotonic() - begin_s):.0f} ms")


def influxdb(url: str) -> Iterator[Finding]:
    """Check the health of a database."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:  # noqa: S310  # its address was checked
            version = answer.headers.get("X-Influxdb-Version", "?")
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        yield Finding("InfluxDB", "warning", f"{url}: {reason}", "systemctl restart influxdb; measurements are kept")
    else:
        yield Finding("InfluxDB", "ok", f"{url}, version {version}")
