"""Lifetimes and nesting that a program should not have: an exception or a late end, no crash."""

import gc
import threading
import time

import fabric_lib as fabric
import numpy as np
import pytest
from conftest import Pair, run_code
from fabric_lib import kv, sim


def test_handles_outlive_their_engine() -> None:
    engine = fabric.Engine(networks=["shm"])
    region = engine.register(np.zeros(4096, np.uint8))
    batch, inbox, counter = engine.batch(), engine.make_inbox(4), engine.make_counter()
    group, flag = engine.make_counter_group(), engine.make_flag()
    del engine
    gc.collect()
    for call in (
        lambda: batch.wait(timeout=1),
        lambda: inbox.wait(timeout=1),
        lambda: counter.wait(1, timeout=1),
        lambda: group.wait(timeout=1),
        lambda: region.deregister(),
        lambda: counter.expect(1, inbox),
    ):
        with pytest.raises(fabric.FabricError):
            call()
    flag.store(3)
    assert flag.load() == 3 and region.numpy().sum() == 0 and inbox.poll() == []
    del region, batch, inbox, counter, group, flag
    gc.collect()


def test_the_last_reference_may_go_in_a_callback(shm: Pair) -> None:
    done = threading.Event()
    owned: list[object] = [shm.source.register(bytearray(64)), shm.source.make_counter()]
    engine = fabric.Engine(networks=["shm"])
    owned.append(engine)
    del engine

    def callback(event: fabric.Event) -> None:
        owned.clear()
        done.set()

    shm.source.timer(0, notify=callback)
    assert done.wait(10)
    shm.source.close()  # also closes what the callback could not


def test_a_subscription_may_end_in_its_own_callback(shm: Pair) -> None:
    done = threading.Event()
    held: list[fabric.Subscription] = []

    def callback(event: fabric.Event) -> None:
        held.pop().close()
        done.set()

    held.append(shm.target.listen(2, callback))
    shm.source.send(shm.peer, b"x", channel=2)
    assert done.wait(10) and held == []


def test_close_ends_the_waits_of_other_threads(shm: Pair) -> None:
    errors: list[BaseException] = []

    def wait(call: object, *arguments: object) -> None:
        try:
            call(*arguments)  # type: ignore[operator]
        except fabric.FabricError as error:
            errors.append(error)

    inbox, batch = shm.target.make_inbox(4), shm.target.batch()
    shm.target.timer(60, batch=batch)
    waits = [(shm.counter.wait, 1, 30), (inbox.wait, 30), (batch.wait, 30)]
    threads = [threading.Thread(target=wait, args=arguments) for arguments in waits]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    with pytest.raises(fabric.Busy):
        inbox.close()  # another thread waits on it
    shm.target.close()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 3


def test_waits_inside_the_functions_of_a_world(world: sim.World, simulated: Pair) -> None:
    def nested() -> bool:
        try:
            simulated.counter.wait(1, timeout=1e-4)
        except fabric.FabricError:
            pass
        return simulated.counter.count > 0

    simulated.source.write(simulated.region, simulated.remote, 64, imm=simulated.key)
    world.run_until(nested, 1e-3)
    hook = world.each_step(lambda: simulated.source.progress() and None)
    world.run_for(1e-4)
    hook.end()


def test_blocking_calls_in_callbacks_of_inline_engines(world: sim.World, simulated: Pair) -> None:
    raised: list[str] = []

    def callback(event: fabric.Event) -> None:
        for call in (simulated.source.close, lambda: simulated.counter.wait(1, timeout=1)):
            try:
                call()
            except fabric.FabricError as error:
                raised.append(error.code.name)

    simulated.source.timer(1e-6, notify=callback)
    world.run_for(1e-3)
    assert raised == ["WOULD_DEADLOCK", "WOULD_DEADLOCK"]


def test_a_hook_that_raises_does_not_end_the_world(
    world: sim.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda hook: raised.append(hook.exc_value))
    world.open(world.add_node())
    hook = world.each_step(lambda: 1 / 0 and None)
    world.run_for(1e-3)
    hook.end()
    assert all(isinstance(error, ZeroDivisionError) for error in raised)


def test_a_decoder_keeps_its_engine_and_regions(shm: Pair) -> None:
    layout = kv.Layout(
        region_bytes=[4096],
        groups=[
            kv.CacheGroup(
                name="full", page_tokens=1, pages=4, layers=[0],
                tensors=[kv.Tensor(name="k", dtype="u8", element_bytes=1, heads_total=1,
                                   head_size=16, page_stride_bytes=16, head_stride_bytes=16,
                                   token_stride_bytes=16)],
            )
        ],
    )  # fmt: skip
    engine = fabric.Engine(networks=["shm"])
    decoder = kv.Decoder(engine, layout, [engine.allocate(4096)])
    prefiller = kv.Prefiller(engine, kv.Side(ranks=[layout]), 0, [engine.allocate(4096)])
    del engine
    gc.collect()
    assert decoder.poll() == [] and prefiller.poll() == []
    decoder.close()
    with pytest.raises(fabric.Closed):
        decoder.poll()
    del decoder, prefiller
    gc.collect()


def test_constructors_that_fail_leave_nothing() -> None:
    code = """
import warnings
import fabric_lib as fabric
from fabric_lib import kv, sim
warnings.simplefilter("ignore")  # of nanobind, about __new__ alone
for call in (
    lambda: fabric.Engine(networks=["nothing"]),
    lambda: kv.Decoder(fabric.Engine(networks=["shm"]), kv.Layout(), []),
    lambda: kv.Router(slack_percent=1 << 20),
    lambda: sim.World(seed="x"),
    lambda: fabric.Engine.__new__(fabric.Engine).stats(),
    lambda: fabric.Inbox(),
    lambda: fabric.MemoryRegion.__new__(fabric.MemoryRegion).numpy(),
    lambda: memoryview(fabric.MemoryRegion.__new__(fabric.MemoryRegion)),
):
    try:
        call()
    except (fabric.FabricError, TypeError, BufferError, RuntimeError) as error:
        print(type(error).__name__)
"""
    result = run_code(code)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 8
