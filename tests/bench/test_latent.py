"""bench/latent: the steps, the call capture that tunes them, and the report. No GPU."""
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

import bench_paths  # first: it sets the path

import latent_report
import steps


def line(system, variant, us, pdl=False):
    return {"system": system, "variant": variant, "pdl": pdl, "facts": {"provenance": "exact"}, "samples_us": [us, us, us]}


class Latent(unittest.TestCase):
    def test_a_step_counts_a_row_once_for_key_and_value(self):
        step = steps.uniform("fixed", 2, 16, 1, 1000)
        self.assertEqual(step.kv_bytes, 2 * 1000 * 576 * 2)
        self.assertEqual(step.flops, 2 * 2000 * 16 * (576 + 512))
        self.assertEqual(step.pages, 2 * 16)

    def test_a_step_with_a_selection_reads_what_is_selected(self):
        main = bench_paths.program("latent")
        self.assertEqual(len({step.name for step in steps.selected()}), len(steps.selected()))
        for step in steps.selected():
            self.assertEqual(step.kv_bytes, step.batch * step.q_len * 2048 * 576 * 2)
            self.assertGreater(min(step.lengths), 2048 + step.q_len)
            call = main.call(step, pdl=False)
            self.assertEqual(call["shape"]["longest_context"], 2048)
            self.assertEqual((call["problem"]["features"]["selection_block"], call["problem"]["features"]["selection_in_pool"]), (1, True))

    def test_rows_of_a_format_of_their_own_are_counted_in_their_bytes(self):
        main = bench_paths.program("latent")
        self.assertEqual(len(steps.rows()), len(steps.selected()))
        for step in steps.rows():
            self.assertEqual(step.kv_bytes, step.batch * step.q_len * 2048 * 656)
            self.assertEqual(main.call(step, pdl=False)["problem"]["features"]["kv_format"], "fp8_ds_mla")
        for step in steps.selected() + steps.fixed():
            self.assertNotIn("kv_format", main.call(step, pdl=False)["problem"]["features"])

    def test_steps_with_a_window_read_rows_of_584_bytes_of_both_caches(self):
        main = bench_paths.program("latent")
        for step in steps.split():
            self.assertEqual(step.kv_bytes, step.batch * (512 + 128) * 584)
            self.assertEqual(step.flops, 2 * step.batch * 640 * 64 * (512 + 512))
            call = main.call(step, pdl=False)
            self.assertEqual((call["problem"]["head_dim"], call["shape"]["longest_context"]), (512, 512))
            self.assertEqual((call["problem"]["features"]["kv_format"], call["problem"]["features"]["second_cache"]), ("fp8_ds_v4", True))
            self.assertGreaterEqual(steps.SPLIT_PAGE_BYTES, 64 * 584)

    def test_names_are_unique_and_drawn_steps_repeat_and_keep_their_bounds(self):
        fixed, drawn = steps.fixed(), steps.drawn(3)
        self.assertEqual(len({step.name for step in fixed}), len(fixed))
        self.assertEqual(drawn, steps.drawn(3))
        self.assertNotEqual(drawn, steps.drawn(4))
        self.assertEqual(len(drawn), steps.DRAWN_COUNT)
        for step in drawn:
            self.assertTrue(steps.DRAWN_BYTES[0] <= step.kv_bytes <= steps.DRAWN_BYTES[1], step.name)

    def test_the_steps_are_tuned_as_a_call_capture_of_their_problems(self):
        main = bench_paths.program("latent")
        ragged = next(step for step in steps.fixed() if step.ragged)
        call = main.call(ragged, pdl=True)
        self.assertEqual(call["shape"], {"batch": 128, "max_batch": 0, "longest_context": ragged.longest, "total_context": ragged.tokens})
        self.assertEqual(call["problem"]["features"], {"page_size": 64, "latent": True, "v_head_dim": 512})
        several = next(step for step in steps.fixed() if step.q_len > 1)
        self.assertEqual(main.call(several, pdl=False)["problem"]["features"]["q_len"], several.q_len)
        self.assertEqual(main.pdl_choices(types.SimpleNamespace(pdl=False)), (False,))

    def test_the_report_takes_the_better_peer_without_metadata(self):
        lines = [line("leanattn", "tuned", 10.0), line("FlashMLA", "kernel", 15.0), line("FlashMLA", "metadata and kernel", 11.0),
                 line("FA3", "4 splits", 12.0), line("FA3", "8 splits", 13.0), line("read limit", "plain", 8.0)]
        case = {"list": "fixed", "name": "1, 16, 1, 1024", "kv_bytes": 1179648, "flops": 10 ** 9, "modes": {"cold": {"lines": lines}},
                "failures": [{"system": "FA3", "variant": "2 splits", "reason": "said | no"}]}
        text = latent_report.markdown({"environment": {"gpu": "Fictional"}, "cases": [case]})
        self.assertIn("| 1, 16, 1, 1024 | 1.18 | 8.00 | 10.00 | 15.00 | 11.00 | 12.00 | 1.200 (1.200 to 1.200) | 1.250 | 100 | 118 | exact |", text)
        self.assertIn("ahead at 1 of 1 steps", text)
        self.assertIn("FA3 2 splits: said \\| no", text)
        self.assertNotIn("+ PDL", text)

    def test_the_committed_page_is_what_its_record_makes(self):
        committed = bench_paths.ROOT / "bench/results/h100/latent"
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "latent.json.gz").write_bytes((committed / "latent.json.gz").read_bytes())
            subprocess.run([sys.executable, str(bench_paths.ROOT / "bench/latent"), "--report-only", "--out", folder], check=True)
            self.assertEqual(pathlib.Path(folder, "latent.md").read_text(), (committed / "latent.md").read_text())


if __name__ == "__main__":
    unittest.main()
