#!/usr/bin/env python3
"""bench/compare with fixed values in place of measurements: ratios, floors, absent contenders, and
exit codes."""

import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from comparison import all_contenders, cases, command, contenders, draw, guest  # noqa: E402
from comparison import report, rounds, verbs  # noqa: E402
from comparison.cases import Case, Baseline, Workload  # noqa: E402
from comparison.contenders import Failed, RunSettings  # noqa: E402
from comparison.rounds import RunSamples, Rounds, Sample, row_of  # noqa: E402

SPEED = Case("shm/write_imm/65536", cases.GB, Workload("write", 65536), (Baseline("memcpy", 0.9),))
TIME = Case("shm/latency/8", cases.NANOSECONDS, Workload("latency"), (Baseline("ucx_am", 1 / 1.2),))


class Fixed:
    """A contender with given values; an exception among them is a failure."""

    def __init__(self, *values):
        self.values = list(values)
        self.workloads = []

    def measure(self, workload, _settings):
        self.workloads.append(workload)
        value = self.values.pop(0) if len(self.values) > 1 else self.values[0]
        if isinstance(value, Exception):
            raise value
        return value


def run_samples(case, *pairs, probes=None):
    """A run with these values of ours and of the only baseline."""
    baseline = case.baselines[0].contender
    probes = probes or [100.0] * len(pairs)
    samples = [Sample(probe, {case.ours: ours, baseline: theirs})
               for probe, (ours, theirs) in zip(probes, pairs)]
    return RunSamples({case.name: samples}, {}, list(probes))


def only_row(case, *pairs, probes=None):
    return row_of(case, case.baselines[0], run_samples(case, *pairs, probes=probes))


class Ratios(unittest.TestCase):
    def test_a_speed_is_ours_over_theirs(self):
        row = only_row(SPEED, (30.0, 40.0))
        self.assertEqual((row.ratio, row.holds), (0.75, False))

    def test_a_time_is_theirs_over_ours(self):
        row = only_row(TIME, (120.0, 100.0))
        self.assertAlmostEqual(row.ratio, 1 / 1.2)
        self.assertTrue(row.holds)
        self.assertFalse(only_row(TIME, (121.0, 100.0)).holds)

    def test_is_the_median_of_the_rounds_not_the_ratio_of_medians(self):
        row = only_row(SPEED, (10.0, 10.0), (30.0, 20.0), (20.0, 40.0))
        self.assertEqual(row.ratio, 1.0)
        self.assertEqual(row.spread, (0.5, 1.5))
        self.assertEqual((row.ours, row.peer_value, row.rounds), (20.0, 20.0, 3))

    def test_a_round_with_the_cores_apart_does_not_count(self):
        pairs = ((10.0, 10.0), (1.0, 10.0), (1.0, 10.0))
        row = only_row(SPEED, *pairs, probes=[100.0, 300.0, 201.0])
        self.assertEqual((row.ratio, row.rounds), (1.0, 1))

    def test_a_case_with_no_other_rounds_takes_them_and_notes_it(self):
        run = run_samples(SPEED, (10.0, 10.0), probes=[300.0])
        run.probes.append(100.0)
        row = row_of(SPEED, SPEED.baselines[0], run)
        self.assertEqual(row.ratio, 1.0)
        self.assertIn("apart", row.note)

    def test_one_lucky_probe_does_not_exclude_the_others(self):
        pairs = ((10.0, 10.0),) * 5
        row = only_row(SPEED, *pairs, probes=[30.0, 100.0, 100.0, 110.0, 120.0])
        self.assertEqual(row.rounds, 5)
        self.assertNotIn("apart", row.note)

    def test_what_runs_on_one_core_is_never_called_apart(self):
        case = Case("a", cases.GB, Workload("fence"), (Baseline("memcpy"),), between_cores=False)
        run = run_samples(case, (10.0, 10.0), probes=[300.0])
        run.probes.append(100.0)
        self.assertNotIn("apart", row_of(case, case.baselines[0], run).note)

    def test_without_a_floor_nothing_holds_or_fails(self):
        case = Case("a", cases.GB, Workload("write"), (Baseline("memcpy"),))
        self.assertIsNone(only_row(case, (1.0, 2.0)).holds)

    def test_an_absent_peer_is_a_line_with_its_reason(self):
        run = RunSamples({SPEED.name: [Sample(1.0, {"ours": 5.0})]},
                     {(SPEED.name, "memcpy"): "no such file"}, [1.0])
        row = row_of(SPEED, SPEED.baselines[0], run)
        self.assertEqual((row.ours, row.peer_value, row.ratio, row.holds), (5.0, None, None, None))
        self.assertIn("no such file", row.note)

    def test_without_ours_a_floor_does_not_hold(self):
        run = RunSamples({SPEED.name: [Sample(1.0, {"memcpy": 5.0})]},
                     {(SPEED.name, "ours"): "wrong bytes"}, [1.0])
        row = row_of(SPEED, SPEED.baselines[0], run)
        self.assertEqual((row.ours, row.peer_value, row.holds), (None, 5.0, False))
        self.assertIn("wrong bytes", row.note)


