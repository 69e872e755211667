#!/usr/bin/env python3
"""The fabric command as a whole: help that teaches, JSON everywhere, completion in real shells.

    command_test.py TOOL [unittest's arguments]
"""

import json
import re
import shutil
import subprocess
import unittest
from pathlib import Path

import command
from command import run

HERE = Path(__file__).resolve().parent
BENCHMARKS = ("write", "paged", "scatter", "latency", "rate", "message", "idle")
LEVELS = [(), ("info",), ("sim",), ("version",), ("completion",), ("bench",),
          *(("bench", benchmark) for benchmark in BENCHMARKS)]


class Help(unittest.TestCase):
    def test_teaches(self):
        for level in LEVELS:
            with self.subTest(level):
                out, err = run(*level, "--help")
                self.assertEqual(err, "")
                self.assertIn("Examples:\n  ", out)
                self.assertRegex(out, r"Exit code 0: [^;]+; (1: [^;]+;\s+)?2: bad options")
                for line in out.splitlines():
                    self.assertLessEqual(len(line), 100, line)

    def test_examples_are_commands(self):
        """The parser accepts every example that ends by itself, with --help after it."""
        for level in LEVELS:
            out, _ = run(*level, "--help")
            for line in out.split("Examples:")[1].splitlines():
                words = line.split("  ")[1].split() if line.startswith("  fabric ") else []
                if words and "|" not in words:
                    with self.subTest(line):
                        run(*words[1:], "--help")


class Json(unittest.TestCase):
    def test_version(self):
        text, _ = run("version")
        out, _ = run("version", "--json")
        versions = json.loads(out)
        self.assertEqual(list(versions),
                         ["fabric-lib", "headers", "compiler", "kernel", "glibc", "hwloc"])
        for name, value in versions.items():
            self.assertRegex(text, rf"(?m)^{name} +{value.replace('(', '.').replace(')', '.')}$")

    def test_info(self):
        info = json.loads(run("info", "--json")[0])
        self.assertEqual(list(info),
                         ["version", "versions", "networks", "machine", "advice", "limits"])
        networks = {network["name"]: network for network in info["networks"]}
        self.assertTrue(networks["self"]["usable"])
        for name in ("ofi", "tcp"):
            self.assertFalse(networks[name]["built"])
        self.assertIn("verbs", networks)  # built or not: it says what is missing
        for network in networks.values():
            if not network["usable"]:
                self.assertTrue(network["why"]["what"] and network["remedy"], network)
        self.assertGreater(info["machine"]["threads"], 0)
        for limit in ("locked_memory_bytes", "open_files", "restartable_sequences",
                      "global_memory_barrier", "ptrace_scope", "huge_pages_for_shared_memory"):
            self.assertIn(limit, info["limits"])
        self.assertLessEqual(set(info["advice"]), set(info["limits"]))

    def test_info_names_the_variable_to_correct(self):
        info = json.loads(run("info", "--json", FABRICLIB_OPS_MAX="many")[0])
        self.assertIn("FABRICLIB_OPS_MAX", info["networks"][0]["remedy"])


class Devices(unittest.TestCase):
    """A machine of two packages: a PCI switch with an RDMA NIC and a GPU, and more beside it."""

    MACHINE = str(HERE / "two_packages.xml")

    def test_know_their_gpus(self):
        machine = json.loads(run("info", "--json", HWLOC_XMLFILE=self.MACHINE)[0])["machine"]
        rdma, ethernet = machine["nics"]
        self.assertEqual((rdma["name"], rdma["rdma"], rdma["pci"], rdma["numa"]),
                         ("test_rdma0", True, "0000:01:00.0", 0))
        self.assertEqual([(gpu["pci"], gpu["nearness"]) for gpu in rdma["gpus"]],
                         [("0000:02:00.0", "same PCI switch"), ("0000:08:00.0", "same NUMA node"),
                          ("0000:81:00.0", "another package")])
        self.assertEqual((ethernet["name"], ethernet["rdma"], ethernet["numa"]),
                         ("test_eth0", False, 1))
        self.assertEqual(ethernet["gpus"][0],
                         {"pci": "0000:81:00.0", "nearness": "same NUMA node"})
        self.assertEqual([gpu["numa"] for gpu in machine["gpus"]], [0, 0, 1])
        self.assertEqual((machine["packages"], machine["numa_nodes"]), (2, 2))

    def test_are_printed_as_text(self):
        out, _ = run("info", HWLOC_XMLFILE=self.MACHINE)
        self.assertIn("RDMA test_rdma0 0000:01:00.0: speed unknown", out)
        self.assertIn("GPU 0000:02:00.0: same PCI switch", out)


