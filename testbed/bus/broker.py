"""Starts the default broker: Mosquitto if it is installed, else the embedded broker in this process."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from testbed.bus.address import BrokerAddress
from testbed.errors import UserError

Preference = Literal["auto", "embedded", "mosquitto"]


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that runs until its block ends; it listens at `address`."""

    kind: Literal["embedded", "mosquitto"]
    address: BrokerAddress


@asynccontextmanager
async def broker(
    prefer: Preference = "auto", *, state_dir: Path | None = None, port: int = 0, password: str = ""
) -> AsyncIterator[RunningBroker]:
    """Run a broker on the loopback interface, at a free port unless one is given.

    `state_dir` is the folder of Mosquitto's files, so that queued messages outlive the process; the default is a
    temporary directory. The embedded broker stores nothing: to replace an earlier one, pass its `password`. Raises
    `UserError` if Mosquitto is requested and missing, `BusError` if the broker does not start.
    """
    async with AsyncExitStack() as stack:
        if prefer != "embedded":
            from testbed.bus.mosquitto import find_mosquitto, mosquitto_broker  # noqa: PLC0415  only when used

            program = find_mosquitto()
            if program is not None:
                if state_dir is None:
                    state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="testbed-broker-")))
                address = await stack.enter_async_context(mosquitto_broker(program, state_dir, port))
                yield RunningBroker("mosquitto", address)
                return
            if prefer == "mosquitto":
                raise UserError("broker = mosquitto: no such program in PATH or /usr/sbin; install it, or use embedded")
        from testbed.bus.embedded import embedded_broker  # noqa: PLC0415  amqtt takes 0.3 s to load

        address = await stack.enter_async_context(embedded_broker(port, password))
        yield RunningBroker("embedded", address)
