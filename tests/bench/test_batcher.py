"""The continuous batcher keeps its promises, on small traces with known answers and on seeded random ones."""
import gzip
import random
import unittest

import bench_paths
import batcher


def random_trace(seed):
    generator = random.Random(seed)
    arrivals = sorted(generator.uniform(0, 20) for _ in range(200))
    return [batcher.Request(arrival, generator.randint(0, 3000), generator.randint(1, 60)) for arrival in arrivals]


class Batcher(unittest.TestCase):
    def test_a_lone_request_decodes_once_a_step_with_a_growing_context_and_leaves(self):
        steps = list(batcher.steps([batcher.Request(3.0, 100, 3)], 4, 0.5))
        self.assertEqual([step.contexts for step in steps], [(101,), (102,), (103,)])
        self.assertEqual([step.time for step in steps], [3.0, 3.5, 4.0])
        self.assertEqual([step.index for step in steps], [0, 1, 2])

    def test_no_request_runs_before_it_arrives(self):
        steps = list(batcher.steps([batcher.Request(0.0, 10, 4), batcher.Request(1.1, 20, 1)], 4, 0.5))
        self.assertEqual([step.contexts for step in steps], [(11,), (12,), (13,), (14, 21)])

    def test_who_comes_first_runs_first_when_the_batch_is_full(self):
        requests = [batcher.Request(0.0, 10, 2), batcher.Request(0.0, 20, 1), batcher.Request(0.0, 30, 1), batcher.Request(0.0, 40, 1)]
        steps = list(batcher.steps(requests, 2, 1.0))
        self.assertEqual([step.contexts for step in steps], [(11, 21), (12, 31), (41,)])
        self.assertEqual([step.waiting for step in steps], [2, 1, 0])

    def test_time_without_requests_is_skipped_and_counts_no_steps(self):
        steps = list(batcher.steps([batcher.Request(0.0, 1, 1), batcher.Request(100.0, 1, 1)], 1, 0.5))
        self.assertEqual([(step.index, step.time) for step in steps], [(0, 0.0), (1, 100.0)])

    def test_random_traces_keep_every_promise(self):
        for seed in range(20):
            for most in (1, 7, 64):
                with self.subTest(seed=seed, most=most):
                    self.check_trace(random_trace(seed), most)

    def check_trace(self, requests, most):
        steps = list(batcher.steps(requests, most, 0.1))
        generated = 0
        for step in steps:
            self.assertLessEqual(len(step.contexts), most)
            self.assertGreater(len(step.contexts), 0)
            arrived = sum(request.arrival <= step.time for request in requests)
            self.assertLessEqual(step.waiting + len(step.contexts), arrived)
            if step.waiting:
                self.assertEqual(len(step.contexts), most)
            generated += len(step.contexts)
        # Every request takes part in exactly as many steps as it generates tokens.
        self.assertEqual(generated, sum(request.generated_tokens for request in requests))
        # The contexts of a request are consecutive, so the number of tokens that it attends to is known in advance.
        expected = sum(sum(range(r.prompt_tokens + 1, r.prompt_tokens + r.generated_tokens + 1)) for r in requests)
        self.assertEqual(sum(sum(step.contexts) for step in steps), expected)
        for before, after in zip(steps, steps[1:]):
            self.assertEqual(after.index, before.index + 1)
            self.assertGreater(after.time, before.time)

    def test_bad_arguments_are_refused(self):
        with self.assertRaises(ValueError):
            next(batcher.steps([batcher.Request(0, 1, 1)], 0, 1.0))
        with self.assertRaises(ValueError):
            next(batcher.steps([batcher.Request(0, 1, 0)], 1, 1.0))


class Reading(unittest.TestCase):
    LINES = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:50.9951690,396,109", "2023-11-16 18:15:46.6805900,374,44"]

    def test_requests_come_in_order_of_arrival_from_zero(self):
        first, second = batcher.read_trace(self.LINES)
        self.assertEqual((first.arrival, first.prompt_tokens, first.generated_tokens), (0.0, 374, 44))
        self.assertAlmostEqual(second.arrival, 4.314579, places=5)

    def test_a_rate_shortens_the_time_between_arrivals(self):
        self.assertAlmostEqual(batcher.read_trace(self.LINES, rate=8)[1].arrival, 4.314579 / 8, places=5)

    def test_the_trace_in_the_repository_is_the_published_one(self):
        with gzip.open(bench_paths.ROOT / "bench" / "trace" / "data" / "azure-llm-2023-conv.csv.gz", "rt") as lines:
            requests = batcher.read_trace(lines)
        self.assertEqual(len(requests), 19366)
        self.assertEqual(max(request.prompt_tokens for request in requests), 14050)
        self.assertEqual(max(request.generated_tokens for request in requests), 1000)


class Sampling(unittest.TestCase):
    def test_a_subset_is_even_and_keeps_both_ends(self):
        self.assertEqual(batcher.evenly(list(range(101)), 5), [0, 25, 50, 75, 100])
        self.assertEqual(batcher.evenly([1, 2, 3], 0), [1, 2, 3])
        self.assertEqual(batcher.evenly([1, 2, 3], 9), [1, 2, 3])
        self.assertEqual(batcher.evenly([1, 2, 3], 1), [1])


if __name__ == "__main__":
    unittest.main()
