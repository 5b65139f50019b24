"""Runs the broker of a lab until SIGTERM: `python -m testbed.lab.box.hold_broker`, started by `testbed lab up`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from testbed.bus.broker import Preference, broker
from testbed.errors import TestbedError
from testbed.lab.box.state import write_private


async def _hold(kind: Preference, port: int, state_dir: Path, url_file: Path) -> None:
    asked_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_end.set)
    async with broker(kind, state_dir=state_dir, port=port) as running:
        await asyncio.to_thread(write_private, url_file, f"{running.address.url}\n".encode())
        await asked_to_end.wait()


def main() -> None:
    """Run the command line; the URL, which may contain a password, is written to a file for its owner only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("auto", "embedded", "mosquitto"), default="auto")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--url-file", type=Path, required=True)
    given = parser.parse_args()
    try:
        asyncio.run(_hold(given.kind, given.port, given.state_dir, given.url_file))
    except TestbedError as error:
        sys.exit(f"broker: {error}")


if __name__ == "__main__":
    main()
