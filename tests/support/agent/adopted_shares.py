"""Guests with shares whose agent is killed: the next agent finds each share unchanged, and can change it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from support.agent.adoption import Bench

SHARED = """
import msgspec
spec = msgspec.structs.replace(suite.spec('a'), share_cores=0.5)
await node.driver.start(spec, suite.node_cpus)
await node.until('a', 'progress')
return await node.driver.set_share('a', 0.7)
"""


class AdoptedShares:
    """Tests of shares after an adoption; a subclass has the fixture `bench`."""

    def test_a_guest_keeps_the_share_that_it_had_at_last(self, bench: Bench) -> None:
        cores = bench.suite.node_cpus

        async def main() -> None:
            async with bench.other() as agent:
                if why := await agent.do("return node.facts.lacks.get('shares')"):
                    await agent.kill()
                    pytest.skip(f"no shares: {why}")
                assert await agent.do(SHARED) == pytest.approx(0.7, abs=1e-3)
                await agent.kill()
            async with bench.next() as node:
                assert "shares" in node.capabilities
                (spec,) = node.driver.taken_over()
                assert spec.share_cores == 0.7
                assert await node.share("a") == pytest.approx(0.7, abs=1e-3)
                assert "drift" not in node.events("a")
                await node.driver.start(msgspec.structs.replace(bench.suite.spec("b"), share_cores=0.3), cores)
                assert await node.sharing.set_share("a", 1.2) == pytest.approx(1.2, abs=1e-3)
                assert await node.share("b") == pytest.approx(0.3, abs=1e-3)

        asyncio.run(main())
