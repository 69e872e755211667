"""Bad input is an exception that names the argument, and never a crash."""

import threading

import fabric_lib as fabric
import numpy as np
import pytest
from conftest import Pair
from fabric_lib import sim


def test_errors_have_code_what_and_where_and_a_builtin_base(shm: Pair) -> None:
    with pytest.raises(ValueError) as caught:
        shm.source.write(shm.region, shm.remote, 1 << 20)
    error = caught.value
    assert isinstance(error, fabric.OutOfBounds) and isinstance(error, fabric.FabricError)
    assert error.code == fabric.Errc.OUT_OF_BOUNDS and error.what == "source"
    assert error.where.startswith("src/core/") and "source" in str(error)


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (fabric.Timeout, TimeoutError),
        (fabric.PeerLost, ConnectionError),
        (fabric.Unreachable, ConnectionError),
        (fabric.InvalidArgument, ValueError),
        (fabric.OutOfBounds, ValueError),
        (fabric.Exhausted, BlockingIOError),
        (fabric.Unsupported, NotImplementedError),
        (fabric.PermissionDenied, PermissionError),
        (fabric.NotFound, LookupError),
    ],
)
def test_classes_derive_from_builtins(error: type, base: type) -> None:
    assert issubclass(error, base) and issubclass(error, fabric.FabricError)


@pytest.mark.parametrize(
    ("pages", "error", "text"),
    [
        (np.array([1.0, 2.0]), TypeError, "source_pages: expected a PageList"),
        (np.array([1, 2], np.uint16), TypeError, "source_pages: expected a PageList"),
        (np.array([[1, 2]], np.uint32), TypeError, "source_pages: expected one dimension"),
        (np.arange(4, dtype=np.uint32)[::2], TypeError, "source_pages: not contiguous"),
        (np.array([1, -2], np.int64), ValueError, "source_pages: -2 is not a page"),
        (np.array([1, 1 << 40], np.int64), ValueError, "source_pages: 1099511627776"),
        ([1, -1], ValueError, "source_pages: -1 is not a page"),
        ([1, 1 << 70], ValueError, "source_pages: "),
        (["1", "2"], TypeError, "source_pages: expected a PageList"),
        ("12", TypeError, "source_pages: expected a PageList"),
        (7, TypeError, "source_pages: expected a PageList"),
        (None, TypeError, "source_pages: expected a PageList"),
    ],
)
def test_page_lists_that_are_refused(shm: Pair, pages: object, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        shm.source.write_pages(shm.region, pages, shm.remote, [0, 1], 64)


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
@pytest.mark.parametrize("page", [1024, -1])
def test_pages_past_the_region_are_refused(shm: Pair, dtype: type, page: int) -> None:
    if page < 0 and dtype is np.uint32:
        page = (1 << 32) - 1
    pages = np.array([0, page], dtype)
    with pytest.raises(ValueError, match="source"):
        shm.source.write_pages(shm.region, pages, shm.remote, [0, 1], 64)
    with pytest.raises(ValueError, match="target"):
        shm.source.write_pages(shm.region, [0, 1], shm.remote, pages, 64)


def test_other_arguments(shm: Pair) -> None:
    source, region, remote = shm.source, shm.region, shm.remote
    with pytest.raises(ValueError, match="timeout"):
        source.write(region, remote, 1, timeout=-1)
    with pytest.raises(ValueError, match="timeout"):
        source.write(region, remote, 1, timeout=float("nan"))
    with pytest.raises(ValueError, match="timeout"):
        source.write(region, remote, 1, timeout=float("inf"))  # waits only
    with pytest.raises(TypeError, match="notify: expected an Inbox"):
        source.write(region, remote, 1, notify=7)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="priority"):
        source.write(region, remote, 1, priority=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        source.write(region, region, 1)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        source.write(region, remote, -1)
    with pytest.raises(ValueError, match="target_offsets: 3 of them, not 2"):
        source.write_many(region, remote, [0, 1], [0, 1, 2], 1)
    with pytest.raises(ValueError, match="imm: 2 of them, not 3"):
        source.write_layers(
            region, [0], remote, [0], 8, source_offsets=[0, 8, 16], imm=[shm.key, shm.key]
        )
    with pytest.raises(TypeError, match="data: expected bytes"):
        source.send(shm.peer, "text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shape"):
        region.numpy(np.int64, (1 << 20,))
    with pytest.raises(ValueError, match="offset"):
        region.numpy(offset=1 << 20)
    with pytest.raises(TypeError, match="address"):
        source.connect(7)  # type: ignore[arg-type]
    with pytest.raises(fabric.BadFormat):
        source.connect(b"no address")
    with pytest.raises(fabric.FabricError):
        source.import_region(shm.peer, b"no descriptor")
    with pytest.raises(fabric.FabricError):
        source.accept("no offer")


def test_settings_that_are_refused() -> None:
    with pytest.raises(TypeError, match="no field 'nets'"):
        fabric.Engine(nets=[])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Config.ops_max: expected int"):
        fabric.Engine(ops_max="many")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="networks: expected a sequence"):
        fabric.Engine(networks="shm")
    with pytest.raises(NotImplementedError, match="networks.provider"):
        fabric.Engine(networks=["nothing"])
    with pytest.raises(ValueError, match="ops_max"):
        fabric.Engine(networks=["shm"], ops_max=0)


