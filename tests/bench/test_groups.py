"""bench/groups: the steps and how they are dealt to ranks, the model of more GPUs, the report, and the exit code. No GPU."""
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

import bench_paths  # first: it sets the path

import group_model
import group_report
import group_steps

GPU = {"gpu": "Fictional", "gpus": ["Fictional", "Fictional"], "link": "NV18", "nccl": "2.29.7"}


def line(name, first, second, provenance="fallback"):
    """Two ranks of three rounds."""
    return {"name": name, "facts": [{"kernel": "k", "grid": 132, "provenance": provenance, "layer": "", "error": 0.25}] * 2,
            "samples_us": [[first, first + 1, first], [second, second + 1, second]]}


def record(lines, **changed):
    step = {"key": "1x128k", "name": "1 x 128k", "batch": 1, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "kv_bytes": 1 << 29, "exchanged_bytes": 12288,
            "lines": lines, "failures": [], "gpu_state": []}
    return {"schema_version": 1, "ranks": 2, "one_gpu": False, "rounds": 3, "finished": True, "environment": GPU, "steps": [dict(step, **changed)]}


LINES = [line("leanattn group", 65.0, 66.0), line("one GPU", 121.0, 122.0), line("split heads", 63.0, 63.5), line("own part", 64.0, 64.5),
         line("LSE all-gather + reduce-scatter", 90.0, 91.0), line("packed all-to-all", 80.0, 79.0)]


