#!/usr/bin/env python3
"""The command line's promises, checked from outside on the built program. Needs no GPU: any that is here is hidden."""

import argparse
import csv
import hashlib
import json
import os
import pathlib
import pty
import re
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PROGRAM = None
SOURCE = None
SHAPE = ["--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--context", "4k"]
OFFLINE = ["--arch", "sm_90a", "--sms", "132"]
COMMANDS = ["tune", "lookup", "emit", "prewarm", "verify", "bench", "explain", "report", "db", "devices", "doctor"]


class Contract(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="leanattn-contracts-")
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.cache = self.root / "cache"

    def environment(self, **changes):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("LEANATTN_", "XDG_")) or k.startswith("LEANATTN_NVRTC")}
        # Hidden devices and no driver are the same to a caller: exit code 3 with a way out.
        env.update(LEANATTN_CACHE_DIR=str(self.cache), CUDA_VISIBLE_DEVICES="", HOME=str(self.root), LEANATTN_BUSY_TIMEOUT_MS="100")
        for name, value in changes.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return env

    def run_program(self, *args, stdout=subprocess.PIPE, **changes):
        return subprocess.run([PROGRAM, *args], stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                              env=self.environment(**changes), cwd=self.root, timeout=300)

    def expect(self, code, *args, says=None, **changes):
        result = self.run_program(*args, **changes)
        self.assertEqual(result.returncode, code, f"{args}\nstdout: {result.stdout[:2000]}\nstderr: {result.stderr[:2000]}")
        if says is not None:
            self.assertRegex(result.stderr, says, f"{args}")
        return result

    def make_database(self):
        self.expect(0, "db", "rebuild")
        file = self.cache / "tuning.db"
        self.assertTrue(file.is_file())
        return file

    def add_winner(self, file, problem, config, us, name="Fictional GPU", sms=132, driver=13000, when="2026-11-21"):
        """One session with one ok trial, as a tuning run would have left it."""
        device = [name, "sm_90a", sms, 50 << 20, 80 << 30, ""]
        environment = [driver, "580.1", "13.0", 1980000, 3200000, 700000, 1, "r1"]
        canonical = lambda value: json.dumps(value, sort_keys=True, separators=(",", ":"))
        session = f"session-{us}"
        trial = [f"trial-{us}", canonical(problem), canonical({"batch": 1, "longest_context": 4096, "max_batch": 0, "total_context": 0}), "cold",
                 canonical(config), "ok", "", 12, us, 0.1, us - 0.1, us + 0.1, "[]", "", 128, 200.0, 16 << 20, f"{when}T00:00:00.000Z"]
        digest = hashlib.sha256()
        for value in ["leanattn trial 1", session, *device, *environment, *trial]:
            if isinstance(value, str):
                digest.update(struct.pack("<q", len(value)) + value.encode())
            else:
                digest.update(struct.pack("<d" if isinstance(value, float) else "<q", value))
        with sqlite3.connect(file) as db:
            def row(table, columns, values):
                db.execute(f"INSERT OR IGNORE INTO {table}({columns}) VALUES({','.join('?' * len(values))})", values)
                return db.execute(f"SELECT id FROM {table} WHERE ({columns}) = ({','.join('?' * len(values))})", values).fetchone()[0]
            device_id = row("device_models", "name,arch,sm_count,l2_bytes,memory_bytes,mig_profile", device)
            environment_id = row("environments", "driver_version,driver_release,nvrtc_version,clock_khz,memory_clock_khz,power_limit_mw,ecc,"
                                 "library_revision", environment)
            session_id = row("sessions", "uuid,device_model_id,environment_id,started,finished,command",
                             [session, device_id, environment_id, trial[-1], trial[-1], "test"])
            ids = [row(table, "json", [text]) for table, text in (("problems", trial[1]), ("shapes", trial[2]), ("configs", trial[4]))]
            row("trials", "uuid,session_id,problem_id,shape_id,policy,config_id,status,reason,samples,median_us,mad_us,low_us,high_us,"
                "samples_json,throttle,registers,compile_ms,bytes,created,digest",
                [trial[0], session_id, ids[0], ids[1], trial[3], ids[2], *trial[5:], digest.digest()])
        db.close()
        self.expect(0, "db", "rebuild")
        self.expect(0, "db", "check")


