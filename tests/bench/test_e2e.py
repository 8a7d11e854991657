"""bench/e2e computes rates correctly, and its report shows them."""
import unittest
import xml.etree.ElementTree

import bench_paths  # noqa: F401  (the path)
import e2e_report


def step(output, leanattn, flash, sdpa):
    return {"output": output, "errors": {}, "samples_us": {"leanattn": [leanattn] * 3, "flash": [flash] * 3, "sdpa": [sdpa] * 3}}


MODEL = {"name": "opt-x", "parameters": 1.3e9, "prefill_ms": 1000.0, "wrong": [], "steps": [step(0, 1000.0, 2000.0, 4000.0), step(9, 1900.0, 2000.0, 4000.0)]}
RESULTS = {"environment": {"gpu": "Fictional"}, "prompt": 50000, "outputs": [5, 10], "models": [MODEL],
           "layers": [{"model": "Llama", "q_heads": 32, "kv_heads": 8, "head_dim": 128, "context": 4096, "error": 0.001, "wrong": False,
                       "samples_us": {"sdpa": [20.0], "leanattn": [10.0]}}]}


class EndToEnd(unittest.TestCase):
    def test_steps_between_measured_ones_are_interpolated_linearly(self):
        self.assertAlmostEqual(e2e_report.seconds(MODEL, "leanattn", 5), (1000 + 1100 + 1200 + 1300 + 1400) / 1e6)
        self.assertAlmostEqual(e2e_report.seconds(MODEL, "leanattn", 10), sum(range(1000, 2000, 100)) / 1e6)
        self.assertAlmostEqual(e2e_report.rate(MODEL, "flash", 10), 500.0)

    def test_the_report_says_rates_and_speed_ups(self):
        text = e2e_report.markdown(RESULTS)
        self.assertIn("| 5 | 833.3 | 500.0 | 250.0 | 1.667 | 3.333 | 1.004 |", text)
        self.assertIn("| Llama | 32/8, 128 | 4096 | 20.0 | 10.0 | 2.00 | 0.0010 |", text)

    def test_the_picture_has_a_bar_for_every_rate(self):
        root = xml.etree.ElementTree.fromstring(e2e_report.svg(RESULTS))
        background, *bars = root.iter("{http://www.w3.org/2000/svg}rect")
        self.assertEqual(len(bars), 2 * len(e2e_report.SYSTEMS))


if __name__ == "__main__":
    unittest.main()
