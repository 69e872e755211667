"""Engine, transfers, counters, messages, events, on the same-host network."""

import threading
import time

import fabric_lib as fabric
import numpy as np
import pytest
from conftest import Pair, shm_pair


def test_a_write_is_counted_when_its_bytes_are_there(shm: Pair) -> None:
    with shm.source.batch() as batch:
        op = shm.source.write(shm.region, shm.remote, shm.SIZE, imm=shm.key, batch=batch)
    assert op and batch.delivered == 1
    shm.counter.wait(1, timeout=10)
    assert (shm.memory.numpy() == shm.region.numpy()).all()


def test_offsets_and_references_name_the_same_bytes(shm: Pair) -> None:
    with shm.source.batch() as batch:
        shm.source.write(
            shm.region, shm.remote, 100, source_offset=50, target_offset=1000, batch=batch
        )
        shm.source.write(shm.region.at(50), shm.remote.at(2000), 100, batch=batch)
    got = shm.memory.numpy()
    assert (got[1000:1100] == shm.region.numpy()[50:150]).all()
    assert (got[2000:2100] == got[1000:1100]).all()


def test_write_many_takes_one_number_or_one_for_each(shm: Pair) -> None:
    offsets = np.arange(8) * 64
    with shm.source.batch() as batch:
        accepted = shm.source.write_many(
            shm.region, shm.remote, offsets, list(offsets[::-1]), 64, imm=shm.key, batch=batch
        )
    assert accepted == 8
    shm.counter.wait(8, timeout=10)
    assert (shm.memory.numpy()[448:512] == shm.region.numpy()[:64]).all()


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.int64, np.uint64, list, tuple])
def test_page_lists_of_every_type(shm: Pair, dtype: type) -> None:
    pages = [3, 1, 2]
    given = dtype(pages) if dtype in (list, tuple) else np.array(pages, dtype)
    with shm.source.batch() as batch:
        shm.source.write_pages(shm.region, given, shm.remote, range(3), 256, batch=batch)
    source = shm.region.numpy().reshape(-1, 256)
    target = shm.memory.numpy().reshape(-1, 256)
    assert (target[:3] == source[pages]).all()


def test_prepared_lists(shm: Pair) -> None:
    source = shm.source.make_page_list([(4, 2), (8, 1)])
    target = shm.source.make_page_list(range(0, 3))
    writes = shm.source.make_write_list([0, 64], [1 << 15, (1 << 15) + 64], 64)
    assert len(source) == len(target) == 3 and len(writes) == 2
    with shm.source.batch() as batch:
        shm.source.write_pages(shm.region, source, shm.remote, target, 256, batch=batch)
        shm.source.write_listed(writes, shm.region, shm.remote, batch=batch)
    pages = shm.region.numpy().reshape(-1, 256)
    assert (shm.memory.numpy().reshape(-1, 256)[:3] == pages[[4, 5, 8]]).all()
    assert (shm.memory.numpy()[1 << 15 :][:128] == shm.region.numpy()[:128]).all()


def test_all_layers_of_a_request_in_one_call(shm: Pair) -> None:
    layers, page, layer_bytes = 4, 128, 4096
    keys = [shm.target.make_counter() for _ in range(layers)]
    with shm.source.batch() as batch:
        accepted = shm.source.write_layers(
            shm.region,
            np.array([5, 6], np.uint32),
            [shm.remote] * layers,
            np.array([1, 0], np.int32),
            page,
            source_offsets=np.arange(layers) * layer_bytes,
            target_offsets=[i * layer_bytes for i in range(layers)],
            imm=[counter.key for counter in keys],
            batch=batch,
        )
    assert accepted == layers
    source = shm.region.numpy().reshape(-1, layer_bytes)
    target = shm.memory.numpy().reshape(-1, layer_bytes)
    for layer, counter in enumerate(keys):
        counter.wait(2, timeout=10)
        assert (target[layer, :128] == source[layer, 768:896]).all()
        assert (target[layer, 128:256] == source[layer, 640:768]).all()


def test_messages_arrive_in_order_in_an_inbox(shm: Pair) -> None:
    inbox = shm.target.make_inbox(64)
    with shm.target.listen(3, inbox, tag=9), shm.source.batch() as batch:
        for i in range(10):
            shm.source.send(shm.peer, b"message %d" % i, channel=3, batch=batch)
        events: list[fabric.Event] = []
        while len(events) < 10:
            inbox.wait(timeout=10)
            events += inbox.poll()
    assert [event.data for event in events] == [b"message %d" % i for i in range(10)]
    assert {event.tag for event in events} == {9}
    assert events[0].kind == fabric.EventKind.MESSAGE and events[0].value == 3


