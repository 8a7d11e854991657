#!/usr/bin/env python3
"""What `tune` promises without a GPU: candidates are ranked, dependent launches are kept apart, and call captures are read."""

import csv
import json
import re
import signal
import subprocess

import contract
from contract import Contract, OFFLINE, SHAPE


class OfflineTune(Contract):
    def test_it_ranks_compiled_candidates_and_keeps_the_cubins(self):
        result = self.expect(0, "tune", "--json", *SHAPE, *OFFLINE, "--budget", "10s", says="nothing is measured")
        document = json.loads(result.stdout)
        self.assertEqual(document["mode"], "offline")
        candidates = document["shapes"][0]["candidates"]
        accepted = [c for c in candidates if c["accepted"]]
        self.assertGreater(len(accepted), 0)
        self.assertEqual([c["predicted_us"] for c in accepted], sorted(c["predicted_us"] for c in accepted))
        for candidate in accepted:
            self.assertEqual(candidate["spill_bytes"], 0)
            self.assertGreater(candidate["registers"], 0)
            self.assertGreater(candidate["resident_ctas"], 0)
        for candidate in candidates:
            self.assertTrue(candidate["accepted"] or candidate["reason"])
        self.assertTrue((self.cache / "cubin.db").is_file())

    def test_a_dry_run_compiles_nothing_and_leaves_nothing_behind(self):
        result = self.expect(0, "tune", *SHAPE, *OFFLINE, "--dry-run", LEANATTN_NVRTC_LIB="/nonexistent/libnvrtc.so")
        self.assertNotRegex(result.stdout + result.stderr, "compile [0-9]|accepted|were compiled")
        self.assertIn("would be compiled", result.stdout)
        self.assertFalse(self.cache.exists())

    def test_it_says_which_gpu_it_assumes(self):
        for flags, says in ((["--arch", "sm_90a"], "sm_90a with 132 SMs and 50.0 MiB of L2 is assumed \\(as H100 SXM, H200\\)"),
                            (["--arch", "h20"], "sm_90a with 78 SMs.*\\(as h20\\)"), (OFFLINE, "sm_90a with 132 SMs.* is assumed\\. ")):
            self.assertRegex(self.expect(0, "tune", *SHAPE, *flags, "--dry-run", says=says).stdout, r"^sm_90a with \d+ SMs \(assumed\)")

    def test_candidates_that_the_model_cannot_tell_apart_are_one_line(self):
        result = self.expect(0, "tune", *SHAPE, "--batch", "1", *OFFLINE, "--dry-run")
        self.assertIn("cannot tell apart", result.stdout)
        lines = re.findall(r"^ *(\d+\.\d)(?:\.\.[0-9.]+)? +(\d+) +- ", result.stdout, re.MULTILINE)
        first = [float(us) for us, _ in lines]
        self.assertTrue(first and all(later > 1.025 * earlier for earlier, later in zip(first, first[1:])), result.stdout)
        document = json.loads(self.expect(0, "tune", "--json", *SHAPE, "--batch", "1", *OFFLINE, "--dry-run").stdout)
        ties = [candidate["tie"] for candidate in document["shapes"][0]["candidates"]]
        self.assertEqual([int(count) for _, count in lines], [ties.count(tie) for tie in range(len(lines))])
        self.assertEqual((document["dry_run"], document["l2_bytes"]), (True, 50 << 20))

    def test_it_says_when_the_budget_ended_it(self):
        result = self.expect(4, "tune", *SHAPE, *OFFLINE, "--budget", "1ms", "--jobs", "1")
        self.assertRegex(result.stdout + result.stderr, "[0-9]+ were not reached")
        self.assertIn("The budget ended before", result.stderr)

    def test_an_interrupt_ends_it_with_130(self):
        process = subprocess.Popen([contract.PROGRAM, "tune", "--model", "llama-3-8b", *OFFLINE, "--jobs", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env=self.environment(), cwd=self.root)
        # The signal handler is in place when the first line of progress comes.
        for line in process.stderr:
            if line.startswith("["):
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)


