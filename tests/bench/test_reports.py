"""Markdown and SVG of bench/ are well-formed, escaped and complete, and those in the repository are made from the records beside them."""
import gzip
import json
import pathlib
import re
import tempfile
import unittest
import xml.etree.ElementTree

import bench_paths
import e2e_report
import shape_table
import synthetic
import trace_report
from peers import files, plot, report, speedup_plot
import variants

SVG = "{http://www.w3.org/2000/svg}"


def tables(markdown):
    """The tables of a text, as rows of cells."""
    result, current = [], []
    for line in markdown.splitlines() + [""]:
        if line.startswith("|"):
            current.append(re.split(r"(?<!\\)\|", line)[1:-1])
        elif current:
            result.append(current)
            current = []
    return result


class PeersReport(unittest.TestCase):
    def setUp(self):
        self.results = synthetic.results()

    def test_every_table_row_has_as_many_cells_as_its_head(self):
        found = tables(report.markdown(self.results))
        self.assertGreater(len(found), 6)
        for table in found:
            self.assertEqual({len(row) for row in table}, {len(table[0])}, table[0])

    def test_every_shape_of_every_mode_is_in_a_table(self):
        text = report.markdown(self.results)
        self.assertEqual(text.count("| 1, 32/8, 128, 1024 |"), 2)  # cold and warm
        self.assertEqual(text.count("| 64 \\| ragged |"), 1)

    def test_the_best_peer_its_speed_up_and_its_plan_are_named(self):
        row = next(line for line in report.markdown(self.results).splitlines() if line.startswith("| 16, 32/8"))
        self.assertIn("cuDNN (heads)", row)
        self.assertRegex(row, r"\| 0\.(899|900|901) \[")
        self.assertIn("| 66 |", row)

    def test_failures_and_crashes_are_reported_with_their_reason(self):
        self.results["cases"][0]["failures"] = [{"system": "FlashInfer", "variant": "xqa HND", "pdl": True, "reason": "no module | none"}]
        self.results["crashed"] = [{"system": "FA3", "variant": "4 splits", "pdl": False, "reason": "illegal address", "name": "1, 32/8, 128, 1024"}]
        text = report.markdown(self.results)
        self.assertIn("| FlashInfer | xqa HND + PDL | no module \\| none | 1: 1, 32/8, 128, 1024 |", text)
        self.assertIn("broke the CUDA context: illegal address", text)
        self.assertIn("| FA3 | - | not installed: No module named", text)

    def test_shapes_measured_while_throttling_are_named(self):
        self.assertNotIn("throttling", report.markdown(self.results))
        self.results["cases"][1]["gpu_state"] = [{"throttle_reasons": 1}, {"throttle_reasons": 0x8}]
        self.assertIn("NVML reported throttling at these shapes, whose figures are to be doubted: 16, 32/8, 128, 4096.", report.markdown(self.results))

    def test_a_run_in_which_nothing_ran_still_reports(self):
        case = self.results["cases"][0]
        case["modes"] = {"cold": {"launches_per_sample": 4, "lines": []}}
        self.assertIn("Agreement", report.markdown(dict(self.results, cases=[case])))

    def test_the_report_depends_on_nothing_but_the_record(self):
        copy = json.loads(json.dumps(self.results))
        self.assertEqual(report.markdown(self.results), report.markdown(copy))


def dots_of(root):
    """The positions of all dots, also in legends, by colour."""
    return {path.get("stroke"): [tuple(map(float, place)) for place in re.findall(r"M([\d.]+) ([\d.]+)h0", path.get("d"))] for path in root.findall(f"{SVG}path")}


