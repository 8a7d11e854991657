"""bench/engines: which kernels are attention, the ragged mix, medians over processes, answers, the report, and packing. No GPU, no engine."""
import contextlib
import io
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import bench_paths  # first: it sets the path

import batcher
import engine_process
import engine_report
import pack_engine
import sglang_decode
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
        for name in ("void vllm::reshape_and_cache_flash_kernel<...>", "void vllm::concat_and_cache_mla_kernel<...>",
                     "void (anonymous namespace)::store_kvcache<2048l, 4, true, long>(...)"):
            self.assertEqual(engine_report.part_of(name), "update", name)
        for name in ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "void vllm::rms_norm_kernel<...>", "triton_poi_fused_silu_mul_0", "boolean_kernel",
                     "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(...)"):
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
        settings = bench_paths.program("engines").settings_for([[8192], [100, 300]], 10, "/a/model", 128256, tune=60)
        self.assertEqual((settings["batches"], settings["most_requests"], settings["tune"]), ([1, 2], 2, 60))
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
        self.assertEqual(set(models), {model for engine in engine_report.ENGINES.values() for model in engine.backends})

    def test_answers_agree_up_to_the_first_different_token(self):
        wanted = [{"tokens": [5, 6, 7], "logprobs": [-1.0, -2.0, -3.0]}, {"tokens": [1, 2, 3], "logprobs": [-1.0, -1.0, -1.0]},
                  {"tokens": [4], "logprobs": [-1.0]}]
        got = [{"tokens": [5, 6, 7], "logprobs": [-1.25, -2.0, -3.0]}, {"tokens": [1, 9, 3], "logprobs": [-1.0, -1.5, -9.0]},
               {"tokens": [8], "logprobs": [-1.0]}]
        self.assertEqual(engine_report.agreement(wanted, got), {"prompts": 3, "first": 2, "same": 1, "tokens": 4, "largest": 0.5})
        with self.assertRaises(ValueError):
            engine_report.agreement(wanted, got[:2])

    def test_answers_become_agreement_with_the_peer(self):
        answers = [{"tokens": [5, 6], "logprobs": [-1.0, -2.0]}]
        results = {"peer": "flash_attention_3", "backends": {"flash_attention_3": {"answers": answers}, "sdpa": {"error": "it died"},
                                                             "leanattn": {"answers": answers}}}
        bench_paths.program("engines").compare_answers(results)
        self.assertEqual(results["backends"], {"flash_attention_3": {}, "sdpa": {"error": "it died"}, "leanattn": {
            "agreement": {"prompts": 1, "first": 1, "same": 1, "tokens": 2, "largest": 0.0}}})
        results = {"peer": "flash_attention_3", "backends": {"flash_attention_3": {"error": "it died"}, "leanattn": {"answers": answers}}}
        bench_paths.program("engines").compare_answers(results)
        self.assertEqual(results["backends"]["leanattn"], {})

    def test_another_engine_has_its_own_names_and_its_answers_in_the_report(self):
        results = {**RESULTS, "engine": "transformers", "peer": "flash_attention_3", "backends": {
            "flash_attention_3": RESULTS["backends"]["FLASH_ATTN"], "sdpa": {"error": "out of memory"},
            "leanattn": {**RESULTS["backends"]["CUSTOM"], "agreement": {"prompts": 10, "first": 10, "same": 8, "tokens": 600, "largest": 0.0625}}}}
        text = engine_report.markdown(results)
        for part in ("# Decode in Transformers' continuous batching\n", "## leanattn over flash_attention_3", "| a step | 1.250 | 1.000 | 1.118 |",
                     "| leanattn | 10 of 10 | 8 of 10 | 600 | 0.062 |", "- sdpa: out of memory"):
            self.assertIn(part, text)
        self.assertNotIn("## Tokens", engine_report.markdown(RESULTS))

    def test_a_command_line_names_engine_backends_and_shapes(self):
        parse = bench_paths.program("engines").parse
        options = parse(["--out", "results", "--engine", "transformers", "--shapes", "64 x 4096;1 x 8192"])
        self.assertEqual((options.backends, options.shapes), (["flash_attention_3", "leanattn"], [[4096] * 64, [8192]]))
        self.assertEqual(parse(["--out", "results", "--engine", "transformers", "--backends", "sdpa"]).backends, ["sdpa"])
        self.assertEqual(len(parse(["--out", "results"]).shapes), 5)
        for given, message in ((["--engine", "transformers", "--model", "deepseek"], "--model takes llama"),
                               (["--engine", "transformers", "--backends", "CUSTOM"], "--backends takes flash_attention_3"),
                               (["--shapes", "3 x 3"], "does not take '3 x 3'; there are 1 x 8192; ")):
            with self.subTest(given), contextlib.redirect_stderr(io.StringIO()) as printed, self.assertRaises(SystemExit):
                parse(["--out", "results", *given])
            self.assertIn(message, printed.getvalue())

    def test_a_process_that_does_not_end_is_ended_with_what_it_started(self):
        engines = bench_paths.program("engines")
        with tempfile.TemporaryDirectory() as folder:
            # The decode program writes a result, starts another process, and then waits for what never comes.
            child = pathlib.Path(folder, "child")
            pathlib.Path(folder, "stuck_decode.py").write_text(
                "import json, pathlib, subprocess, sys\n"
                "pathlib.Path(sys.argv[3]).write_text(json.dumps({'start_s': 1.0}))\n"
                "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], stderr=subprocess.DEVNULL)\n"
                f"pathlib.Path({str(child)!r}).write_text(str(other.pid))\n"
                "other.wait()\n")
            for limit in (1, 4, 16, 64):  # a busy machine may need longer to come so far
                with mock.patch.object(engines, "HERE", pathlib.Path(folder)):
                    made = engines.run("stuck", "CUSTOM", "no settings", pathlib.Path(folder, "out.json"), limit)
                if child.exists() and child.read_text():
                    break
            self.assertEqual(made, {"start_s": 1.0, "error": f"it had not ended after {limit} s"})
            with self.assertRaises(ProcessLookupError):
                for _ in range(600):  # until init has taken it
                    os.kill(int(child.read_text()), 0)
                    time.sleep(0.1)

    def test_a_process_that_fails_leaves_the_line_that_names_its_error(self):
        engines = bench_paths.program("engines")
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(engines, "HERE", pathlib.Path(folder)):
            pathlib.Path(folder, "bad_decode.py").write_text("raise RuntimeError('no such kernel')")
            self.assertEqual(engines.run("bad", "CUSTOM", "no settings", pathlib.Path(folder, "out.json"), 60), {"error": "RuntimeError: no such kernel"})

    def test_every_engine_has_a_program(self):
        for engine in engine_report.ENGINES:
            self.assertTrue((bench_paths.ROOT / f"bench/engines/{engine}_decode.py").exists(), engine)

    def test_a_process_is_told_by_its_command_line_and_kept_from_the_network(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "0"}), mock.patch.object(
                sys, "argv", ["program", "sdpa", f"{folder}/settings.json", f"{folder}/out.json"]):
            pathlib.Path(folder, "settings.json").write_text(json.dumps({"steps": 3}))
            backend, settings, out = engine_process.arguments(OTHER="1")
            self.assertEqual((backend, settings, out), ("sdpa", {"steps": 3}, pathlib.Path(folder, "out.json")))
            self.assertEqual((os.environ["HF_HUB_OFFLINE"], os.environ["TRANSFORMERS_OFFLINE"], os.environ["OTHER"]), ("0", "1", "1"))

    def test_every_backend_gets_the_same_prompts(self):
        made = engine_process.prompts([3, 5], 100)
        self.assertEqual([len(prompt) for prompt in made], [3, 5])
        self.assertEqual(made, engine_process.prompts([3, 5], 100))
        self.assertTrue(all(10 <= token < 100 for prompt in made for token in prompt))

    def test_leanattn_that_did_not_run_is_an_error(self):
        engine_process.check_kernels("leanattn", "leanattn", {"gemm": 1.0, "lean_sm90a_bf16": 2.0})
        engine_process.check_kernels("sdpa", "leanattn", {"fmha": 1.0})
        with self.assertRaisesRegex(RuntimeError, "no kernel of leanattn"):
            engine_process.check_kernels("leanattn", "leanattn", {"flash_fwd": 1.0})

    def test_sglang_reads_prompts_in_passes_of_bounded_size(self):
        def passes(lengths, most):
            return [(part.start, part.stop) for part in sglang_decode.in_passes(lengths, most)]

        self.assertEqual(passes([4, 4, 4, 4, 4], 8), [(0, 2), (2, 4), (4, 5)])
        self.assertEqual(passes([9, 1, 9], 8), [(0, 1), (1, 2), (2, 3)])
        self.assertEqual(passes([3], 8), [(0, 1)])

    def test_sglang_gets_stand_ins_for_packages_that_a_step_does_not_use_and_for_no_others(self):
        finder = sglang_decode.Finder()
        for name in ("IPython", "IPython.display", "xgrammar"):
            module = finder.create_module(finder.find_spec(name))
            self.assertEqual(module.__name__, name)
            module.Grammar(1, of="anything")
            self.assertFalse(hasattr(module, "__wrapped__"))
        for name in ("torch", "flashinfer", "flashinfer.sampling", "flashinfer.norm"):  # FlashInfer only for SGLang's sampler
            self.assertIsNone(finder.find_spec(name), name)

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


