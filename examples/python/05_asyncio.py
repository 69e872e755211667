"""A server and its clients in one event loop: every client writes into its slot and sends a
message, the server awaits both. On the same-host network.
"""

import asyncio

import fabric_lib as fabric
from fabric_lib import aio

CLIENTS, SLOT, CHANNEL = 8, 4096, 1


async def serve(server: aio.Engine, memory: fabric.MemoryRegion, counter: fabric.Counter) -> int:
    messages = server.messages(CHANNEL)
    await server.arrived(counter, CLIENTS, timeout=20)
    slots = memory.numpy().reshape(CLIENTS, SLOT)
    total = 0
    for _ in range(CLIENTS):
        slot = int((await anext(messages)).data)
        assert (slots[slot] == slot).all()
        total += slot
    return total


async def run_client(number: int, offer: str) -> None:
    async with aio.Engine(networks=["shm"]) as client:
        target = client.engine.accept(offer)
        region = client.engine.allocate(SLOT)
        region.numpy()[:] = number
        await client.write(
            region, target.region, SLOT, target_offset=number * SLOT, imm=target.key
        )
        await client.send(target.peer, str(number).encode(), channel=CHANNEL)


async def main() -> None:
    async with aio.Engine(networks=["shm"]) as server:
        memory = server.engine.allocate(CLIENTS * SLOT)
        counter = server.engine.make_counter()
        offer = server.engine.offer(memory, counter.key)
        total, *_ = await asyncio.gather(
            serve(server, memory, counter), *(run_client(i, offer) for i in range(CLIENTS))
        )
    print(f"{CLIENTS} clients, the sum of their numbers is {total}")
    assert total == sum(range(CLIENTS))


if __name__ == "__main__":
    asyncio.run(main())
