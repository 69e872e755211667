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
from recorded_sysfs import unpacked

BENCHMARKS = ("write", "paged", "scatter", "latency", "rate", "message", "kv", "idle")
LEVELS = [(), ("info",), ("sim",), ("kv",), ("kv", "plan"), ("version",), ("completion",),
          ("bench",),
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
                         ["version", "versions", "networks", "machine", "near", "advice",
                          "limits"])
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
    """NICs and GPUs of recorded machines, and which NICs Network::near picks there."""

    def info(self, name, *arguments, **environment):
        with unpacked(name) as root:
            out, _ = run("info", "--json", "--sysfs", root, *arguments, **environment)
            return json.loads(out)

    def test_know_their_gpus(self):
        machine = self.info("eight_gpus")["machine"]
        self.assertEqual(len(machine["nics"]), 12)
        rdma, storage, ethernet = machine["nics"][0], machine["nics"][1], machine["nics"][10]
        self.assertEqual((rdma["name"], rdma["rdma"], rdma["pci"], rdma["numa"], rdma["state"],
                          rdma["gbit_per_second"]),
                         ("mlx5_0", True, "0000:18:00.0", 0, "ACTIVE", 400))
        self.assertEqual([(gpu["pci"], gpu["nearness"]) for gpu in rdma["gpus"]],
                         [("0000:1b:00.0", "same PCI switch"), ("0000:43:00.0", "same NUMA node"),
                          ("0000:52:00.0", "same NUMA node"), ("0000:61:00.0", "same NUMA node"),
                          ("0000:9d:00.0", "other NUMA node"), ("0000:c3:00.0", "other NUMA node"),
                          ("0000:d1:00.0", "other NUMA node"), ("0000:df:00.0", "other NUMA node")])
        self.assertEqual(storage["gpus"][0]["nearness"], "same NUMA node")
        self.assertEqual((ethernet["name"], ethernet["rdma"], ethernet["gbit_per_second"]),
                         ("enp41s0np0", False, 200))
        self.assertEqual([gpu["numa"] for gpu in machine["gpus"]], [0, 0, 0, 0, 1, 1, 1, 1])
        self.assertEqual([gpu["nics"] for gpu in machine["gpus"]],
                         [[f"mlx5_{i}"] for i in (0, 2, 3, 4, 5, 7, 8, 9)])
        self.assertEqual((machine["numa_nodes"], machine["packages"]), (2, None))

    def test_show_what_near_leaves_out_and_why(self):
        near, = self.info("eight_gpus", "--near", "gpu0")["near"]
        self.assertEqual((near["near"], near["target"]), ("gpu0", "gpu0, PCI 0000:1b:00.0"))
        self.assertEqual(near["taken"], [{"name": "mlx5_0", "nearness": "same PCI switch"}])
        reasons = {nic["name"]: nic["reason"] for nic in near["left_out"]}
        self.assertEqual(len(reasons), 9)
        self.assertEqual(reasons["mlx5_6"],
                         "nearest to no GPU, farther from gpu0 than mlx5_0: other NUMA node")

    def test_show_near_of_the_variable(self):
        info = self.info("p5en", FABRICLIB_NETWORKS="shm, verbs near=gpu3, verbs name=b near=gpu9")
        first, second = info["near"]
        self.assertEqual([nic["name"] for nic in first["taken"]], ["rdmap112s0", "rdmap113s0"])
        self.assertEqual(second["problem"], "near: no such GPU 'gpu9'; there are gpu0..gpu7")
        self.assertEqual(self.info("p5en")["near"], [])

    def test_are_printed_as_text(self):
        with unpacked("p5") as root:
            out, _ = run("info", "--sysfs", root, "--near", "0000:53:00.0",
                         CUDA_VISIBLE_DEVICES="4")
        self.assertIn("RDMA rdmap79s0 0000:4f:00.0: 100 Gbit/s, ACTIVE, NUMA node 0\n", out)
        self.assertIn("       GPU 0000:53:00.0: same PCI switch\n", out)
        self.assertIn("GPU  0000:53:00.0: NVIDIA, NUMA node 0, near=gpu0 takes rdmap79s0 rdmap80s0 "
                      "rdmap81s0 rdmap82s0\n", out)
        self.assertIn("\nnear=0000:53:00.0\n  GPU, PCI 0000:53:00.0\n"
                      "  takes      rdmap79s0: same PCI switch\n", out)
        self.assertIn("  leaves out rdmap96s0: nearest to GPU 0000:64:00.0, farther from "
                      "0000:53:00.0 than rdmap79s0: same NUMA node\n", out)

    def test_refuse_what_does_not_exist(self):
        with unpacked("two_sockets") as root:
            for near, why in (("gpu0", "no such GPU 'gpu0'; there is no GPU"),
                              ("numa:2", "no such NUMA node 'numa:2'; there are numa:0, numa:1"),
                              ("mlx5_0", "none of a PCI address, gpuN, numa:N and auto")):
                out, err = run("info", "--sysfs", root, "--near", near, code=2)
                self.assertIn("--near", out + err)
                self.assertIn(why, out + err)
            out, err = run("info", "--sysfs", root + "/nothing", code=2)
            self.assertIn("--sysfs", out + err)


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
                 ["info", "bench", "sim", "kv", "version", "completion", "--help", "--version"]),
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
