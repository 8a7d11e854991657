#!/usr/bin/env python3
"""What the command line promises of help, input, output and the terminal, checked on the built program."""

import fcntl
import json
import os
import pathlib
import pty
import re
import shlex
import shutil
import struct
import subprocess
import termios
import time
import xml.etree.ElementTree

import contract
from contract import Contract, HEADS, OFFLINE, SHAPE

COMMANDS = ["tune", "lookup", "emit", "prewarm", "verify", "bench", "evaluate", "recurrent", "explain", "report", "db", "models", "families", "devices", "doctor",
            "completion"]
ROWS_OF_656_BYTES = ["--heads", "16", "--kv-heads", "1", "--head-dim", "576", "--latent", "--v-head-dim", "512", "--kv-dtype", "fp8_ds_mla"]
ROWS_OF_584_BYTES = ["--heads", "64", "--kv-heads", "1", "--head-dim", "512", "--latent", "--kv-dtype", "fp8_ds_v4"]
BELOW = [["db", command] for command in ("path", "stats", "check", "gc", "export", "import", "rebuild")] + \
        [["evaluate", command] for command in ("search", "regret", "repeat")] + [["recurrent", command] for command in ("tune", "bench", "emit", "lookup")]


class Help(Contract):
    TEXTS = {}

    def help_of(self, *command):
        """The help of a command, which is asked for once."""
        if command not in self.TEXTS:
            result = self.expect(0, *command, "--help")
            self.assertEqual(result.stderr, "")
            self.TEXTS[command] = result.stdout
        return self.TEXTS[command]

    def every_help(self):
        return [self.help_of(*command) for command in ([], *([command] for command in COMMANDS), *BELOW)]

    def test_every_command_explains_itself_on_stdout(self):
        for command in COMMANDS:
            self.assertIn(command, self.help_of())
            self.assertIn("leanattn " + command, self.help_of(command).replace("\n", " "))

    def test_help_lists_the_exit_codes(self):
        for word in ["2 usage", "3 no usable device", "4 nothing found", "5 a result was wrong", "6 database", "130 interrupted"]:
            self.assertIn(word, self.help_of().replace("\n", " "))

    def test_every_help_fits_80_columns_and_is_short_of_exclusions(self):
        for text in self.every_help():
            self.assertLessEqual(max(map(len, text.splitlines())), 80)
            self.assertNotIn("Excludes", text)

    def test_every_help_has_examples_that_the_program_accepts(self):
        accepted = set()
        for name in ("last.json", "tuned.db", "capture.jsonl"):
            (self.root / name).touch()
        (self.root / "config.json").write_text('{"num_attention_heads": 32, "hidden_size": 4096}')
        for text in self.every_help():
            lines = re.findall(r"^  # .*\n  (.*)$", text.split("\nExamples:\n")[1], re.MULTILINE)
            self.assertGreater(len(lines), 0)
            for line in set(lines) - accepted:
                accepted.add(line)
                words = shlex.split(re.search(r"leanattn [^>)]*", line)[0])
                if "prewarm" not in words:  # It compiles, and has the flags of lookup.
                    result = self.run_program(*words[1:])
                    about_a_file = re.search("last.json|tuned.db", result.stderr)
                    self.assertTrue(result.returncode != 2 or about_a_file, f"{line}: {result.stderr}")

    def test_version_is_one_line(self):
        self.assertRegex(self.expect(0, "--version").stdout, r"^leanattn \d+\.\d+\.\d+\n$")

    def test_an_empty_value_is_a_usage_error_that_names_its_flag(self):
        seen = set()
        for command in ([*([command] for command in COMMANDS if command != "evaluate"), *BELOW]):
            for names in re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+(?:, --[a-z0-9-]+)*) \S", self.help_of(*command), re.MULTILINE):
                flags = names.split(", ")
                if flags[0] in seen:
                    continue
                seen.add(flags[0])
                with self.subTest(command=command, flag=flags[0]):
                    result = self.expect(2, *command, flags[0], "", says="|".join(flags))
                    self.assertEqual(result.stdout, "")
        self.assertGreater(len(seen), 50)
        self.expect(2, "db", "export", "", says="file has an empty value")

    def test_help_touches_no_cache(self):
        for command in COMMANDS:
            self.expect(0, command, "--help")
        self.assertFalse(self.cache.exists())


