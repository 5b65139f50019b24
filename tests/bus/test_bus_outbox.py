from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.outbox import Outbox, Parcel
from testbed.bus.protocol import BusError, Message

steps = st.lists(st.sampled_from(["put", "put", "send", "send", "acknowledge", "lose", "withdraw"]), max_size=60)


@given(steps, st.data())
def test_nothing_is_lost_or_overtaken(plan: list[str], data: st.DataObject) -> None:
    """Comparison with a model: a list of the messages in the order of their puts, sent ones first."""

    async def scenario() -> None:  # noqa: PLR0912  one branch per step of the model
        outbox = Outbox(limit=8, window=3)
        waiting: list[Parcel] = []
        sent: list[Parcel] = []
        for number, step in enumerate(plan):
            assert len(outbox) == len(waiting) + len(sent)
            if step == "put":
                try:
                    parcel = outbox.put(Message("t", b"%d" % number))
                except BusError:
                    assert len(outbox) == 8
                else:
                    waiting.append(parcel)
            elif step == "send":
                getting = asyncio.ensure_future(outbox.next())
                for _ in range(3):
                    await asyncio.sleep(0)
                assert getting.done() == (bool(waiting) and len(sent) < 3)
                if getting.done():
                    assert getting.result() is waiting[0]
                    sent.append(waiting.pop(0))
                else:
                    getting.cancel()
                    await asyncio.wait([getting])
            elif step == "acknowledge" and sent:
                parcel = sent.pop(data.draw(st.integers(0, len(sent) - 1)))
                outbox.acknowledge(parcel)
                assert parcel.delivered.done()
            elif step == "lose":
                outbox.rewind()
                waiting, sent = sent + waiting, []
            elif step == "withdraw" and waiting + sent:
                parcel = data.draw(st.sampled_from(waiting + sent))
                outbox.withdraw(parcel)
                if parcel in waiting:
                    waiting.remove(parcel)
            assert not any(parcel.delivered.done() for parcel in waiting + sent)
        drained = asyncio.ensure_future(outbox.drained())
        while waiting or sent:
            await asyncio.sleep(0)
            assert not drained.done()
            if waiting and len(sent) < 3:
                assert await outbox.next() is waiting[0]
                sent.append(waiting.pop(0))
            else:
                outbox.acknowledge(sent.pop(0))
        await drained

    asyncio.run(scenario())
