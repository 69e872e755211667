"""The simulated network: a program on 64 nodes, in virtual time, in one process. docs/simulator.md.

    world = sim.World(seed=7)
    engines = [world.open(world.add_node()) for _ in range(64)]
"""

from fabric_lib._native.sim import (
    Arrival,
    Chaos,
    Fault,
    FaultKind,
    Hook,
    NicModel,
    NodeNetwork,
    World,
    WorldOptions,
    opposite,
)

__all__ = [
    "Arrival",
    "Chaos",
    "Fault",
    "FaultKind",
    "Hook",
    "NicModel",
    "NodeNetwork",
    "World",
    "WorldOptions",
    "opposite",
]