class BadInput(Contract):
    """Each case has the arguments and a pattern of what the message must name."""

    CASES = [
        ([], "needs a command.*\n.*lookup"),
        (["frobnicate"], "frobnicate"),
        (["loockup"], "loockup.*\n.*Did you mean lookup"),
        (["db", "chek"], "chek.*\n.*Did you mean check"),
        (["lookup", "--no-such-flag", *SHAPE], "no-such-flag"),
        (["lookup", "--contxt", "4k", *HEADS], "--contxt.*\n.*Did you mean --context"),
        (["lookup", "--modl=x", *HEADS], "--modl.*\n.*Did you mean --model"),
        (["lookup", *SHAPE, "arch"], "'arch'.*\n.*Did you mean --arch"),
        (["lookup", "-json", *SHAPE], "Did you mean --json"),
        (["bench", *SHAPE, "--arch", "sm_90a"], "bench does not take --arch.*\n.*lookup"),
        (["lookup", *OFFLINE], "--model"),
        (["lookup", "--model", "llama-9"], "llama-9.*\n.*leanattn models"),
        (["lookup", "--model", "lama-3-8b"], "lama-3-8b.*\n.*Did you mean llama-3-8b"),
        (["lookup", *OFFLINE, "--heads", "32"], "--heads 32 was given without --head-dim"),
        (["lookup", *OFFLINE, "--head-dim", "128"], "--head-dim 128 was given without --heads"),
        (["lookup", *OFFLINE, "--kv-heads", "8"], "--kv-heads 8 was given without --heads and --head-dim"),
        (["lookup", *OFFLINE, "--model", "llama-3-8b", "--layers", "window"], "no layer of llama-3-8b has a window"),
        (["lookup", *OFFLINE, "--model", "gpt-oss-20b", "--layers", "odd"], "odd"),
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
        (["explain", *HEADS, "--lengths", "5,-1"], "--lengths -1"),
        (["explain", *HEADS, "--lengths", "5", "--batch", "2"], "(--lengths and --batch|--batch and --lengths) cannot be given together"),
        (["explain", *HEADS, "--lengths", "5", "--context", "2"], "(--lengths and --context|--context and --lengths) cannot be given together"),
        (["bench", *HEADS, "--lengths", "5", "--batch", "2"], "(--lengths and --batch|--batch and --lengths) cannot be given together"),
        (["explain", *SHAPE, "--mode", "fa2", "--grid", "7"], "--grid 7.*--mode fa2"),
        (["lookup", *SHAPE, "--arch", "sm_70"], "sm_70"),
        (["lookup", *ROWS_OF_656_BYTES, "--arch", "sm_80"], "KV format fp8_ds_mla on sm_80.*\n.*sm_90a"),
        (["tune", *ROWS_OF_656_BYTES, "--arch", "sm_80", "--dry-run"], "KV format fp8_ds_mla on sm_80.*\n.*sm_90a"),
        (["lookup", *SHAPE, "--arch", "hopper"], "hopper"),
        (["lookup", *SHAPE, "--arch", "h1000"], "h1000.*\n.*Did you mean h100"),
        (["lookup", *SHAPE, *OFFLINE, "--device", "7"], "(--arch and --device|--device and --arch) cannot be given together"),
        (["lookup", *SHAPE, "--sms", "132"], "--arch"),
        (["lookup", *SHAPE, *OFFLINE, "--require", "luck"], "luck"),
        (["lookup", *SHAPE, *OFFLINE, "--link", "nvlink"], "--link nvlink.*\n.*--context-parallel"),
        (["lookup", *SHAPE, *OFFLINE, "--context-parallel", "2", "--link", "wire"], "wire.*\n.*nvlink, pcie, same_gpu"),
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
        (["bench", *SHAPE, "--mode"], "--mode needs a value"),
        (["bench", *SHAPE, "--configs", "no-such-file"], "--configs no-such-file"),
        (["bench", *SHAPE, "--configs", os.devnull], "--configs /dev/null"),
        (["tune", *SHAPE, *OFFLINE, "--resume"], "--resume is about measurements"),
        (["tune", *SHAPE, *OFFLINE, "--missing"], "--missing is about measurements"),
        (["tune", *SHAPE, *OFFLINE, "--candidate-timeout", "1s"], "--candidate-timeout is about measurements"),
        (["evaluate", "search", *SHAPE, "--count", "5"], "--count has no meaning for evaluate search"),
        (["evaluate", "regret", *SHAPE], "--context has no meaning for evaluate regret.*\n.*--count"),
        (["evaluate", "regret", *HEADS, "--problems", "3"], "--problems cannot be given together"),
        (["evaluate", "search", *HEADS, "--tune", "4s"], "--tune has no meaning for evaluate search"),
        (["evaluate", "repeat", *SHAPE, "--kernels", "3"], "--kernels has no meaning for evaluate repeat"),
        (["evaluate", "repeat", *SHAPE, "--reach", "2"], "--reach has no meaning for evaluate repeat"),
        (["evaluate", "regret", "--problems", "3", "--tune", "soon"], "--tune 'soon' is not a duration"),
        (["evaluate", "regret", "--problems", "3", "--tune", "4s", "--reach", "2"], "--reach has no meaning with --tune"),
        (["verify", "--seed", "x"], "--seed 'x' is not a number"),
        (["bench", *HEADS, "--lengths", "0,0"], "no token to read"),
        (["report", "--format", "pdf"], "pdf"),
        (["bench", "--paper", "--heads", "8"], "--heads 8"),
        *((["bench", "--paper", *flag], f"{' '.join(flag)} cannot be given with --paper") for flag in (
            ["--l2", "warm"], ["--kv-dtype", "fp8"], ["--window", "4k"], ["--page-size", "16"], ["--pdl"], ["--dtype", "fp16"],
            ["--layout", "strided"], ["--lse"], ["--max-batch", "4"], ["--layers", "full"], ["--context-parallel", "2"],
            ["--lengths", "1k"], ["--mode", "read"], ["--configs", "f"])),
        (["bench", "--paper", "--budget", "soon"], "soon"),
        (["bench", *SHAPE, "--budget", "60s"], "--budget 60s"),
        (["lookup", *SHAPE, *OFFLINE, "--batch", "8", "--max-batch", "4"], "--max-batch 4"),
        (["db"], "needs a command.*\n.*rebuild"),
        (["recurrent"], "needs a command.*\n.*tune, bench, emit, lookup"),
        (["recurrent", "lookup", *OFFLINE, "--kind", "luck"], "--kind luck: .*\n.*gated_delta"),
        (["recurrent", "lookup", *OFFLINE, "--gates", "open"], "--gates open: .*\n.*softplus"),
        (["recurrent", "lookup", *OFFLINE, "--dtype", "fp64"], "--dtype fp64: .*\n.*bf16"),
        (["recurrent", "lookup", *OFFLINE, "--state", "fp16"], "--state fp16: .*\n.*fp32"),
        (["recurrent", "lookup", *OFFLINE, "--output-gate", "tanh"], "--output-gate tanh: .*\n.*silu"),
        (["recurrent", "lookup", *OFFLINE, "--kind", "gla", "--gates", "softplus"], "softplus gates of kind gla.*\n.*given"),
        (["recurrent", "lookup", *OFFLINE, "--qk-heads", "5"], "32 heads of v for 5"),
        (["recurrent", "lookup", *OFFLINE, "--tensor-parallel", "3"], "--tensor-parallel 3"),
        (["recurrent", "lookup", *OFFLINE, "--key-dim", "100"], "key_dim is 100"),
        (["recurrent", "lookup", *OFFLINE, "--tokens", "17"], "17 tokens"),
        (["recurrent", "lookup", *OFFLINE, "--batch", "64k"], "--batch 65536 must be at most 65535|--batch 64k must be at most 65535"),
        (["recurrent", "lookup", *OFFLINE, "--model", "llama-3-8b"], "'llama-3-8b' is not a built-in model with a recurrent state"),
        (["recurrent", "lookup", *OFFLINE, "--model", "qwen3.5-27b", "--kind", "kda"], "--model and --kind cannot be given together"),
        (["recurrent", "lookup", *OFFLINE, "--model-config", os.devnull], "/dev/null"),
        (["recurrent", "emit", *OFFLINE, "--batch", "1,2"], "2 batches"),
        (["recurrent", "tune", "--arch", "h100"], "recurrent tune does not take --arch\n.*recurrent emit, recurrent lookup"),
        (["lookup", *ROWS_OF_584_BYTES, *OFFLINE], "fp8_ds_v4 without pages.*\n.*even page_size"),
        (["lookup", *ROWS_OF_584_BYTES, *OFFLINE, "--page-size", "3"], "pages of 3 tokens.*\n.*even page_size"),
        (["lookup", *ROWS_OF_584_BYTES, *OFFLINE, "--page-size", "64", "--append", "--rope", "half_split"], "rope over a latent cache.*\n.*k_new"),
        (["verify", "--only", "luck"], "luck"),
        (["completion", "tcsh"], "tcsh"),
        (["db", "export"], "file"),
        (["db", "gc", "--keep-days", "-1"], "-1"),
        (["--db", "", "db", "path"], "--db"),
    ]

    def test_each_is_a_usage_error_of_a_few_lines_that_names_the_value(self):
        for arguments, named in self.CASES:
            with self.subTest(arguments=arguments):
                result = self.expect(2, *arguments, says=named)
                self.assertEqual(result.stdout, "")
                self.assertLessEqual(len(result.stderr.splitlines()), 6)

    def test_each_is_one_json_document_under_json(self):
        for arguments, _ in self.CASES:
            with self.subTest(arguments=arguments):
                result = self.expect(2, *arguments, "--json")
                error = json.loads(result.stdout)["error"]
                self.assertEqual((error["exit_code"], error["code"] in ("invalid_argument", "unsupported")), (2, True))
                self.assertIn(error["message"].splitlines()[0], result.stderr)

    def test_two_formats_at_once_are_refused(self):
        self.expect(2, "explain", *SHAPE, "--json", "--format", "svg", says="--json and --format svg")
        self.expect(0, "explain", *SHAPE, "--json", "--format", "json")


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


    def test_json_that_is_broken_is_located(self):
        text = '{\n  "num_attention_heads": 32,\n  "hidden_size": 4096,,\n}'
        self.expect(2, "explain", "--model-config", self.write(text), says="config.json: the file is not valid JSON: line 3, column 23: ")

    def test_weights_of_a_type_without_kernels_are_mentioned(self):
        file = self.write('{"num_attention_heads": 32, "hidden_size": 4096, "torch_dtype": "float32"}')
        self.expect(0, "lookup", "--model-config", file, *OFFLINE, says="float32 weights.*bf16")
        self.assertEqual(self.expect(0, "lookup", "--model-config", file, *OFFLINE, "--dtype", "fp16").stderr, "")

    TWO_KINDS = {"num_attention_heads": 32, "hidden_size": 4096, "sliding_window": 512, "num_hidden_layers": 3,
                 "layer_types": ["full_attention", "sliding_attention", "linear_attention"]}

    def test_commands_about_one_problem_take_the_layers_without_a_window_and_say_so(self):
        file = self.write(json.dumps(self.TWO_KINDS))
        for model in (["--model-config", file], ["--model", "gemma-3-1b"]):
            self.expect(0, "explain", "--sms", "132", *model, says="window of 512 tokens.*--layers window")
            self.assertNotIn("window of", self.expect(0, "explain", "--sms", "132", *model, "--layers", "window").stderr)

    def test_lookup_takes_all_shapes_of_a_model_or_those_that_layers_names(self):
        file = self.write(json.dumps(self.TWO_KINDS))
        for model in (["--model-config", file], ["--model", "gemma-3-1b"]):
            document = json.loads(self.expect(0, "lookup", "--json", *model, *OFFLINE).stdout)
            self.assertEqual([entry["problem"].get("features", {}) for entry in document["problems"]], [{}, {"window": 512}])
            self.assertTrue(all(entry["answers"] for entry in document["problems"]))
            for layers, features in (("full", {}), ("window", {"window": 512})):
                chosen = json.loads(self.expect(0, "lookup", "--json", *model, *OFFLINE, "--layers", layers).stdout)
                self.assertEqual(chosen["problem"].get("features", {}), features)
        lookup = ["lookup", "--model-config", file, *OFFLINE]
        self.assertRegex(self.expect(0, *lookup, says="1 of 3 layers of .*config.json are linear attention").stdout,
                         r"win512 \(1 of 3 layers\)")
        self.assertEqual(json.loads(self.expect(0, *lookup, "--json", "--layers", "1").stdout)["problem"]["features"], {"window": 512})
        self.expect(2, *lookup, "--layers", "2", says="layer 2 of .* is no attention")
        self.expect(2, *lookup, "--layers", "3", says="has 3 layers")
        # A flag that makes the shapes equal leaves one.
        self.assertEqual(json.loads(self.expect(0, *lookup, "--json", "--window", "1k").stdout)["problem"]["features"], {"window": 1024})

    def test_a_norm_over_too_many_heads_is_left_to_the_engine_in_words(self):
        layers = {"layer_types": ["mamba", "attention"], "mamba_n_heads": 48, "hidden_size": 1536}
        for groups, gate, left in ((1, "none", "RMSNorm x silu_first\\(z\\) over 48 heads is left to the engine: no kernel of sm_90a has it\\."),
                                   (6, "silu_first", "^$")):
            file = self.write(json.dumps({"model_type": "granitemoehybrid", "mamba_n_groups": groups, **layers}))
            for command, places in ((["recurrent", "lookup", "--arch", "h100", "--batch", "1"], lambda document: [document]),
                                    (["models"], lambda document: document["recurrent"])):
                with self.subTest(groups=groups, command=command):
                    said = self.expect(0, *command, "--json", "--model-config", file)
                    [found] = places(json.loads(said.stdout))
                    self.assertEqual((found["problem"]["output_gate"], found["problem"]["norm_heads"]), (gate, 1 if gate == "none" else 8))
                    self.assertRegex(found["left"], left)
                    self.assertEqual("left to the engine" in self.expect(0, *command, "--model-config", file).stderr, gate == "none")

    def test_tune_and_prewarm_take_all_shapes_of_a_model(self):
        file = self.write(json.dumps({**self.TWO_KINDS, "per_layer_config": {"1": {"num_key_value_heads": 4}}}))
        tuned = json.loads(self.expect(0, "tune", "--json", "--dry-run", "--model-config", file, *OFFLINE[:2], "--batch", "1", "--context", "1k").stdout)
        self.assertEqual([(t["layers"], t["problem"]["kv_heads"]) for t in tuned["tunings"]], [("1 of 3 layers", 32), ("1 of 3 layers", 4)])
        self.assertEqual(tuned["model"]["others"], [{"layers": 1, "what": "linear attention"}])
        one = json.loads(self.expect(0, "tune", "--json", "--dry-run", "--model-config", file, *OFFLINE[:2], "--batch", "1", "--context", "1k",
                                     "--layers", "window").stdout)
        self.assertEqual(one["problem"]["kv_heads"], 4)
        kernels = {layers: {k["kernel"] for k in json.loads(self.expect(
            0, "prewarm", "--json", "--model-config", file, *OFFLINE[:2], "--context", "1k", *layers).stdout)["kernels"]}
            for layers in ((), ("--layers", "full"), ("--layers", "window"))}
        self.assertEqual(kernels[()], kernels["--layers", "full"] | kernels["--layers", "window"])
        self.assertEqual(len(kernels[()]), 2)

    def test_models_says_what_the_layers_of_a_file_are(self):
        file = self.write(json.dumps(self.TWO_KINDS))
        said = self.expect(0, "models", "--model-config", file, says="1 of 3 layers of .* are linear attention")
        self.assertRegex(said.stdout, r"1 of 3 +32 +32 +128 +512 ")
        document = json.loads(self.expect(0, "models", "--json", "--model-config", file).stdout)
        self.assertEqual([(s["layers"], s["which"], s["q_heads"], s["kv_heads"], s["head_dim"]) for s in document["shapes"]],
                         [(1, [0], 32, 32, 128), (1, [1], 32, 32, 128)])
        self.assertEqual((document["layers"], document["others"]), (3, [{"layers": 1, "what": "linear attention"}]))
        file = self.write('{"num_attention_heads": 96, "model_type": "glm4_moe", "num_hidden_layers": 1}')
        self.assertIn("42", json.loads(self.expect(0, "models", "--json", "--model-config", file).stdout)["shapes"][0]["unsupported"])
        self.expect(2, "models", "--model-config", self.write('{"model_type": "vit"}'), says="does not decode")


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

    def test_names_that_other_programs_use_are_understood(self):
        for flags, field, value in ((["--dtype", "float16"], "dtype", "fp16"), (["--dtype", "BFloat16"], "dtype", "bf16"),
                                    (["--layout", "nhd"], "layout", "strided")):
            self.assertEqual(json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE, *flags).stdout)["problem"][field], value)
        for flags, field, value in ((["--kv-dtype", "fp8"], "kv_format", "fp8_e4m3"), (["--kv-dtype", "e5m2"], "kv_format", "fp8_e5m2"),
                                    (["--rope", "neox"], "rope", "half_split"), (["--rope", "gptj"], "rope", "interleaved")):
            self.assertEqual(json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE, *flags).stdout)["problem"]["features"][field], value)
        for name, arch, sms in (("h100", "sm_90a", 132), ("H20", "sm_90a", 78), ("A100", "sm_80", 108), ("RTX 4090", "sm_89", 128)):
            document = json.loads(self.expect(0, "lookup", "--json", *SHAPE, "--arch", name).stdout)
            self.assertEqual((document["arch"], document["sms"]), (arch, sms))

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
        lookup = ["lookup", "--json", "--model-config", str(file), *OFFLINE, "--layers", "full"]
        self.assertEqual(json.loads(self.expect(0, *lookup).stdout)["problem"]["features"], {"soft_cap": 50.0})
        self.assertNotIn("features", json.loads(self.expect(0, *lookup, "--soft-cap", "0").stdout)["problem"])


