"""The table of variants that bench/features times, and its report."""
import sys
import unittest

import bench_paths

sys.path.append(str(bench_paths.ROOT / "bench" / "features"))

import variants  # noqa: E402  (the path first)


class Variants(unittest.TestCase):
    def test_the_first_is_dense_and_names_are_unique(self):
        self.assertEqual(variants.VARIANTS[0], variants.DENSE)
        names = [variant.name for variant in variants.VARIANTS]
        self.assertEqual(len(names), len(set(names)))

    def test_every_field_is_one_of_the_interface(self):
        from peers import c_header
        structs = c_header.structs((bench_paths.ROOT / "include" / "leanattn" / "leanattn.h").read_text())
        known = {name for name, _ in structs["leanattn_problem"]._fields_}
        for variant in variants.VARIANTS:
            self.assertLessEqual({name for name, _ in variant.fields}, known, variant.name)

    def test_a_window_reads_what_is_seen(self):
        window = variants.Variant("window", (("window", 4096), ("sink_tokens", 4)))
        self.assertEqual(variants.read_share(window, 131072), 4100 / 131072)
        self.assertEqual(variants.read_share(window, 1024), 1.0)
        self.assertEqual(variants.read_share(variants.DENSE, 131072), 1.0)

    def test_goals_hold_where_they_were_set(self):
        e4m3 = next(v for v in variants.VARIANTS if v.name == "fp8_e4m3")
        self.assertEqual(variants.goal(e4m3, variants.SHAPES[0]), 0.6)
        self.assertEqual(variants.goal(e4m3, variants.SHAPES[3]), 1.0)
        self.assertIsNone(variants.goal(variants.DENSE, variants.SHAPES[0]))

    def test_the_report_has_a_row_a_line_and_names_failures(self):
        line = {"variant": "page 16", "us": 1.5, "ratio": 1.02, "low": 1.01, "high": 1.03, "goal": 1.03, "provenance": "exact", "kernel": "lean_x"}
        text = variants.markdown({"cases": [{"name": "1, 32/8, 128, 8k", "kv_megabytes": 33.6, "lines": [line], "failures": {"page 1": "wrong"}}]})
        self.assertIn("| page 16 | 1.50 | 1.020 | 1.010 to 1.030 | 1.03 | exact | lean_x |", text)
        self.assertIn("(page 1)", text)


if __name__ == "__main__":
    unittest.main()
