"""bench/engines: which kernels are attention, the ragged mix, medians over processes, and the report. No GPU, no vLLM."""
import unittest

import bench_paths  # first: it sets the path

import batcher
import engine_report
from peers import files


def line(ms, attention):
    return {"ms_per_step": ms, "tokens_per_s": 1000 / ms, "steps": 3, "us_by_part": {"attention": attention, "update": 2.0, "rest": 1000 * ms - attention - 2.0},
            "kernels": {}}


RESULTS = {"environment": {"gpu": "Fictional"}, "model": "no model", "backends": {
    "FLASH_ATTN": {"start_s": 20.0, "warm_s": 1.0, "memory_bytes": 2**30, "shapes": {"1 x 8192": line(5.0, 700.0), "16 x 8192": line(9.0, 4000.0)}},
    "FLASHINFER": {"error": "No module | named flashinfer"},
    "CUSTOM": {"start_s": 23.0, "warm_s": 1.5, "memory_bytes": 2**29, "shapes": {"1 x 8192": line(4.0, 350.0), "16 x 8192": line(9.0, 2000.0)}}}}


class Engines(unittest.TestCase):
    def test_kernels_are_told_apart_by_their_names(self):
        for name in ("lean_sm90a_bf16_d128_g4_strided", "void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>", "kernel_unified_attention_2d",
                     "reduce_segments", "flashinfer::BatchDecodeWithPagedKVCacheKernel<...>", "flash::prepare_varlen_num_blocks_kernel"):
            self.assertEqual(engine_report.part_of(name), "attention", name)
        for name in ("void vllm::reshape_and_cache_flash_kernel<...>", "void vllm::concat_and_cache_mla_kernel<...>"):
            self.assertEqual(engine_report.part_of(name), "update", name)
        for name in ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "void vllm::rms_norm_kernel<...>", "triton_poi_fused_silu_mul_0", "boolean_kernel"):
            self.assertEqual(engine_report.part_of(name), "rest", name)

    def test_times_are_summed_by_part(self):
        parts = engine_report.microseconds_by_part({"lean_a": 3.0, "lean_b": 4.0, "reshape_and_cache_flash": 2.0, "gemm": 10.0})
        self.assertEqual(parts, {"attention": 7.0, "update": 2.0, "rest": 10.0})

    def test_a_shape_has_the_median_step_and_all_its_tokens(self):
        made = engine_report.decode_line([1.0, 9.0, 2.0], 48, {f"k{i}": float(i) for i in range(20)})
        self.assertEqual((made["ms_per_step"], made["tokens_per_s"], made["steps"]), (2.0, 4000.0, 3))
        self.assertEqual(list(made["kernels"])[0], "k19")
        self.assertEqual(len(made["kernels"]), 12)

    def test_the_ragged_mix_is_the_first_full_step(self):
        steps = [batcher.Step(i, 0.0, contexts, 0) for i, contexts in enumerate([(5,), (9, 3), (7, 8)])]
        self.assertEqual(engine_report.ragged_contexts(steps, 2), [3, 9])
        with self.assertRaisesRegex(ValueError, "3 requests"):
            engine_report.ragged_contexts(steps, 3)

    def test_the_trace_has_such_a_step(self):
        contexts = bench_paths.program("engines").ragged_mix()
        self.assertEqual(len(contexts), 64)
        self.assertGreater(contexts[-1], 4 * contexts[0])

    def test_shapes_are_named_by_their_contexts(self):
        self.assertEqual(engine_report.shape_name([8192] * 16), "16 x 8192")
        self.assertEqual(engine_report.shape_name([91, 400, 4050]), "3 ragged, 91 to 4050")

    def test_a_process_has_room_for_every_step(self):
        settings = bench_paths.program("engines").settings_for([[8192], [100, 300]], 10, "/a/model", 128256)
        self.assertEqual((settings["batches"], settings["most_requests"]), ([1, 2], 2))
        self.assertGreaterEqual(settings["longest"], 8192 + 4 * 10 + 64 * 2)

    def test_of_several_processes_the_median_counts(self):
        def made(ms, start):
            return {"vllm": "1", "start_s": start, "warm_s": 0.0, "memory_bytes": 0, "shapes": {"1 x 8": line(ms, 10.0)}}

        found = bench_paths.program("engines").median_round([made(3.0, 9.0), made(1.0, 8.0), {"error": "it died"}, made(2.0, 20.0)])
        self.assertEqual((found["shapes"]["1 x 8"]["ms_per_step"], found["start_s"]), (2.0, 9.0))
        self.assertEqual(bench_paths.program("engines").median_round([{"error": "it died"}] * 2), {"error": "it died"})

    def test_speed_ups_are_over_flash_attention(self):
        self.assertEqual(engine_report.speed_ups(RESULTS), {"1 x 8192": 1.25, "16 x 8192": 1.0})
        self.assertEqual(engine_report.speed_ups(RESULTS, "attention"), {"1 x 8192": 2.0, "16 x 8192": 2.0})
        self.assertEqual(engine_report.speed_ups({"backends": {"CUSTOM": RESULTS["backends"]["CUSTOM"]}}), {})

    def test_a_model_of_latent_attention_has_other_peers(self):
        results = {**RESULTS, "peer": "FLASH_ATTN_MLA", "backends": {"FLASH_ATTN_MLA": RESULTS["backends"]["FLASH_ATTN"],
                                                                     "CUSTOM": RESULTS["backends"]["CUSTOM"]}}
        self.assertEqual(engine_report.speed_ups(results), {"1 x 8192": 1.25, "16 x 8192": 1.0})
        self.assertIn("## leanattn over FLASH_ATTN_MLA", engine_report.markdown(results))
        models = bench_paths.program("engines").MODELS
        self.assertEqual(set(models), set(engine_report.BACKENDS))

    def test_the_report_shows_steps_shares_and_what_was_left_out(self):
        text = engine_report.markdown(RESULTS)
        for part in ("| leanattn | 4.000 | 250 | 350 | 9 % |", "| FLASH_ATTN | 5.000 | 200 | 700 | 14 % |", "| attention in a step | 2.000 | 2.000 | 2.000 |",
                     "| a step | 1.250 | 1.000 | 1.118 |", "| leanattn | 23.0 | 1.5 | 0.50 |", "- FLASHINFER: No module \\| named flashinfer"):
            self.assertIn(part, text)

    def test_a_model_that_vllm_did_not_compile_is_said_to_be_one(self):
        self.assertNotIn("compilation", engine_report.markdown(RESULTS))
        self.assertIn("vLLM's own compilation of the model is off.", engine_report.markdown({**RESULTS, "compiled": False}))

    def test_the_committed_page_is_what_its_record_makes(self):
        committed = bench_paths.ROOT / "bench/results/h200/engines"
        self.assertEqual(engine_report.markdown(files.read_json(committed / "engines.json")), (committed / "engines.md").read_text())


if __name__ == "__main__":
    unittest.main()
