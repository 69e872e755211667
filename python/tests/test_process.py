"""Signals, fork, and the end of the interpreter."""

import os
import signal
import subprocess
import sys
import threading
import time

import fabric_lib as fabric
import pytest
from conftest import Pair, run_code


@pytest.mark.parametrize("what", ["counter", "inbox", "batch", "group"])
def test_ctrl_c_ends_a_wait(shm: Pair, what: str) -> None:
    group = shm.target.make_counter_group()
    group.add(shm.target.make_counter(), shm.back)
    batch = shm.source.make_batch()
    shm.source.timer(60, batch=batch)
    waits = {
        "counter": shm.counter.wait,
        "inbox": lambda *n, timeout: shm.source.make_inbox(4).wait(timeout=timeout),
        "batch": lambda *n, timeout: batch.wait(timeout=timeout),
        "group": lambda *n, timeout: group.wait(timeout=timeout),
    }
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        waits[what](1, timeout=30)
    assert time.monotonic() - begin < 5
    timer.join()


PROGRAM = """
import sys, threading, time
import fabric_lib as fabric
quiet = {{"networks": ["shm"], "log_level": fabric.LogLevel.OFF}}  # a peer that goes is a warning
a, b = fabric.Engine(**quiet), fabric.Engine(**quiet)
memory, counter = b.allocate(1 << 16), b.make_counter()
offer = a.accept(b.offer(memory, counter.key))
region = a.allocate(1 << 16)
calls = []
subscription = b.subscribe(calls.append)
listener = b.listen(1, calls.append)
for i in range(200):
    a.write(region, offer.region, 64, imm=offer.key, notify=calls.append)
    a.send(offer.peer, b"x", channel=1)
{end}
"""

ENDS = {
    "with everything in flight": "",
    "after a wait": "counter.wait(200, timeout=20)",
    "by sys.exit in the middle": "sys.exit(0)",
    "with an armed expectation": "counter.expect(10_000, calls.append)",
    "with a thread in a wait": (
        "threading.Thread(target=lambda: counter.wait(10_000, timeout=60), daemon=True).start()\n"
        "time.sleep(0.05)"
    ),
    "with an engine that is closed": "a.close()",
    "with cycles": "a_cycle = [a, region, calls]; a_cycle.append(a_cycle); del a, region, offer",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=list(ENDS))
def test_the_interpreter_ends_cleanly_without_close(end: str) -> None:
    for _ in range(2):
        result = run_code(PROGRAM.format(end=end))
        assert (result.returncode, result.stderr) == (0, "")


def test_an_uncaught_exception_is_what_is_shown() -> None:
    result = run_code(PROGRAM.format(end="raise LookupError('at the end')"))
    assert result.returncode == 1 and result.stderr.endswith("LookupError: at the end\n")


def test_a_child_after_fork_is_refused_and_ends_cleanly() -> None:
    code = """
import os, sys
import fabric_lib as fabric
engine = fabric.Engine(networks=["shm"])
region, counter = engine.allocate(4096), engine.make_counter()
child = os.fork()
if child == 0:
    try:
        engine.make_counter()
    except fabric.Closed:
        sys.exit(7)  # with atexit, destructors and all
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
region.numpy()[0] = 1  # the parent goes on
assert engine.make_counter().key
"""
    result = run_code(code)
    assert (result.returncode, result.stderr) == (0, "")


def test_two_processes_exchange_an_offer() -> None:
    writer = """
import sys
import fabric_lib as fabric
with fabric.Engine(networks=["shm"]) as engine:
    offer = engine.accept(sys.argv[1])
    region = engine.register(bytearray(b"from the child"))
    with engine.batch() as batch:
        engine.write(region, offer.region, 14, imm=offer.key, batch=batch)
"""
    with fabric.Engine(networks=["shm"]) as engine:
        memory, counter = engine.allocate(64), engine.make_counter()
        result = run_code(writer, engine.offer(memory, counter.key))
        assert (result.returncode, result.stderr) == (0, "")
        counter.wait(1, timeout=10)
        assert bytes(memory.numpy()[:14]) == b"from the child"


def test_a_peer_that_is_killed_is_a_connection_error() -> None:
    code = """
import sys, time
import fabric_lib as fabric
engine = fabric.Engine(networks=["shm"])
memory, counter = engine.allocate(64), engine.make_counter()
print(engine.offer(memory, counter.key), flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with fabric.Engine(networks=["shm"], log_level=fabric.LogLevel.OFF) as engine:
        offer = engine.accept(child.stdout.readline().strip())
        counter = engine.make_counter()
        counter.bind(offer.peer)
        region = engine.allocate(64)
        with engine.batch() as batch:
            engine.write(region, offer.region, 64, batch=batch)
        child.kill()
        child.wait()
        with pytest.raises(ConnectionError) as caught:
            counter.wait(1, timeout=20)
        assert caught.value.code == fabric.Errc.PEER_LOST  # type: ignore[attr-defined]
    child.stdout.close()
