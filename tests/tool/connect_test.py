#!/usr/bin/env python3
"""fabric bench: how its two sides connect, and what one does when the other is lost.

    connect_test.py TOOL [unittest's arguments]
"""

import json
import os
import signal
import socket
import struct
import time
import unittest
from pathlib import Path

import command
from command import lines, run, start, until

QUICK = ("--duration", "0.005", "--repetitions", "2", "--sizes", "1K")
LONG_RUN = ("--duration", "100", "--sizes", "4K")
# How long a side may take to notice the end of the other; about 0.1 s on an idle machine.
SOON = 20


def listener(benchmark="write", *options):
    """A receiver on a free port of its own, and where it listens."""
    child = start("bench", benchmark, "--listen", "127.0.0.1:0", *options)
    line = child.stderr.readline()
    assert line.startswith("listening at 127.0.0.1:"), line + child.stderr.read()
    return child, line.split()[-1]


def frame(message):
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">I", len(text)) + text


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid):
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Ending(unittest.TestCase):
    def ended(self, child, code):
        out, err = child.communicate(timeout=SOON)
        self.assertEqual(child.returncode, code, out + err)
        return out, err


class TwoCommands(Ending):
    def test_connect_over_loopback(self):
        for benchmark in ("write", "scatter", "latency", "message"):
            with self.subTest(benchmark):
                child, address = listener(benchmark)
                out, _ = run("bench", benchmark, *QUICK, "--connect", address, "--json")
                (case,) = lines(out)
                self.assertTrue(case["verified"])
                self.assertEqual(self.ended(child, 0), ("", ""))

    def test_must_ask_for_the_same_benchmark(self):
        child, address = listener("write")
        _, err = run("bench", "rate", *QUICK[:4], "--connect", address, code=1)
        expected = "the sender asks for rate, the receiver for write"
        self.assertIn(expected, err)
        self.assertIn(expected, self.ended(child, 1)[1])

    def test_report_that_there_is_no_listener(self):
        with socket.socket() as taken:  # bound, but not listening: refused
            taken.bind(("127.0.0.1", 0))
            _, err = run("bench", "write", "--connect", "127.0.0.1:%d" % taken.getsockname()[1],
                         code=1)
        self.assertIn("cannot connect to '127.0.0.1:", err)
        self.assertIn("refused", err)

    def test_report_that_an_address_is_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            _, err = run("bench", "write", "--listen", "127.0.0.1:%d" % taken.getsockname()[1],
                         code=1)
        self.assertIn("cannot listen at '127.0.0.1:", err)

    def test_report_that_an_address_is_invalid(self):
        for option in ("--listen", "--connect"):
            _, err = run("bench", "write", option, "127.0.0.1:nonsense", code=1)
            self.assertIn("127.0.0.1:nonsense", err)


PROTOCOL = 2  # kProtocol of tools/fabric/bench/protocol.cc


class InvalidMessages(Ending):
    """A listener that receives an invalid message exits with a clear error."""

    PLAN = {"verb": "write", "network": "shm", "sizes": [8], "window": 1, "group": 1, "pages": 1,
            "layers": 1, "tensors": 1, "targets": 1, "registered": False, "footprint": 0,
            "rails": 1, "threaded": False, "seconds": 0.1, "repetitions": 1}

    def hello(self, **changes):
        return {"hello": "fabric bench", "protocol": PROTOCOL, "offer": "nonsense",
                "plan": {**self.PLAN, **changes}}

    def expect_error(self, data, expected):
        child, address = listener()
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=SOON) as line:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            _, err = self.ended(child, 1)
        self.assertIn(expected, err)

    def test_are_refused(self):
        for data, expected in (
                (b"", "has closed the connection"),
                (b"GET / HTTP/1.1\r\n\r\n", "impossible length"),
                (b"\0\0\0\0", "impossible length"),
                (frame(b"{")[:-1], "has closed the connection"),
                (frame(b"not json"), "not JSON"),
                (frame([1]), "not JSON"),
                (frame(b"[" * 100000), "not JSON"),
                (frame({"hello": "you"}), "no hello"),
                (frame({"hello": "fabric bench", "protocol": PROTOCOL + 1}), "different versions"),
                (frame({"hello": "fabric bench", "protocol": str(PROTOCOL)}), "no protocol"),
                (frame({"hello": "fabric bench", "protocol": PROTOCOL}), "no plan"),
                (frame(self.hello()), "accept"),
                (frame(self.hello(verb="dance")), "benchmark"),
                (frame(self.hello(sizes=[1 << 60])), "a size"),
                (frame(self.hello(sizes=[-1])), "a size"),
                (frame(self.hello(sizes="8")), "no sizes"),
                (frame(self.hello(window=0)), "window"),
                (frame(self.hello(group=1 << 40)), "group"),
                (frame(self.hello(pages=1.5)), "pages"),
                (frame(self.hello(targets=1 << 30)), "targets"),
                (frame(self.hello(seconds=1e300)), "seconds"),
                (frame(self.hello(threaded=3)), "threaded"),
                (frame(self.hello(network=3)), "network")):
            with self.subTest(data[:60]):
                self.expect_error(data, expected)


class Losing(Ending):
    def test_a_killed_receiver_ends_the_sender(self):
        for options in (("write",), ("latency",), ("message",),
                        ("write", "--progress", "threaded")):
            with self.subTest(options):
                child = start("bench", *options, *LONG_RUN)
                (other,) = until("a receiver", lambda: children(child.pid))
                until("its work", lambda: processor_seconds(other) > 0.1)
                os.kill(other, signal.SIGKILL)
                self.assertIn("signal 9", self.ended(child, 1)[1])

    def test_a_receiver_killed_at_once_ends_the_sender(self):
        child = start("bench", "write", *LONG_RUN)
        (other,) = until("a receiver", lambda: children(child.pid))
        os.kill(other, signal.SIGKILL)
        self.assertIn("signal 9", self.ended(child, 1)[1])

    def test_a_killed_sender_ends_the_receiver(self):
        child = start("bench", "write", *LONG_RUN)
        (other,) = until("a receiver", lambda: children(child.pid))
        until("its work", lambda: processor_seconds(other) > 0.1)
        child.kill()
        child.communicate(timeout=SOON)
        until("the receiver's end", lambda: not alive(other))

    def test_a_killed_sender_ends_the_listener(self):
        child, address = listener()
        sender = start("bench", "write", *LONG_RUN, "--connect", address)
        until("its work", lambda: processor_seconds(sender.pid) > 0.1)
        sender.kill()
        sender.communicate(timeout=SOON)
        before = time.monotonic()
        self.assertIn("has closed the connection", self.ended(child, 1)[1])
        self.assertLess(time.monotonic() - before, SOON)


if __name__ == "__main__":
    command.main()
