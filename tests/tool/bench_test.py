#!/usr/bin/env python3
"""fabric bench: every benchmark end to end, its JSON, and that wrong bytes are detected.

    bench_test.py TOOL [unittest's arguments]

No test here judges performance: a figure only has to be there, and above 0.
"""

import math
import os
import pty
import subprocess
import unittest

import command
from command import lines, run

QUICK = ("--duration", "0.005", "--repetitions", "2")
SIZED = ("write", "paged", "scatter", "latency", "rate", "message", "kv")
KEYS = ["case", "benchmark", "network", "bytes", "window", "group", "pages", "targets", "layers",
        "tensors", "memory", "footprint", "rails", "progress", "seconds", "repetitions",
        "ops_per_second", "gb_per_second", "half_round_trip_ns", "word_to_post_ns",
        "cpu_seconds_per_gb", "cpu_percent", "verified"]


def bench(benchmark, *options, code=0, **environment):
    out, _ = run("bench", benchmark, *QUICK, "--json", *options, code=code, **environment)
    return lines(out)


class Json(unittest.TestCase):
    def check_spread(self, spread):
        self.assertEqual(list(spread), ["median", "least", "most"])
        self.assertTrue(0 < spread["least"] <= spread["median"] <= spread["most"] < math.inf)

    def check_case(self, case, benchmark, size):
        self.assertEqual(list(case), KEYS)
        self.assertEqual(case["case"], f"{benchmark}/{size}")
        self.assertEqual((case["benchmark"], case["bytes"], case["network"]),
                         (benchmark, size, "shm"))
        self.assertEqual(case["repetitions"], 2)
        self.check_spread(case["ops_per_second"])
        self.check_spread(case["gb_per_second"])
        cpu = case["cpu_seconds_per_gb"]
        self.assertEqual(list(cpu), ["sender", "receiver", "sender_least", "sender_most",
                                     "receiver_least", "receiver_most"])
        for side in ("sender", "receiver"):
            self.assertTrue(0 <= cpu[f"{side}_least"] <= cpu[side] <= cpu[f"{side}_most"])
        self.assertIsNone(case["cpu_percent"])
        self.assertIs(case["verified"], True)
        if benchmark in ("latency", "message"):
            self.check_percentiles(case["half_round_trip_ns"])
        else:
            self.assertIsNone(case["half_round_trip_ns"])
        self.assertIsNone(case["word_to_post_ns"])

    def check_percentiles(self, trip):
        self.assertEqual(list(trip), ["p50", "p99", "least", "most", "p99_least", "p99_most"])
        self.assertTrue(0 < trip["least"] <= trip["p50"] <= trip["most"])
        self.assertTrue(trip["least"] <= trip["p99_least"] <= trip["p99"] <= trip["p99_most"])

    def test_every_benchmark_has_one_object_a_size(self):
        for benchmark in SIZED:
            with self.subTest(benchmark):
                # 13: parts that do not fill their last word.
                cases = bench(benchmark, "--sizes", "13,1K")
                self.assertEqual(len(cases), 2)
                for case, size in zip(cases, (13, 1024)):
                    self.check_case(case, benchmark, size)
                    rate, speed = case["ops_per_second"], case["gb_per_second"]
                    self.assertAlmostEqual(rate["median"] * size / 1e9 / speed["median"], 1, 3)

    def test_the_first_post_of_a_small_layer_is_timed(self):
        (case,) = bench("kv", "--pages", "32", "--sizes", "8")
        self.check_percentiles(case["word_to_post_ns"])

    def test_idle_reports_the_cost_of_an_engine(self):
        (case,) = bench("idle")
        self.assertEqual(list(case), KEYS)
        self.assertEqual(case["case"], "idle")
        self.assertGreaterEqual(case["cpu_percent"], 0)
        for absent in ("ops_per_second", "gb_per_second", "half_round_trip_ns",
                       "word_to_post_ns", "cpu_seconds_per_gb"):
            self.assertIsNone(case[absent])

    def test_options_are_what_is_measured(self):
        for options, expected in (
                (("write", "--memory", "registered"), {"memory": "registered"}),
                (("write", "--footprint", "100K"), {"footprint": 102400}),
                (("write", "--window", "3"), {"window": 3, "group": 3}),
                (("write", "--window", "1000"), {"window": 1000, "group": 64}),
                (("rate", "--group", "1", "--pin", "0"), {"group": 1, "window": 64}),
                (("write", "--rails", "2"), {"rails": 2}),
                (("write", "--rails", "2", "--devices", "lanes=2", "--peer-devices", "lanes=2"),
                 {"rails": 2}),
                (("write", "--progress", "threaded"), {"progress": "threaded"}),
                (("latency", "--progress", "threaded"), {"progress": "threaded", "window": 1}),
                (("scatter", "--targets", "3", "--footprint", "10K"), {"targets": 3}),
                (("paged", "--pages", "7", "--footprint", "100K", "--memory", "registered"),
                 {"pages": 7, "memory": "registered"}),
                (("kv", "--pages", "7", "--layers", "3", "--tensors", "2"),
                 {"pages": 7, "layers": 3, "tensors": 2}),
                (("kv", "--pages", "4", "--memory", "registered", "--progress", "threaded"),
                 {"memory": "registered", "progress": "threaded", "word_to_post_ns": None})):
            with self.subTest(options):
                (case,) = bench(*options, "--sizes", "1K")
                self.assertTrue(case["verified"])
                self.assertEqual(case, {**case, **expected})