class RunningRounds(unittest.TestCase):
    def run_rounds(self, available, number=1, budget=100.0, clock=None, absent=None, case=SPEED):
        settings = RunSettings(ROOT, ROOT, 0.1)
        game = Rounds([case], settings, absent or {}, lambda text: None, available)
        return game.run(number, budget, *([clock] if clock else []))

    def test_every_round_measures_each_contender_once_in_turn(self):
        order = []

        class Noted(Fixed):
            def measure(self, workload, settings):
                order.append(self)
                return super().measure(workload, settings)

        ours, memcpy = Noted(1.0), Noted(2.0)
        run = self.run_rounds({"ours": ours, "memcpy": memcpy, "line": Fixed(50.0)}, number=2)
        self.assertEqual(order, [ours, memcpy, memcpy, ours])
        self.assertEqual(len(run.samples[SPEED.name]), 2)

    def test_repeats_a_case_whose_cores_went_apart(self):
        ours = Fixed(1.0)
        line = Fixed(50.0, 150.0, 50.0, 50.0)
        run = self.run_rounds({"ours": ours, "memcpy": Fixed(2.0), "line": line})
        self.assertEqual([sample.probe_ns for sample in run.samples[SPEED.name]], [150.0, 50.0])

    def test_gives_up_repeating(self):
        run = self.run_rounds({"ours": Fixed(1.0), "memcpy": Fixed(2.0),
                               "line": Fixed(50.0, 150.0)})
        self.assertEqual(len(run.samples[SPEED.name]), 1 + rounds.REPEATS_MAX)

    def test_begins_no_round_that_would_not_end_in_time(self):
        seconds = iter(range(0, 10_000, 40))
        run = self.run_rounds({"ours": Fixed(1.0), "memcpy": Fixed(2.0), "line": Fixed(50.0)},
                              number=9, budget=200.0, clock=lambda: next(seconds))
        self.assertLess(len(run.samples[SPEED.name]), 4)

    def test_does_not_measure_contenders_that_are_known_to_be_absent(self):
        memcpy = Fixed(2.0)
        run = self.run_rounds({"ours": Fixed(1.0), "memcpy": memcpy, "line": Fixed(50.0)},
                              absent={"memcpy": "not built"})
        self.assertEqual(memcpy.workloads, [])
        self.assertEqual(run.failures[SPEED.name, "memcpy"], "not built")


def no_guest(*_words, **_game):
    raise Failed("guest: skipped, nothing was run: no qemu")


