#!/usr/bin/env python3
"""What the command line promises of help, input, output and the terminal, checked on the built program."""

import json
import os
import pty
import subprocess
import xml.etree.ElementTree

import contract
from contract import Contract, OFFLINE, SHAPE

COMMANDS = ["tune", "lookup", "emit", "prewarm", "verify", "bench", "explain", "report", "db", "devices", "doctor"]


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
    """Each case has the arguments and a pattern of what the message must name."""

    CASES = [
        ([], "subcommand"),
        (["frobnicate"], "frobnicate"),
        (["lookup", "--no-such-flag", *SHAPE], "no-such-flag"),
        (["lookup", *OFFLINE], "--model"),
        (["lookup", "--model", "llama-9"], "llama-9.*\n.*llama-3-8b"),
        (["lookup", "--model", "llama-3-8b", "--model-config", "x.json"], "together"),
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
        (["bench", *SHAPE, "--lengths", "0,0"], "no token to read"),
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


class Terminal(Contract):
    def transcript(self, *args, **changes):
        """Runs the program with a terminal as stderr. Returns the exit code and what the terminal was sent."""
        leader, follower = pty.openpty()
        process = subprocess.Popen([contract.PROGRAM, *args], stdout=subprocess.DEVNULL, stderr=follower, stdin=subprocess.DEVNULL,
                                   env=self.environment(TERM="xterm", **changes), cwd=self.root)
        os.close(follower)
        sent = b""
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:  # Linux says so when the other end has closed.
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


if __name__ == "__main__":
    contract.main()
