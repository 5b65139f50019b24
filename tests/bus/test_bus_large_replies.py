"""The largest possible reply, a watch with the maximum number of samples, over every kind of bus."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bus.bus_worlds import KINDS, Mailbox, run, world

from testbed.bus.messages import MAX_WATCH_SAMPLES, Reply, decode, encode


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_reply_arrives_whole(kind: str, tmp_path: Path) -> None:
    count = MAX_WATCH_SAMPLES
    result: dict[str, object] = {
        "t_s": [round(119.9 + 1e-6 * i, 6) for i in range(count)],
        "cpu_s": {"dfrs-run-j1000-t10": [round(10_000.123456 + 1e-9 * i, 9) for i in range(count)]},
        "units": {"dfrs-run-j1000-t10": [10**12 + i for i in range(count)]},
        "cap_changes": [],
    }
    payload = encode(Reply(id="c1", node="n1", status="done", result=result))
    assert len(payload) > 900_000

    async def work() -> None:
        async with world(kind, tmp_path) as place, place.bus("agent") as agent, place.bus("controller") as controller:
            heard = Mailbox()
            await controller.subscribe("dfrs/t/replies/c", heard)
            await agent.publish("dfrs/t/replies/c", payload, qos=1)
            (got,) = await heard.count(1)
            assert decode(Reply, got).result == result

    run(work())
