#!/usr/bin/env python3
"""Reports of a simulated tuning database: the HTML is one safe and well-formed page, and the JSON keeps to its schema."""

import argparse
import csv
import gzip
import html.parser
import io
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

try:
    import jsonschema
except ImportError:
    sys.exit("python3-jsonschema is missing; run scripts/setup --tests")

PROGRAM = SIMULATE = SOURCE = None
VOID = {"meta", "br", "img", "link", "hr", "input"}
HOSTILE = "<script>alert('x')</script>"


class Page(html.parser.HTMLParser):
    """The elements, attributes and text of a page, and every tag that is closed wrongly."""

    def __init__(self, text):
        super().__init__()
        self.open, self.mistakes, self.elements, self.attributes, self.words, self.ids = [], [], [], [], [], []
        self.feed(text)
        self.close()
        self.mistakes += [f"<{tag}> is never closed" for tag in self.open]

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.mistakes.append(f"</{tag}> at {self.getpos()} where {self.open[-3:]} is open")
        else:
            self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


class Reports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="leanattn-reports-")
        cls.root = pathlib.Path(cls.folder.name)
        cls.reports = {}  # Reports by their flags. Most tests read the same few.
        # One database for all tests. Its names are hostile, and whatever a test expects holds all the same.
        subprocess.run([SIMULATE, str(cls.root), "--hostile", "--brief"], check=True, timeout=900)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_program(self, *arguments):
        env = {k: v for k, v in os.environ.items() if not k.startswith("LEANATTN_")}
        env.update(HOME=str(self.root))
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, env=env, timeout=900)

    def successful(self, *arguments):
        result = self.run_program(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def report(self, *flags):
        """The report of the database."""
        if flags not in self.reports:
            self.reports[flags] = self.successful("--db", str(self.root), "report", *flags)
        return self.reports[flags]

    def from_file(self, *flags):
        """Flags that make a report without the database, which takes less time: of the JSON that it gave with them."""
        name = self.root / f"report-{len(flags)}.json"
        if not name.exists():
            name.write_text(self.report("--format", "json", *flags))
        return ["report", "--from", str(name)]

    def given(self):
        """The flags that add a section, with their files."""
        earlier = self.root / "earlier.json"
        if not earlier.exists():
            document = json.loads(self.report("--format", "json"))
            winners = document["devices"][1]["winners"]  # the first GPU has fewer
            for key in ("median_us", "low_us", "high_us"):
                winners[0][key] *= 1.5
                winners[1][key] *= 0.5
            winners[2]["shape"]["batch"] += 100
            winners[3]["config"]["grid"] += 1
            earlier.write_text(json.dumps(document))
        return ["--against", str(earlier), "--paper", str(self.root / "paper.json"), "--regret", str(self.root / "regret.json")]

    def page(self):
        text = self.report("--format", "html", *self.given())
        return text, Page(text)

    def test_the_page_is_balanced_and_has_every_section(self):
        text, page = self.page()
        self.assertTrue(text.startswith("<!DOCTYPE html>"))
        self.assertEqual(page.mistakes, [])
        self.assertEqual(len(page.ids), len(set(page.ids)))
        self.assertLessEqual({"gpu0", "gpu1", "difference", "regret", "paper", "how"}, set(page.ids))
        words = " ".join(page.words)
        for heading in ("Winners", "Candidates and parameters", "Failures", "Environments", "FlashDecoding", "Held-out regret"):
            self.assertIn(heading, words)
        for _, name, value in page.attributes:
            if name == "href":
                self.assertIn(value.removeprefix("#"), page.ids)

    def test_the_page_runs_nothing_and_loads_nothing(self):
        text, page = self.page()
        self.assertFalse(set(page.elements) & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use"})
        for tag, name, value in page.attributes:
            self.assertFalse(name.startswith("on"), f"<{tag} {name}={value}>")
            self.assertNotIn(name, ("src", "srcset", "action", "data", "xlink:href", "style"))
            if name == "href":
                self.assertTrue(value.startswith("#"), value)
        self.assertEqual(set(re.findall(r'(?<![\w;])(https?://[^\s"<]+)', text.replace("&quot;", '"'))) - {"http://www.w3.org/2000/svg", "http://evil"}, set())
        for style in re.findall(r"<style>(.*?)</style>", text, re.DOTALL):
            self.assertNotRegex(style, r"url\(|@import|expression\(")

    def test_every_drawing_is_well_formed_and_named(self):
        text, _ = self.page()
        drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        self.assertGreater(len(drawings), 20)
        for drawing in drawings:
            root = xml.etree.ElementTree.fromstring(drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) if "xmlns" not in drawing else drawing)
            self.assertTrue(root.get("aria-label"), drawing[:200])
            for number in re.findall(r'(?:cx|cy|x|y|width|height|r|d)="([^"]*)"', drawing):
                self.assertNotRegex(number, r"nan|inf", drawing[:200])

    def test_hostile_names_stay_text_in_every_format(self):
        text, page = self.page()
        self.assertNotIn("<script", text)
        self.assertNotIn("<img", text)
        words = "".join(page.words)
        self.assertIn(HOSTILE, words, "the name is shown as it is")
        self.assertIn("<img src=x onerror=alert(1)>", words)
        self.assertIn("</td></table><script>alert(document.domain)</script>", words)
        self.assertNotIn("\u202e", text)
        self.assertNotIn("\x01", text)
        markdown = self.report("--format", "md", *self.given())
        self.assertNotIn("<script", markdown)
        self.assertNotIn("<img", markdown)
        rows = [line for line in markdown.splitlines() if line.startswith("| ")]
        for line in rows:
            self.assertTrue(line.endswith("|"), line)
        names = {row["device"] for row in csv.DictReader(io.StringIO(self.report("--format", "csv")))}
        self.assertEqual(len(names), 2)
        for name in names:
            self.assertNotIn(name[0], "=+-@\t\r")
        json.loads(self.report("--format", "json", *self.given()))

    def test_the_csv_has_one_whole_row_a_winner(self):
        rows = list(csv.reader(io.StringIO(self.report("--format", "csv"))))
        document = json.loads(self.report("--format", "json"))
        self.assertEqual(len(rows) - 1, sum(len(device["winners"]) for device in document["devices"]))
        self.assertEqual({len(row) for row in rows}, {len(rows[0])})
        self.assertEqual(len(set(rows[0])), len(rows[0]))
        first = dict(zip(rows[0], rows[1]))
        winner = document["devices"][0]["winners"][0]
        self.assertAlmostEqual(float(first["median_us"]), winner["median_us"], 3)
        self.assertAlmostEqual(float(first["runner_up_ratio"]), winner["runner_up"]["over_winner"]["ratio"], 3)
        self.assertEqual(first["limited_by"], winner["parts"]["limited_by"])

    def test_the_json_keeps_to_the_schema(self):
        schema = json.loads((SOURCE / "docs/report.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        for flags in ([], self.given()):
            document = json.loads(self.report("--format", "json", *flags))
            self.assertEqual([f"{list(e.absolute_path)}: {e.message}" for e in validator.iter_errors(document)][:5], [])
        winner = document["devices"][0]["winners"][0]
        for broken in ("median_us", "parts", "policy"):
            kept = winner.pop(broken)
            self.assertFalse(validator.is_valid(document), broken)
            winner[broken] = kept
        self.assertTrue(validator.is_valid(document))
        winner["surprise"] = 1
        self.assertFalse(validator.is_valid(document))

    def test_the_difference_says_what_was_done_to_the_earlier_report(self):
        document = json.loads(self.report("--format", "json", *self.given()))
        verdicts = [change["verdict"] for change in document["difference"]["changes"]]
        self.assertEqual({v: verdicts.count(v) for v in ("faster", "slower", "new", "lost")}, {"faster": 1, "slower": 1, "new": 1, "lost": 1})
        self.assertEqual(sum(change["config_changed"] for change in document["difference"]["changes"]), 1)
        ratios = [change["ratio"]["ratio"] for change in document["difference"]["changes"] if change["verdict"] in ("faster", "slower")]
        self.assertAlmostEqual(ratios[0], 2.0)
        self.assertAlmostEqual(ratios[1], 1 / 1.5)

    def test_the_parts_of_every_time_add_up_to_it(self):
        document = json.loads(self.report("--format", "json"))
        for device in document["devices"]:
            for winner in device["winners"]:
                parts = winner["parts"]
                self.assertAlmostEqual(sum(v for k, v in parts.items() if k.endswith("_us")), winner["median_us"], 6)
                self.assertEqual(parts["limited_by"] == "read limit", winner["read_limit_share"] >= 0.95)

    def test_the_same_database_gives_the_same_bytes(self):
        self.assertEqual(self.successful("--db", str(self.root), "report", "--format", "json", *self.given()),
                         self.report("--format", "json", *self.given()))

    def test_a_report_read_from_its_json_is_the_report_of_the_database(self):
        for form in ("html", "md", "csv", "json"):
            self.assertEqual(self.successful(*self.from_file(*self.given()), "--format", form), self.report("--format", form, *self.given()), form)

    def test_a_section_may_be_added_to_a_report_from_a_file(self):
        self.assertEqual(self.successful(*self.from_file(), "--format", "html", *self.given()), self.page()[0])

    def test_a_report_of_0_1_0_is_shown_as_it_was_committed_without_a_gpu_and_without_a_database(self):
        committed = SOURCE / "bench/results/h200/tuning_report.json.gz"
        text = gzip.decompress(committed.read_bytes())
        page = Page(self.successful("report", "--from", str(committed), "--format", "html"))
        self.assertEqual(page.mistakes, [])
        words = " ".join(page.words)
        document = json.loads(text)["devices"][0]
        self.assertIn(f"{len(document['winners'])} shapes of {len(document['problems'])} problems are tuned.", words)
        over_limit = statistics.median(winner["over_limit"] for winner in document["winners"])
        self.assertIn(f"The median winner takes {over_limit:.2f} times its read limit.", words)

    def test_compressed_files_are_read_as_plain_ones(self):
        plain = self.root / "plain.json"
        plain.write_text(self.report("--format", "json"))
        packed = self.root / "packed.json.gz"
        middle = len(plain.read_bytes()) // 2
        for data in (gzip.compress(plain.read_bytes()),
                     gzip.compress(plain.read_bytes()[:middle]) + gzip.compress(plain.read_bytes()[middle:])):
            packed.write_bytes(data)
            for flags in (["--from"], ["--from", str(plain), "--against"]):
                self.assertEqual(self.successful("report", *flags, str(packed)), self.successful("report", *flags, str(plain)))
        with subprocess.Popen(["cat", str(packed)], stdout=subprocess.PIPE) as cat:
            piped = subprocess.run([PROGRAM, "report", "--from", "/dev/stdin"], stdin=cat.stdout, capture_output=True, text=True)
        self.assertEqual((piped.returncode, piped.stdout), (0, self.successful("report", "--from", str(plain))))

    def test_files_that_are_too_large_or_damaged_or_no_files_are_refused_with_the_reason(self):
        packed = gzip.compress(self.report("--format", "json").encode())
        large = 16 * 1024 * 1024 + 1
        cases = [(gzip.compress(b" " * large), "larger than 16 MiB when it is unpacked"), (b" " * large, "larger than 16 MiB"),
                 (packed[:-9], "cut off"), (packed[:20] + b"\xff\xff\xff\xff" + packed[24:], "gzip cannot have made this"),
                 (packed + b"more", "gzip cannot have made this"), (packed[:5], "cut off")]
        file = self.root / "file"
        for data, says in cases:
            file.write_bytes(data)
            with self.subTest(says=says):
                result = self.run_program("report", "--from", str(file))
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertRegex(result.stderr, f"--from {file}: .*{says}")
        os.mkfifo(self.root / "pipe")  # to which nobody writes
        for path, says in (("/dev/zero", "a device"), (str(self.root), "a directory"), (str(self.root / "pipe"), "not a report")):
            result = self.run_program("report", "--from", path)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertRegex(result.stderr, f"--from {path}: .*{says}")

    def test_a_report_comes_from_one_source(self):
        result = self.run_program("--db", str(self.root), *self.from_file())
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("--from", result.stderr)

    def test_the_format_follows_the_name(self):
        for name, start in (("r.html", "<!DOCTYPE"), ("r.HTM", "<!DOCTYPE"), ("r.json", "{"), ("r.csv", "device,"), ("r.md", "# "), ("r", "# ")):
            self.successful(*self.from_file(), "--out", str(self.root / name))
            self.assertTrue((self.root / name).read_text().startswith(start), name)

    def test_a_name_that_promises_another_format_is_refused(self):
        for name in ("r.pdf", "r.xlsx"):
            result = self.run_program(*self.from_file(), "--out", str(self.root / name))
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(f"{name}: no report has a name that ends in .", result.stderr)
            self.assertFalse((self.root / name).exists())
        self.successful(*self.from_file(), "--out", str(self.root / "r.txt"), "--format", "md")
        self.assertTrue((self.root / "r.txt").read_text().startswith("# "))

    def test_a_report_that_cannot_be_written_leaves_what_was_there(self):
        folder = self.root / "r.d"
        folder.mkdir()
        result = self.run_program(*self.from_file(), "--out", str(folder / "missing" / "r.html"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("cannot be written", result.stderr)
        self.assertEqual(list(folder.iterdir()), [])

    def test_every_shape_can_be_chosen_and_shows_its_search(self):
        text, page = self.page()
        document = json.loads(self.report("--format", "json"))
        links = [value for _, name, value in page.attributes if name == "href"]
        for number, device in enumerate(document["devices"]):
            for index, winner in enumerate(device["winners"]):
                shape = f"gpu{number}-s{index}"
                self.assertIn(shape, page.ids)
                self.assertGreaterEqual(links.count(f"#{shape}"), 2, "from the index and from the table of winners")
                last = winner["progress"][-1]
                section = text[text.index(f'id="{shape}"'):].split("</section>")[0]
                self.assertIn(f"The search made {last['trials']} trials", section)
                first = winner["progress"][0]["best_us"]
                self.assertEqual(section.count("<svg") - section.count('class="bar"') - section.count('class="strip"'),
                                 0 if first < 1.05 * last["best_us"] else 2, "a chart against trials, and one against seconds")

    def test_the_best_time_of_a_search_only_falls_and_ends_at_the_fastest_candidate(self):
        document = json.loads(self.report("--format", "json"))
        for device in document["devices"]:
            for winner in device["winners"]:
                steps = winner["progress"]
                for before, after in zip(steps, steps[1:]):
                    self.assertLessEqual(after["best_us"], before["best_us"])
                    self.assertGreater(after["trials"], before["trials"])
                    self.assertGreaterEqual(after["seconds"], before["seconds"])
                self.assertLessEqual(steps[-1]["best_us"], winner["median_us"])
            self.assertLess(min(winner["progress"][0]["trials"] / winner["progress"][-1]["trials"] for winner in device["winners"]), 0.2,
                            "candidates count from when they were tried")

    def test_details_are_closed(self):
        _, page = self.page()
        self.assertGreater(page.elements.count("details"), 5)
        self.assertNotIn(("details", "open", None), page.attributes)

    def test_ragged_shapes_are_named_in_every_table(self):
        markdown = self.report("--format", "md", *self.given())
        document = json.loads(self.report("--format", "json"))
        ragged = [w["shape"] for d in document["devices"] for w in d["winners"] if w["shape"]["total_context"]]
        self.assertEqual(len(ragged), 1)
        rows = [line for line in markdown.splitlines() if "32 x up to 128k, 159k in all" in line]
        self.assertEqual(len(rows), 3, "winners, margins and what changed")

    def test_a_mixed_step_is_tuned_looked_up_and_reported_by_its_mix(self):
        """From the command line's lengths to the tuning on a simulated GPU, and back to look-ups and reports."""
        folder = self.root / "mixed"
        folder.mkdir(mode=0o700)
        heads = ["--heads", "8", "--kv-heads", "2", "--head-dim", "64", "--page-size", "16", "--ragged-q", "--q-len", "2048", "--arch", "sm_90a", "--sms", "132"]

        def looked_up(q_lens, *flags, command="lookup"):
            step = ["--lengths", "6x4k,8k", "--q-lens", q_lens]
            return self.successful("--db", str(folder), command, *heads, *step, *flags)

        asked = json.loads(looked_up("6x1,700", "--json"))
        answer = asked["answers"][0]
        self.assertEqual((answer["provenance"], answer["tuned_us"]), ("fallback", None))
        self.assertGreater(answer["predicted_us"], 0)
        mix = {"query_tokens": 706, "chunks": 1, "chunk_context": 8192, "chunk_pairs": 700 * (8192 - 700) + 700 * 701 // 2}
        self.assertEqual(answer["shape"]["mix"], mix)
        capture = folder / "capture"
        capture.write_text(json.dumps({"leanattn_capture": 1, "problem": asked["problem"], "shape": answer["shape"], "calls": 1, "answer": "fallback",
                                       "device": "Simulated H200", "sms": 132, "written": "2026-11-27T00:00:00.000Z"}) + "\n")
        self.assertEqual(subprocess.run([SIMULATE, str(folder), "--from-capture", str(capture)], check=True, capture_output=True, text=True).stdout, "1\n")
        tuned = json.loads(looked_up("6x1,700", "--json"))["answers"][0]
        self.assertEqual((tuned["provenance"], tuned["tuned_shape"]["mix"]), ("exact", mix))
        self.assertEqual(json.loads(looked_up("6x1,600", "--json"))["answers"][0]["provenance"], "bucket")
        self.assertEqual(json.loads(looked_up("7x1", "--json"))["answers"][0]["provenance"], "fallback")
        emitted = {q_lens: json.loads(looked_up(q_lens, "--json", command="emit")) for q_lens in ("6x1,700", "7x1")}
        self.assertEqual([(one["provenance"], one["kernel"]) for one in emitted.values()], [("exact", tuned["kernel"]), ("fallback", answer["kernel"])])
        self.assertNotEqual(tuned["kernel"], answer["kernel"])
        for q_lens, one in emitted.items():
            compiled = json.loads(looked_up(q_lens, "--json", command="prewarm"))["kernels"]
            self.assertEqual([kernel["kernel"] for kernel in compiled], [one["kernel"]])
        name = "6 x 1 of 4k + 700 of 8k"
        self.assertIn(name, looked_up("6x1,700"))
        self.assertIn(f" of {name} ", looked_up("6x1,600"))
        self.assertIn(f"us for {name}", looked_up("6x1,600", "--explain"))
        report = ["--db", str(folder), "report", "--format"]
        for form in ("md", "html"):
            self.assertIn(name, self.successful(*report, form))
        self.assertEqual(json.loads(self.successful(*report, "json"))["devices"][0]["winners"][0]["shape"]["mix"], mix)
        row, = csv.DictReader(io.StringIO(self.successful(*report, "csv")))
        self.assertEqual({key: int(row[key]) for key in mix}, mix)
        document = json.loads(self.successful(*report, "json"))
        jsonschema.validate(document, json.loads((SOURCE / "docs/report.schema.json").read_text()))

    def test_steps_of_recurrent_states_have_a_table(self):
        document = json.loads(self.report("--format", "json"))
        problem = {"kind": "gated_delta", "qk_heads": 16, "v_heads": 48, "key_dim": 128, "value_dim": 128}
        row = {"problem": problem, "batch": 16, "policy": "cold", "kernel": "any", "median_us": 22.0, "low_us": 21.9, "high_us": 22.1,
               "config": {"operation": "recurrent", "arch": "sm_90a", "problem": problem, "warps": 2, "warp_rows": 16, "row_lanes": 16},
               "gb_per_s": 3050.4, "copy_us": 20.0, "over_copy": 1.1, "rule_us": None, "stale": False, "samples": 12, "measured": ""}
        document["devices"][0]["recurrent"] = [row]
        file = self.root / "recurrent.json"
        file.write_text(json.dumps(document))
        report = ("report", "--from", str(file), "--format")
        again = json.loads(self.successful(*report, "json"))
        jsonschema.validate(again, json.loads((SOURCE / "docs/report.schema.json").read_text()))
        kernel = again["devices"][0]["recurrent"][0]["kernel"]
        self.assertTrue(kernel.startswith("recurrent_sm90a_gated_delta_"), kernel)
        self.assertIn(f"| 16 | cold | `{kernel}` | 22.0 | 21.9 to 22.1 | 3050 | 1.100 | - |  |", self.successful(*report, "md"))
        page = Page(self.successful(*report, "html"))
        self.assertEqual(page.mistakes, [])
        self.assertIn("1 step of recurrent states is tuned.", " ".join(page.words))

    def test_groups_are_named_with_their_ranks_and_their_link(self):
        self.assertIn("32/8 x 128 bf16 cp2 nvlink", self.report("--format", "md", *self.given()))
        rows = list(csv.DictReader(io.StringIO(self.report("--format", "csv"))))
        self.assertEqual({row["group_link"] for row in rows}, {"", "nvlink"})
        self.assertEqual([row["group_link"] for row in rows if "context_parallel" in row["features"]], ["nvlink"])

    def test_failures_are_grouped_by_cause_and_say_what_they_share(self):
        _, page = self.page()
        words = " ".join(page.words)
        device = json.loads(self.report("--format", "json"))["devices"][1]
        self.assertIn(f"{device['trials']['incorrect']} candidates gave a wrong result", words)
        common = {failure["status"]: {one["parameter"]: one["value"] for one in failure["common"]} for failure in device["failures"]}
        self.assertLessEqual({("load", "bulk"), ("stages", "2")}, set(common["incorrect"].items()))
        self.assertIn("load bulk", words)

    def test_a_file_that_is_none_of_them_is_a_usage_error_that_names_it(self):
        other = self.root / "other.json"
        cases = [('{"schema_version": 7, "devices": []}', "its schema_version is 7"), ("[]", "this is not a report"), ("{", "this is not a report"),
                 ("", "this is not a report"), ("{}", "this is not a report: it has no 'devices'"),
                 ('{"schema_version": 1, "library_revision": "r", "devices": {}}', "this is not a report: its 'devices' are no array"),
                 ('{"schema_version": 1, "devices": [{}]}', "the report is not complete: 'library_revision' is missing"),
                 ('{"schema_version": 1, "library_revision": "r", "devices": [{"name": 3}]}',
                  "the report is not complete: 'devices': element 0: 'name': a string is expected, and not a number")]
        for text, says in cases:
            other.write_text(text)
            result = self.run_program("report", "--from", str(other))
            self.assertEqual((result.returncode, result.stdout), (2, ""), text)
            self.assertIn(f"--from {other}: {says}", result.stderr)
            result = self.run_program(*self.from_file(), "--against", str(other))
            self.assertEqual((result.returncode, result.stdout), (2, ""), text)
            self.assertIn(f"--against {other}: {says}", result.stderr)
        other.write_text('{"schema_version": 1, "library_revision": "r", "devices": []}')
        result = self.run_program("report", "--from", str(other))
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("the report has no winners: its 'devices' are empty", result.stderr)
        for flag in ("--paper", "--regret"):
            for text in ("[]", '{"schema_version": 1}', '{"schema_version": 1, "cases": [{"looked_up_us": 1, "best_us": 0}]}', "\x00"):
                other.write_text(text)
                result = self.run_program(*self.from_file(), flag, str(other))
                self.assertEqual((result.returncode, result.stdout), (2, ""), (flag, text))
                self.assertIn(f"{flag} {other}:", result.stderr)
        result = self.run_program(*self.from_file(), "--regret", "missing.json")
        self.assertEqual(result.returncode, 2)
        self.assertIn("missing.json", result.stderr)


def main():
    global PROGRAM, SIMULATE, SOURCE
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--simulate", required=True)
    parser.add_argument("--source", required=True)
    options, rest = parser.parse_known_args()
    PROGRAM, SIMULATE, SOURCE = os.path.abspath(options.program), os.path.abspath(options.simulate), pathlib.Path(options.source)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