class Help(Contract):
    def test_every_command_explains_itself_on_stdout(self):
        result = self.expect(0, "--help")
        for command in COMMANDS:
            self.assertIn(command, result.stdout)
            self.assertIn("leanattn " + command, self.expect(0, command, "--help").stdout.replace("\n", " "))
        self.assertEqual(result.stderr, "")

    def test_help_lists_the_exit_codes(self):
        for word in ["2 usage", "3 no usable device", "4 nothing found", "5 a result was wrong", "6 database", "130 interrupted"]:
            self.assertIn(word, self.expect(0, "--help").stdout.replace("\n", " "))

    def test_version_is_one_line(self):
        self.assertRegex(self.expect(0, "--version").stdout, r"^leanattn \d+\.\d+\.\d+\n$")

    def test_help_touches_no_cache(self):
        for command in COMMANDS:
            self.expect(0, command, "--help")
        self.assertFalse(self.cache.exists())


class BadInput(Contract):
    """(arguments, what the message must name)."""

    CASES = [
        ([], "subcommand"),
        (["frobnicate"], "frobnicate"),
        (["lookup", "--no-such-flag", *SHAPE], "no-such-flag"),
        (["lookup", *OFFLINE], "--model"),
        (["lookup", "--model", "llama-9"], "llama-9.*\n.*llama-3-8b"),
        (["lookup", "--model", "llama-3-8b", "--model-config", "x.json"], "give one"),
        (["lookup", "--model-config", "missing.json"], "missing.json"),
        (["lookup", "--model-config", "/"], "directory"),
        (["explain", *SHAPE, "--head-dim", "100"], "100"),
        (["explain", *SHAPE, "--head-dim", "0"], "--head-dim 0"),
        (["explain", *SHAPE, "--heads", "0"], "--heads 0"),
        (["explain", *SHAPE, "--heads", "-8"], "-8"),
        (["explain", *SHAPE, "--heads", "30"], "30"),
        (["explain", *SHAPE, "--heads", "many"], "many"),
        (["explain", *SHAPE, "--kv-heads", "0"], "--kv-heads 0"),
        (["explain", *SHAPE, "--batch", "0"], "--batch 0"),
        (["explain", *SHAPE, "--batch", "1,,2"], "--batch"),
        (["explain", *SHAPE, "--context", "-1"], "--context -1"),
        (["explain", *SHAPE, "--context", "99999999999999999999"], "64 bits"),
        (["explain", *SHAPE, "--context", "9999999999g"], "64 bits"),
        (["explain", *SHAPE, "--context", "4q"], "4q"),
        (["explain", *SHAPE, "--context", "4g"], "4g.*at most"),
        (["explain", *SHAPE, "--dtype", "fp64"], "fp64"),
        (["explain", *SHAPE, "--head-dim", "528"], "528"),
        (["explain", *SHAPE, "--kv-dtype", "fp4"], "--kv-dtype fp4"),
        (["explain", *SHAPE, "--kv-dtype", "fp16"], "--kv-dtype fp16"),
        (["explain", *SHAPE, "--kv-scale", "head"], "--kv-scale head"),
        (["explain", *SHAPE, "--page-size", "-16"], "--page-size -16"),
        (["explain", *SHAPE, "--page-size", "2m"], "page_size is 2097152"),
        (["explain", *SHAPE, "--q-len", "17"], "q_len is 17"),
        (["explain", *SHAPE, "--query-mask", "oak"], "--query-mask oak"),
        (["explain", *SHAPE, "--query-mask", "tree"], "one query token"),
        (["explain", *SHAPE, "--window", "-1"], "--window -1"),
        (["explain", *SHAPE, "--sink-tokens", "4"], "sink_tokens is 4 without a window"),
        (["explain", *SHAPE, "--soft-cap", "high"], "--soft-cap 'high'"),
        (["explain", *SHAPE, "--score", "score;"], "';'"),
        (["explain", *SHAPE, "--v-head-dim", "72"], "v_head_dim 72"),
        (["explain", *SHAPE, "--layout", "diagonal"], "diagonal"),
        (["explain", *SHAPE, "--mode", "fa9"], "fa9"),
        (["explain", *SHAPE, "--format", "png"], "png"),
        (["explain", *SHAPE, "--grid", "0"], "--grid 0"),
        (["explain", *SHAPE, "--sms", "0"], "--sms 0"),
        (["explain", *SHAPE, "--lengths", "5,-1"], "--lengths -1"),
        (["lookup", *SHAPE, "--arch", "sm_70"], "sm_70"),
        (["lookup", *SHAPE, "--arch", "hopper"], "hopper"),
        (["lookup", *SHAPE, "--sms", "132"], "--arch"),
        (["lookup", *SHAPE, *OFFLINE, "--require", "luck"], "luck"),
        (["emit", *SHAPE, *OFFLINE, "--tile", "7"], "7"),
        (["emit", *SHAPE, *OFFLINE, "--warps", "99"], "99"),
        (["emit", *SHAPE, *OFFLINE, "--load", "carrier_pigeon"], "carrier_pigeon"),
        (["emit", *SHAPE, *OFFLINE, "--fixup", "glue"], "glue"),
        (["emit", *SHAPE, "--arch", "sm_80", "--load", "bulk"], "bulk"),
        (["emit", *SHAPE, *OFFLINE, "--batch", "1,2"], "2 shapes"),
        (["emit", *SHAPE, "--arch", "sm_80", "--pdl"], "sm_80"),
        (["tune", *SHAPE, "--arch", "sm_80", "--pdl"], "sm_80"),
        (["tune", *SHAPE, *OFFLINE, "--budget", "soon"], "soon"),
        (["tune", *SHAPE, *OFFLINE, "--budget", "0s"], "0s"),
        (["tune", *SHAPE, *OFFLINE, "--l2", "tepid"], "tepid"),
        (["tune", *SHAPE, *OFFLINE, "--jobs", "0"], "--jobs 0"),
        (["tune", *SHAPE, "--device", "0,x"], "--device 'x'"),
        (["tune", *SHAPE, "--device", "some"], "--device 'some'.*\n.*all"),
        (["tune", *SHAPE, "--candidate-timeout", "soon"], "--candidate-timeout 'soon'"),
        (["worker"], "started by leanattn tune"),
        (["bench", *SHAPE, "--mode", "fa9"], "fa9"),
        (["bench", *SHAPE, "--lengths", "0,0"], "nothing to read"),
        (["report", "--format", "pdf"], "pdf"),
        (["bench", "--paper", "--heads", "8"], "--heads 8"),
        (["bench", "--paper", "--budget", "soon"], "soon"),
        (["bench", *SHAPE, "--budget", "60s"], "--budget 60s"),
        (["lookup", *SHAPE, *OFFLINE, "--batch", "8", "--max-batch", "4"], "--max-batch 4"),
        (["db"], "subcommand"),
        (["db", "export"], "file"),
        (["db", "gc", "--keep-days", "-1"], "-1"),
        (["--db", "", "db", "path"], "--db"),
    ]

    def test_each_is_a_usage_error_that_names_the_value(self):
        for arguments, named in self.CASES:
            with self.subTest(arguments=arguments):
                result = self.expect(2, *arguments, says=named)
                self.assertEqual(result.stdout, "")

    def test_no_mistake_prints_more_than_a_few_lines(self):
        for arguments, _ in self.CASES:
            with self.subTest(arguments=arguments):
                self.assertLessEqual(len(self.run_program(*arguments).stderr.splitlines()), 6)


