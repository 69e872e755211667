"""The simulator, as a user's test would use it."""

import fabric_lib as fabric
import pytest
from conftest import Pair
from fabric_lib import sim


def test_sixty_four_nodes_pass_a_ring() -> None:
    world = sim.World(seed=5)
    engines = [world.open(world.add_node()) for _ in range(64)]
    regions = [engine.allocate(4096) for engine in engines]
    counters = [engine.make_counter() for engine in engines]
    regions[0].numpy()[:] = 17
    for i, engine in enumerate(engines[:-1]):
        offer = engine.accept(engines[i + 1].offer(regions[i + 1], counters[i + 1].key))
        engine.write(regions[i], offer.region, 4096, imm=offer.key)
        counters[i + 1].wait(1, timeout=1)
    assert (regions[-1].numpy() == 17).all()
    assert 0 < world.now() < 1


def run(seed: int) -> tuple[int, float]:
    world = sim.World(seed=seed, drop_control=0.1)
    pair = Pair(
        world.open(world.add_node(3, sim.NicModel.efa_200g())),
        world.open(world.add_node(2, sim.NicModel.efa_200g())),
    )
    for i in range(50):
        pair.source.write(pair.region, pair.remote, i * 1000, imm=pair.key)
    pair.counter.wait(50, timeout=10)
    return world.trace_hash(), world.now()


def test_the_same_seed_is_the_same_run() -> None:
    assert run(1) == run(1) != run(2)


def test_a_nic_that_fails_is_replayed_on_another(world: sim.World, simulated: Pair) -> None:
    world.at(world.now() + 20e-6, sim.Fault.nic_down(0, 0))
    with simulated.source.batch() as batch:
        for _ in range(200):
            simulated.source.write(
                simulated.region, simulated.remote, 65536, imm=simulated.key, batch=batch
            )
    simulated.counter.wait(200, timeout=1)
    assert world.faults(sim.FaultKind.NIC_DOWN) == 1 and batch.failed == 0


def test_a_crash_is_peer_lost(world: sim.World, simulated: Pair) -> None:
    world.at(world.now(), sim.Fault.crash(1))
    simulated.counter.release()
    with pytest.raises(ConnectionError):
        with simulated.source.batch() as batch:
            simulated.source.write(simulated.region, simulated.remote, 64, batch=batch, timeout=100)
    assert batch.failures()[0].code in (fabric.Errc.PEER_LOST, fabric.Errc.UNREACHABLE)


def test_hooks_and_conditions(world: sim.World, simulated: Pair) -> None:
    steps: list[float] = []
    arrivals: list[sim.Arrival] = []
    step = world.each_step(lambda: steps.append(world.now()))
    arrival = world.each_arrival(arrivals.append)
    simulated.source.write(simulated.region, simulated.remote, 64, imm=simulated.key)
    assert world.run_until(lambda: simulated.counter.count == 1, 1)
    assert steps == sorted(steps) and len(arrivals) == 1 and arrivals[0].node == 1
    step.end()
    arrival.end()
    before = len(steps)
    world.run_for(1e-3)
    assert len(steps) == before
    with pytest.raises(ZeroDivisionError):
        world.run_until(lambda: 1 / 0 > 0, 1)


def test_faults_have_opposites_and_names() -> None:
    cut = sim.Fault.cut(0, 1)
    healed = sim.opposite(cut)
    assert healed is not None and healed.kind == sim.FaultKind.HEAL
    assert sim.opposite(sim.Fault.crash(0)) is None
    assert len(sim.FaultKind) == 29


def test_chaos_in_a_small_world() -> None:
    world = sim.World(seed=11)
    pair = Pair(world.open(world.add_node(2)), world.open(world.add_node(2)))
    world.chaos(sim.Chaos(until=world.now() + 0.05, gap=1e-3, lasts=1e-3,
                          kinds=[sim.FaultKind.DELAY]))  # fmt: skip
    with pair.source.batch() as batch:
        for _ in range(100):
            pair.source.write(pair.region, pair.remote, 4096, imm=pair.key, batch=batch)
            world.run_for(5e-4)
    pair.counter.wait(100, timeout=10)


def test_bad_arguments_are_named(world: sim.World) -> None:
    with pytest.raises(ValueError, match="rails"):
        world.add_node(9)
    with pytest.raises(TypeError, match="no option 'sed'"):
        sim.World(sed=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="NicModel.depth"):
        sim.NicModel(depth="deep")  # type: ignore[arg-type]
    world.add_node()
    with pytest.raises(ValueError, match="node"):
        world.at(0, sim.Fault.crash(5))
    with pytest.raises(fabric.FabricError):
        world.open(9)


def test_real_time_worlds_have_threads() -> None:
    world = sim.World(realtime=True)
    with world.open(world.add_node()) as source, world.open(world.add_node()) as target:
        pair = Pair(source, target)
        assert not source.is_inline
        with source.batch() as batch:
            source.write(pair.region, pair.remote, 4096, imm=pair.key, batch=batch)
        pair.counter.wait(1, timeout=10)
