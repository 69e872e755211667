#!/usr/bin/env python3
"""Notified writes between two agents of NIXL: one JSON object a run.

    nixl_peer.py write|paged|latency [--bytes N] [--pages N] [--slots N] [--duration S]
                 [--pin A,B]

The wheel has no C headers, so it is driven through its Python bindings, below the convenience
class: some hundred nanoseconds a call. Tuned as well as it can be: no progress thread (both sides
poll), errors of peers not handled, because that makes its UCX drop shared memory, requests
prepared once and posted again and again, cores pinned.
"""

import argparse
import ctypes
import json
import mmap
import os
import signal
import socket
import sys
import time

os.environ.setdefault("UCX_TLS", "posix,sysv,cma,self")
os.environ.setdefault("UCX_LOG_LEVEL", "error")
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")


def receive(peer):
    size = int.from_bytes(peer.recv(8, socket.MSG_WAITALL), "little")
    return peer.recv(size, socket.MSG_WAITALL)


def send(peer, data):
    peer.sendall(len(data).to_bytes(8, "little") + data)


class Side:
    """One agent with a source and a target, connected with the other one."""

    def __init__(self, name, other, peer, options):
        from nixl_cu12 import _bindings as nixl

        self.nixl = nixl
        self.options = options
        self.extent = options.bytes * options.pages * options.slots
        self.next = 0
        config = nixl.nixlAgentConfig()
        config.useProgThread = False
        config.useListenThread = False
        config.syncMode = nixl.NIXL_THREAD_SYNC_NONE
        config.pthrDelay = 0
        self.agent = nixl.nixlAgent(name, config)
        self.backend = self.agent.createBackend("UCX", {"ucx_error_handling_mode": "none"})
        self.source, self.source_at = self.map()
        self.target, self.target_at = self.map()
        # Its length divides no page size, so that a page in the wrong place is found.
        pattern = bytes(i * 31 >> 3 & 0xff for i in range(4093))
        self.source[:] = (pattern * (self.extent // len(pattern) + 1))[:self.extent]
        memory = nixl.nixlRegDList(nixl.DRAM_SEG)
        for at in (self.source_at, self.target_at):
            memory.addDesc((at, self.extent, 0, ""))
        self.agent.registerMem(memory, [self.backend])
        send(peer, self.agent.getLocalMD())
        self.agent.loadRemoteMD(receive(peer))
        send(peer, self.target_at.to_bytes(8, "little"))
        there = int.from_bytes(receive(peer), "little")
        self.agent.makeConnection(other, [self.backend])
        slot_bytes = options.bytes * options.pages
        self.requests = [self.prepare(other, there, slot * slot_bytes)
                         for slot in range(options.slots)]

    def map(self):
        memory = mmap.mmap(-1, self.extent, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def prepare(self, other, there, offset):
        """Pages are scattered at the target, so that they cannot be merged into one."""
        local = self.nixl.nixlXferDList(self.nixl.DRAM_SEG)
        remote = self.nixl.nixlXferDList(self.nixl.DRAM_SEG)
        pages, size = self.options.pages, self.options.bytes
        for page in range(pages):
            local.addDesc((self.source_at + offset + page * size, size, 0))
            remote.addDesc((there + offset + page * 7919 % pages * size, size, 0))
        return self.agent.createXferReq(
            self.nixl.NIXL_WRITE, local, remote, other, "", [self.backend])

    def write(self):
        """Posts the request of the next slot; its notification leaves when it is polled."""
        request = self.requests[self.next]
        self.next = (self.next + 1) % len(self.requests)
        if self.agent.postXferReq(request, "n") == self.nixl.NIXL_SUCCESS:
            return
        while self.agent.getXferStatus(request) != self.nixl.NIXL_SUCCESS:
            pass

    def arrivals(self):
        return sum(map(len, self.agent.getNotifs({}, [self.backend]).values()))

    def right(self):
        pages, size = self.options.pages, self.options.bytes
        return all(
            self.source[at + page * size:at + (page + 1) * size] ==
            self.target[at + page * 7919 % pages * size:at + (page * 7919 % pages + 1) * size]
            for at in range(0, self.extent, pages * size) for page in range(pages))


def target(side, shared, answers):
    """`shared`: writes to expect, 0 while unknown; writes that have arrived."""
    received = 0
    while received == 0 or received != shared[0]:
        more = side.arrivals()
        if more and answers:
            side.write()
        received += more
        shared[1] = received
    return side.right()


def stream(side, shared, options):
    posted = before = 0
    begin = time.perf_counter()
    while True:
        side.write()
        posted += 1
        # One at a time in flight without this would be slower; more than these would only queue.
        while posted - shared[1] > options.window:
            side.arrivals()
        took = time.perf_counter() - begin
        if took >= options.duration and posted >= options.slots:
            break
        if before == 0 and took >= options.duration / 8:
            before, begin = posted, time.perf_counter()
    shared[0] = posted
    while shared[1] != posted:
        side.arrivals()
    rate = (posted - before) / (time.perf_counter() - begin)
    return {"ops_per_second": rate * options.pages,
            "gb_per_second": rate * options.pages * options.bytes / 1e9}


def latency(side, shared, options):
    times = []
    begin = last = time.perf_counter()
    turns = 0
    while last - begin < options.duration:
        side.write()
        while side.arrivals() == 0:
            pass
        turns += 1
        end = time.perf_counter()
        if last - begin > options.duration / 8:
            times.append((end - last) / 2 * 1e9)
        last = end
    shared[0] = turns
    times.sort()
    return {"half_round_trip_ns": {"p50": times[len(times) // 2],
                                   "p99": times[len(times) * 99 // 100]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("write", "paged", "latency"))
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--slots", type=int, default=1, help="of so many pages each, in turn")
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--duration", type=float, default=0.5)
    parser.add_argument("--pin", default="0,1")
    options = parser.parse_args()
    cores = [int(core) for core in options.pin.split(",")]
    mine, other = socket.socketpair()
    shared = memoryview(mmap.mmap(-1, 4096)).cast("Q")
    child = os.fork()
    # What never returns must not hold up the comparison.
    signal.alarm(int(options.duration) + 30)
    if child == 0:
        mine.close()
        os.sched_setaffinity(0, {cores[1]})
        right = target(Side("target", "source", other, options), shared, options.verb == "latency")
        os._exit(0 if right else 1)
    other.close()
    os.sched_setaffinity(0, {cores[0]})
    side = Side("source", "target", mine, options)
    result = (latency if options.verb == "latency" else stream)(side, shared, options)
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit("nixl_peer: the target failed, or has wrong bytes")
    print(json.dumps({"benchmark": options.verb, "bytes": options.bytes} | result), flush=True)
    os._exit(0)  # its destructors wait for a peer that is gone


if __name__ == "__main__":
    main()
