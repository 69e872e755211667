"""KV caches between engines: the plan, a request from pages to pages, failures, the directory."""

import asyncio
import itertools
from collections.abc import Callable

import fabric_lib as fabric
import numpy as np
import pytest
from fabric_lib import aio, kv, sim

LAYERS, HEADS, HEAD_SIZE, PAGES = 3, 2, 8, 16


def layout(page_tokens: int, tp_rank: int = 0, tp_size: int = 1, dtype: str = "f16") -> kv.Layout:
    tensor = kv.Tensor(
        name="kv", dtype=dtype, element_bytes=2, heads_total=HEADS, head_size=HEAD_SIZE, parts=2
    )
    placement = kv.DensePlacement(
        page_tokens=page_tokens, pages=PAGES, layers=LAYERS, tp_rank=tp_rank, tp_size=tp_size
    )
    size = kv.place_tensor(tensor, placement)
    group = kv.CacheGroup(
        name="full", page_tokens=page_tokens, pages=PAGES, layers=range(LAYERS), tensors=[tensor]
    )
    return kv.Layout(tp_rank=tp_rank, tp_size=tp_size, region_bytes=[size], groups=[group])


def token(cache: np.ndarray, of: kv.Layout, pages: list[int], layer: int, t: int) -> np.ndarray:
    """The elements of a token in a cache: [part][head][element]."""
    (group,) = of.groups
    (tensor,) = group.tensors
    page, row = pages[t // group.page_tokens], t % group.page_tokens
    begin = tensor.offset_bytes + layer * tensor.layer_stride_bytes
    begin += page * tensor.page_stride_bytes + row * tensor.token_stride_bytes
    heads = HEADS // of.tp_size
    strides = (tensor.part_stride_bytes, tensor.head_stride_bytes, tensor.element_bytes)
    return np.lib.stride_tricks.as_strided(
        cache[begin // 2 :], (2, heads, HEAD_SIZE), strides, writeable=False
    )


class Transfer:
    """A decoder and a prefiller whose pages differ in size, on two engines."""

    def __init__(self, prefill_engine: fabric.Engine, decode_engine: fabric.Engine) -> None:
        self.engines = (prefill_engine, decode_engine)
        self.prefill_layout, self.decode_layout = layout(4), layout(8)
        self.source = prefill_engine.allocate(self.prefill_layout.region_bytes[0])
        self.target = decode_engine.allocate(self.decode_layout.region_bytes[0])
        numbers = np.random.default_rng(1).integers(0, 1 << 16, self.source.size_bytes // 2)
        self.source.numpy(np.uint16)[:] = numbers
        side = kv.Side(ranks=[self.prefill_layout])
        self.prefiller = kv.Prefiller(prefill_engine, side, 0, [self.source])
        self.decoder = kv.Decoder(decode_engine, self.decode_layout, [self.target])
        self.number = self.decoder.add_prefill(side)
        self.events: list[kv.DecodeEvent | kv.PrefillEvent] = []

    def start(self, id: str, pages: list[int], tokens: int, **options: object) -> None:
        address = self.engines[0].address_text()
        self.decoder.start(
            id,
            prefill=self.number,
            sources=[kv.Source(rank=0, address=address)],
            prompt_tokens=tokens,
            pages=[np.array(pages, np.int32)] if isinstance(pages, list) else pages,
            **options,  # type: ignore[arg-type]
        )

    def push(self, id: str, tokens: int, chunk: int) -> None:
        for begin in range(0, tokens, chunk):
            entry = kv.PassEntry(id, (begin, min(begin + chunk, tokens)))
            step = self.prefiller.begin_pass([entry])
            for layer in range(LAYERS):
                self.prefiller.layer_done(step + layer + 1)
        self.prefiller.finish(id)

    def poll_until(self, done: Callable[[], bool], advance: Callable[[], None]) -> None:
        for _ in itertools.repeat(None, 20_000):
            self.events += self.decoder.poll()
            self.events += self.prefiller.poll()
            if done():
                return
            advance()
        raise AssertionError(self.events)

    def kinds(self, kind: type) -> list[object]:
        return [event.kind for event in self.events if isinstance(event.kind, kind)]

    def check(self, prefill_pages: list[int], decode_pages: list[int], tokens: int) -> None:
        source, target = self.source.numpy(np.uint16), self.target.numpy(np.uint16)
        for layer in range(LAYERS):
            for t in range(tokens):
                sent = token(source, self.prefill_layout, prefill_pages, layer, t)
                got = token(target, self.decode_layout, decode_pages, layer, t)
                assert (sent == got).all(), (layer, t)


@pytest.mark.parametrize("chunk", [20, 7])
def test_the_cache_of_a_request_moves(chunk: int) -> None:
    world = sim.World(seed=3)
    transfer = Transfer(world.open(world.add_node(2)), world.open(world.add_node()))
    transfer.start("request", [9, 1, 5], 20, per_layer=True, info=b"prompt")
    transfer.prefiller.offer("request", prompt_tokens=20, pages=[[3, 2, 1, 0, 7]])
    transfer.push("request", 20, chunk)

    def over() -> bool:
        free = kv.PrefillEventKind.SOURCE_FREE in transfer.kinds(kv.PrefillEventKind)
        return free and kv.DecodeEventKind.MAY_WRITE in transfer.kinds(kv.DecodeEventKind)

    transfer.poll_until(over, lambda: world.run_for(1e-5))
    transfer.check([3, 2, 1, 0, 7], [9, 1, 5], 20)
    decode = transfer.kinds(kv.DecodeEventKind)
    assert decode.count(kv.DecodeEventKind.LAYER) == LAYERS
    assert decode[0] == kv.DecodeEventKind.ACCEPTED and decode[-2] == kv.DecodeEventKind.COMPLETE
    dispatched = next(e for e in transfer.events if isinstance(e, kv.PrefillEvent))
    assert dispatched.info == b"prompt" and dispatched.prompt_tokens == 20
    assert transfer.decoder.stats().completed == 1
    assert transfer.decoder.page_state(0, 9) == kv.PageState.UNLEASED


def test_a_wait_for_a_layer_on_shm() -> None:
    with fabric.Engine(networks=["shm"]) as one, fabric.Engine(networks=["shm"]) as two:
        transfer = Transfer(one, two)
        transfer.start("request", [0, 1, 2], 24, per_layer=True)
        transfer.prefiller.offer("request", prompt_tokens=24, pages=[range(6)])
        transfer.push("request", 24, 24)
        transfer.poll_until(lambda: bool(transfer.events), lambda: transfer.prefiller.wait(5))
        transfer.decoder.wait_layer("request", LAYERS - 1, timeout=10)
        assert transfer.decoder.layer_ready("request", LAYERS - 1)
        transfer.check(list(range(6)), [0, 1, 2], 24)
        transfer.decoder.close()
        transfer.prefiller.close()


def test_events_are_awaited() -> None:
    async def first(member: kv.Decoder | kv.Prefiller, wanted: object) -> None:
        async for event in aio.events(member):
            if event.kind == wanted:
                return

    async def main(transfer: Transfer) -> None:
        transfer.start("request", [0, 1, 2], 24)
        transfer.prefiller.offer("request", prompt_tokens=24, pages=[range(6)])
        transfer.push("request", 24, 24)
        await asyncio.wait_for(
            asyncio.gather(
                first(transfer.decoder, kv.DecodeEventKind.MAY_WRITE),
                first(transfer.prefiller, kv.PrefillEventKind.SOURCE_FREE),
            ),
            timeout=20,
        )

    with fabric.Engine(networks=["shm"]) as one, fabric.Engine(networks=["shm"]) as two:
        transfer = Transfer(one, two)
        asyncio.run(main(transfer))
        transfer.check(list(range(6)), [0, 1, 2], 24)


def test_a_crashed_prefiller_fails_the_request_and_frees_its_pages() -> None:
    world = sim.World(seed=4)
    transfer = Transfer(world.open(world.add_node()), world.open(world.add_node()))
    transfer.start("request", [0, 1, 2], 24)
    transfer.prefiller.offer("request", prompt_tokens=24, pages=[range(6)])
    transfer.poll_until(lambda: len(transfer.events) >= 2, lambda: world.run_for(1e-5))
    world.at(world.now(), sim.Fault.crash(0))
    for _ in range(100_000):
        world.run_for(1e-3)
        transfer.events += transfer.decoder.poll()
        if kv.DecodeEventKind.PAGES_FREE in transfer.kinds(kv.DecodeEventKind):
            break
    (failed,) = (e for e in transfer.events if e.kind == kv.DecodeEventKind.FAILED)
    assert isinstance(failed, kv.DecodeEvent)
    assert failed.fail in (kv.FailCode.PEER_LOST, kv.FailCode.STALLED)
    assert transfer.kinds(kv.DecodeEventKind)[-1] == kv.DecodeEventKind.PAGES_FREE


def test_bad_requests_are_named() -> None:
    world = sim.World()
    transfer = Transfer(world.open(world.add_node()), world.open(world.add_node()))
    with pytest.raises(ValueError, match="pages") as caught:
        transfer.start("request", [0, 1, PAGES], 24)
    assert caught.value.native == PAGES  # type: ignore[attr-defined]
    with pytest.raises(fabric.FabricError, match="pages"):
        transfer.start("request", [0, 1, 1], 24)
    with pytest.raises(TypeError, match="pages: expected"):
        transfer.start("r", 7, 1)  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        transfer.prefiller.finish("unknown")
    with pytest.raises(LookupError):
        transfer.decoder.cancel("unknown")
    with pytest.raises(TypeError, match="Tensor.heads_total: expected int"):
        kv.Tensor(heads_total="two")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        kv.Layout().groups.append(kv.CacheGroup())  # type: ignore[attr-defined]


def test_plans_agree_and_count() -> None:
    prefill = kv.Side(ranks=[layout(4, rank, 2) for rank in range(2)])
    decode = kv.Side(ranks=[layout(8)])
    plan = kv.plan(prefill, decode)
    assert plan.hash == kv.plan(kv.decode_side(kv.encode(prefill)), decode).hash
    assert plan.size == 2 and plan.groups[0].unit_tokens == 4
    tokens = kv.RequestTokens(prompt_tokens=20, seed=kv.request_seed("id"))
    for source in range(2):
        pair = plan.pair(kv.find_pair(plan, source, 0))
        total = kv.counts(plan, pair, tokens).total
        chunks = [kv.chunk_counts(plan, pair, tokens, c).total for c in ((0, 7), (7, 20))]
        assert total == sum(chunks) > 0
        units = kv.request_units(plan, 0, tokens)
        assert units == (0, 5) and kv.chunk_units(plan, 0, tokens, (0, 7)) == (0, 1)
        at = kv.unit_indices(plan, pair, 0, 0, units, tokens.seed, [3, 2, 1, 0, 7], [9, 1, 5])
        assert at.units.dtype == np.uint32 and len(at.source) == len(at.target) == 5
        assert len(kv.slices_of(pair.groups[0], 1)) >= 1


def test_a_refusal_names_both_sides() -> None:
    with pytest.raises(NotImplementedError, match="bf16") as caught:
        kv.plan(kv.Side(ranks=[layout(4)]), kv.Side(ranks=[layout(4, dtype="bf16")]))
    refusal: kv.Refusal = caught.value.refusal  # type: ignore[attr-defined]
    assert refusal.code == kv.RefusalCode.DTYPE_DIFFERS and refusal.reason
    with pytest.raises(ValueError):
        kv.check(kv.Layout(tp_size=0))


def test_the_directory_finds_a_prefiller_and_the_router_picks_it() -> None:
    world = sim.World(seed=9)
    router_engine, prefill_engine = (world.open(world.add_node()) for _ in range(2))
    seed = kv.EmbeddedDirectory(router_engine, kv.EmbeddedOptions(serve=True, warm_up=0))
    options = kv.EmbeddedOptions(seeds=[router_engine.address()], watch=False)
    directory = kv.EmbeddedDirectory(prefill_engine, options)
    member = kv.describe(prefill_engine)
    member.capacity, member.label, member.layout_hash = 8, "prefill-1", kv.layout_hash(layout(4))
    directory.announce(member)
    for _ in range(1000):
        world.run_for(1e-3)
        directory.poll()
        seed.poll()
        if seed.members().members:
            break
    view = seed.members()
    assert view.members[0].label == "prefill-1"
    assert kv.Member.from_text(member.to_text()).address == prefill_engine.address()
    router = kv.Router(seed=1)
    router.update(view)
    picked = router.pick(prefix="conversation")
    assert picked.member.engine_id == member.engine_id and picked.preferred
    router.lost(member.engine_id)
    with pytest.raises(LookupError, match="lost"):
        router.pick()
    assert kv.changes(kv.View(), view)[0].kind == kv.ChangeKind.JOINED
    assert len(kv.StaticDirectory([member]).members().members) == 1


def test_a_pool_of_pages() -> None:
    pool = kv.PagePool(4)
    pages = pool.allocate(3)
    with pytest.raises(BlockingIOError):
        pool.allocate(2)
    pool.release(np.array(pages, np.uint32))
    assert pool.free == pool.size == 4
    with pytest.raises(ValueError):
        pool.release([0])