class ModelConfig(Contract):
    def write(self, text):
        file = self.root / "config.json"
        file.write_text(text)
        return str(file)

    def test_a_hugging_face_config_gives_the_shape(self):
        config = {"num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584, "torch_dtype": "float16"}
        answer = json.loads(self.expect(0, "lookup", "--json", "--model-config", self.write(json.dumps(config)), *OFFLINE).stdout)
        problem = answer["problem"]
        self.assertEqual((problem["q_heads"], problem["kv_heads"], problem["head_dim"], problem["dtype"]), (28, 4, 128, "fp16"))

    def test_a_broken_config_is_a_usage_error(self):
        for text in ["", "{", "[]", "null", "7", '{"num_attention_heads": "many"}', '{"hidden_size": 4096}',
                     '{"num_attention_heads": -1, "hidden_size": 64}', '{"num_attention_heads": 1e99, "hidden_size": 64}',
                     '{"num_attention_heads": 18446744073709551615, "hidden_size": 64}', "[" * 100000, '"\\ud800"']:
            with self.subTest(text=text[:60]):
                self.expect(2, "explain", "--model-config", self.write(text), says="config.json")


class Features(Contract):
    ALL = ["--page-size", "16", "--q-len", "4", "--ragged-q", "--window", "1k", "--sink-tokens", "4", "--sink-logits", "--soft-cap", "30.5",
           "--alibi", "--score", "score * 0.5f + head", "--kv-dtype", "fp8_e4m3", "--kv-scale", "head", "--v-head-dim", "64"]

    def test_flags_reach_problem_and_kernel(self):
        answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE, *self.ALL).stdout)
        expected = {"page_size": 16, "q_len": 4, "ragged_q": True, "window": 1024, "sink_tokens": 4, "sink_logits": True, "soft_cap": 30.5,
                    "alibi": True, "score": "score * 0.5f + head", "kv_format": "fp8_e4m3", "kv_scale": "head", "v_head_dim": 64}
        self.assertEqual(answer["problem"]["features"], expected)
        self.assertEqual(answer["answers"][0]["config"]["spec"]["features"], expected)
        self.assertEqual(answer["answers"][0]["visible_tokens"], 1024 + 4 + 3)

    def test_a_plain_problem_has_no_features_in_its_json(self):
        answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE).stdout)
        self.assertNotIn("features", answer["problem"])
        self.assertEqual(answer["answers"][0]["visible_tokens"], 4096)

    def test_lookup_explains_what_a_window_hides(self):
        self.assertRegex(self.expect(0, "lookup", "--explain", *SHAPE, *OFFLINE, "--window", "1k").stdout, "1024 of 4096 tokens are read")

    def test_explain_draws_visible_tokens_only(self):
        drawn = json.loads(self.expect(0, "explain", "--json", "--mode", "lean", *SHAPE, "--window", "1k").stdout)
        short = json.loads(self.expect(0, "explain", "--json", "--mode", "lean", *SHAPE, "--context", "1k").stdout)
        self.assertEqual(drawn, short)

    def test_a_config_gives_its_features_and_flags_override_them(self):
        file = self.root / "config.json"
        file.write_text(json.dumps({"model_type": "gemma2", "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
                                    "sliding_window": 4096, "attn_logit_softcapping": 50.0}))
        lookup = ["lookup", "--json", "--model-config", str(file), *OFFLINE]
        self.assertEqual(json.loads(self.expect(0, *lookup).stdout)["problem"]["features"], {"soft_cap": 50.0})
        self.assertNotIn("features", json.loads(self.expect(0, *lookup, "--soft-cap", "0").stdout)["problem"])