class NoDevice(Contract):
    def test_commands_that_need_a_gpu_exit_3_and_say_what_to_do(self):
        for arguments in (["devices"], ["verify", "--quick"], ["bench", *SHAPE], ["tune", *SHAPE], ["lookup", *SHAPE], ["prewarm", *SHAPE],
                          ["recurrent", "tune"], ["recurrent", "bench"], ["recurrent", "lookup"]):
            with self.subTest(arguments=arguments):
                result = self.expect(3, *arguments)
                self.assertGreater(len(result.stderr.splitlines()), 1, "an error without a way out")
                # What describes a GPU that is not here is named by those commands that take it.
                self.assertEqual("--arch" in result.stderr, arguments[0] in ("tune", "lookup", "prewarm") or arguments[-1] == "lookup")

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
    def test_emit_has_a_kernel_of_every_load_path(self):
        for load in ("ldg", "cp_async", "bulk", "tensor"):
            for fixup in ("ticket", "wait"):
                text = self.expect(0, "emit", *SHAPE, *OFFLINE, "--load", load, "--fixup", fixup).stdout
                self.assertIn(f"_{load}_{fixup}_", text.partition("\n")[0])

    def test_emit_writes_the_same_self_contained_source_every_time(self):
        first = self.expect(0, "emit", *SHAPE, *OFFLINE)
        self.assertIn("__global__", first.stdout)
        self.assertNotRegex(first.stdout, r"(?m)^\s*#\s*include")
        self.assertEqual(first.stdout, self.expect(0, "emit", *SHAPE, *OFFLINE).stdout)

    def test_emit_without_a_gpu_or_an_arch_says_which_arch_it_took(self):
        for command in (["emit", *SHAPE], ["recurrent", "emit"]):
            result = self.expect(0, *command)
            self.assertIn("sm_90a", result.stderr)
            file = self.root / "kernel.cu"
            self.expect(0, *command, "--out", str(file), says="kernel.cu has the kernel")
            self.assertEqual(file.read_text(), result.stdout)
            self.assertEqual(json.loads(self.expect(0, *command, "--json").stdout)["source"], result.stdout)

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
        # A kernel's source is larger than the stream's buffer, so that writing fails before the last flush.
        for arguments in (["explain", *SHAPE], ["emit", *SHAPE, *OFFLINE], ["emit", *SHAPE, *OFFLINE, "--json"], ["--help"]):
            with self.subTest(arguments=arguments), open("/dev/full", "w") as full:
                result = self.run_program(*arguments, stdout=full)
                self.assertEqual(result.returncode, 1)
                self.assertIn("cannot write to stdout: No space left on device", result.stderr)

    MESSAGES = [(0, ["tune", *SHAPE, *OFFLINE, "--dry-run"]), (2, ["lookup", "--model", "nosuch"]), (2, ["lookup", "--no-such-flag"]),
                (4, ["lookup", *SHAPE, *OFFLINE, "--require", "exact"]), (0, ["lookup", *SHAPE, *OFFLINE, "--context", "8k"]),
                (0, ["emit", *SHAPE])]

    def test_messages_that_cannot_be_written_change_no_exit_code(self):
        reader, broken = os.pipe()
        os.close(reader)
        leader, hung_up = pty.openpty()
        os.close(leader)
        streams = {"a pipe without a reader": broken, "a terminal that has gone": hung_up}
        if os.path.exists("/dev/full"):
            streams["a full disk"] = os.open("/dev/full", os.O_WRONLY)
        for code, arguments in self.MESSAGES:
            for name, stream in streams.items():
                with self.subTest(arguments=arguments, stderr=name):
                    # SIGPIPE stays ignored, as it is in Python; otherwise it would end the program.
                    result = subprocess.run([contract.PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=stream, stdin=subprocess.DEVNULL,
                                            env=self.environment(TERM="xterm"), cwd=self.root, timeout=300, restore_signals=False)
                    self.assertEqual(result.returncode, code, result.stdout)
        for stream in streams.values():
            os.close(stream)

    CLOSED = ["sh", "-c", 'exec "$@" 2>&-', "sh"]

    def test_messages_to_a_closed_stream_change_no_exit_code(self):
        for code, arguments in self.MESSAGES:
            with self.subTest(arguments=arguments):
                result = subprocess.run([*self.CLOSED, contract.PROGRAM, *arguments], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                        env=self.environment(), cwd=self.root, timeout=300)
                self.assertEqual(result.returncode, code, result.stdout)

    def test_no_file_takes_the_place_of_a_closed_stream(self):
        if not os.path.exists("/proc/self/fd"):
            self.skipTest("no /proc here")
        # This command waits for what it is sent.
        process = subprocess.Popen([*self.CLOSED, contract.PROGRAM, "tune-order"], stdout=subprocess.PIPE, stdin=subprocess.PIPE,
                                   env=self.environment(), cwd=self.root)
        stream = f"/proc/{process.pid}/fd/2"
        end = time.monotonic() + 60
        taken = ""
        # The shell has its caller's stream until it closes it.
        while taken != "/dev/null" and time.monotonic() < end and process.poll() is None:
            try:
                taken = os.readlink(stream)
            except FileNotFoundError:  # closed, and nothing has taken its place yet
                taken = ""
            time.sleep(0.01)
        process.communicate(b"{}", timeout=300)
        self.assertEqual(taken, "/dev/null")

    def test_arguments_without_effect_are_mentioned(self):
        self.expect(0, "lookup", *SHAPE, *OFFLINE, "--context", "8k", says="--context was given 2 times.*8k")
        self.expect(0, "lookup", *SHAPE, *OFFLINE, says="LEANATTN_CUBIN_CACHE_MB.*'many' is not a whole number", LEANATTN_CUBIN_CACHE_MB="many")
        self.assertEqual(self.expect(0, "lookup", *SHAPE, *OFFLINE, LEANATTN_CUBIN_CACHE_MB="64").stderr, "")
        self.assertEqual(self.expect(0, "lookup", *SHAPE, *OFFLINE, "--lse", "--lse").stderr, "")  # flags without a value

    def test_failures_under_json_are_one_document_with_the_exit_code(self):
        for code, arguments in ((3, ["devices"]), (3, ["tune", *SHAPE]), (3, ["bench", *SHAPE]), (4, ["report", "--format", "md"]),
                                (4, ["tune", *OFFLINE, "--from-capture", "missing"]), (4, ["db", "export", "x.db"])):
            with self.subTest(arguments=arguments):
                result = self.expect(code, "--json", *arguments)
                error = json.loads(result.stdout)["error"]
                self.assertEqual(error["exit_code"], code)
                self.assertIn(error["message"], result.stderr)
        # What has printed its data has printed its document.
        self.assertIn("answers", json.loads(self.expect(4, "lookup", "--json", *SHAPE, *OFFLINE, "--require", "exact").stdout))

    def test_an_output_that_cannot_be_written_is_named_with_the_reason(self):
        (self.root / "file").write_text("what was there")
        reasons = {str(self.root): "Is a directory", str(self.root / "missing" / "x"): "No such file or directory",
                   str(self.root / "file" / "x"): "Not a directory"}
        for command in (["explain", *SHAPE], ["emit", *SHAPE, *OFFLINE]):
            for out, reason in reasons.items():
                with self.subTest(command=command, out=out):
                    self.expect(2, *command, "--out", out, says=re.escape(f"--out {out}: cannot be written ({reason})"))
            if os.path.exists("/dev/full"):
                self.expect(1, *command, "--out", "/dev/full", says="--out /dev/full: cannot be written .No space left")

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
                document = json.loads(self.expect(0, "explain", "--json", *HEADS, "--lengths", lengths).stdout)
                self.assertEqual([s["title"] for s in document["schedules"]], ["FlashAttention-2", "FlashDecoding", "LeanAttention"])
                for schedule in document["schedules"]:
                    seen = {}
                    for segment in schedule["segments"]:
                        for tile in range(segment["first_tile"], segment["first_tile"] + segment["tiles"]):
                            key = (segment["output_tile"], tile)
                            self.assertNotIn(key, seen)
                            seen[key] = segment["cta"]
                    self.assertEqual(len(seen), schedule["lean_tiles"])

    def test_explain_draws_a_mixed_step_with_the_output_tiles_of_its_chunks(self):
        step = [*HEADS, "--ragged-q", "--q-len", "4096", "--lengths", "2x4k,8k", "--q-lens", "2x1,512", "--sms", "8"]
        lean = json.loads(self.expect(0, "explain", "--json", *step).stdout)["schedules"][-1]
        self.assertEqual((lean["query_tokens"], lean["output_tiles"]), ([1, 1, 512], 8 * (1 + 1 + 16)))
        rows = {segment["request"]: segment["rows"] for segment in lean["segments"]}
        self.assertEqual(rows, {0: 4, 1: 4, 2: 128})
        hosts = [segment for segment in lean["segments"] if segment["request"] == 2 and segment["kv_head"] == 0]
        self.assertEqual({segment["row_block"] for segment in hosts}, set(range(16)))
        text = self.expect(0, "explain", *step, "--mode", "lean").stdout
        self.assertIn("request 2 (512 of 8192), KV head 0, rows 3", text)
        self.assertIn("capitals are chunks, small letters decodes", text)
        self.assertIn("few of 128 query rows", self.expect(0, "explain", *step, "--mode", "lean", "--format", "svg").stdout)
        self.expect(2, "explain", *HEADS, "--lengths", "5", "--q-lens", "2", says="without --ragged-q")

    def test_explain_never_splits_what_the_peers_keep_whole(self):
        document = json.loads(self.expect(0, "explain", "--json", *HEADS, "--lengths", "64k,1k,0,777").stdout)
        attention2, decoding, lean = document["schedules"]
        self.assertEqual((attention2["partials"], attention2["most_contributors"]), (0, 1))
        for schedule in (attention2, decoding):
            outputs = {}
            for segment in schedule["segments"]:
                outputs.setdefault(segment["cta"], set()).add(segment["output_tile"])
            self.assertEqual({len(seen) for seen in outputs.values()}, {1}, schedule["title"])
        self.assertGreater(lean["busy"], attention2["busy"])

    def test_lookup_says_of_which_shape_a_time_is(self):
        file = self.make_database()
        answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE).stdout)
        self.add_winner(file, answer["problem"], {**answer["answers"][0]["config"], "grid": 131}, 12.5, batch=4, context=131072)
        for shape, shown in ((["--batch", "4", "--context", "128k"], r" 12\.5 +131 "), (["--batch", "4", "--context", "64k"], r" 12\.5 of 4 x 128k ")):
            self.assertRegex(self.expect(0, "lookup", *HEADS, *OFFLINE, *shape).stdout, shown)

    def test_models_are_listed_and_each_can_be_named(self):
        models = json.loads(self.expect(0, "models", "--json").stdout)["models"]
        names = [model["name"] for model in models]
        for family in ("llama-3.1-8b", "qwen3-8b", "gpt-oss-20b", "gemma-3-4b"):
            self.assertIn(family, names)
        oss = next(model for model in models if model["name"] == "gpt-oss-120b")
        self.assertEqual((oss["layer_window"], oss["features"]), (128, {"sink_logits": True}))
        self.assertRegex(self.expect(0, "models", says="--layers window").stdout, r"(?m)^gemma-3-27b +32 +16 +128 +bf16 +1024 ")

    def test_lookup_answers_any_shape_and_says_how(self):
        answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE, "--batch", "3", "--context", "777").stdout)["answers"][0]
        self.assertIn(answer["provenance"], ("model", "fallback"))
        self.assertGreater(answer["workspace_bytes"], 0)
        self.expect(4, "lookup", *SHAPE, *OFFLINE, "--require", "exact", says="leanattn tune")

    def test_lookup_of_a_group_says_what_its_time_is_that_of(self):
        group = [*SHAPE, *OFFLINE, "--context-parallel", "2", "--link", "nvlink"]
        self.assertIsNone(json.loads(self.expect(0, "lookup", "--json", *group).stdout)["answers"][0]["tuned_link"])
        self.assertRegex(self.expect(0, "lookup", "--explain", *group).stdout, "group +2 ranks: nothing was measured")

    def test_prewarm_compiles_once_and_then_answers_from_the_cache(self):
        first = json.loads(self.expect(0, "prewarm", "--json", *SHAPE, *OFFLINE).stdout)["kernels"]
        second = json.loads(self.expect(0, "prewarm", "--json", *SHAPE, *OFFLINE).stdout)["kernels"]
        self.assertEqual([k["from_cache"] for k in first], [False] * len(first))
        self.assertEqual([k["from_cache"] for k in second], [True] * len(first))
        self.assertEqual([k["cubin_bytes"] for k in first], [k["cubin_bytes"] for k in second])


