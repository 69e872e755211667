#!/usr/bin/env python3
"""Writes between two transfer engines of Mooncake over TCP: one JSON object a run.

    mooncake_peer.py write|paged|latency [--bytes N] [--pages N] [--slots N] [--duration S]
                     [--pin A,B]

Without an RDMA network it has TCP only. Pages, and writes in groups of 16, go in one batch, which
is its best; they are not notified, which is less than we do. Round trips are notified.
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

os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
os.environ.setdefault("GLOG_minloglevel", "3")
GROUP = 16


class Side:
    def __init__(self, peer, options):
        from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

        self.notify, self.opcode = TransferNotify, TransferOpcode
        self.options = options
        self.extent = options.bytes * options.pages * options.slots
        self.next = 0
        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            sys.exit("mooncake_peer: the engine does not start")
        self.source, source_at = self.map()
        self.target, target_at = self.map()
        self.source[:] = (bytes(range(251)) * (self.extent // 251 + 1))[:self.extent]
        for at in (source_at, target_at):
            if self.engine.register_memory(at, self.extent) != 0:
                sys.exit("mooncake_peer: memory is not registered")
        hello = json.dumps([self.engine.get_rpc_port(), target_at]).encode()
        peer.sendall(len(hello).to_bytes(8, "little") + hello)
        size = int.from_bytes(peer.recv(8, socket.MSG_WAITALL), "little")
        port, there = json.loads(peer.recv(size, socket.MSG_WAITALL))
        self.peer = f"127.0.0.1:{port}"
        pages, size = options.pages, options.bytes
        group = GROUP if options.verb == "write" else 1
        self.local = [[source_at + at + page * size for page in range(pages)] * group
                      for at in self.slots()]
        self.remote = [[there + at + self.place(page) * size for page in range(pages)] * group
                       for at in self.slots()]
        self.lengths = [size] * pages * group

    def map(self):
        memory = mmap.mmap(-1, self.extent, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def slots(self):
        return range(0, self.extent, self.options.bytes * self.options.pages)

    def place(self, page):
        return page * 7919 % self.options.pages

    def write(self):
        """Writes the next slot. Returns how many writes that were."""
        slot = self.next
        self.next = (slot + 1) % len(self.local)
        rc = self.engine.batch_transfer_sync_write(
            self.peer, self.local[slot], self.remote[slot], self.lengths)
        if rc != 0:
            sys.exit(f"mooncake_peer: a batch failed with {rc}")
        return len(self.lengths)

    def write_notified(self):
        rc = self.engine.transfer_sync(self.peer, self.local[0][0], self.remote[0][0],
                                       self.lengths[0], self.opcode.Write,
                                       self.notify("peer", "n"))
        if rc != 0:
            sys.exit(f"mooncake_peer: a write failed with {rc}")

    def wait_notified(self, until=lambda: False):
        while not self.engine.get_notifies():
            if until():
                return False
        return True

    def right(self):
        size = self.options.bytes
        return all(self.source[at + page * size:at + (page + 1) * size] ==
                   self.target[at + self.place(page) * size:at + (self.place(page) + 1) * size]
                   for at in self.slots() for page in range(self.options.pages))


def stream(side, options):
    writes = 0
    for _ in range(options.slots):  # connects, and touches all memory
        side.write()
    begin = end = time.perf_counter()
    while end - begin < options.duration:
        writes += side.write()
        end = time.perf_counter()
    rate = writes / (end - begin)
    return {"ops_per_second": rate, "gb_per_second": rate * options.bytes / 1e9}


def latency(side, options):
    times = []
    begin = last = time.perf_counter()
    while last - begin < options.duration or len(times) < 3:
        side.write_notified()
        side.wait_notified()
        end = time.perf_counter()
        times.append((end - last) / 2 * 1e9)
        last = end
    times = sorted(times[1:])
    return {"half_round_trip_ns": {"p50": times[len(times) // 2],
                                   "p99": times[len(times) * 99 // 100]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("write", "paged", "latency"))
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--slots", type=int, default=1, help="of so many pages each, in turn")
    parser.add_argument("--duration", type=float, default=0.5)
    parser.add_argument("--pin", default="0,1")
    options = parser.parse_args()
    cores = [int(core) for core in options.pin.split(",")]
    mine, other = socket.socketpair()
    shared = memoryview(mmap.mmap(-1, 4096)).cast("Q")  # [0]: the source is done
    child = os.fork()
    # What never returns must not hold up the comparison.
    signal.alarm(int(options.duration) + 30)
    peer = mine if child else other
    (other if child else mine).close()
    # Its own threads do the work: they inherit the core.
    os.sched_setaffinity(0, {cores[0 if child else 1]})
    side = Side(peer, options)
    if child == 0:
        while shared[0] == 0:
            if options.verb == "latency":
                if side.wait_notified(lambda: shared[0] != 0):
                    side.write_notified()
            else:
                time.sleep(0.001)
        os._exit(0 if side.right() else 1)
    result = (latency if options.verb == "latency" else stream)(side, options)
    shared[0] = 1
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit("mooncake_peer: the target failed, or has wrong bytes")
    print(json.dumps({"benchmark": options.verb, "bytes": options.bytes} | result), flush=True)
    os._exit(0)  # its destructors wait for threads that do not end


if __name__ == "__main__":
    main()