class NoDevice(Contract):
    def test_commands_that_need_a_gpu_exit_3_and_say_what_to_do(self):
        for arguments in (["devices"], ["verify", "--quick"], ["bench", *SHAPE], ["tune", *SHAPE], ["lookup", *SHAPE], ["prewarm", *SHAPE]):
            with self.subTest(arguments=arguments):
                result = self.expect(3, *arguments)
                self.assertGreater(len(result.stderr.splitlines()), 1, "an error without a way out")

    def test_tune_names_the_offline_way(self):
        self.expect(3, "tune", *SHAPE, says=r"--arch sm_90a")

    def test_tune_without_a_gpu_leaves_no_database(self):
        self.expect(3, "tune", *SHAPE)
        self.assertFalse((self.cache / "tuning.db").exists())

    def test_a_device_that_is_not_there_exits_3(self):
        self.expect(3, "tune", *SHAPE, "--device", "99")
        self.expect(3, "tune", *SHAPE, "--device", "-1")
        self.expect(3, "tune", *SHAPE, "--device", "0,2")
        self.expect(3, "tune", *SHAPE, "--device", "all")

    def test_doctor_exits_3_and_still_reports_the_rest(self):
        result = self.expect(3, "doctor", "--json")
        report = json.loads(result.stdout)
        self.assertFalse(report["healthy"])
        self.assertIn("cache", {finding["subject"] for finding in report["findings"]})

    def test_without_nvrtc_compiling_exits_3_and_everything_else_works(self):
        missing = {"LEANATTN_NVRTC_LIB": "/nonexistent/libnvrtc.so"}
        self.expect(3, "prewarm", *SHAPE, *OFFLINE, says="/nonexistent/libnvrtc.so", **missing)
        self.expect(3, "tune", *SHAPE, *OFFLINE, says="/nonexistent/libnvrtc.so", **missing)
        self.expect(0, "emit", *SHAPE, *OFFLINE, **missing)
        self.expect(0, "lookup", *SHAPE, *OFFLINE, **missing)