def elf(parts):
    """An ELF file whose sections have these names and contents."""
    names = b"\0" + b"\0".join(name for name, _ in parts) + b"\0.shstrtab\0"
    data, headers, place = bytearray(64), [bytes(64)], 1
    for name, content in [*parts, (b".shstrtab", names)]:
        headers.append(struct.pack("<IIQQQQIIQQ", place, 1, 0, 0, len(data), len(content), 0, 0, 8, 0))
        place += len(name) + 1
        data += content + bytes(-len(content) % 8)
    data[:4] = b"\x7fELF"
    struct.pack_into("<Q", data, 0x28, len(data))
    struct.pack_into("<HHH", data, 0x3A, 64, len(headers), len(headers) - 1)
    return bytes(data + b"".join(headers))


def fat_binary(entries):
    """A container of (kind, architecture, payload)."""
    parts = [struct.pack("<HHIQIIHHI", kind, 1, 64, len(payload), len(payload), 0, 0, 0, arch).ljust(64, b"\0") + payload for kind, arch, payload in entries]
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, sum(map(len, parts))) + b"".join(parts)


class Packing(unittest.TestCase):
    def pruned(self, *containers):
        """The payloads that are left of a shared library with these containers."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "library.so")
            path.write_bytes(elf([(b".text", b"host"), (b".nv_fatbin", b"".join(map(fat_binary, containers)))]))
            pack_engine.prune(path)
            data = path.read_bytes()
            return [data[offset:offset + size] for _, offset, size, _, _ in pack_engine.fat_entries(data)]

    def test_code_of_other_gpus_is_zeroed_and_ptx_stays_where_nothing_else_runs(self):
        code = elf([(b".text.k", b"12345678")])
        left = self.pruned([(2, 80, b"a" * 64), (2, 90, code), (1, 90, b"p" * 64)], [(1, 80, b"q" * 64), (2, 100, b"b" * 64)])
        self.assertEqual(left, [bytes(64), code, bytes(64), b"q" * 64, bytes(64)])

    def test_of_flash_attention_one_type_and_head_size_stay_without_what_debuggers_read(self):
        def code(name):
            return elf([(b".text." + name, b"instruct"), (b".nv_debug_ptx_txt", b"readable"), (b".nv.info", b"argument")])

        names = {b"ILi176EEESA_EEELi128ENS_10bfloat16_tEf": True, b"ILi224EEES6_EEELi128EN7cutlass10bfloat16_tEf": True, b"Combine": True,
                 b"ILi96EEENS7_ILi192EEEEEELi128ENS_10bfloat16_tEf": False, b"ILi128EEES6_EEELi64EN7cutlass10bfloat16_tEf": False,
                 b"ILi176EEESA_EEELi128ENS_6half_tEf": False}
        left = self.pruned(*([(2, 90, code(name))] for name in names))
        self.assertEqual([(b"instruct" in one, b"readable" in one, b"argument" in one) for one in left], [(kept, False, True) for kept in names.values()])

    @unittest.skipUnless(shutil.which("zstd"), "there is no zstd")
    def test_compressed_code_is_compressed_anew(self):
        def compressed(name):
            code = elf([(b".text." + name, bytes(range(256)) * 8), (b".nv.info", b"argument")])
            return subprocess.run(["zstd", "-q"], input=code, stdout=subprocess.PIPE, check=True).stdout

        wanted, other = compressed(b"Combine"), compressed(b"EEEEEELi64EN7cutlass6half_tE")
        left = self.pruned([(2, 90, wanted)], [(2, 90, other)])
        self.assertEqual(left[0], wanted)
        # Zeros follow the shorter code.
        code = subprocess.run(["zstd", "-dcq"], input=left[1].rstrip(b"\0"), stdout=subprocess.PIPE).stdout
        self.assertIn(b"argument", code)
        self.assertNotIn(bytes(range(1, 256)), code)
        self.assertEqual(len(left[1]), len(other))


if __name__ == "__main__":
    unittest.main()