class DependentLaunch(Contract):
    """With --pdl, dependent launches are tuned and looked up apart from ordinary ones."""

    GRID = 131

    def answer(self, *flags):
        document = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE, *flags).stdout)
        return document["problem"], document["answers"][0]

    def tuned(self, *flags):
        """A problem and a configuration that differs from its default."""
        problem, answer = self.answer(*flags)
        return problem, {**answer["config"], "grid": self.GRID}

    def test_it_is_off_unless_asked_for(self):
        problem, answer = self.answer()
        self.assertNotIn("pdl", problem)
        self.assertEqual((answer["pdl"], answer["config"]["spec"]["pdl"]), (False, False))
        problem, answer = self.answer("--pdl")
        self.assertIs(problem["pdl"], True)
        self.assertEqual((answer["pdl"], answer["config"]["spec"]["pdl"], answer["provenance"]), (True, True, "fallback"))
        self.assertIn("_pdl_", answer["kernel"])

    def test_an_untuned_one_rests_on_the_ordinary_winner_and_says_so(self):
        file = self.make_database()
        self.add_winner(file, *self.tuned(), 12.5)
        self.assertEqual(self.answer()[1]["provenance"], "exact")
        answer = self.answer("--pdl")[1]
        self.assertEqual((answer["provenance"], answer["pdl"], answer["tuned_pdl"]), ("without_pdl", True, False))
        self.assertEqual((answer["config"]["spec"]["pdl"], answer["tuned_us"]), (True, 12.5))
        self.expect(0, "lookup", *SHAPE, *OFFLINE, "--pdl", "--require", "without_pdl")
        self.expect(4, "lookup", *SHAPE, *OFFLINE, "--pdl", "--require", "bucket", says="leanattn tune")
        explained = self.expect(0, "lookup", *SHAPE, *OFFLINE, "--pdl", "--explain").stdout
        self.assertIn("ordinary launches", explained)
        self.assertIn("programmatic dependent launch", explained)

    def test_both_kinds_of_winner_live_in_one_database(self):
        file = self.make_database()
        self.add_winner(file, *self.tuned(), 12.5)
        self.add_winner(file, *self.tuned("--pdl"), 10.5)
        for flags, us, pdl in (([], 12.5, False), (["--pdl"], 10.5, True)):
            answer = self.answer(*flags)[1]
            self.assertEqual((answer["provenance"], answer["tuned_us"], answer["pdl"], answer["tuned_pdl"]), ("exact", us, pdl, pdl))
        rows = list(csv.DictReader(self.expect(0, "report", "--format", "csv").stdout.splitlines()))
        self.assertEqual([row["pdl"] for row in rows], ["false", "true"])
        self.assertRegex(self.expect(0, "report", "--format", "md").stdout, r"(?m)^\| 32/8 x 128 bf16 pdl \|")

    def test_lookup_before_hopper_answers_ordinary_launches(self):
        answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, "--arch", "sm_80", "--pdl").stdout)["answers"][0]
        self.assertIs(answer["pdl"], False)

    def test_tune_and_emit_and_prewarm_make_kernels_with_it(self):
        document = json.loads(self.expect(0, "tune", "--json", "--pdl", *SHAPE, *OFFLINE, "--dry-run").stdout)
        self.assertIs(document["problem"]["pdl"], True)
        candidates = document["shapes"][0]["candidates"]
        self.assertGreater(len(candidates), 10)
        self.assertEqual({c["config"]["spec"]["pdl"] for c in candidates}, {True})
        self.assertIn("griddepcontrol.wait", self.expect(0, "emit", "--pdl", *SHAPE, *OFFLINE).stdout)
        kernels = json.loads(self.expect(0, "prewarm", "--json", "--pdl", *SHAPE, *OFFLINE).stdout)["kernels"]
        self.assertGreater(len(kernels), 0)
        self.assertEqual(["_pdl_" in k["kernel"] for k in kernels], [True] * len(kernels))

    def test_bench_takes_it(self):
        self.expect(3, "bench", "--pdl", *SHAPE)