class Output(Contract):
    def test_emit_writes_the_same_self_contained_source_every_time(self):
        first = self.expect(0, "emit", *SHAPE, *OFFLINE)
        self.assertIn("__global__", first.stdout)
        self.assertNotRegex(first.stdout, r"(?m)^\s*#\s*include")
        self.assertEqual(first.stdout, self.expect(0, "emit", *SHAPE, *OFFLINE).stdout)

    def test_emit_without_a_gpu_or_an_arch_says_which_arch_it_took(self):
        self.assertIn("sm_90a", self.expect(0, "emit", *SHAPE).stderr)

    def test_emit_obeys_its_overrides(self):
        flags = ["--tile", "128", "--warps", "8", "--warp-tokens", "16", "--stages", "3", "--load", "cp_async", "--fixup", "wait"]
        spec = json.loads(self.expect(0, "emit", "--json", *SHAPE, *OFFLINE, *flags).stdout)["spec"]
        self.assertEqual([spec[k] for k in ("tile", "warps", "warp_tokens", "stages", "load", "fixup")], [128, 8, 16, 3, "cp_async", "wait"])

    def test_json_is_valid_wherever_it_is_offered_and_alone_on_stdout(self):
        self.make_database()
        for arguments in (["lookup", *SHAPE, *OFFLINE], ["emit", *SHAPE, *OFFLINE], ["explain", *SHAPE], ["prewarm", *SHAPE, *OFFLINE],
                          ["db", "path"], ["db", "stats"], ["db", "check"], ["db", "gc"], ["db", "rebuild"]):
            with self.subTest(arguments=arguments):
                json.loads(self.expect(0, "--json", *arguments).stdout)
                json.loads(self.expect(0, *arguments, "--json").stdout)

    def test_quiet_silences_notes_but_not_errors(self):
        self.assertEqual(self.expect(0, "-q", "emit", *SHAPE).stderr, "")
        self.assertNotEqual(self.expect(2, "-q", "explain", *SHAPE, "--head-dim", "100").stderr, "")

    def test_there_are_no_escapes_where_there_is_no_terminal(self):
        for arguments in (["doctor"], ["explain", *SHAPE], ["devices"], ["prewarm", *SHAPE, *OFFLINE]):
            result = self.run_program(*arguments)
            self.assertNotIn("\033", result.stdout + result.stderr)

    def test_a_full_disk_is_not_success(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        with open("/dev/full", "w") as full:
            result = self.run_program("explain", *SHAPE, stdout=full)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write", result.stderr)

    def test_explain_draws_valid_svg_without_scripts(self):
        svg = self.expect(0, "explain", "--heads", "2", "--head-dim", "64", "--context", "1k", "--sms", "5", "--format", "svg").stdout
        root = xml.etree.ElementTree.fromstring(svg)
        self.assertTrue(root.tag.endswith("svg"))
        self.assertNotIn("<script", svg)
        self.assertIn("prefers-color-scheme", svg)

    def test_explain_refuses_a_picture_too_large_to_be_seen(self):
        self.expect(2, "explain", *SHAPE, "--sms", "60000", "--grid", "60000", "--context", "8m", "--format", "svg", says="--format text|--json")

    def test_explain_covers_every_lean_tile_exactly_once_in_every_mode(self):
        for lengths in ("4k,0,1,100000", "0", "1", "63,64,65"):
            with self.subTest(lengths=lengths):
                document = json.loads(self.expect(0, "explain", "--json", *SHAPE, "--lengths", lengths).stdout)
                self.assertEqual([s["title"] for s in document["schedules"]], ["FlashAttention-2", "FlashDecoding", "LeanAttention"])
                for schedule in document["schedules"]:
                    seen = {}
                    for segment in schedule["segments"]:
                        for tile in range(segment["first_tile"], segment["first_tile"] + segment["tiles"]):
                            key = (segment["output_tile"], tile)
                            self.assertNotIn(key, seen)
                            seen[key] = segment["cta"]
                    self.assertEqual(len(seen), schedule["lean_tiles"])

    def test_lookup_answers_any_shape_and_says_how(self):
        answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE, "--batch", "3", "--context", "777").stdout)["answers"][0]
        self.assertIn(answer["provenance"], ("model", "fallback"))
        self.assertGreater(answer["workspace_bytes"], 0)
        self.expect(4, "lookup", *SHAPE, *OFFLINE, "--require", "exact", says="leanattn tune")

    def test_prewarm_compiles_once_and_then_answers_from_the_cache(self):
        first = json.loads(self.expect(0, "prewarm", "--json", *SHAPE, *OFFLINE).stdout)["kernels"]
        second = json.loads(self.expect(0, "prewarm", "--json", *SHAPE, *OFFLINE).stdout)["kernels"]
        self.assertEqual([k["from_cache"] for k in first], [False] * len(first))
        self.assertEqual([k["from_cache"] for k in second], [True] * len(first))
        self.assertEqual([k["cubin_bytes"] for k in first], [k["cubin_bytes"] for k in second])


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

    def test_a_dry_run_leaves_nothing_behind(self):
        self.expect(0, "tune", *SHAPE, *OFFLINE, "--dry-run")
        self.assertFalse(self.cache.exists())

    def test_an_interrupt_ends_it_with_130(self):
        process = subprocess.Popen([PROGRAM, "tune", "--model", "llama-3-8b", *OFFLINE, "--jobs", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env=self.environment(), cwd=self.root)
        # The first progress line comes after the handler is in place.
        for line in process.stderr:
            if line.startswith("["):
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)