class Steps(unittest.TestCase):
    def test_every_token_is_on_exactly_one_rank(self):
        for unit, page_size in ((0, 0), (16, 0), (1, 0), (256, 0), (0, 16)):
            step = group_steps.Step("groups", "a", 8, 2, 64, (1000, 1, 0, 17, 31, 256), page_size, unit)
            for ranks in (2, 3, 8):
                parts = [step.part(rank, ranks) for rank in range(ranks)]
                for request, length in enumerate(step.lengths):
                    held = [token for part in parts for token in part[request]]
                    self.assertEqual(sorted(held), list(range(length)))
                self.assertEqual(sum(step.part_bytes(rank, ranks) for rank in range(ranks)), step.kv_bytes)

    def test_units_lie_where_the_library_looks_for_them(self):
        step = group_steps.Step("groups", "a", 8, 2, 64, (200,), interleave=16)
        for rank in range(3):
            held = step.part(rank, 3)[0]
            self.assertEqual(held, [(i // 16 * 3 + rank) * 16 + i % 16 for i in range(len(held))])  # docs/groups.md

    def test_groups_are_tuned_at_the_shape_of_every_rank(self):
        steps = group_steps.steps()
        lines = group_steps.captured_groups([steps["1x128k-paged"], steps["ragged-interleaved"]], 2)
        self.assertEqual([line["problem"]["features"] for line in lines],
                         [{"context_parallel": 2, "page_size": 16}, *[{"context_parallel": 2, "context_interleave": 16}] * 2])
        self.assertEqual(lines[0]["shape"], {"batch": 1, "max_batch": 0, "longest_context": 65536, "total_context": 65536})  # both ranks have this one
        self.assertEqual(sum(line["shape"]["total_context"] for line in lines[1:]), sum(steps["ragged-interleaved"].lengths))

    def test_pages_are_not_cut_and_parts_are_halves(self):
        steps = group_steps.steps()
        paged = steps["1x128k-paged"]
        self.assertTrue(all(part[0].start % paged.page_size == 0 for part in (paged.part(rank, 2) for rank in range(2))))
        for step in steps.values():
            shares = [step.part_bytes(rank, 2) / step.kv_bytes for rank in range(2)]
            self.assertLess(max(shares), 0.501, step.name)

    def test_the_steps_are_those_of_the_goals(self):
        steps = group_steps.steps()
        self.assertEqual(steps["1x128k"].kv_bytes, 131072 * 8 * 128 * 4)
        self.assertEqual(steps["1x128k"].exchanged_bytes(2), 16 * 128 * 6)
        ragged = steps["ragged"]
        self.assertEqual((ragged.batch, ragged.lengths), (64, steps["ragged-interleaved"].lengths))
        self.assertTrue(128 <= min(ragged.lengths) and ragged.longest <= 32768)
        self.assertEqual(len({step.name for step in steps.values()}), len(steps))


class Model(unittest.TestCase):
    def test_the_fit_finds_the_constants_of_its_own_model(self):
        latency, rate = group_model.fit([(bytes_, 1.5 + bytes_ / 2e5, 20.0 * i) for i, bytes_ in enumerate((12288, 786432, 5e6), 1)])
        self.assertAlmostEqual(latency, 1.5, 6)
        self.assertAlmostEqual(rate, 2e5, 0)
        self.assertEqual(group_model.fit([(1.0, 2.0, 9.0)]), (2.0, math.inf))
        self.assertEqual(group_model.fit([(1.0, 2.0, 9.0), (100.0, 1.0, 9.0)])[1], math.inf)
        self.assertAlmostEqual(group_model.fit([(1.0, 2.0, 10.0), (1.0, 4.0, 1000.0)])[0], 2.0, 3)  # short steps tell more

    def test_two_gpus_are_what_was_measured_and_72_are_two_levels(self):
        self.assertAlmostEqual(group_model.step_us(121.0, 64.0, 24576, 2, 1.5, 1e5), 64.0 + 1.5 + 12288 / 1e5)
        self.assertEqual((group_model.levels(8), group_model.levels(72)), ([8], [8, 9]))
        self.assertAlmostEqual(group_model.merge_us(72000, 72, 1.0, 1e3), 2 + 63.0 + 8.0)


class Report(unittest.TestCase):
    def test_the_slower_rank_counts_and_the_faster_gpu_alone(self):
        step = record(LINES)["steps"][0]
        self.assertEqual(group_report.median(step, "leanattn group"), 66.0)
        self.assertEqual(group_report.median(step, "packed all-to-all"), 80.0)
        self.assertEqual(group_report.median(step, "one GPU"), 121.0)

    def test_the_merge_is_what_is_added_to_the_part_alone(self):
        step = record(LINES)["steps"][0]
        self.assertEqual(group_report.added(step, "leanattn group"), 66.0 - 64.5)
        self.assertEqual(group_report.added(step, "LSE all-gather + reduce-scatter"), 91.0 - 64.5)
        self.assertEqual(group_report.added(step, "packed all-to-all"), 80.0 - 64.5)
        self.assertIsNone(group_report.added(record(LINES[:3])["steps"][0], "leanattn group"))

    def test_the_page_says_on_what_it_was_measured_and_what_is_a_model(self):
        text = group_report.markdown(record(LINES))
        self.assertIn("Measured on 2 x Fictional", text)
        self.assertIn("linked by NV18", text)
        self.assertIn("| 1 x 128k | 536.9 | 66.00 | 121.00 | 63.50 | 64.50 | 91.00 | 80.00 | 1.833", text)
        self.assertIn("| 1 x 128k | 12.29 | 1.50 | 26.50 | 15.50 | 0.057 | 0.097 |", text)
        self.assertIn("Not measured.", text.split("## A model of more GPUs")[1])

    def test_a_group_over_nccl_has_columns_where_it_was_measured(self):
        text = group_report.markdown(record([*LINES, line("group over NCCL", 84.5, 83.0)]))
        self.assertIn("| 64.50 | 91.00 | 80.00 | 84.50 |", text)
        self.assertIn("| 1.50 | 26.50 | 15.50 | 20.00 | 0.057 | 0.097 | 0.075 |", text)
        self.assertIn("whose ranks are no peers", text)
        self.assertNotIn("group over NCCL", group_report.markdown(record(LINES)))

    def test_a_test_on_one_gpu_has_no_model_and_says_that_its_times_mean_nothing(self):
        text = group_report.markdown(dict(record(LINES[:4]), one_gpu=True))
        self.assertIn("these times mean nothing", text)
        self.assertNotIn("A model of more GPUs", text)

    def test_failures_are_listed_and_a_run_without_any_figure_has_a_page(self):
        text = group_report.markdown(record([], failures=[{"name": "packed all-to-all", "reason": "rank 1: said | no"}]))
        self.assertIn("| 1 x 128k | packed all-to-all | rank 1: said \\| no |", text)
        self.assertNotIn("## Times", text)

    def test_the_record_is_written_compressed_and_read_again(self):
        with tempfile.TemporaryDirectory() as folder:
            group_report.write(pathlib.Path(folder), record(LINES))
            pathlib.Path(folder, "groups.md").unlink()
            ran = subprocess.run([sys.executable, str(bench_paths.ROOT / "bench/groups"), "--report-only", "--out", folder], capture_output=True, text=True)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertEqual(pathlib.Path(folder, "groups.md").read_text(), group_report.markdown(json.loads(json.dumps(record(LINES)))))


class Link(unittest.TestCase):
    def test_the_link_of_two_gpus_is_read_beside_the_diagonal_and_colours(self):
        main = bench_paths.program("groups")
        table = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \tNV18\t0-31\t0\t\tN/A\nGPU1\tNV18\t X \t0-31\t0\t\tN/A\n"
        self.assertEqual(main.link_of(table), "NV18")
        self.assertIsNone(main.link_of(""))
        self.assertIsNone(main.link_of("\tGPU0\nGPU0\t X \n"))


class Record(unittest.TestCase):
    def test_a_run_that_was_ended_early_has_a_record_and_a_page_of_its_finished_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            group_report.write(pathlib.Path(folder), dict(record(LINES), finished=False))
            ran = subprocess.run([sys.executable, str(bench_paths.ROOT / "bench/groups"), "--report-only", "--out", folder], capture_output=True, text=True)
            self.assertEqual(ran.returncode, 1, "it did not finish")
            self.assertIn("| 1 x 128k | 536.9 |", ran.stdout)


class ExitCode(unittest.TestCase):
    def test_a_wrong_result_or_a_rank_that_failed_is_1_and_rows_left_over_are_6(self):
        main = bench_paths.program("groups")
        self.assertEqual(main.exit_code(record(LINES)), 0)
        self.assertEqual(main.exit_code(dict(record(LINES), finished=False)), 1)
        self.assertEqual(main.exit_code(record([], failures=[{"name": "a", "reason": "b", "wrong": True}])), 1)
        self.assertEqual(main.exit_code(record([], failures=[{"name": "a", "reason": "b"}])), 1)
        self.assertEqual(main.exit_code(record([], failures=[{"name": "all", "reason": "b", "left": True}])), 6)

    def test_rows_that_are_not_there_are_wrong_usage(self):
        for arguments in (["--rows", "2x3"], ["--rounds", "0"], ["--tune", "0"]):
            ran = subprocess.run([sys.executable, str(bench_paths.ROOT / "bench/groups"), "--out", "x", *arguments], capture_output=True, text=True)
            self.assertEqual(ran.returncode, 2)


if __name__ == "__main__":
    unittest.main()
