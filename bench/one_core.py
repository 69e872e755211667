#!/usr/bin/env python3
"""Two processes share one core: each writes 8 counted bytes to the other and waits for its own.

    PYTHONPATH=build/release/python build/python/venv/bin/python bench/one_core.py

Prints microseconds a step of each repetition. The calls of the Python package are included.
"""

import os
import socket
import time

STEPS = 5000
REPETITIONS = 6


def receive_line(line_socket):
    line = b""
    while not line.endswith(b"\n"):
        line += line_socket.recv(65536)
    return line.decode().strip()


def steps(line_socket):
    import fabric_lib as fabric  # after fork(): an engine belongs to one process

    with fabric.Engine(runtime=fabric.InlineRuntime(), networks=["shm"]) as engine:
        memory, counter = engine.allocate(64), engine.make_counter()
        line_socket.sendall((engine.offer(memory, counter.key) + "\n").encode())
        target = engine.accept(receive_line(line_socket))
        source = engine.allocate(64)
        for _ in range(REPETITIONS):
            begin = time.perf_counter()
            for _ in range(STEPS):
                with engine.batch() as batch:
                    engine.write(source, target.region, 8, imm=target.key, batch=batch)
                counter.wait(1, timeout=10)
            yield (time.perf_counter() - begin) / STEPS * 1e6


def main():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        list(steps(theirs))
        os._exit(0)
    print("us a step:", " ".join(f"{one:.1f}" for one in steps(ours)))
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
