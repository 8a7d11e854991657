"""bench/mixed: the steps, what tunes them, the sampled query tokens and attention in FP64 (where PyTorch is installed), and the reports. No GPU."""
import dataclasses
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

import bench_paths  # first: it sets the path

import mixed_report
import mixed_steps
import synthetic
from peers import files

TORCH = importlib.util.find_spec("torch") is not None


def every():
    return mixed_steps.fixed() + mixed_steps.special() + mixed_steps.drawn(3)


def case(group, name, times, decode_us=100.0, prefill_us=100.0):
    """A record; `times` gives the microseconds of each system."""
    made = synthetic.case(group, name, 1 << 20, {(system, "made up", False): us for system, us in times.items()})
    for line in made["modes"]["cold"]["lines"]:
        line["facts"] |= {"decode_us": decode_us, "prefill_us": prefill_us} if line["system"] == mixed_report.SUM else {}
        line["samples_us"] = [line["screened_us"]] * 3
    return dict(made, flops=10 ** 9)


def results(cases):
    return {"environment": synthetic.ENVIRONMENT, "seed": 42, "layout": "NHD", "not_installed": {"FA4": "no | module"}, "not_tuned": {}, "cases": cases}


class Steps(unittest.TestCase):
    def test_names_are_unique_and_groups_have_titles(self):
        names = [(step.group, step.name) for step in every()]
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual({group for group, _ in names}, set(mixed_report.GROUPS))

    def test_decodes_come_first_and_queries_end_their_contexts(self):
        for step in every():
            queries = [query for query, _ in step.requests]
            self.assertEqual(step.decodes, next((i for i, query in enumerate(queries) if query > 1), len(queries)), step.name)
            self.assertTrue(all(1 <= query <= context for query, context in step.requests), step.name)
            self.assertEqual(step.parts(), [(0, step.decodes), (step.decodes, step.batch)] if 0 < step.decodes < step.batch else [])
            self.assertTrue(step.paged or not step.ragged, step.name)

    def test_work_is_that_of_the_pairs_that_masks_leave(self):
        step = mixed_steps.step("mixed", "x", [(3, 10), (1, 7)], 8, 2)
        self.assertEqual(step.requests, ((1, 7), (3, 10)))
        self.assertEqual(step.flops, 2 * (7 + 8 + 9 + 10) * 8 * 256)
        self.assertEqual(step.kv_bytes, 17 * 2 * 256 * 2)
        narrow = dataclasses.replace(step, window=4)
        self.assertEqual(narrow.flops, 2 * (4 * 4) * 8 * 256)
        self.assertEqual(narrow.kv_bytes, (4 + 6) * 2 * 256 * 2)
        self.assertEqual(dataclasses.replace(step, fp8=True).kv_bytes, step.kv_bytes // 2)

    def test_drawn_steps_repeat_and_keep_their_bounds(self):
        self.assertEqual(mixed_steps.drawn(3), mixed_steps.drawn(3))
        self.assertNotEqual(mixed_steps.drawn(3), mixed_steps.drawn(4))
        for seed in range(5):
            steps = mixed_steps.drawn(seed, 8)
            self.assertEqual([step.group.removeprefix("drawn ") for step in steps], [*mixed_steps.DRAWN_GROUPS] * 2)
            for step in steps:
                self.assertTrue(mixed_steps.DRAWN_KV_BYTES[0] <= step.kv_bytes <= mixed_steps.DRAWN_KV_BYTES[1] and step.flops <= mixed_steps.DRAWN_FLOPS, step.name)

    def test_fast_has_some_of_each_group(self):
        chosen = mixed_steps.fast(every())
        self.assertEqual({step.group for step in chosen}, set(mixed_report.GROUPS))
        self.assertEqual(len(chosen), mixed_steps.FAST_OF_GROUP * len(mixed_report.GROUPS))


class Program(unittest.TestCase):
    main = bench_paths.program("mixed")

    def options(self, *more):
        return self.main.parse(["--library", "x.so", "--out", "results", *more])

    def test_a_run_without_a_seed_draws_one(self):
        self.assertEqual(self.options("--seed", "5").seed, 5)
        self.assertNotEqual(self.options().seed, self.options().seed)

    def test_steps_are_chosen_by_group_and_name(self):
        chosen = self.main.chosen_steps(self.options("--steps", "^chunks: .*of 128k", "--drawn", "4"))
        self.assertEqual([step.name for step in chosen], ["chunk 512 of 128k, 8/1", "chunk 2048 of 128k, 16/2"])
        self.assertEqual(sum(step.group.startswith("drawn") for step in self.main.chosen_steps(self.options("--drawn", "4"))), 4)

    def test_steps_are_tuned_as_a_call_capture_of_their_problems(self):
        long = next(step for step in every() if "128k + 63" in step.name)
        call = self.main.call(long, "NHD")
        self.assertEqual(call["problem"]["features"], {"page_size": 16, "q_len": 2048, "ragged_q": True})
        self.assertEqual((call["problem"]["layout"], call["shape"]["longest_context"], call["shape"]["total_context"]), ("strided", 131072, 131072 + 63 * 2048 + 8192))
        self.assertEqual(call["shape"]["mix"], {"query_tokens": 64 + 2048, "chunks": 1, "chunk_context": 8192, "chunk_pairs": 2048 * 6144 + 2048 * 2049 // 2})
        self.assertNotIn("mix", self.main.call(next(step for step in every() if step.name.startswith("32 x q8")), "NHD")["shape"])
        decodes = self.main.call(long.part(*long.parts()[0]), "HND")
        self.assertEqual((decodes["problem"]["features"], decodes["problem"]["layout"], decodes["shape"]["batch"]), ({"page_size": 16}, "contiguous", 64))
        latent = next(step for step in every() if step.group == "latent")
        self.assertEqual(self.main.call(latent, "HND")["problem"]["features"], {"q_len": 8192, "ragged_q": True, "v_head_dim": 128})
        self.assertEqual(self.main.call(latent, "HND")["problem"]["layout"], "strided")

    def test_every_feature_is_a_field_of_the_interface(self):
        from peers import c_header
        structs = c_header.structs((bench_paths.ROOT / "include/leanattn/leanattn.h").read_text())
        known = {name for name, _ in structs["leanattn_problem"]._fields_}
        for step in every():
            self.assertLessEqual(set(step.features), known, step.name)
            self.assertLessEqual(set(step.mix), {name for name, _ in structs["leanattn_shape"]._fields_})


class Report(unittest.TestCase):
    def test_the_best_peer_of_a_row_counts_and_dense_kernels_do_not(self):
        text = mixed_report.markdown(results([case("mixed", "a | b", {"leanattn": 100.0, mixed_report.SUM: 200.0, "FA3": 300.0, "FA3 two streams": 150.0, "cuDNN dense": 50.0}),
                                              case("mixed", "c", {"leanattn": 100.0, "FA3": 90.0})]))
        self.assertIn("| a \\| b | 1.049 | 100.0 | 200.0 | 300.0 | 150.0 | 50.0 | 1.500 (1.500 to 1.500) | 0.500 | 10 | exact |", text)
        self.assertIn("| c | 1.049 | 100.0 | - | 90.0 | - | - | 0.900 (0.900 to 0.900) | - | 10 | exact |", text)
        self.assertIn("1.162 in geometric mean of 2 steps", text)
        self.assertIn("Below 0.97: c (0.900).", text)
        self.assertIn("`--seed 42`", text)
        self.assertIn("FA4 is left out: no \\| module.", text)

    def test_a_sum_of_which_one_launch_takes_little_is_in_brackets(self):
        text = mixed_report.markdown(results([case("mixed", "a", {"leanattn": 90.0, mixed_report.SUM: 100.0}, decode_us=70.0, prefill_us=30.0)]))
        self.assertIn("| (0.900) |", text)
        self.assertNotIn("where both take at least a third of it: at most", text)

    def test_a_reason_is_said_once_for_all_steps(self):
        failed = [dict(case("chunks", name, {"FA3": 100.0}), failures=[{"system": "leanattn", "variant": "tuned", "reason": "q_len | 16"}]) for name in ("a", "b")]
        text = mixed_report.markdown(dict(results(failed), broke={"system": "FA3", "variant": "best split", "name": "c", "reason": "fault"}))
        self.assertIn("- leanattn, tuned, 2 steps, such as a: q_len \\| 16\n", text)
        self.assertIn("- the run ended: FA3, best split, c: fault\n", text)
        self.assertIn("| a | 1.049 | 100.0 | - | - | - | - |", text)

    def test_report_only_writes_both_pages_again(self):
        read = {"sms": 8, "us": 2147.0, "gbps": 500.0, "gpu_state": {"sm_mhz": 1980, "memory_mhz": 2619, "watts": 300.4}}
        step = {"name": "s", "decode_bytes": 10 ** 9, "decode_us": 200.0, "prefill_us": 300.0, "splits": 1, "ideal_us": 440.0, "gpu_state": {}}
        with tempfile.TemporaryDirectory() as folder:
            files.write_json(pathlib.Path(folder, "mixed.json"), results([case("uniform", "a", {"leanattn": 1.0})]))
            files.write_json(pathlib.Path(folder, "ideal.json"), {"environment": {}, "reads": [read], "steps": [step]})
            for more in ([], ["--ideal"]):
                subprocess.run([sys.executable, str(bench_paths.ROOT / "bench/mixed"), "--report-only", "--out", folder, *more], check=True)
            self.assertIn("## Whole prompts", pathlib.Path(folder, "mixed.md").read_text())
            page = pathlib.Path(folder, "ideal.md").read_text()
            self.assertIn("| 8 | 500 | 62.5 | 1980 | 2619 | 300 |", page)
            self.assertIn("| s | 1000 | 200.0 | 300.0 | - | - | 440.0 |", page)


@unittest.skipUnless(TORCH, "needs PyTorch")
class Data(unittest.TestCase):
    def test_the_ideal_is_the_time_of_all_sms_for_bytes_and_prefill(self):
        import mixed_ideal
        reads = [{"sms": 10, "gbps": 500.0}, {"sms": 100, "gbps": 2000.0}]
        # 10^9 bytes are 20,000 SM microseconds at 50 GB/s, which 100 SMs do in 200 us; but all of them together read no faster than in 500 us.
        self.assertEqual(mixed_ideal.time_of(10 ** 9, 100.0, reads), (500.0, 500.0))
        self.assertEqual(mixed_ideal.time_of(10 ** 9, 900.0, reads), (500.0, 1100.0))
        self.assertIn("kPieceBytes = 4096, kWarps = 8, kStages = 6;", mixed_ideal.source())

    def made(self, layout="NHD", **changed):
        import mixed_data
        step = mixed_steps.step("mixed", "x", [(1, 40), (70, 90), (1, 5), (3, 33)], 4, 2, **{"head_dim": 32, **changed})
        return mixed_data.StepData(step, 2, 7, layout, "cpu")

    def test_requests_own_their_pages_and_copies_are_alike(self):
        data = self.made("HND")
        used = [page for row, length in zip(data.page_table.tolist(), data.case.lengths) for page in row[:-(-length // 16)]]
        self.assertEqual(sorted(used), list(range(data.k[0].shape[0])))
        self.assertNotEqual(sorted(used), used)  # in random order
        self.assertEqual(tuple(data.k[0].shape[1:]), (16, 2, 32))
        self.assertEqual(data.k[0].stride()[1:], (32, 16 * 32, 1))
        self.assertTrue(data.v[0].equal(data.v[1]) and data.v[1].stride() == data.v[0].stride())
        self.assertEqual(data.q_offsets.tolist(), [0, 1, 2, 72, 75])

    def test_the_first_the_last_and_some_other_query_tokens_are_compared(self):
        sampled = self.made().sampled()
        self.assertEqual([sampled[0], sampled[1], sampled[3]], [[0], [0], [0, 1, 2]])
        self.assertTrue({0, 69} <= set(sampled[2]) and 30 <= len(sampled[2]) <= 32)

    def test_the_reference_is_attention_under_the_mask(self):
        import torch
        for changed in ({}, {"layout": "HND"}, {"window": 9}, {"v_head_dim": 16}, {"fp8": True}):
            data = self.made(**changed)
            rows, reference = data.reference()
            scale = 1 / 16 if data.case.fp8 else 1
            outputs = []
            for request, (query, context) in enumerate(data.case.requests):
                pages = data.page_table[request, :-(-context // 16)].long()
                k, v = (torch.stack([pool[0][page].double() * scale for page in pages]).flatten(0, 1)[:context].repeat_interleave(2, 1) for pool in (data.k, data.v))
                position, token = torch.arange(context - query, context)[:, None], torch.arange(context)[None]
                seen = (token <= position) & (token > position - (data.case.window or context))
                q = data.q[data.starts[request]:data.starts[request + 1]].double()
                outputs.append(torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), seen).transpose(0, 1))
            expected = torch.cat(outputs)[rows]
            self.assertTrue(torch.allclose(expected, reference, rtol=1e-9, atol=1e-12), changed)
            self.assertEqual(reference.shape[-1], data.case.values)

    def test_a_part_has_its_requests_and_their_rows(self):
        import torch
        data = self.made()
        rows, reference = data.reference()
        part = data.part(*data.case.parts()[1])
        self.assertEqual((part.rows, part.q_offsets.tolist(), part.lengths.tolist()), (slice(2, 75), [0, 70, 73], [90, 33]))
        self.assertEqual(part.output().shape[0], 73)
        of_part, of_reference = part.reference()
        common = [(i, rows.tolist().index(row + 2)) for i, row in enumerate(of_part.tolist()) if row + 2 in rows.tolist()]
        self.assertGreaterEqual(len(common), 4)
        for mine, whole in common:
            self.assertTrue(torch.equal(of_reference[mine], reference[whole]))

    def test_sampled_rows_are_compared_and_no_other_may_be_left_out(self):
        import torch
        from peers import measure, systems
        data = self.made()
        rows, reference = data.reference()
        outputs = [data.output() for _ in range(data.copies)]
        candidate = systems.Candidate("x", "y", None, lambda copy: outputs[copy])

        def error(changed_row=None, value=0.0):
            def replay():
                for output in outputs:
                    output.zero_()
                    output[rows] = reference.to(output.dtype)
                if changed_row is not None:
                    outputs[1][changed_row] = value
            return measure.check(candidate, replay, data.copies, reference, rows)

        other = next(row for row in range(75) if row not in rows.tolist())
        self.assertLess(error(), 0.5)
        self.assertGreater(error(rows[-1].item(), 9.0), 1)
        self.assertLess(error(other, 9.0), 0.5)
        self.assertEqual(error(other, torch.nan), float("inf"))

    def test_dense_keys_are_those_of_the_pages(self):
        import mixed_data
        data = mixed_data.StepData(mixed_steps.step("uniform", "x", [(20, 20)] * 2, 4, 2, head_dim=32), 1, 7, "HND", "cpu")
        dense = data.dense(data.k[0])
        self.assertEqual(tuple(dense.shape), (2, 20, 2, 32))
        self.assertTrue(dense[1, 17].equal(data.k[0][data.page_table[1, 1], 1]))


if __name__ == "__main__":
    unittest.main()
