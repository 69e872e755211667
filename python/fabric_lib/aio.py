"""asyncio over an engine: operations, counters, messages and close are awaited.

    async with aio.Engine(networks=["shm"]) as engine:
        await engine.write(region, remote, 4096, imm=key)
        await engine.arrived(counter, 1)

All of them report to one inbox, whose descriptor the event loop watches; all futures of a wake-up
are resolved in one pass. An engine belongs to the loop in which it was first awaited.

A future that is cancelled stops waiting and nothing else: the operation goes on, and its source is
in use until it has completed. Give operations a `timeout`, or cancel a batch of them.
"""

from __future__ import annotations

import asyncio
import collections
import datetime
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from fabric_lib import _native
from fabric_lib._errors import Closed
from fabric_lib._settings import Seconds, Settings

if TYPE_CHECKING:
    from fabric_lib._native import kv, sim

__all__ = ["Engine", "Messages", "events"]

_HANDLERS_FROM = 1 << 32  # tags of listeners, above every index of a future
_STEP = 10e-6  # seconds of virtual time between two looks at an inbox
_INBOX_DEPTH = 4096


class Engine:
    """An engine whose operations are awaited; `engine` is the one below."""

    def __init__(
        self,
        engine: _native.Engine | None = None,
        *,
        world: sim.World | None = None,
        inbox_depth: int = _INBOX_DEPTH,
        **settings: Unpack[Settings],
    ) -> None:
        """world: of an engine in virtual time, which is advanced while something is awaited."""
        self.engine = _native.Engine(**settings) if engine is None else engine
        self._world = world
        self._inbox_depth = inbox_depth
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: _native.Inbox | None = None
        self._futures: list[asyncio.Future[int] | None] = []  # the index is the tag
        self._free: list[int] = []
        self._handlers: dict[int, Callable[[_native.Event], None]] = {}
        self._turning = False
        self._descriptor = -1  # of the inbox

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Operations: the arguments of the method of the same name of fabric_lib.Engine. The result is
    # the number of bytes that were delivered, or of counts.

    def write(self, *args: Any, **options: Any) -> asyncio.Future[int]:
        return self._submit(self.engine.write, args, options)

    def write_pages(self, *args: Any, **options: Any) -> asyncio.Future[int]:
        return self._submit(self.engine.write_pages, args, options)

    def write_listed(self, *args: Any, **options: Any) -> asyncio.Future[int]:
        return self._submit(self.engine.write_listed, args, options)

    def scatter(self, *args: Any, **options: Any) -> asyncio.Future[int]:
        return self._submit(self.engine.scatter, args, options)

    def signal(self, *args: Any, **options: Any) -> asyncio.Future[int]:
        return self._submit(self.engine.signal, args, options)

    def send(self, *args: Any, **options: Any) -> asyncio.Future[int]:
        return self._submit(self.engine.send, args, options)

    def timer(self, after: Seconds) -> asyncio.Future[int]:
        """Completes after that time on the engine's clock, which may be virtual."""
        return self._submit(self.engine.timer, (after,), {})

    def fence(self, peer: _native.PeerId, **options: Any) -> asyncio.Future[int]:
        return self._submit(self.engine.fence, (peer,), options)

    def drop(self, peer: _native.PeerId, **options: Any) -> asyncio.Future[int]:
        return self._submit(self.engine.drop, (peer,), options)

    def revoke(self, grant: _native.GrantId, **options: Any) -> asyncio.Future[int]:
        return self._submit(self.engine.revoke, (grant,), options)

    def deregister(self, region: _native.MemoryRegion, **options: Any) -> asyncio.Future[int]:
        return self._submit(self.engine.deregister, (region,), options)

    def arrived(
        self,
        counter: _native.Counter | _native.CounterGroup,
        n: int | None = None,
        *,
        timeout: float | datetime.timedelta | None = None,
    ) -> asyncio.Future[int]:
        """The expectation of n counts, or of every share of a group."""
        if isinstance(counter, _native.CounterGroup):
            return self._submit(counter.expect, (), {"n": n, "timeout": timeout})
        if n is None:
            raise TypeError("n: a counter needs the number to wait for")
        return self._submit(counter.expect, (n,), {"timeout": timeout})

    def completed(self, batch: _native.Batch) -> asyncio.Future[int]:
        """Nothing of the batch is pending. Seals it: reset() it before it is used again."""
        return self._submit(batch.seal, (), {})

    async def resolve(
        self, peer: _native.PeerId, names: Sequence[int], timeout: Seconds | None = None
    ) -> list[_native.CounterKey]:
        if self.engine.is_inline:
            return self.engine.resolve(peer, names, timeout)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self.engine.resolve, peer, names, timeout)

    def messages(self, channel: int = 0) -> Messages:
        """The messages of a channel, as an asynchronous iterator of events."""
        loop, inbox = self._start()
        tag = _HANDLERS_FROM + len(self._handlers)
        messages = Messages(loop)
        self._handlers[tag] = messages._take
        messages._subscription = self.engine.listen(channel, inbox, tag=tag)
        self._drive()
        return messages

    async def close(self, timeout: Seconds | None = None) -> None:
        """Cancels, drains, and resolves every future."""
        if self.engine.is_inline:
            self.engine.close(timeout)
        else:
            # close() waits for the callback thread and for peers: not in the event loop.
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self.engine.close, timeout)
        self._stop()

    def _start(self) -> tuple[asyncio.AbstractEventLoop, _native.Inbox]:
        if self._loop is None or self._inbox is None:
            loop, inbox = asyncio.get_running_loop(), self.engine.make_inbox(self._inbox_depth)
            if not self.engine.is_inline:
                self._descriptor = inbox.fd()
                loop.add_reader(self._descriptor, self._drain)
            self._loop, self._inbox = loop, inbox
        return self._loop, self._inbox

    def _submit(
        self, call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> asyncio.Future[int]:
        loop, inbox = self._start()
        future: asyncio.Future[int] = loop.create_future()
        if self._free:
            tag = self._free.pop()
            self._futures[tag] = future
        else:
            tag = len(self._futures)
            self._futures.append(future)
        try:
            call(*args, notify=inbox, tag=tag, **options)
        except BaseException:
            self._futures[tag] = None
            self._free.append(tag)
            raise
        if self.engine.is_inline:
            self._drive()
        return future

    def _drain(self) -> None:
        if self._inbox is not None:
            self._inbox.resolve(self._futures, self._free, self._handle)

    def _handle(self, event: _native.Event) -> None:
        handler = self._handlers.get(event.tag)
        if handler is not None:
            handler(event)

    # An inline engine has no thread that could make the descriptor readable: its turns are made
    # here, as long as something is awaited.

    def _drive(self) -> None:
        if self.engine.is_inline and not self._turning and self._loop is not None:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if self._inbox is None:
            return
        if self._world is not None:
            self._world.run_for(_STEP)
        else:
            self.engine.progress()
        self._drain()
        if len(self._free) < len(self._futures) or self._handlers:
            self._drive()

    def _stop(self) -> None:
        if self._loop is None or self._inbox is None:
            return
        self._drain()
        if not self.engine.is_inline:
            self._loop.remove_reader(self._descriptor)
        self._inbox.close()
        self._inbox = None
        for future in self._futures:
            if future is not None and not future.done():
                future.set_exception(Closed("engine"))
        self._futures, self._free = [], []
        for handler in self._handlers.values():
            getattr(handler, "__self__").close()


class Messages:
    """Messages in the order of their arrival; ends when it, or its engine, is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: collections.deque[_native.Event] = collections.deque()
        self._waiter: asyncio.Future[None] | None = None
        self._subscription: _native.Subscription | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _native.Event:
        while not self._arrived:
            if self._subscription is None:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._arrived.popleft()

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None
        self._wake()

    def _take(self, event: _native.Event) -> None:
        self._arrived.append(event)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def events(
    member: kv.Decoder | kv.Prefiller,
) -> AsyncIterator[kv.DecodeEvent | kv.PrefillEvent]:
    """The events of a decoder or prefiller, for ever: poll() whenever fd() is readable."""
    loop = asyncio.get_running_loop()
    descriptor = member.fd()
    while True:
        found = member.poll()
        for event in found:
            yield event
        if found:
            continue
        readable = asyncio.Event()
        loop.add_reader(descriptor, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(descriptor)
