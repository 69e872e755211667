"""fabric_lib.aio, on shm and in virtual time."""

import asyncio

import fabric_lib as fabric
import numpy as np
import pytest
from conftest import Pair
from fabric_lib import aio, sim


def test_writes_counters_and_messages_are_awaited(shm: Pair) -> None:
    async def main() -> None:
        async with aio.Engine(shm.source) as source, aio.Engine(shm.target) as target:
            messages = target.messages(4)
            arrived = target.arrived(shm.counter, 64, timeout=20)
            sizes = await asyncio.gather(
                *(source.write(shm.region, shm.remote, 64 + i, imm=shm.key) for i in range(64))
            )
            assert sizes == [64 + i for i in range(64)] and await arrived == 64
            await source.send(shm.peer, b"first", channel=4)
            await source.send(shm.peer, b"second", channel=4)
            assert (await anext(messages)).data == b"first"
            async for message in messages:
                assert message.data == b"second"
                break

    asyncio.run(main())


def test_failures_are_raised_where_they_are_awaited(shm: Pair) -> None:
    async def main() -> None:
        async with aio.Engine(shm.target) as target:
            with pytest.raises(TimeoutError):
                await target.arrived(shm.counter, 1, timeout=0.1)
            with pytest.raises(LookupError, match="target"):  # of the other engine
                target.write(shm.memory, shm.remote, 1)
            late = target.timer(60)
            cancelled = target.timer(60)
            cancelled.cancel()
            await target.close()
            with pytest.raises(fabric.Closed):
                await late

    asyncio.run(main())


def test_other_tasks_run_while_one_waits(shm: Pair) -> None:
    async def main() -> None:
        async with aio.Engine(shm.target) as target:
            waiting = asyncio.ensure_future(target.arrived(shm.counter, 1, timeout=20))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            shm.source.write(shm.region, shm.remote, 8, imm=shm.key)
            assert await waiting == 1

    asyncio.run(main())


def test_a_batch_and_pages_are_awaited(shm: Pair) -> None:
    async def main() -> None:
        async with aio.Engine(shm.source) as source:
            batch = shm.source.make_batch()
            for i in range(16):
                shm.source.write(shm.region, shm.remote, 64, target_offset=i * 64, batch=batch)
            await source.completed(batch)
            assert batch.delivered == 16
            pages = np.arange(32, dtype=np.uint32)
            assert await source.write_pages(shm.region, pages, shm.remote, pages, 64) == 32 * 64
            assert await source.resolve(shm.peer, [5], timeout=10)

    asyncio.run(main())


def test_a_loop_after_another_needs_another_inbox(shm: Pair) -> None:
    for _ in range(3):
        engine = aio.Engine(shm.source)

        async def main(engine: aio.Engine = engine) -> int:
            size = await engine.write(shm.region, shm.remote, 8)
            engine._stop()  # the engine below goes on
            return size

        assert asyncio.run(main()) == 8


def test_virtual_time_is_awaited_too() -> None:
    async def main() -> float:
        world = sim.World(seed=3)
        pair = Pair(world.open(world.add_node(2)), world.open(world.add_node(2)))
        source, target = aio.Engine(pair.source, world=world), aio.Engine(pair.target, world=world)
        arrived = target.arrived(pair.counter, 10, timeout=1)
        for _ in range(10):
            await source.write(pair.region, pair.remote, 4096, imm=pair.key)
        assert await arrived == 10
        with pytest.raises(TimeoutError):
            await target.arrived(pair.counter, 1, timeout=1e-3)
        await source.close()
        await target.close()
        return world.now()

    assert asyncio.run(main()) < 0.1


def test_messages_end_with_the_engine(shm: Pair) -> None:
    async def main() -> None:
        async with aio.Engine(shm.target) as target:
            reader = asyncio.ensure_future(collect(target.messages(1)))
            await asyncio.sleep(0)
            await target.close()
            assert await reader == []

    async def collect(messages: aio.Messages) -> list[bytes]:
        return [message.data async for message in messages]

    asyncio.run(main())