class Hostile(Contract):
    """Names come from imported databases."""

    NAME = "Evil\x1b[31m\x07 GPU\x9b2J\u202egnp"

    def test_escapes_of_imported_names_never_reach_a_terminal(self):
        file = self.make_database()
        answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE).stdout)
        config = answer["answers"][0]["config"]
        for us, name in ((12.5, self.NAME), (13.5, self.NAME + "2")):
            self.add_winner(file, answer["problem"], {**config, "grid": 131}, us, name=name)
        for arguments in (["lookup", *SHAPE, *OFFLINE], ["lookup", *SHAPE, *OFFLINE, "--explain"], ["emit", *SHAPE, *OFFLINE], ["db", "stats"],
                          ["report"], ["report", "--format", "csv"], ["report", "--format", "html"], ["doctor"], ["db", "check"]):
            for form in ([], ["--json"]):
                with self.subTest(arguments=arguments + form):
                    result = self.run_program(*arguments, *form)
                    written = result.stdout + result.stderr
                    self.assertEqual(set(re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f]", written)), set())
        self.assertIn("GPU", self.expect(0, "db", "stats").stdout)


class Shell(Contract):
    def complete(self, *words):
        """What bash offers for the last of these words."""
        script = self.expect(0, "completion", "bash").stdout
        script += "COMP_WORDS=({})\nCOMP_CWORD={}\n_leanattn\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n".format(
            " ".join(shlex.quote(word) for word in words), len(words) - 1)
        result = subprocess.run(["bash", "--norc", "-uc", script], capture_output=True, text=True, cwd=self.root, timeout=60)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.split()

    def test_bash_completes_commands_flags_and_values(self):
        self.assertEqual(self.complete("leanattn", "ev"), ["evaluate"])
        self.assertEqual(self.complete("leanattn", "db", "ex"), ["export"])
        self.assertEqual(self.complete("leanattn", "tune", "--mod"), ["--model", "--model-config"])
        self.assertEqual(self.complete("leanattn", "tune", "--js"), ["--json"])
        self.assertEqual(self.complete("leanattn", "lookup", "--model", "qwen2"), ["qwen2.5-7b"])
        self.assertEqual(self.complete("leanattn", "lookup", "--dtype", ""), ["bf16", "fp16"])
        self.assertEqual(self.complete("leanattn", "lookup", "--dtype", "=", "b"), ["bf16"])
        self.assertEqual(self.complete("leanattn", "lookup", "--arch", "h2"), ["h200", "h20"])
        self.assertEqual(self.complete("leanattn", "bench", "--ar"), [])
        (self.root / "tuned.db").touch()
        self.assertEqual(self.complete("leanattn", "db", "import", "tu"), ["tuned.db"])
        self.assertEqual(self.complete("leanattn", "emit", "--out", "tu"), ["tuned.db"])

    def test_every_shell_that_is_installed_accepts_its_script(self):
        for shell in ("bash", "zsh", "fish"):
            script = self.root / f"completion.{shell}"
            script.write_text(self.expect(0, "completion", shell).stdout)
            for flag in ("context", "keep-days", "from-capture"):
                self.assertIn(flag, script.read_text())
            if shutil.which(shell):
                result = subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=60)
                self.assertEqual((result.returncode, result.stderr), (0, ""), shell)

    def test_the_build_has_written_what_the_program_says(self):
        written = pathlib.Path(contract.PROGRAM).parent / "written"
        if not written.is_dir():
            self.skipTest("the program is not in its build folder")
        for name, command in (("leanattn.1", ["man"]), ("leanattn.bash", ["completion", "bash"]), ("_leanattn", ["completion", "zsh"]),
                              ("leanattn.fish", ["completion", "fish"])):
            self.assertEqual((written / name).read_text(), self.expect(0, *command).stdout, name)

    def test_the_man_page_has_every_command_and_no_fault(self):
        page = self.root / "leanattn.1"
        page.write_text(self.expect(0, "man").stdout)
        for command in (*([command] for command in COMMANDS), *BELOW):
            self.assertIn("\n.SS leanattn " + " ".join(command) + "\n", page.read_text())
        if shutil.which("groff"):
            result = subprocess.run(["groff", "-man", "-Tutf8", "-ww", page], capture_output=True, text=True, timeout=60)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn("--context", result.stdout.replace("\u2010", "-").replace("\u2212", "-"))