class FromCapture(Contract):
    """What `tune --from-capture` does without a GPU."""

    PROBLEM = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bf16", "layout": "contiguous", "lse": False}

    def line(self, context, calls, answer="exact", **problem):
        return json.dumps({"leanattn_capture": 1, "problem": {**self.PROBLEM, **problem},
                           "shape": {"batch": 1, "max_batch": 0, "longest_context": context, "total_context": 0},
                           "calls": calls, "answer": answer, "device": "Fictional GPU", "sms": 132, "written": "2026-11-21T00:00:00.000Z"})

    def capture(self, *lines):
        file = self.root / "capture.jsonl"
        file.write_text("".join(line + "\n" for line in lines))
        return str(file)

    def tune(self, code, file, *flags, **options):
        return self.expect(code, "tune", "--from-capture", file, *OFFLINE, "--dry-run", *flags, **options)

    def test_the_most_frequent_shapes_come_first_whatever_their_problem(self):
        file = self.capture(self.line(1024, 5), self.line(2048, 50, "nearest", q_heads=64), self.line(4096, 20), self.line(1024, 40, "bucket"),
                            self.line(512, 30, "fallback", q_heads=64))
        document = json.loads(self.tune(0, file, "--json", "--quiet").stdout)
        order = [(tuning["problem"]["q_heads"], shape["shape"]["longest_context"]) for tuning in document["tunings"] for shape in tuning["shapes"]]
        self.assertEqual(order, [(64, 2048), (32, 1024), (64, 512), (32, 4096)])
        capture = document["capture"]
        self.assertEqual((capture["calls"], capture["lost_calls"], capture["unreadable_lines"]), (145, 0, 0))
        self.assertEqual(capture["answers"], {"bucket": 40, "exact": 25, "fallback": 30, "nearest": 50})
        self.assertEqual([shape["calls"] for shape in capture["shapes"]], [50, 45, 30, 20])
        self.assertFalse(self.cache.exists(), "a dry run leaves nothing behind")

    def test_unreadable_lines_are_named_and_skipped(self):
        whole = self.line(1024, 5)
        file = self.capture(whole, "rubbish", whole[:100], "", whole.replace("128", "100"), whole)
        result = self.tune(0, file, "--json")
        self.assertEqual(re.findall(r"capture\.jsonl:(\d+): ", result.stderr), ["2", "3", "5"])
        self.assertIn("10 calls of 1 shapes", result.stderr)
        self.assertEqual(json.loads(result.stdout)["capture"]["unreadable_lines"], 3)

    def test_junk_is_not_complained_of_line_by_line(self):
        file = self.root / "capture.jsonl"
        file.write_text("junk\n" * 20000 + self.line(1024, 5) + "\n")
        result = self.tune(0, str(file), "--json", says="19995 more lines")
        self.assertLess(len(result.stderr.splitlines()), 12)
        self.assertEqual(json.loads(result.stdout)["capture"]["unreadable_lines"], 20000)

    def test_a_capture_without_shapes_is_nothing_found(self):
        self.tune(4, self.capture(), says="has no shapes")
        self.tune(4, str(self.root / "missing"), says="missing")
        self.tune(2, str(self.root), says="directory")

    def test_it_is_the_only_one_to_say_what_is_tuned(self):
        file = self.capture(self.line(1024, 5))
        for flags in (["--heads", "32"], ["--context", "4k"], ["--window", "64"], ["--model", "llama-3-8b"]):
            self.tune(2, file, *flags, says="cannot be given together")
        self.expect(3, "tune", "--from-capture", file, says="--arch")

    def test_revalidation_measures_and_therefore_needs_a_gpu(self):
        self.expect(3, "tune", "--revalidate")
        self.expect(3, "tune", "--revalidate", *SHAPE)
        self.expect(2, "tune", "--revalidate", *OFFLINE, says="measures")
        self.expect(2, "tune", "--revalidate", "--resume", says="cannot be given together")
        self.expect(2, "tune", "--revalidate", "--missing", says="cannot be given together")


if __name__ == "__main__":
    contract.main()
