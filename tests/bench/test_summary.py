"""Medians, paired ratios and bootstrap intervals are right on samples whose answer is known."""
import random
import unittest

import bench_paths  # noqa: F401  (the path)
import synthetic
from peers import summary


class Summary(unittest.TestCase):
    def setUp(self):
        self.cases = synthetic.results()["cases"]

    def test_the_fastest_variant_of_a_system_counts(self):
        mode = self.cases[0]["modes"]["cold"]
        self.assertEqual(summary.best_line(mode, "FlashInfer")["variant"], "cuda-core HND")
        self.assertEqual(summary.best_line(mode, "read limit")["variant"], "plain")
        self.assertIsNone(summary.best_line(mode, "FA3"))

    def test_a_variant_that_was_only_screened_never_counts(self):
        mode = {"lines": [{"system": "FA2", "variant": "heads", "pdl": False, "screened_us": 1.0}]}
        self.assertIsNone(summary.best_line(mode, "FA2"))

    def test_the_best_peer_is_never_ours_the_limit_or_launched_dependently_unless_asked(self):
        mode = self.cases[0]["modes"]["cold"]
        self.assertEqual(summary.best_peer(mode)["system"], "cuDNN")
        self.assertEqual((summary.best_peer(mode, pdl_too=True)["system"], summary.best_peer(mode, pdl_too=True)["pdl"]), ("FlashInfer", True))

    def test_speed_ups_find_the_planted_ratios(self):
        best = {line["name"]: line for line in summary.speed_ups(self.cases, "cold")}
        self.assertAlmostEqual(best["best peer"]["geometric_mean"], (1.2 * 0.9 * 1.5) ** (1 / 3), delta=0.01)
        self.assertAlmostEqual(best["best peer"]["min"], 0.9, delta=0.005)
        self.assertEqual(best["best peer"]["min_shape"], "16, 32/8, 128, 4096")
        self.assertEqual((best["best peer"]["wins"], best["best peer"]["shapes"]), (2, 3))
        self.assertAlmostEqual(best["FlashInfer"]["min"], 72 / 70, delta=0.005)

    def test_with_dependent_launch_a_peer_counts_with_the_faster_of_its_two(self):
        found = {line["name"]: line for line in summary.speed_ups(self.cases, "cold", pdl=True)}
        # The ratio is 5 over 4 with dependent launch and 63 over 65 without it, because cuDNN does not have it.
        self.assertAlmostEqual(found["best peer"]["max"], 5 / 4, delta=0.01)
        self.assertAlmostEqual(found["best peer"]["min"], 63 / 65, delta=0.005)
        self.assertEqual(found["best peer"]["shapes"], 2)

    def test_time_over_the_limit_covers_the_shapes_a_system_ran(self):
        found = {line["name"]: line for line in summary.over_limit(self.cases, "cold")}
        self.assertEqual((found["leanattn"]["shapes"], found["leanattn + PDL"]["shapes"]), (3, 2))
        self.assertAlmostEqual(found["leanattn"]["max"], 2.5, delta=0.02)
        self.assertNotIn("read limit", found)

    def test_ratios_pair_the_samples_of_one_round(self):
        drifting = [1.0, 2.0, 4.0]
        self.assertEqual(summary.ratios({"samples_us": [2 * t for t in drifting]}, {"samples_us": drifting}), [2.0, 2.0, 2.0])
        with self.assertRaises(ValueError):
            summary.ratios({"samples_us": [1.0]}, {"samples_us": [1.0, 2.0]})

    def test_intervals_cover_the_true_median_and_repeat_exactly(self):
        covered = 0
        for seed in range(40):
            generator = random.Random(seed)
            values = [generator.gauss(1.0, 0.05) for _ in range(31)]
            low, high = summary.median_interval(values)
            self.assertEqual((low, high), summary.median_interval(values))
            covered += low <= 1.0 <= high
        self.assertGreaterEqual(covered, 34)

    def test_percentiles_lie_between_neighbours(self):
        self.assertEqual(summary.percentile([3, 1, 2], 0.5), 2)
        self.assertEqual(summary.percentile([1, 2], 0.25), 1.25)
        self.assertEqual(summary.percentile([5], 0.99), 5)


if __name__ == "__main__":
    unittest.main()
