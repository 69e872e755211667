"""Engines for the tests. All of them are real: on shm, on their own address, or simulated."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import fabric_lib as fabric
import numpy as np
import pytest
from fabric_lib import sim


class Pair:
    """Two engines: `source` can write to `memory` of `target`, and `counter` counts it."""

    SIZE = 1 << 16

    def __init__(self, source: fabric.Engine, target: fabric.Engine) -> None:
        self.source, self.target = source, target
        self.memory = target.allocate(self.SIZE)
        self.counter = target.make_counter()
        offer = source.accept(target.offer(self.memory, self.counter.key))
        self.peer, self.remote, self.key = offer.peer, offer.region, offer.key
        self.region = source.allocate(self.SIZE)
        self.region.numpy()[:] = np.arange(self.SIZE) % 251
        with source.batch() as batch:  # then both sides have the session
            source.write(self.region, self.remote, 0, batch=batch)
        self.back = target.peers()[0]


@contextlib.contextmanager
def shm_pair(**settings: object) -> Iterator[Pair]:
    with (
        fabric.Engine(networks=["shm"], **settings) as source,
        fabric.Engine(networks=["shm"], **settings) as target,
    ):
        yield Pair(source, target)


@pytest.fixture
def shm() -> Iterator[Pair]:
    with shm_pair() as pair:
        yield pair


@pytest.fixture
def world() -> sim.World:
    return sim.World(seed=7)


@pytest.fixture
def simulated(world: sim.World) -> Pair:
    return Pair(world.open(world.add_node(2)), world.open(world.add_node(2)))


def run_code(code: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=timeout
    )
