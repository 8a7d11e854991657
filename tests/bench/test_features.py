"""The variants that bench/features times exist, and its report shows all of them."""
import unittest

import bench_paths
import variants


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

    def test_a_variant_reads_the_bytes_of_its_cache(self):
        shape = (2, 32, 8, 128, 131072)
        token = 2 * 8 * 2 * 128  # requests, KV heads, K and V, head_dim
        self.assertEqual(variants.kv_bytes(variants.DENSE, shape), 131072 * token * 2)
        self.assertEqual(variants.kv_bytes(variants.one_byte("int8", 3, "int8"), shape), 131072 * token)
        window = variants.Variant("window", (("window", 4096), ("sink_tokens", 4)))
        self.assertEqual(variants.kv_bytes(window, shape), 4100 * token * 2)
        self.assertEqual(variants.kv_bytes(window, (2, 32, 8, 128, 1024)), 1024 * token * 2)

    def test_a_quarter_of_the_blocks_is_a_quarter_of_the_bytes(self):
        shape = (2, 32, 8, 128, 131072)
        quarters = [variant for variant in variants.VARIANTS if variant.selected == 4]
        self.assertEqual(len(quarters), 2)
        for variant in quarters:
            self.assertEqual(4 * variants.kv_bytes(variant, shape), variants.kv_bytes(variants.DENSE, shape))
            self.assertTrue(all(context % (4 * variant.field("selection_block")) == 0 for *_, context in variants.SHAPES))

    def test_what_appends_is_tuned_as_the_variant_without(self):
        appending = [variant for variant in variants.VARIANTS if variant.field("append")]
        self.assertEqual(len(appending), 2)
        self.assertEqual(variants.tunings(appending), [variants.AS_IN_VLLM, variants.DENSE])
        self.assertEqual(variants.tunings([variants.DENSE, *appending]), [variants.DENSE, variants.AS_IN_VLLM])
        self.assertEqual(variants.tunings(variants.VARIANTS), [variant for variant in variants.VARIANTS if variant not in appending])

    def test_the_report_has_a_row_a_line_and_names_failures(self):
        line = {"variant": "page 16", "us": 1.5, "ratio": 1.02, "low": 1.01, "high": 1.03, "provenance": "exact", "kernel": "lean_x"}
        text = variants.markdown({"environment": {}, "cases": [{"name": "1, 32/8, 128, 8k", "kv_megabytes": 33.6, "lines": [line], "failures": {"page 1": "wrong"}}]})
        self.assertIn("| page 16 | 1.50 | 1.020 | 1.010 to 1.030 | exact | lean_x |", text)
        self.assertIn("| page 1 | - | - | - | - | did not run: wrong |", text)


if __name__ == "__main__":
    unittest.main()