def test_a_closed_engine_refuses_every_call(shm: Pair) -> None:
    batch, inbox = shm.source.make_batch(), shm.source.make_inbox(4)
    shm.source.close()
    shm.source.close()  # twice is leaving a with block after close()
    for call in (
        lambda: shm.source.write(shm.region, shm.remote, 1),
        lambda: shm.source.write_pages(shm.region, [0], shm.remote, [0], 1),
        lambda: shm.source.make_counter(),
        lambda: shm.source.allocate(4096),
        lambda: shm.source.register(np.zeros(8)),
        lambda: shm.source.connect(shm.target.address()),
        lambda: shm.source.send(shm.peer, b""),
        lambda: shm.source.batch(),
        lambda: inbox.wait(timeout=1),
    ):
        with pytest.raises(fabric.Closed):
            call()
    assert batch.pending == 0
    del shm.source


def test_closed_handles_refuse_calls(shm: Pair) -> None:
    inbox = shm.source.make_inbox(4)
    inbox.close()
    with pytest.raises(fabric.Closed, match="self"):
        inbox.poll()
    with pytest.raises(fabric.Closed, match="self"):
        shm.source.write(shm.region, shm.remote, 1, notify=inbox)


def test_a_full_queue_is_a_blocking_io_error() -> None:
    world = sim.World()
    pair = Pair(world.open(world.add_node(), ops_max=16), world.open(world.add_node()))
    with pytest.raises(BlockingIOError):
        for _ in range(100):
            pair.source.write(pair.region, pair.remote, 1)
    inbox = pair.source.make_inbox(1)
    world.run_for(1)
    pair.source.timer(1, notify=inbox)
    with pytest.raises(BlockingIOError):
        pair.source.timer(1, notify=inbox)


def in_thread(call) -> BaseException | None:  # type: ignore[no-untyped-def]
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_an_inline_engine_belongs_to_its_thread(simulated: Pair) -> None:
    pair = simulated
    for call in (
        lambda: pair.source.write(pair.region, pair.remote, 1),
        lambda: pair.source.stats(),
        lambda: pair.counter.wait(1, timeout=1),
        lambda: pair.counter.count,
        lambda: pair.region.desc(),
        lambda: pair.source.close(),
    ):
        error = in_thread(call)
        assert isinstance(error, ValueError) and "thread" in str(error)
    runtime = fabric.InlineRuntime()
    with fabric.Engine(networks=["shm"], runtime=runtime) as engine:
        assert isinstance(in_thread(engine.progress), ValueError)
        assert isinstance(in_thread(runtime.turn), ValueError)
        assert engine.progress() >= 0


def test_objects_of_an_inline_engine_may_die_on_any_thread(simulated: Pair) -> None:
    values = np.zeros(4096, np.uint8)
    objects = [simulated.source.register(values), simulated.source.make_counter()]
    in_thread(objects.clear)
    with simulated.source.batch() as batch:  # the deferred destructors run here
        simulated.source.write(simulated.region, simulated.remote, 64, batch=batch)
    assert simulated.source.stats().regions == 1


def test_an_inbox_has_one_reader(shm: Pair) -> None:
    inbox = shm.source.make_inbox(4)
    entered = threading.Event()

    def wait() -> None:
        entered.set()
        with pytest.raises(TimeoutError):
            inbox.wait(timeout=0.5)

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait()
    with pytest.raises(fabric.Busy):
        while thread.is_alive():
            inbox.poll()
    thread.join()
