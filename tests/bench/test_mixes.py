"""The mixes of bench/trace: what `short` promises of its requests and steps, and the options that choose a mix. Needs no GPU."""
import contextlib
import gzip
import io
import pathlib
import statistics
import sys
import tempfile
import unittest
import unittest.mock

import bench_paths
import batcher
import mixes
import synthetic
import trace_report

STEP_SECONDS = 0.025


def run(*arguments):
    """bench/trace with these arguments: (exit code, standard output, standard error)."""
    program = bench_paths.program("trace")
    out, err = io.StringIO(), io.StringIO()
    with unittest.mock.patch.object(sys, "argv", ["trace", *arguments]), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = program.main()
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue(), err.getvalue()


class Short(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.requests = mixes.short(1)
        cls.steps = list(batcher.steps(cls.requests, 4096, STEP_SECONDS))

    def test_prompts_and_answers_are_within_their_bounds_and_reach_near_both(self):
        prompts = [request.prompt_tokens for request in self.requests]
        answers = [request.generated_tokens for request in self.requests]
        self.assertEqual((min(prompts), max(prompts)), mixes.PROMPT_BOUNDS)
        self.assertEqual((min(answers), max(answers)), mixes.ANSWER_BOUNDS)
        self.assertAlmostEqual(statistics.median(prompts), mixes.PROMPT_MEDIAN, delta=5)
        self.assertAlmostEqual(statistics.mean(answers), 17.5, delta=0.5)  # the geometric distribution without its tail

    def test_arrivals_are_in_order_and_come_in_waves(self):
        arrivals = [request.arrival for request in self.requests]
        self.assertEqual(arrivals, sorted(arrivals))
        self.assertLess(arrivals[-1], mixes.SHORT_SECONDS)

        def a_second(begin):
            return sum(begin <= arrival < begin + 1 for arrival in arrivals)

        self.assertAlmostEqual(a_second(4.5), mixes.SHORT_PEAK, delta=0.05 * mixes.SHORT_PEAK)
        self.assertLess(a_second(9.5), 0.1 * mixes.SHORT_PEAK)

    def test_steps_have_a_few_to_4096_requests_and_the_batch_is_full_and_not_full(self):
        batches = [len(step.contexts) for step in self.steps]
        self.assertEqual(max(batches), 4096)
        self.assertLess(min(batches), 200)
        full = sum(batch == 4096 for batch in batches) / len(batches)
        self.assertGreater(full, 0.1)
        self.assertLess(full, 0.5)
        self.assertGreater(sum(1000 <= batch < 4096 for batch in batches) / len(batches), 0.25)
        self.assertLessEqual(max(max(step.contexts) for step in self.steps), mixes.PROMPT_BOUNDS[1] + mixes.ANSWER_BOUNDS[1])

    @unittest.mock.patch.object(mixes, "SHORT_SECONDS", 2.0)
    def test_a_seed_gives_the_same_requests_and_another_one_others(self):
        beginning = mixes.short(1)
        self.assertEqual(beginning, self.requests[:len(beginning)])
        self.assertNotEqual(mixes.short(2), beginning)

    @unittest.mock.patch.object(mixes, "SHORT_SECONDS", 2.0)
    def test_a_rate_shortens_the_time_between_the_same_requests(self):
        usual, faster = mixes.short(1), mixes.short(1, rate=4)
        self.assertEqual(len(faster), len(usual))
        self.assertAlmostEqual(faster[-1].arrival, usual[-1].arrival / 4)
        with self.assertRaises(ValueError):
            mixes.short(1, rate=0)


class Options(unittest.TestCase):
    @unittest.mock.patch.object(mixes, "SHORT_SECONDS", 4.0)
    def test_a_mix_brings_the_options_that_suit_it(self):
        code, said, _ = run("--mix", "short", "--describe")
        self.assertEqual(code, 0)
        self.assertRegex(said, r"^at most 4096 running: \d{4,} requests, prompts of 16 to 600 tokens .* 12 sampled steps of 1 to 3\d{3} requests")
        code, said, _ = run("--mix", "short", "--describe", "--running", "512,1024", "--every", "10", "--steps", "7", "--mix-seed", "5")
        self.assertEqual(code, 0)
        self.assertEqual([line.split(":")[0] for line in said.splitlines()], ["at most 512 running", "at most 1024 running"])
        self.assertEqual(said.count("; 7 sampled steps"), 2)

    def test_the_conversation_is_what_is_replayed_by_default(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace.csv.gz"
            rows = [f"2023-11-16 18:15:{second:02}.000000,{100 + second},200" for second in range(0, 56, 8)]
            trace.write_bytes(gzip.compress("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]).encode()))
            code, said, _ = run("--describe", "--trace", str(trace))
        self.assertEqual(code, 0)
        # Eight times as fast, a request comes each second, and 40 steps later; every 50th of 440 steps counts.
        self.assertEqual([line.split(":")[0] for line in said.splitlines()], ["at most 64 running", "at most 256 running"])
        self.assertEqual(said.count("7 requests, prompts of 100 to 148 tokens (median 124), answers of 200 to 200 (mean 200.0); 9 sampled steps of 1 to 5 requests"), 2, said)

    def test_what_is_wrong_is_named(self):
        for arguments, says in ((["--mix", "short", "--trace", "x.gz", "--describe"], "--trace is for --mix conversation"), (["--mix", "short"], "--out is missing"),
                                (["--describe", "--running", "many"], "--running takes numbers"), (["--describe", "--running", "0"], "must be positive"),
                                (["--describe", "--rate", "0"], "must be positive"), (["--describe", "--every", "0"], "must be positive"),
                                (["--mix", "long", "--describe"], "invalid choice: 'long'")):
            with self.subTest(arguments):
                code, _, error = run(*arguments)
                self.assertEqual(code, 2)
                self.assertIn(says, error)


class Report(unittest.TestCase):
    def test_it_says_which_mix_was_replayed(self):
        results = synthetic.trace_results()
        before = trace_report.markdown(results)
        self.assertTrue(before.startswith("# Decode steps of a conversation trace\n"))
        self.assertIn("They arrive 8 times as fast as they did, at a continuous batcher", before)
        mix = mixes.CONVERSATION
        results["mix"] = {"name": mix.name, "title": mix.title, "text": mix.text, "seed": 1}
        self.assertEqual(trace_report.markdown(results), before)
        mix = mixes.SHORT
        results |= {"mix": {"name": mix.name, "title": mix.title, "text": mix.text, "seed": 7}, "rate": 1.0}
        text = trace_report.markdown(results)
        self.assertTrue(text.startswith("# Decode steps of a trace of short requests\n"))
        self.assertIn("within 16 to 600, and answers geometric with a mean of 20 within 1 to 64. The seed is 7. They arrive at a continuous batcher", text)
        self.assertIn("a trace of short requests", trace_report.svg(results))
        results["rate"] = 2.5
        self.assertIn("They arrive 2.5 times as fast at a continuous batcher", trace_report.markdown(results))


if __name__ == "__main__":
    unittest.main()