class DependentLaunch(Contract):
    """--pdl: a kind of launch that is asked for, tuned and answered on its own."""

    GRID = 131

    def answer(self, *flags):
        document = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE, *flags).stdout)
        return document["problem"], document["answers"][0]

    def tuned(self, *flags):
        """A problem, and a configuration that the default is not."""
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

    def test_an_untuned_one_gets_the_ordinary_winner_and_says_so(self):
        file = self.make_database()
        self.add_winner(file, *self.tuned(), 12.5)
        self.assertEqual(self.answer()[1]["provenance"], "exact")
        answer = self.answer("--pdl")[1]
        self.assertEqual((answer["provenance"], answer["pdl"], answer["tuned_pdl"]), ("without_pdl", True, False))
        self.assertEqual((answer["config"]["grid"], answer["tuned_us"]), (self.GRID, 12.5))
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
    """tune --from-capture, as far as it goes without a GPU."""

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

    def test_a_capture_without_shapes_is_nothing_found(self):
        self.tune(4, self.capture(), says="has no shapes")
        self.tune(4, str(self.root / "missing"), says="missing")
        self.tune(2, str(self.root), says="directory")

    def test_it_is_the_only_one_to_say_what_is_tuned(self):
        file = self.capture(self.line(1024, 5))
        for flags in (["--heads", "32"], ["--context", "4k"], ["--window", "64"], ["--model", "llama-3-8b"]):
            self.tune(2, file, *flags, says="excludes")
        self.expect(3, "tune", "--from-capture", file, says="--arch")

    def test_revalidation_measures_and_therefore_needs_a_gpu(self):
        self.expect(3, "tune", "--revalidate")
        self.expect(3, "tune", "--revalidate", *SHAPE)
        self.expect(2, "tune", "--revalidate", *OFFLINE, says="measures")
        self.expect(2, "tune", "--revalidate", "--resume", says="excludes")


class Terminal(Contract):
    def transcript(self, *args, **changes):
        """What a terminal on stderr is sent."""
        leader, follower = pty.openpty()
        process = subprocess.Popen([PROGRAM, *args], stdout=subprocess.DEVNULL, stderr=follower, stdin=subprocess.DEVNULL,
                                   env=self.environment(TERM="xterm", **changes), cwd=self.root)
        os.close(follower)
        sent = b""
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:  # how Linux says that the other end has closed
                break
            if not chunk:
                break
            sent += chunk
        os.close(leader)
        return process.wait(timeout=300), sent.decode()

    def test_progress_is_one_line_that_is_rewritten_and_then_erased(self):
        code, sent = self.transcript("prewarm", *SHAPE, *OFFLINE)
        self.assertEqual(code, 0, sent)
        self.assertRegex(sent, r"\r\x1b\[K\[1/1\] lean_sm90a")
        self.assertTrue(sent.endswith("\r\x1b[K"), repr(sent))

    def test_quiet_leaves_the_terminal_alone(self):
        self.assertEqual(self.transcript("-q", "prewarm", *SHAPE, *OFFLINE), (0, ""))

    def test_no_color_removes_colour(self):
        wrong = ["explain", *SHAPE, "--head-dim", "100"]
        self.assertIn("\x1b[31m", self.transcript(*wrong, NO_COLOR=None)[1])
        self.assertNotIn("\x1b[", self.transcript(*wrong, NO_COLOR="1")[1])