class SpeedUpPlot(unittest.TestCase):
    def setUp(self):
        self.results = synthetic.results()

    def draw(self, theme=plot.LIGHT):
        return xml.etree.ElementTree.fromstring(speedup_plot.svg(self.results, theme))

    def test_a_peer_has_a_point_for_every_tuned_shape(self):
        series = speedup_plot.series(self.results["cases"])
        self.assertEqual({peer: [size for size, _ in points] for peer, points in series.items()}, {"cuDNN": [4 << 20, 256 << 20], "FlashInfer": [4 << 20, 256 << 20]})
        for peer, expected in (("cuDNN", [6 / 5, 63 / 70]), ("FlashInfer", [8 / 5, 72 / 70])):
            for (_, ratio), wanted in zip(series[peer], expected, strict=True):
                self.assertAlmostEqual(ratio, wanted, delta=0.01)
        self.assertEqual(sorted(map(len, dots_of(self.draw()).values())), [2, 2])

    def test_faster_is_drawn_higher_and_slower_below_the_line_in_the_shaded_part(self):
        root = self.draw()
        shade = root.findall(f"{SVG}rect")[1]
        level = float(shade.get("y"))
        series = speedup_plot.series(self.results["cases"])
        drawn = list(dots_of(root).values())
        # The peer over which leanattn has the largest speed-up comes first.
        for peer, places in zip(["FlashInfer", "cuDNN"], drawn, strict=True):
            for (_, ratio), (_, y) in zip(series[peer], places, strict=True):
                self.assertEqual(ratio > 1, y < level, (peer, ratio))
        heights = sorted((ratio, -y) for peer, places in zip(["FlashInfer", "cuDNN"], drawn) for (_, ratio), (_, y) in zip(series[peer], places))
        self.assertEqual(heights, sorted(heights, key=lambda pair: pair[1]))

    def test_it_says_which_way_is_better_on_what_and_how_much(self):
        words = [text.text for text in self.draw().iter(f"{SVG}text")]
        self.assertIn("Speed-up of leanattn on one a <fictional> GPU & more (higher is better)", words)
        means = {peer: (points[0][1] * points[1][1]) ** 0.5 for peer, points in speedup_plot.series(self.results["cases"]).items()}
        for peer, mean in means.items():
            self.assertIn(f"{mean:.2f}x over {peer}", words)

    def test_the_dark_one_is_the_same_picture_in_other_colours(self):
        light, dark = self.draw(), self.draw(plot.DARK)
        self.assertEqual([element.tag for element in light.iter()], [element.tag for element in dark.iter()])
        self.assertEqual(list(dots_of(light).values()), list(dots_of(dark).values()))
        self.assertEqual(dark.find(f"{SVG}rect").get("fill"), plot.DARK.background)
        self.assertFalse(set(dots_of(light)) & set(dots_of(dark)))

    def test_there_is_none_where_nothing_can_be_compared(self):
        self.results["cases"] = self.results["cases"][2:]  # no tuned shape
        self.assertIsNone(speedup_plot.svg(self.results, plot.LIGHT))


class Figure(unittest.TestCase):
    PANELS = [("one <panel>", {"a": [(1e6, 1.1), (1e9, 3.0)], "b": [(1e7, 0.9)]}), ("two", {"a": [(1e8, 2.0)]}), ("empty", {"b": []})]

    def test_every_point_lies_inside_its_panel(self):
        root = xml.etree.ElementTree.fromstring(plot.figure("t", "y", self.PANELS))
        paths = root.findall(f"{SVG}path")
        self.assertEqual(len(paths), 3 + 2)  # with the legend
        for left, path in zip((plot.MARGIN_LEFT, plot.MARGIN_LEFT, plot.MARGIN_LEFT + plot.PANEL_WIDTH + plot.GAP), paths):
            for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", path.get("d")):
                self.assertTrue(left <= float(x) <= left + plot.PANEL_WIDTH)
                self.assertTrue(plot.MARGIN_TOP <= float(y) <= plot.MARGIN_TOP + plot.PANEL_HEIGHT)

    def test_names_are_escaped(self):
        root = xml.etree.ElementTree.fromstring(plot.figure("t", "y", self.PANELS))
        self.assertIn("one <panel>", [text.text for text in root.iter(f"{SVG}text")])

    def test_there_is_none_without_a_point(self):
        self.assertIsNone(plot.figure("t", "y", self.PANELS[2:]))