def test_callbacks_run_and_their_exceptions_are_reported(
    shm: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    done = threading.Event()
    monkeypatch.setattr("sys.unraisablehook", lambda hook: raised.append(hook.exc_value))

    def callback(event: fabric.Event) -> None:
        assert event.tag == 5 and event.error is None
        try:
            shm.counter.wait(1, timeout=1)
        except fabric.WouldDeadlock as error:
            raised.append(error)
        done.set()
        raise KeyError("from the callback")

    shm.source.write(shm.region, shm.remote, 64, notify=callback, tag=5)
    assert done.wait(10)
    shm.source.close()
    assert [type(error) for error in raised] == [fabric.WouldDeadlock, KeyError]


def test_flags_and_watchers(shm: Pair) -> None:
    flag = shm.source.make_flag()
    with shm.source.batch() as batch:
        shm.source.write(shm.region, shm.remote, 8, batch=batch, notify=fabric.Notify.flag(flag, 7))
    assert flag.load() == 7
    inbox = shm.source.make_inbox(8)
    watcher = shm.source.make_watcher(inbox, polled=False)
    watcher.arm()
    watcher.store(42)
    inbox.wait(timeout=10)
    assert inbox.poll()[-1].value == 42
    watcher.close()


def test_named_counters_groups_and_signals(shm: Pair) -> None:
    counter = shm.target.named_counter(99)
    (key,) = shm.source.resolve(shm.peer, [99], timeout=10)
    group = shm.target.make_counter_group()
    group.add(counter, shm.back)
    with shm.source.batch() as batch:
        shm.source.signal(shm.source.make_group([shm.peer]), key, batch=batch)
    group.wait(timeout=10)
    with pytest.raises(TimeoutError):
        group.wait(timeout=0.1)


def test_grants_end_alone(shm: Pair) -> None:
    grant = shm.memory.grant(shm.back)
    granted = shm.source.import_region(shm.peer, grant.desc)
    with shm.source.batch() as batch:
        shm.source.write(shm.region, granted, 64, batch=batch)
    with shm.target.batch() as batch:
        shm.target.revoke(grant.id, batch=batch)
    with pytest.raises(fabric.FabricError):
        with shm.source.batch() as batch:
            shm.source.write(shm.region, granted, 64, batch=batch)
    with shm.source.batch() as batch:
        shm.source.write(shm.region, shm.remote, 64, batch=batch)


def test_a_batch_cancels_when_an_exception_leaves_it(shm: Pair) -> None:
    with pytest.raises(ZeroDivisionError):
        with shm.source.batch() as batch:
            shm.source.timer(3600, batch=batch)
            raise ZeroDivisionError
    assert batch.pending == 0


def test_statistics_and_dumps(shm: Pair) -> None:
    with shm.source.batch() as batch:
        shm.source.write(shm.region, shm.remote, 4096, imm=shm.key, batch=batch)
    stats = shm.source.stats()
    assert stats.tx.bytes == 4096 and stats.peers == 1
    assert shm.source.rail_stats()[0].network == "shm"
    assert shm.source.peer_stats()[0].peer == shm.peer
    assert shm.source.peer_info(shm.peer).state == fabric.PeerState.CONNECTED
    assert shm.source.dump_json().startswith("{") and shm.source.dump()
    with pytest.raises(AttributeError):
        stats.turns = 0  # type: ignore[misc]


def test_waits_release_the_gil(shm: Pair) -> None:
    loops = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal loops
        while not stop.is_set():
            loops += 1

    thread = threading.Thread(target=count)
    thread.start()
    with pytest.raises(fabric.Timeout):
        shm.counter.wait(1, timeout=0.3)
    stop.set()
    thread.join()
    assert loops > 1000


def test_many_threads_submit(shm: Pair) -> None:
    def submit() -> None:
        with shm.source.batch() as batch:
            for _ in range(100):
                shm.source.write(shm.region, shm.remote, 64, imm=shm.key, batch=batch)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    shm.counter.wait(400, timeout=20)
    for thread in threads:
        thread.join()


def test_an_engine_writes_to_its_own_address() -> None:
    with fabric.Engine(networks=["shm"]) as engine:
        pair = Pair(engine, engine)
        with engine.batch() as batch:
            engine.write(pair.region, pair.remote, 1000, imm=pair.key, batch=batch)
        pair.counter.wait(1, timeout=10)
        assert (pair.memory.numpy()[:1000] == pair.region.numpy()[:1000]).all()


def test_two_job_keys_do_not_meet() -> None:
    with (
        fabric.Engine(networks=["shm"], job_key="one") as one,
        fabric.Engine(networks=["shm"], job_key="two", log_level=fabric.LogLevel.OFF) as two,
    ):
        peer = one.connect(two.address_text())
        begin = time.monotonic()
        with pytest.raises(ConnectionError):
            with one.batch() as batch:
                one.send(peer, b"x", batch=batch)
        assert time.monotonic() - begin < 5


def test_settings_are_those_of_config() -> None:
    config = fabric.Config(default_timeout=0.2, networks=[fabric.Network(provider="shm")])
    assert config.default_timeout == 0.2 and config.networks[0].provider == "shm"
    with shm_pair(default_timeout=0.2) as pair, pytest.raises(TimeoutError):
        pair.counter.wait(1)
    network = fabric.Network(provider="shm", options=fabric.ShmOptions(lanes=2))
    assert str(network) == "shm lanes=2"
    assert str(fabric.parse_network("shm lanes=2")) == str(network)