class Database(Contract):
    def test_db_path_obeys_the_flag_then_the_environment_then_home(self):
        self.assertEqual(self.expect(0, "db", "path").stdout.strip(), str(self.cache))
        other = self.root / "other"
        self.assertEqual(self.expect(0, "db", "path", "--db", str(other)).stdout.strip(), str(other))
        self.assertEqual(self.expect(0, "--db", "relative", "db", "path").stdout.strip(), str(self.root / "relative"))
        xdg = self.root / "xdg"
        xdg.mkdir()
        self.assertEqual(self.expect(0, "db", "path", LEANATTN_CACHE_DIR=None, XDG_CACHE_HOME=str(xdg)).stdout.strip(), str(xdg / "leanattn"))
        self.assertEqual(self.expect(0, "db", "path", LEANATTN_CACHE_DIR=None).stdout.strip(), str(self.root / ".cache" / "leanattn"))

    def test_the_cache_directory_is_private(self):
        self.make_database()
        self.assertEqual(stat.S_IMODE(self.cache.stat().st_mode), 0o700)

    def test_without_a_home_persistent_commands_exit_6_and_others_go_on(self):
        nowhere = {"LEANATTN_CACHE_DIR": None, "HOME": None}
        self.expect(6, "db", "path", **nowhere)
        self.expect(0, "lookup", *SHAPE, *OFFLINE, says="warning", **nowhere)

    def test_a_hostile_directory_is_refused_and_untouched(self):
        self.cache.mkdir()
        self.cache.chmod(0o777)
        for arguments in (["db", "stats"], ["report"], ["prewarm", *SHAPE, *OFFLINE], ["tune", *SHAPE, *OFFLINE]):
            with self.subTest(arguments=arguments):
                self.expect(6, *arguments, says=re.escape(str(self.cache)))
        self.expect(0, "lookup", *SHAPE, *OFFLINE, says="warning")
        self.assertEqual(list(self.cache.iterdir()), [])
        self.assertEqual(stat.S_IMODE(self.cache.stat().st_mode), 0o777)

    def test_a_file_in_place_of_the_directory_is_refused_and_untouched(self):
        self.cache.write_text("precious")
        self.expect(6, "db", "stats", says=re.escape(str(self.cache)))
        self.expect(0, "emit", *SHAPE, *OFFLINE)
        self.assertEqual(self.cache.read_text(), "precious")

    def test_an_empty_database_reports_nothing_with_4(self):
        self.expect(4, "report", says="leanattn tune")
        self.make_database()
        self.expect(4, "report", "--format", "json", says="leanattn tune")

    def test_a_newer_database_is_refused_and_byte_identical_afterwards(self):
        file = self.make_database()
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA user_version = 4711")
        before = file.read_bytes()
        for arguments in (["db", "stats"], ["db", "check"], ["db", "rebuild"], ["db", "gc"], ["report"]):
            with self.subTest(arguments=arguments):
                self.expect(6, *arguments, says="newer|4711")
        self.expect(0, "lookup", *SHAPE, *OFFLINE)
        self.assertEqual(file.read_bytes(), before)

    def test_a_corrupt_database_is_never_lost(self):
        file = self.make_database()
        garbage = b"not a database" * 1000
        file.write_bytes(garbage)
        for arguments in (["db", "stats"], ["db", "check"], ["report"]):
            with self.subTest(arguments=arguments):
                self.expect(6, *arguments)
                self.assertEqual(file.read_bytes(), garbage)
        self.expect(0, "db", "rebuild", says="warning")
        aside = [p for p in self.cache.iterdir() if p.name.startswith("tuning.db.corrupt")]
        self.assertEqual([p.read_bytes() for p in aside], [garbage])
        self.expect(0, "db", "check")

    def test_a_locked_database_exits_6_and_says_so(self):
        file = self.make_database()
        connection = sqlite3.connect(file, isolation_level=None)
        try:
            connection.execute("BEGIN EXCLUSIVE")
            self.expect(6, "db", "rebuild", says="lock|busy")
        finally:
            connection.execute("ROLLBACK")
            connection.close()
        self.expect(0, "db", "rebuild")

    def winners(self):
        """A problem, and configurations that the default is not."""
        document = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE).stdout)
        return document["problem"], [{**document["answers"][0]["config"], "grid": grid} for grid in (101, 53)]

    def test_gpu_models_in_one_file_are_counted_and_answered_apart(self):
        file = self.make_database()
        problem, (of_large, of_small) = self.winners()
        self.add_winner(file, problem, of_large, 12.5)
        self.add_winner(file, problem, of_small, 30.5, name="Fictional GPU MIG 3g.40gb", sms=60)
        for sms, grid, us in (("132", 101, 12.5), ("60", 53, 30.5)):
            answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, "--arch", "sm_90a", "--sms", sms).stdout)["answers"][0]
            self.assertEqual((answer["provenance"], answer["config"]["grid"], answer["tuned_us"]), ("exact", grid, us))
        stats = json.loads(self.expect(0, "db", "stats", "--json").stdout)
        self.assertEqual([(d["name"], d["sms"], d["trials"], d["winners"]) for d in stats["devices"]],
                         [("Fictional GPU", 132, 1, 1), ("Fictional GPU MIG 3g.40gb", 60, 1, 1)])
        self.assertRegex(self.expect(0, "db", "stats").stdout, r"60 +1 +1 +1 +0 +Fictional GPU MIG 3g\.40gb")

    def test_a_winner_of_an_earlier_driver_is_stale_and_used(self):
        file = self.make_database()
        problem, (config, other) = self.winners()
        self.add_winner(file, problem, config, 12.5)
        answer = lambda: json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE).stdout)["answers"][0]
        self.assertEqual((answer()["provenance"], answer()["stale"]), ("exact", False))
        self.add_winner(file, {**problem, "q_heads": 64}, other, 20.5, driver=13010, when="2026-11-22")
        self.assertEqual((answer()["provenance"], answer()["tuned_us"], answer()["stale"]), ("exact", 12.5, True))
        self.assertIn("stale", self.expect(0, "lookup", *SHAPE, *OFFLINE, "--explain").stdout)
        self.assertEqual(json.loads(self.expect(0, "db", "stats", "--json").stdout)["devices"][0]["stale_winners"], 1)

    def test_gc_by_size_keeps_winners_and_says_what_is_left(self):
        file = self.make_database()
        problem, (config, other) = self.winners()
        self.add_winner(file, problem, config, 12.5)
        self.add_winner(file, problem, other, 99.5, when="2020-01-01")
        self.assertEqual(json.loads(self.expect(0, "db", "gc", "--max-size", "1g", "--json").stdout)["dropped_trials"], 0)
        result = json.loads(self.expect(0, "db", "gc", "--max-size", "1", "--json", says="winners").stdout)
        self.assertEqual((result["dropped_trials"], result["bytes"]), (1, file.stat().st_size))
        answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE).stdout)["answers"][0]
        self.assertEqual(answer["tuned_us"], 12.5)
        self.expect(2, "db", "gc", "--max-size", "-1", says="--max-size -1")
        self.expect(2, "db", "gc", "--keep-days", "soon", says="soon")

    def test_export_and_import_carry_everything_and_never_overwrite(self):
        self.make_database()
        copy = self.root / "copy.db"
        self.expect(0, "db", "export", str(copy))
        self.assertTrue(copy.is_file())
        before = copy.read_bytes()
        self.assertNotEqual(self.run_program("db", "export", str(copy)).returncode, 0)
        self.assertEqual(copy.read_bytes(), before)
        self.expect(0, "db", "import", str(copy))
        missing = self.run_program("db", "import", str(self.root / "missing.db"))
        self.assertNotEqual(missing.returncode, 0)
        self.assertIn("missing.db", missing.stderr)


def main():
    global PROGRAM, SOURCE
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--source", required=True)
    options, rest = parser.parse_known_args()
    PROGRAM, SOURCE = os.path.abspath(options.program), pathlib.Path(options.source)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