class TraceReport(unittest.TestCase):
    def setUp(self):
        self.results = synthetic.trace_results()

    def test_the_best_kernel_is_chosen_at_every_step_with_and_without_its_plan(self):
        rows = trace_report.rows(self.results["runs"]["64"]["steps"])
        best = rows[trace_report.BEST]
        self.assertAlmostEqual(best["over"][0], 1.2, delta=0.01)
        # With 200 us of plan(), the persistent kernel is slower than the one without plan(), which takes 130 us at even steps and 170 us at odd ones.
        self.assertAlmostEqual(best["over_with_plan"][0], 1.3, delta=0.01)
        self.assertAlmostEqual(best["over_with_plan"][1], 1.7, delta=0.01)

    def test_median_percentile_and_worst_are_in_the_table(self):
        text = trace_report.markdown(self.results)
        row = next(line for line in text.splitlines() if line.startswith("| leanattn |"))
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        median, worst = float(cells[3]), float(cells[5])
        self.assertAlmostEqual(median, 1.095, delta=0.01)
        self.assertAlmostEqual(worst, 1.14, delta=0.01)
        self.assertLessEqual(float(cells[4]), worst)
        for table in tables(text):
            self.assertEqual({len(cells) for cells in table}, {len(table[0])})

    def test_its_picture_is_well_formed(self):
        root = xml.etree.ElementTree.fromstring(trace_report.svg(self.results))
        self.assertEqual(len(root.findall(f"{SVG}path")), 3 + 3)  # points and legend of leanattn, FlashInfer, FlashInfer with plan()

    def test_pages_are_a_line_of_their_own(self):
        self.assertNotIn("*leanattn, pages*", trace_report.markdown(self.results))
        for step in self.results["runs"]["64"]["steps"]:
            dense = next(line for line in step["lines"] if line["system"] == "leanattn")
            step["lines"].append(dict(dense, variant="pages", samples_us=[2 * us for us in dense["samples_us"]]))
        rows = trace_report.rows(self.results["runs"]["64"]["steps"])
        self.assertEqual(len(rows["leanattn"]["us"]), len(rows["leanattn, pages"]["us"]))
        self.assertAlmostEqual(rows["leanattn, pages"]["us"][0], 2 * rows["leanattn"]["us"][0])
        self.assertIn("*leanattn, pages*", trace_report.markdown(self.results))
        root = xml.etree.ElementTree.fromstring(trace_report.svg(self.results))
        self.assertEqual(len(root.findall(f"{SVG}path")), 4 + 4)

    def test_a_step_with_a_wrong_result_gives_no_figure(self):
        for step in self.results["runs"]["64"]["steps"]:
            step["wrong"] = ["leanattn tuned"]
        self.assertNotIn("| leanattn |", trace_report.markdown(self.results))


class Files(unittest.TestCase):
    def test_a_result_file_is_replaced_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "new" / "peers.json"
            files.write_json(path, {"cases": [1]})
            files.write_json(path, {"cases": [1, 2]})
            self.assertEqual(json.loads(path.read_text()), {"cases": [1, 2]})
            self.assertEqual(list(path.parent.iterdir()), [path])

    def test_a_record_is_read_plain_or_compressed_and_plain_first(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "peers.json"
            with self.assertRaises(FileNotFoundError):
                files.read_json(path)
            path.with_name("peers.json.gz").write_bytes(gzip.compress(b'{"cases": ["old"]}'))
            self.assertEqual(files.read_json(path), {"cases": ["old"]})
            files.write_json(path, {"cases": ["new"]})
            self.assertEqual(files.read_json(path), {"cases": ["new"]})


class Committed(unittest.TestCase):
    """The reports in the repository are those that are made from the records beside them."""

    def check(self, record, reports):
        """Of every kind of GPU that has the record."""
        folders = [folder for folder in (bench_paths.ROOT / "bench" / "results").iterdir() if (folder / f"{record}.gz").exists()]
        self.assertTrue(folders, record)
        for folder in folders:
            results = files.read_json(folder / record)
            for name, make in reports.items():
                with self.subTest(folder / name):
                    self.assertEqual((folder / name).read_text(), make(results))

    def test_the_plot_of_peers(self):
        self.check("peers/peers.json", {"peers/peers-speedup.svg": lambda results: speedup_plot.svg(results, plot.LIGHT),
                                        "peers/peers-speedup-dark.svg": lambda results: speedup_plot.svg(results, plot.DARK)})

    def test_trace(self):
        for mix in ("trace", "trace-short"):
            self.check(f"{mix}/trace.json", {f"{mix}/trace.md": trace_report.markdown, f"{mix}/trace.svg": trace_report.svg})

    def test_features(self):
        self.check("features/features.json", {"features/features.md": variants.markdown})

    def test_end_to_end(self):
        self.check("e2e/e2e.json", {"e2e/e2e.md": e2e_report.markdown, "e2e/e2e.svg": e2e_report.svg})

    def test_the_shape_table(self):
        self.check("shape_table.json", {"shape_table.md": shape_table.markdown})


if __name__ == "__main__":
    unittest.main()
