"""The lists of shapes have what they promise, and a drawn list never changes by accident."""
import hashlib
import random
import unittest

import bench_paths  # noqa: F401  (the path)
import shape_table
from peers import shapes


class Shapes(unittest.TestCase):
    def test_published_and_ragged_are_those_of_the_shape_table(self):
        self.assertEqual([(c.batch, c.q_heads, c.kv_heads, c.head_dim, c.longest) for c in shapes.published()], list(shape_table.SHAPES))
        self.assertEqual([list(c.lengths) for c in shapes.ragged()], [list(lengths) for _, lengths in shape_table.RAGGED])
        self.assertTrue(all(c.ragged for c in shapes.ragged()))

    def test_drawn_shapes_keep_their_bounds(self):
        drawn = shapes.drawn()
        self.assertGreaterEqual(len(drawn), 30)
        for case in drawn:
            with self.subTest(case.name):
                self.assertLessEqual(case.q_heads, 128)
                self.assertEqual(case.q_heads % case.kv_heads, 0)
                self.assertIn(case.q_heads // case.kv_heads, range(1, 17))
                self.assertIn(case.head_dim, shapes.DRAWN_HEAD_DIMS)
                self.assertIn(case.batch, range(1, 257))
                self.assertIn(case.longest, range(64, (1 << 20) + 1))
                self.assertTrue(shapes.DRAWN_KV_BYTES[0] <= case.kv_bytes <= shapes.DRAWN_KV_BYTES[1])

    def test_the_same_seed_draws_the_same_list_and_another_seed_another(self):
        self.assertEqual(shapes.drawn(7, 10), shapes.drawn(7, 10))
        self.assertNotEqual(shapes.drawn(7, 10), shapes.drawn(8, 10))

    def test_the_list_that_results_are_reported_for_has_not_moved(self):
        # Published results name this list. If it changed, they could no longer be compared.
        names = "\n".join(case.name for case in shapes.drawn())
        self.assertEqual(hashlib.sha256(names.encode()).hexdigest()[:16], "1f384388fb5221f8")

    def test_drawn_shapes_are_none_that_were_tuned(self):
        self.assertFalse({c.name for c in shapes.drawn()} & {c.name for c in shapes.published()})

    def test_a_fresh_list_follows_from_its_seed_and_is_not_the_fixed_one(self):
        self.assertEqual(shapes.fresh(7), shapes.LISTS["fresh"](7))
        self.assertNotEqual(shapes.fresh(7), shapes.fresh(8))
        self.assertEqual(len(shapes.fresh(7)), shapes.FRESH_COUNT)
        self.assertEqual({case.group for case in shapes.fresh(7)}, {"fresh"})

    def test_every_list_names_its_cases_and_no_unusual_one_is_published(self):
        for name, make in shapes.LISTS.items():
            self.assertEqual({case.group for case in make(7)}, {name})
        self.assertFalse({case.name for case in shapes.unusual()} & {case.name for case in shapes.published()})

    def test_bytes_and_capacity_of_a_step(self):
        case = shapes.Case("test", "test", 32, 8, 128, (3000, 17))
        self.assertEqual(case.kv_bytes, 2 * 3017 * 8 * 128 * 2)
        self.assertEqual(case.capacity, 3008)
        self.assertEqual(case.dense_bytes, 2 * 2 * 3008 * 8 * 128 * 2)
        self.assertTrue(case.ragged)

    def test_bytes_of_a_step_follow_the_features_of_its_cache(self):
        # The cases are those of the library's own test, KvBytes in tests/unit/runtime/problem_test.cpp.
        lengths, rows = (1000, 1000), 2 * 1000 * 8
        self.assertEqual(shapes.kv_bytes(lengths, 8, 128, q_len=8), rows * 2 * 256)
        self.assertEqual(shapes.kv_bytes(lengths, 8, 128, element_bytes=1), rows * 256)
        self.assertEqual(shapes.kv_bytes(lengths, 8, 128, v_head_dim=64), rows * 2 * (128 + 64))
        self.assertEqual(shapes.kv_bytes(lengths, 8, 128, window=100, element_bytes=1), 2 * 100 * 8 * 256)

    def test_of_a_window_only_the_tokens_that_some_query_token_sees_are_read(self):
        row = 2 * 2 * 128
        self.assertEqual(shapes.kv_bytes((1000, 24), 1, 128, window=100), (100 + 24) * row)
        self.assertEqual(shapes.kv_bytes((1000, 24), 1, 128, window=100, sink_tokens=4, q_len=8), (100 + 4 + 7 + 24) * row)
        self.assertEqual(shapes.kv_bytes((), 1, 128), 0)


class ByLength(unittest.TestCase):
    def test_every_request_comes_once_with_its_length_and_no_more_than_fit(self):
        for seed in range(20):
            generator = random.Random(seed)
            lengths = [generator.randint(0, 9) for _ in range(generator.randint(1, 60))]
            seen = []
            for length, requests in shapes.by_length(lengths, lambda length: 7 - length):
                chosen = list(range(len(lengths)))[requests] if isinstance(requests, slice) else requests
                self.assertEqual({lengths[i] for i in chosen}, {length}, f"seed {seed}")
                self.assertLessEqual(len(chosen), max(1, 7 - length))
                seen += chosen
            self.assertEqual(sorted(seen), list(range(len(lengths))), f"seed {seed}")

    def test_neighbours_are_a_slice_so_that_nothing_is_copied(self):
        self.assertEqual(list(shapes.by_length([5] * 4, lambda length: 100)), [(5, slice(0, 4))])
        self.assertEqual(list(shapes.by_length([5, 3, 5, 3], lambda length: 100)), [(3, [1, 3]), (5, [0, 2])])
        self.assertEqual(len(list(shapes.by_length([i % 50 for i in range(4096)], lambda length: 1 << 20))), 50)


if __name__ == "__main__":
    unittest.main()