class Command(unittest.TestCase):
    in_guest = staticmethod(no_guest)

    def run_main(self, *arguments, **values):
        """Exit code and lines of a run in which ours has 1 and all others have the given values."""
        available = {name: Fixed(values.get(name, 0.5)) for name in contenders.ALL}
        available |= {"ours": Fixed(values.get("ours", 1.0)), "line": Fixed(50.0)}
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = command.main(["--no-prepare", "--rounds", "1", "--json", *arguments],
                                available=available, in_guest=self.in_guest)
        return code, [json.loads(line) for line in out.getvalue().splitlines()]

    def test_a_line_has_what_was_promised(self):
        _, lines = self.run_main("--only", "write_imm/65536:memcpy")
        self.assertEqual(len(lines), 1)
        for key in ("case", "unit", "ours", "peer", "peer_value", "ratio", "floor", "holds"):
            self.assertIn(key, lines[0])
        self.assertEqual(lines[0]["case"], "shm/write_imm/65536")
        self.assertEqual(lines[0]["ratio"], 2.0)

    def test_check_fails_when_a_case_does_not_hold(self):
        only = ("--only", "write_imm/65536:memcpy")
        self.assertEqual(self.run_main("--check", *only)[0], 0)
        self.assertEqual(self.run_main("--check", *only, memcpy=2.0)[0], 1)
        self.assertEqual(self.run_main(*only, memcpy=2.0)[0], 0)

    def test_check_does_not_fail_for_an_absent_peer(self):
        code, lines = self.run_main("--check", "--only", "write_imm/65536:memcpy",
                                    memcpy=Failed("gone"))
        self.assertEqual(code, 0)
        self.assertEqual((lines[0]["peer_value"], lines[0]["holds"]), (None, None))
        self.assertIn("gone", lines[0]["note"])

    def test_fails_when_ours_cannot_be_measured(self):
        code, lines = self.run_main("--only", "write_imm/65536:memcpy", ours=Failed("wrong bytes"))
        self.assertEqual((code, lines[0]["ours"]), (1, None))

    def test_only_selects_by_part_glob_and_peer(self):
        def names(*arguments):
            return {(line["case"], line["peer"]) for line in self.run_main(*arguments)[1]}

        self.assertEqual({case for case, _ in names("--only", "paged")},
                         {"shm/paged_write/1024", "shm/paged_write/4096"})
        self.assertEqual({case for case, _ in names("--only", "shm/*/8")},
                         {"shm/write_imm_rate/8", "shm/latency/8"})
        self.assertEqual(names("--only", "latency:NIXL", "--only", "idle"),
                         {("shm/latency/8", "NIXL"), ("shm/idle", "1 % of a core")})

    def test_cases_of_the_guest_are_left_out_with_a_reason_where_there_is_none(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            code = command.main(["--no-prepare", "--only", "verbs"], in_guest=no_guest)
        self.assertEqual(code, 0)
        self.assertIn("left out: guest: skipped, nothing was run: no qemu", err.getvalue())

    def test_cases_of_the_guest_are_listed_with_the_others(self):
        def in_guest(chosen, *_words, **_game):
            samples = [Sample(0.0, {"ours_verbs": 2.0, "perftest": 1.0, "uct_rc": 4.0})]
            return RunSamples({case.name: samples for case in chosen}, {}, [0.0])

        self.in_guest = in_guest
        code, lines = self.run_main("--check", "--only", "write_imm/65536:memcpy", "--only",
                                    "verbs/write_imm/65536")
        self.assertEqual([(line["case"], line["peer"], line["ratio"], line["holds"])
                          for line in lines],
                         [("shm/write_imm/65536", "memcpy", 2.0, True),
                          ("verbs/write_imm/65536", "perftest", 2.0, True),
                          ("verbs/write_imm/65536", "UCT put, rc", 0.5, False)])
        self.assertEqual(code, 1)

    def test_quick_has_the_guest_only_when_it_is_named(self):
        def chosen(*words):
            return {case.in_guest for case in command.split(command.parse(words))[1]}

        self.assertEqual(chosen("--quick"), set())
        self.assertEqual(chosen("--quick", "--only", "verbs"), {True})
        self.assertEqual(chosen("--quick", "--only", "write_imm/65536"), set())
        self.assertEqual(chosen(), {True})

    def test_bad_usage_ends_with_2(self):
        for words in (("--only", "nothing"), ("--rounds", "-1"), ("--pin", "0"), ("--what",),
                      ("--only", "idle", "--write-results")):
            with self.assertRaises(SystemExit) as end, contextlib.redirect_stderr(io.StringIO()):
                command.main(list(words))
            self.assertEqual(end.exception.code, 2, words)


class Programs(unittest.TestCase):
    """Contenders with real processes, which print given lines."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name)
        self.settings = RunSettings(ROOT, self.build, 0.1)

    def program(self, name, text):
        path = self.build / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)

    def fabric(self, result, code=0):
        self.program("fabric", f"echo \"$@\" > {self.build}/words\n"
                     f"echo '{json.dumps(result)}'\nexit {code}")

    def test_ours_is_read_in_the_unit_of_the_case(self):
        result = {"gb_per_second": {"median": 8.192}, "ops_per_second": {"median": 3e6},
                  "half_round_trip_ns": {"p50": 90.0}, "cpu_percent": 0.2, "verified": True}
        self.fabric(result)
        ours = contenders.Ours()
        for workload, value in ((Workload("write", 65536), 8.192), (Workload("rate"), 3.0),
                            (Workload("paged", 4096, pages=1024), 2.0), (Workload("latency"), 90.0),
                            (Workload("idle"), 0.2)):
            self.assertAlmostEqual(ours.measure(workload, self.settings), value,
                                   msg=workload.benchmark)

    def test_ours_is_asked_for_what_the_case_is_about(self):
        self.fabric({"gb_per_second": {"median": 1.0}})
        contenders.Ours().measure(Workload("write", 65536, "registered", 1 << 28), self.settings)
        words = (self.build / "words").read_text(encoding="utf-8")
        for part in ("bench write", "--sizes 65536", "--memory registered", "--progress inline",
                     f"--footprint {1 << 28}", "--repetitions 3", "--pin 0,1"):
            self.assertIn(part, words)

    def test_a_cache_and_its_bare_writes_are_the_same_pages(self):
        self.fabric({"gb_per_second": {"median": 8.0}, "word_to_post_ns": {"p50": 900.0}})

        def words(contender, workload):
            contenders.ALL[contender].measure(workload, self.settings)
            return (self.build / "words").read_text(encoding="utf-8")

        workload = Workload("kv", 32768, footprint=128 << 20, pages=1024, tensors=2)
        self.assertEqual(workload.layers, 2)
        ours = words("ours_kv", workload)
        for part in ("bench kv", "--sizes 32768", "--pages 1024", "--layers 2", "--tensors 2"):
            self.assertIn(part, ours)
        bare = words("bare_pages", workload)
        for part in ("bench paged", "--sizes 32768", "--pages 1024", f"--footprint {128 << 20}"):
            self.assertIn(part, bare)
        for part in ("--repetitions 3", "--duration 0.1", "--pin 0,1", "--progress inline"):
            self.assertIn(part, ours)
            self.assertIn(part, bare)
        word = Workload("word", 8, pages=32)
        self.assertEqual(contenders.ALL["ours_kv"].measure(word, self.settings), 900.0)

    def test_a_wheel_moves_the_layers_of_a_cache_in_turn(self):
        self.program("build/peers-venv/bin/python", f"echo \"$@\" > {self.build}/words\n"
                     """echo '{"gb_per_second":2.5}'""")
        settings = RunSettings(self.build, self.build, 0.1)
        workload = Workload("kv", 32768, footprint=128 << 20, pages=1024, tensors=2)
        self.assertEqual(contenders.ALL["nixl"].measure(workload, settings), 2.5)
        words = (self.build / "words").read_text(encoding="utf-8")
        for part in ("nixl_peer.py paged", "--bytes 32768", "--pages 2048", "--slots 2"):
            self.assertIn(part, words)

    def test_wrong_bytes_are_no_value(self):
        self.fabric({"gb_per_second": {"median": 1.0}, "verified": False})
        with self.assertRaisesRegex(Failed, "wrong bytes"):
            contenders.Ours().measure(Workload("write"), self.settings)

    def test_the_error_of_a_program_is_quoted(self):
        self.program("fabric", "echo first >&2; echo 'no shared memory' >&2; exit 1")
        with self.assertRaisesRegex(Failed, "no shared memory"):
            contenders.Ours().measure(Workload("write"), self.settings)
        self.program("fabric", "echo 'a warning' >&2; kill -ALRM $$")
        with self.assertRaisesRegex(Failed, "killed by SIGALRM"):
            contenders.Ours().measure(Workload("write"), self.settings)

    def test_a_missing_or_silent_program_fails(self):
        with self.assertRaisesRegex(Failed, "no such file"):
            contenders.ALL["memcpy"].measure(Workload("write"), self.settings)
        self.program("bench/limits", "true")
        with self.assertRaisesRegex(Failed, "no result"):
            contenders.ALL["memcpy"].measure(Workload("write"), self.settings)

    def test_a_program_that_hangs_is_killed(self):
        with self.assertRaisesRegex(Failed, "no result in"):
            contenders.run(["/bin/sh", "-c", "sleep 60 & wait"], limit=0.1)

    def test_child_processes_are_killed(self):
        contenders.run(["/bin/sh", "-c", f"sleep 20 > {self.build}/out 2>&1 & "
                        f"echo $! > {self.build}/pid"])
        pid = (self.build / "pid").read_text(encoding="utf-8").strip()
        begin = time.monotonic()
        while time.monotonic() - begin < 5:
            try:
                state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2]
            except (FileNotFoundError, ProcessLookupError):  # gone before or while it was read
                return
            if state == "Z":  # dead, and not reaped by init yet
                return
        self.fail("a child process is still running")

    def test_guard_and_bare_copy_come_from_one_run(self):
        self.program("bench/copy_speed", f"echo >> {self.build}/runs\n"
                     """echo '{"gb_per_second":{"best":9.5,"bare":10.0}}'""")
        workload = Workload("fence", 4096)
        self.assertEqual(contenders.ALL["unguarded"].measure(workload, self.settings), 10.0)
        self.assertEqual(contenders.ALL["guarded"].measure(workload, self.settings), 9.5)
        self.assertEqual(contenders.ALL["guarded"].measure(workload, self.settings), 9.5)
        self.assertEqual((self.build / "runs").read_text(encoding="utf-8").count("\n"), 2)
        self.assertEqual(contenders.ALL["unguarded"].measure(workload, self.settings), 10.0)

    def test_a_line_of_ucx_is_understood(self):
        line = "300000,0.154,0.321,0.339,23.79,23.79,3117646,3000000\n"
        self.assertEqual(contenders.Ucx.value(Workload("latency"), line), 154.0)
        self.assertEqual(contenders.Ucx.value(Workload("rate"), line), 3.0)
        self.assertAlmostEqual(contenders.Ucx.value(Workload("write", 4096), line), 12.288)
        with self.assertRaises(Failed):
            contenders.Ucx.value(Workload("rate"), "Failed to run test\n")


BANDWIDTH = """\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      600              59.18              58.35  \t\t   0.000934
"""
LATENCY = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]
 8       500          21.07          15980.79      307.81   \t       2431.64     \t3092.77
"""


class Guest(unittest.TestCase):
    """The output of the guest, and the contenders that run there."""

    def test_a_line_of_perftest_is_understood(self):
        value = verbs.Perftest.value
        self.assertAlmostEqual(value(Workload("write", 65536), BANDWIDTH), 58.35 * (1 << 20) / 1e9)
        self.assertAlmostEqual(value(Workload("rate", 65536), BANDWIDTH), 58.35 * 16 / 1e6)
        self.assertAlmostEqual(value(Workload("latency"), LATENCY), 307810.0)
        with self.assertRaisesRegex(Failed, "no result"):
            value(Workload("write", 1024), BANDWIDTH)

    def test_a_line_of_uct_is_understood(self):
        line = "iterations,...\n 100,886.000,2676.4,2676.4,23.35,23.35,377,377\n"
        self.assertAlmostEqual(verbs.UctRc.value(Workload("write", 65536), line),
                               23.35 * (1 << 20) / 1e9)
        self.assertEqual(verbs.UctRc.value(Workload("latency"), line), 886000.0)
        with self.assertRaises(Failed):
            verbs.UctRc.value(Workload("rate"), "Failed to run test\n")

    def test_a_peer_is_asked_for_as_many_as_it_did_before(self):
        pace = verbs.Paced()
        workload = Workload("write", 1024)
        self.assertLess(pace.iterations(workload, 1.0, 20), 10_000)
        pace.paced(workload, 1e6)
        self.assertEqual(pace.iterations(workload, 0.5, 20), 500_000)

    def test_ours_runs_between_the_two_hosts(self):
        settings = RunSettings(ROOT, Path("/tmp/bin"), 1.0)
        words = list(map(str, verbs.OursOverVerbs().command(Workload("rate", 1024), settings)))
        for option, value in (("--network", "verbs"), ("--devices", "xa0,timeout_code=18"),
                              ("--peer-devices", "xb0"), ("--sizes", "1024")):
            self.assertEqual(words[words.index(option) + 1], value)

    def test_traffic_that_does_not_leave_its_device_is_detected(self):
        verbs.check_crossed(sent=1000, arrived=950)
        with self.assertRaisesRegex(Failed, "of 1000 packets 3 went from xa0 to xb0"):
            verbs.check_crossed(sent=1000, arrived=3)
        with self.assertRaises(Failed):
            verbs.check_crossed(sent=0, arrived=0)

    def test_samples_come_back_by_the_console(self):
        run_samples, said = RunSamples(), []
        case = "verbs/latency/8"
        lines = [{"progress": "round 1"},
                 {"case": case, "values": {"ours_verbs": 3.0}, "failures": {"perftest": "gone"}}]
        for line in lines:
            self.assertTrue(guest.take(guest.PREFIX + json.dumps(line), run_samples, said.append))
        self.assertFalse(guest.take("guest: 0 after 10 ms", run_samples, said.append))
        self.assertEqual(run_samples.samples[case], [Sample(0.0, {"ours_verbs": 3.0})])
        self.assertEqual(run_samples.failures, {(case, "perftest"): "gone"})
        self.assertEqual(said, ["guest: round 1"])

    def boot(self, text):
        """measure() with this text as boot.py."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        script = Path(folder.name) / "tests" / "guest" / "boot.py"
        script.parent.mkdir(parents=True)
        script.write_text(text, encoding="utf-8")
        chosen = [case for case in cases.ALL if case.name == "verbs/latency/8"]
        return guest.measure(chosen, Path(folder.name), Path(folder.name), lambda text: None,
                             rounds=1, duration=0.1, budget=5)

    def test_the_packed_program_runs_the_rounds(self):
        # No program is there to be measured: all fail, and the failures must be reported.
        run_samples = self.boot("""
import os, shlex, subprocess, sys
words = shlex.split(sys.argv[-1])
os.environ["PATH"] = "/usr/bin:/bin"
sys.exit(subprocess.run([sys.executable, os.path.join(sys.argv[2], words[1]), "/nowhere/fabric",
                         words[3]]).returncode)
""")
        self.assertIn("no such file", run_samples.failures["verbs/latency/8", "ours_verbs"])

    def test_the_reason_for_no_guest_is_quoted(self):
        with self.assertRaisesRegex(Failed, "^guest: skipped, nothing was run: no qemu$"):
            self.boot("print('guest: skipped, nothing was run: no qemu'); raise SystemExit(77)")
        with self.assertRaisesRegex(Failed, "exited with 3: bad"):
            self.boot("print('bad'); raise SystemExit(3)")


class Reports(unittest.TestCase):
    ROWS = [only_row(SPEED, (30.0, 40.0)), only_row(TIME, (60.0, 120.0)),
            row_of(SPEED, Baseline("nixl", 10.0),
                   RunSamples({}, {(SPEED.name, "nixl"): "no wheel"}))]

    def test_every_shortfall_of_the_results_has_its_reason(self):
        bench = Path(command.__file__).resolve().parent.parent
        reasons = json.loads((bench / "shortfalls.json").read_text())
        rows = [json.loads(line) for line in (bench / "results.json").read_text().splitlines()]
        short = [row for row in rows if row.get("holds") is False]
        self.assertEqual([(row["case"], row["peer"]) for row in short
                          if row["peer"] not in reasons.get(row["case"], {})], [])

    def test_a_shortfall_stays_with_its_reason(self):
        text = report.markdown(self.ROWS, {"commit": "abc"}, {SPEED.name: {"memcpy": "Because."}},
                               "bench/compare")
        self.assertIn("1 of 2 floors reached", text)
        self.assertIn("**no**", text)
        self.assertIn("`shm/write_imm/65536` against memcpy, 0.75 of 0.90: Because.", text)
        self.assertIn("no wheel", text)
        self.assertIn("not explained", report.markdown(self.ROWS, {}, {}, "bench/compare"))

    def test_the_documents_match_the_measured_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "bench").mkdir()
            for name in (report.RESULTS, report.LINES, report.DRAWING, report.SHORTFALLS):
                shutil.copy(ROOT / name, root / name)
            report.rewrite_results(root)
            for name in (report.RESULTS, report.DRAWING):
                self.assertEqual((root / name).read_text(), (ROOT / name).read_text(), name)

    def test_reasons_name_cases_and_peers_that_exist(self):
        known = {(case.name, all_contenders.ALL[baseline.contender].title)
                 for case in cases.ALL for baseline in case.baselines}
        for case, peers in report.shortfalls(ROOT).items():
            for peer in peers:
                self.assertIn((case, peer), known)

    def test_the_drawing_has_a_bar_for_each_ratio_and_a_mark_for_each_floor(self):
        lines = [json.loads(report.json_line(row)) for row in self.ROWS]
        tree = xml.etree.ElementTree.fromstring(draw.draw(lines))
        space = "{http://www.w3.org/2000/svg}"
        bars = [bar.get("fill") for bar in tree.iter(space + "rect")][1:]
        self.assertEqual(bars, [draw.SHORT, draw.HOLDS])
        marks = [mark for mark in tree.iter(space + "line") if mark.get("stroke-width") == "2.5"]
        self.assertEqual(len(marks), 3)
        self.assertIn("absent", [text.text for text in tree.iter(space + "text")])


if __name__ == "__main__":
    unittest.main()
