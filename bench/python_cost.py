#!/usr/bin/env python3
"""What a call from Python costs: an engine on its own address, so that no network is in the way.

    PYTHONPATH=build/release/python python_cost.py [--json] [--cpp NANOSECONDS]

The minimum of several rounds: other load only adds. An inline engine, submit only, for the cost of
calls; threads for the awaited writes, in CPU time of the whole process. --cpp: the same submit in
C++, as bench/micro measures it, for the ratio.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Callable

import fabric_lib as fabric
import numpy as np
from fabric_lib import aio

ROUNDS, CALLS = 25, 2000


class Own:
    """An engine that writes to its own address."""

    def __init__(self, engine: fabric.Engine) -> None:
        self.engine = engine
        self.region = engine.allocate(1 << 20)
        self.counter = engine.make_counter()
        offer = engine.accept(engine.offer(self.region, self.counter.key))
        self.remote, self.key = offer.region, offer.key


def nanoseconds(call: Callable[[], object], after: Callable[[], object], calls: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter_ns() - begin) / calls)
        after()
    return best


def submits() -> dict[str, float]:
    engine = fabric.Engine(networks=["shm"], runtime=fabric.InlineRuntime())
    own = Own(engine)
    write, region, remote, key = engine.write, own.region, own.remote, own.key

    def drive() -> None:
        while engine.stats().ops_in_flight > 0:
            engine.progress()

    costs = {
        "empty": nanoseconds(lambda: None, drive, CALLS),
        "write": nanoseconds(lambda: write(region, remote, 64, imm=key), drive, CALLS),
    }
    batch = engine.make_batch()
    costs["write in a batch"] = nanoseconds(
        lambda: write(region, remote, 64, imm=key, batch=batch), drive, CALLS
    )
    for count in (16, 256):
        kinds = {"uint32": np.arange(count, dtype=np.uint32),
                 "int64": np.arange(count, dtype=np.int64),
                 "list of int": list(range(count)),
                 "prepared": engine.make_page_list(range(count))}  # fmt: skip
        for name, pages in kinds.items():
            costs[f"{count} pages, {name}"] = nanoseconds(
                lambda: engine.write_pages(region, pages, remote, pages, 64, imm=key), drive, 50
            )
    pages = engine.make_page_list(range(64))
    costs["61 layers of 64 pages, one call"] = nanoseconds(
        lambda: engine.write_layers(
            region, pages, remote, pages, 64, source_offsets=np.arange(61), imm=key
        ),
        drive,
        2,
    )
    return costs


def awaited() -> dict[str, float]:
    """CPU time of 64 writes: one batch waited for once, and each awaited."""
    with fabric.Engine(networks=["shm"]) as engine:
        own = Own(engine)

        def one_batch() -> None:
            with engine.batch() as batch:
                for _ in range(64):
                    engine.write(own.region, own.remote, 64, imm=own.key, batch=batch)

        async def each() -> float:
            loop = aio.Engine(engine)
            best = float("inf")
            for _ in range(ROUNDS * 4):
                begin = time.process_time_ns()
                for future in [
                    loop.write(own.region, own.remote, 64, imm=own.key) for _ in range(64)
                ]:
                    await future
                best = min(best, time.process_time_ns() - begin)
            loop._stop()
            return best

        best = float("inf")
        for _ in range(ROUNDS * 4):
            begin = time.process_time_ns()
            one_batch()
            best = min(best, time.process_time_ns() - begin)
        return {"64 writes in a batch, CPU": best, "64 writes awaited, CPU": asyncio.run(each())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cpp", type=float, help="nanoseconds of the same write in C++")
    options = parser.parse_args()
    costs = submits() | awaited()
    costs["awaited / batch"] = costs["64 writes awaited, CPU"] / costs["64 writes in a batch, CPU"]
    if options.cpp:
        costs["write / C++"] = costs["write"] / options.cpp
    if options.json:
        print(json.dumps(costs))
        return
    for name, cost in costs.items():
        print(f"{name:<36}{cost:>10.1f}{'' if '/' in name else ' ns'}")


if __name__ == "__main__":
    main()
