#!/usr/bin/env python3
"""fabric kv plan: plans, counts and refusals for layout files, and errors that name the field.

    kv_test.py TOOL [unittest's arguments]
"""

import json
import tempfile
import unittest
from pathlib import Path

import command
from command import run

LAYOUTS = Path(__file__).resolve().parents[2] / "examples" / "kv" / "layouts"


def layout(name):
    return json.loads((LAYOUTS / f"{name}.json").read_text())


class Files(unittest.TestCase):
    """Layouts as files in a folder that is gone after the test."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, content):
        path = Path(self.folder.name) / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def plan(self, prefill, decode, *arguments, code=0):
        return run("kv", "plan", "--prefill", self.file("prefill.json", prefill), "--decode",
                   self.file("decode.json", decode), *arguments, code=code)

    def plan_json(self, prefill, decode, *arguments, code=0):
        return json.loads(self.plan(prefill, decode, *arguments, "--json", code=code)[0])


def qwen(tp, order):
    side = layout("qwen3_235b_tp4_hnd")
    side["tp_size"] = tp
    side["groups"][0]["order"] = order
    return side


def counts_of_rank_0(plan):
    return sum(one["total"] for one in plan["counts"] if one["target"] == 0)


class Plans(Files):
    def test_counts_of_qwen3_235b(self):
        """The tables of docs/kv.md: by prefill TP, then decode TP. Negative: refused by default."""
        whole_pages = 24064
        hnd = {1: (1, 1, 1, 1), 2: (2, 1, 1, 1), 4: (4, 2, 1, 1), 8: (4, 2, 1, 1)}
        nhd = {1: (1, -128, -128, -128), 2: (-256, 1, -128, -128), 4: (-512, -256, 1, 1),
               8: (-512, -256, 1, 1)}
        for order, table in (("HND", hnd), ("NHD", nhd)):
            for prefill, row in table.items():
                for decode, times in zip((1, 2, 4, 8), row):
                    with self.subTest((order, prefill, decode)):
                        sides = qwen(prefill, order), qwen(decode, order)
                        arguments = ()
                        if times < 0:
                            refusal = self.plan_json(*sides, code=1)["refusal"]
                            self.assertEqual(refusal["code"], "PerTokenWrites")
                            arguments = ("--per-token-writes",)
                        plan = self.plan_json(*sides, *arguments)
                        self.assertEqual(counts_of_rank_0(plan), whole_pages * abs(times))
        for prefill, decode, expected in ((1, 8, 12032), (8, 1, 48128)):
            plan = self.plan_json(qwen(prefill, "NHD"), qwen(decode, "NHD"), "--staging")
            self.assertEqual(counts_of_rank_0(plan), expected)

    def test_slices_counts_and_hash(self):
        plan = self.plan_json(qwen(8, "HND"), qwen(4, "HND"), "--tokens", "1024")
        self.assertEqual(list(plan), ["hash", "target_hashes", "groups", "slices", "counts"])
        self.assertRegex(plan["hash"], "^0x[0-9a-f]{16}$")
        self.assertEqual(len(plan["target_hashes"]), 4)
        self.assertEqual(plan["groups"][0]["unit_tokens"], 128)
        first = plan["slices"][0]
        self.assertEqual((first["source"], first["target"], len(first["layers"])), (0, 0, 94))
        self.assertEqual(first["lists"][0]["holders"], 2)
        self.assertEqual(first["layers"][93]["slices"][1]["bytes"], 32768)
        # Two holders of each head share the 8 pages of 94 layers, K and V.
        self.assertEqual([one["total"] for one in plan["counts"]], [4 * 94 * 2] * 8)

    def test_staged_copies(self):
        plan = self.plan_json(qwen(1, "NHD"), qwen(8, "NHD"), "--staging")
        layer = plan["slices"][0]["layers"][0]
        self.assertEqual(layer["slices"], [])
        staged, = layer["staged"]
        self.assertEqual(staged["bytes"], 2 * 32768)
        self.assertEqual([copy["run_bytes"] for copy in staged["copies"]], [256, 256])
        self.assertEqual(staged["copies"][0]["loops"],
                         [{"count": 128, "source_stride_bytes": 1024, "target_stride_bytes": 256}])

    def test_hybrid_models_with_stages(self):
        out, _ = run("kv", "plan", "--prefill", str(LAYOUTS / "hybrid_tp2_pp2.json"), "--decode",
                     str(LAYOUTS / "hybrid_tp4.json"), "--tokens", "1000", "--cached", "320")
        self.assertIn("group attention: full, units of 16 tokens (pages of 16 -> 32), tensors kv "
                      "kv_scale\n", out)
        self.assertIn("group linear: state, one page a request, tensors conv ssm\n", out)
        self.assertIn("  prefill 1.0 -> decode 0, layers: 3\n", out)
        # Of 63 units 20 are cached: 43 in K and V of 2 tensors; 4 writes for each state layer.
        self.assertIn("  prefill 0.0 -> decode 0: 184 (4 to 172 in each of 4 layers)\n", out)

    def test_same_hash_from_explicit_ranks(self):
        """A rank with its strides written out is the same layout as the dense one."""
        dense = {"tp_size": 1, "groups": [
            {"name": "full", "page_tokens": 16, "pages": 4, "layers": [5, 6], "tensors": [
                {"name": "k", "dtype": "f16", "element_bytes": 2, "heads_total": 2,
                 "head_size": 8}]}]}
        explicit = {"ranks": [{"region_bytes": [4096], "groups": [
            {"name": "full", "page_tokens": 16, "pages": 4, "layers": [5, 6], "tensors": [
                {"name": "k", "dtype": "f16", "element_bytes": 2, "heads_total": 2, "head_size": 8,
                 "page_stride_bytes": 512, "layer_stride_bytes": 2048, "head_stride_bytes": 256,
                 "token_stride_bytes": 16, "part_stride_bytes": 512}]}]}]}
        self.assertEqual(self.plan_json(dense, dense)["hash"],
                         self.plan_json(explicit, explicit)["hash"])


class Refusals(Files):
    def test_head_cut_names_the_switch(self):
        out, _ = self.plan(qwen(1, "NHD"), qwen(8, "NHD"), code=1)
        self.assertIn("refused: PerTokenWrites\n", out)
        self.assertIn("128 writes of 256 bytes for each 128 tokens", out)
        self.assertIn("PlanOptions::staging", out)
        self.assertIn("--staging", out)

    def test_as_json(self):
        other = qwen(4, "HND")
        other["model_hash"] = 3
        refusal = self.plan_json(qwen(4, "HND"), other, code=1)["refusal"]
        self.assertEqual(refusal["code"], "ModelDiffers")
        self.assertTrue(refusal["reason"] and refusal["remedy"])

    def test_context_parallel(self):
        side = qwen(4, "HND")
        side["dcp_size"] = 2
        out, _ = self.plan(side, side, code=1)
        self.assertIn("refused: ContextParallel\n", out)
        self.assertIn("dcp_size is 2", out)

    def test_bad_files_name_the_field(self):
        good = qwen(4, "HND")

        def changed(change):
            side = json.loads(json.dumps(good))
            change(side, side["groups"][0], side["groups"][0]["tensors"][1])
            return side

        for side, why in (
                ("{", "no JSON at byte"),
                ("[]", "the file: is array, not an object"),
                (changed(lambda s, g, t: s.pop("groups")), "groups: is missing"),
                (changed(lambda s, g, t: s.update(tp_size=0)), "tp_size: is 0"),
                (changed(lambda s, g, t: s.update(tp_size=-4)),
                 "tp_size: -4 is no whole number from 0 to 1024"),
                (changed(lambda s, g, t: s.update(tp=4)), "tp: is unknown; known are"),
                (changed(lambda s, g, t: g.update(order="NDH")),
                 'groups[0].order: "NDH" is none of HND, NHD'),
                (changed(lambda s, g, t: g.update(layers=[0, "x"])),
                 'groups[0].layers[1]: "x" is no whole number'),
                (changed(lambda s, g, t: t.pop("head_size")),
                 "groups[0].tensors[1].head_size: is missing"),
                (changed(lambda s, g, t: t.update(name=7)), "groups[0].tensors[1].name: 7 is no "),
                (changed(lambda s, g, t: t.update(heads_total=6)), "groups[0].tensors[1]: ")):
            with self.subTest(why):
                out, err = self.plan(side, good, code=2)
                self.assertIn("--prefill", out + err)
                self.assertIn(why, out + err)

    def test_bad_options(self):
        good = qwen(4, "HND")
        for arguments, why in (((), "--prefill"), (("--prefill", "/nowhere"), "/nowhere")):
            out, err = run("kv", "plan", *arguments, code=2)
            self.assertIn(why, out + err)
        for arguments in (("--tokens", "0"), ("--cached", "100"), ("--cached", "99999999")):
            out, err = self.plan(good, good, *arguments, code=2)
            self.assertIn(arguments[0], out + err)


if __name__ == "__main__":
    command.main()