class Bytes(unittest.TestCase):
    def test_wrong_ones_are_detected(self):
        for benchmark in SIZED:
            # Several slots where there can be: the wrong byte is the last one of the last slot.
            slots = () if benchmark in ("latency", "message", "kv") else ("--footprint", "20K")
            if benchmark == "kv":
                slots = ("--tensors", "2")
            if benchmark in ("paged", "kv"):
                slots += ("--pages", "4")
            for fault in ("flip", "stale"):
                with self.subTest(f"{benchmark}, {fault}"):
                    (case,) = bench(benchmark, "--sizes", "1000", *slots, code=1,
                                    FABRICLIB_TEST_BENCH=fault)
                    self.assertIs(case["verified"], False)

    def test_wrong_bytes_are_reported_as_text(self):
        out, err = run("bench", "write", *QUICK, "--sizes", "8", code=1,
                       FABRICLIB_TEST_BENCH="flip")
        self.assertIn("WRONG", out)
        self.assertIn("wrong bytes arrived", err)


class Mistakes(unittest.TestCase):
    def test_name_the_option(self):
        for arguments in ("write --sizes 3X", "write --sizes 0", "write --sizes 8,,9",
                          "write --sizes 65G", "write --sizes -1", "write --sizes",
                          "write --network nonsense", "write --network sim", "write --window 0",
                          "write --window 3 --group 4", "rate --group x", "paged --pages 0",
                          "paged --pages 1M", "scatter --targets 513", "write --memory gpu",
                          "write --footprint many", "write --rails 9", "write --progress fast",
                          "write --pin 9999", "write --pin x,1", "write --pin 0,0,0",
                          "write --duration 0", "write --duration nan", "write --repetitions 0",
                          "message --sizes 2M", "latency --window 2", "kv --tensors 3",
                          "kv --layers 0", "kv --window 2", "kv --footprint 1M", "idle --sizes 8",
                          "write --connect", "write --connect localhost --listen",
                          "write --connect localhost --peer-devices lane0"):
            with self.subTest(arguments):
                words = arguments.split()
                out, err = run("bench", *words, code=2)
                self.assertEqual(out, "")
                named = [w for w in words if w.startswith("--") and w in err]
                self.assertTrue(named, err)

    def test_unknown_benchmark(self):
        for arguments in ((), ("write", "more")):
            run("bench", *arguments, code=2)
        self.assertIn("unknown command 'nonsense'", run("bench", "nonsense", code=2)[1])

    def test_memory_that_is_not_there(self):
        _, err = run("bench", "paged", "--pages", "1048576", "--sizes", "1M", code=2)
        self.assertIn("--sizes", err)


class Screen(unittest.TestCase):
    """A terminal gets colour and progress, everything else plain lines."""

    def on_terminal(self, **environment):
        """What `fabric bench` prints to a terminal, standard error included."""
        leader, follower = pty.openpty()
        clean = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        child = subprocess.Popen([command.TOOL, "bench", "rate", *QUICK], stdout=follower,
                                 stderr=follower, stdin=subprocess.DEVNULL,
                                 env={**clean, **environment})
        os.close(follower)
        text = b""
        try:
            while part := os.read(leader, 4096):
                text += part
        except OSError:  # how a pty reports its end
            pass
        os.close(leader)
        self.assertEqual(child.wait(command.LONG), 0)
        return text.decode()

    def test_pipes_are_plain(self):
        out, err = run("bench", "rate", *QUICK)
        self.assertNotIn("\x1b", out + err)
        self.assertNotIn("\r", out + err)
        self.assertEqual(err, "")
        for line in out.splitlines():
            self.assertLessEqual(len(line), 100)

    def test_terminals_are_not(self):
        text = self.on_terminal()
        self.assertIn("\x1b[32mok\x1b[0m", text)
        self.assertIn("rate 8 B: 1 of 2", text)

    def test_no_color_is_obeyed(self):
        text = self.on_terminal(NO_COLOR="1")
        self.assertIn("ok", text)
        self.assertNotIn("\x1b[3", text)


if __name__ == "__main__":
    command.main()