class Refusal(unittest.TestCase):
    def test_bad_options_end_with_2_and_are_named(self):
        for words, named in (("sim --worlds 0", "--worlds"), ("sim --seconds x", "--seconds"),
                             ("sim --seed many", "--seed"), ("info --all", "--all"),
                             ("nonsense", "nonsense"), ("", "subcommand")):
            with self.subTest(words):
                out, err = run(*words.split(), code=2)
                self.assertIn(named, out + err)


class Completion(unittest.TestCase):
    """Sourced by the shell, which then completes. What it should offer is known from --help."""

    def in_bash(self, *words):
        script = ('source <("$0" completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  '"$(complete -p fabric | sed "s/.*-F \\([^ ]*\\).*/\\1/")"; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "-uc", script, command.TOOL, *words], text=True, check=True,
                              capture_output=True, timeout=command.LONG)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash(self):
        for words, expected in (
                (["fabric", ""],
                 ["info", "bench", "sim", "version", "completion", "--help", "--version"]),
                (["fabric", "b"], ["bench"]),
                (["fabric", "bench", ""], [*BENCHMARKS, "--help"]),
                (["fabric", "bench", "write", "--me"], ["--memory"]),
                (["fabric", "bench", "write", "--memory", ""], ["allocated", "registered"]),
                (["fabric", "bench", "write", "--memory", "r"], ["registered"]),
                (["fabric", "bench", "write", "--sizes", ""], []),
                (["fabric", "bench", "write", "--listen", "--js"], ["--json"]),
                (["fabric", "bench", "paged", "--json", "--pag"], ["--pages"]),
                (["fabric", "bench", "write", "--pag"], []),
                (["fabric", "sim", "--s"], ["--seed", "--seconds"])):
            with self.subTest(words):
                self.assertEqual(self.in_bash(*words), expected)

    def test_bash_knows_every_option(self):
        for level in LEVELS:
            out, _ = run(*level, "--help")
            options = set(re.findall(r"(?m)^  (?:-h,)?(--[a-z-]+)", out))
            self.assertIn("--help", options)
            self.assertLessEqual(options, set(self.in_bash("fabric", *level, "--")), level)

    def test_fish(self):
        if not shutil.which("fish"):
            self.skipTest("there is no fish here")
        def complete(line):
            script = f"'{command.TOOL}' completion fish | source; complete -C '{line}'"
            done = subprocess.run(["fish", "--no-config", "-c", script], text=True, check=True,
                                  capture_output=True, timeout=command.LONG)
            return [offered.split("\t")[0] for offered in done.stdout.splitlines()]
        self.assertEqual(complete("fabric bench "), sorted(BENCHMARKS))
        self.assertEqual(complete("fabric bench write --me"), ["--memory"])
        self.assertEqual(complete("fabric bench write --memory "), ["allocated", "registered"])

    def test_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("there is no zsh here")
        # Without a terminal there is no completion: the function's own calls are listened to.
        script = ('compdef() {}; _describe() { print -l -- ${names%%:*}; }; '
                  'compadd() { shift; print -l -- "$@"; }; source <("$0" completion zsh); '
                  'words=("$@"); CURRENT=$#; _fabric')
        def complete(*words):
            done = subprocess.run(["zsh", "-fc", script, command.TOOL, *words], text=True,
                                  check=True, capture_output=True, timeout=command.LONG)
            self.assertEqual(done.stderr, "")
            return done.stdout.split()
        self.assertEqual(complete("fabric", "bench", ""), [*BENCHMARKS, "--help"])
        self.assertIn("--memory", complete("fabric", "bench", "write", "--"))
        self.assertEqual(complete("fabric", "bench", "write", "--memory", ""),
                         ["allocated", "registered"])


if __name__ == "__main__":
    command.main()