class Terminal(Contract):
    def transcript(self, *args, columns=0, stdout=False, **changes):
        """Runs the program with a terminal as stderr, or also as stdout. Returns the exit code and what the terminal was sent."""
        leader, follower = pty.openpty()
        if columns > 0:
            fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([contract.PROGRAM, *args], stdout=follower if stdout else subprocess.DEVNULL, stderr=follower, stdin=subprocess.DEVNULL,
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

    def test_tables_fit_a_narrow_terminal(self):
        for columns in (100, 80, 60, 40):
            code, sent = self.transcript("lookup", *SHAPE, *OFFLINE, columns=columns, stdout=True)
            self.assertEqual(code, 0, sent)
            lines = sent.replace("\r", "").splitlines()
            names = [line for line in lines if line.split()[-1].startswith("lean_sm90a_")]
            self.assertEqual(len(names), 1, sent)
            # A kernel's name is not cut. Before it is its heading at most.
            self.assertLessEqual(max(len(line) for line in lines), max(columns, len("measured us  ") + len(names[0].split()[-1])), sent)
        self.assertIn("lean_sm90a", self.expect(0, "lookup", *SHAPE, *OFFLINE).stdout.splitlines()[1])

    def test_no_color_removes_colour(self):
        wrong = ["explain", *SHAPE, "--head-dim", "100"]
        self.assertIn("\x1b[31m", self.transcript(*wrong, NO_COLOR=None)[1])
        self.assertNotIn("\x1b[", self.transcript(*wrong, NO_COLOR="1")[1])


if __name__ == "__main__":
    contract.main()
