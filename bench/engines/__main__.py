"""Times decode steps of an inference engine with each attention backend in turn, leanattn among them.

    python3 bench/engines --out results [--engine vllm] [--model deepseek] [--backends FLASH_ATTN,CUSTOM] [--steps 128] [--tune 60]

Engines are vLLM, with FLASH_ATTN, TRITON_ATTN, FLASHINFER and leanattn, which it calls CUSTOM; Transformers' continuous batching (generate_batch)
with flash_attention_3 and leanattn, and with sdpa where --backends names it, because its masks are of all requests' tokens together; and SGLang's
model runner with fa3, triton and leanattn. The model has random weights and the sizes of Llama-3-8B, or, with --model deepseek in vLLM, the attention
of DeepSeek V2 Lite (16 heads on a latent cache) and a dense feed-forward part; vLLM's own backends are FLASH_ATTN_MLA, FLASHMLA and TRITON_MLA then.
Shapes are 1 x 8k, 16 x 8k, 64 x 4k, 8 x 32k, and a ragged mix: the contexts of the first step of bench/trace's conversations in which 64 requests
run. Each backend has a process of its own, and a round runs all of them; of the rounds the median counts. A backend that cannot start, or does not
end in time, is named in the report. Transformers and SGLang also answer ten prompts with every backend, and the report compares tokens and
log-probabilities.

This program needs a GPU, the engine, and the leanattn package where the engine finds it. It writes engines.json and engines.md.
"""
import argparse
import datetime
import gzip
import io
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "trace")]

import batcher  # noqa: E402  (the path first)
import engine_report  # noqa: E402
from peers import files  # noqa: E402

COMMON = {"max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
          "bos_token_id": 1, "eos_token_id": 2}
# What each is in words, and its configuration.
MODELS = {
    "llama": ("the sizes of Llama-3-8B", {
        **COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256}),
    "deepseek": ("the attention of DeepSeek V2 Lite and a dense feed-forward part", {
        **COMMON, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 10944, "n_routed_experts": 64, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "n_shared_experts": 2, "first_k_dense_replace": 27, "vocab_size": 102400})}
PROMPTS = [37, 300, 511, 700, 999, 1500, 64, 1, 2048, 129]  # tokens of those whose answers are compared
TOKEN_STEPS = 64  # tokens of an answer
TRACE = HERE.parent / "trace/data/azure-llm-2023-conv.csv.gz"
TRACE_RATE = 8.0  # requests arrive so many times as fast as they did, so that 64 of them run at once


def main():
    options = parse()
    if options.report_only:
        results = files.read_json(options.out / "engines.json")
    else:
        results = measure(options)
        files.write_json(options.out / "engines.json", results)
    files.write_text(options.out / "engines.md", engine_report.markdown(results))
    print(engine_report.markdown(results))
    return 0


def parse(given=None):
    parser = argparse.ArgumentParser(prog="engines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--engine", choices=list(engine_report.ENGINES), default="vllm", help="(%(default)s)")
    parser.add_argument("--model", choices=list(MODELS), default="llama", help="(%(default)s)")
    parser.add_argument("--backends", help="of " + "; ".join(f"{name}, {model}: {','.join(backends)}" for name, engine in engine_report.ENGINES.items()
                                                            for model, backends in engine.backends.items()))
    parser.add_argument("--shapes", help="names of those shapes that are measured, such as '1 x 8192;64 x 4096'; all unless given")
    parser.add_argument("--steps", type=int, default=128, help="decode steps that are timed of a shape (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each backend (%(default)s)")
    parser.add_argument("--limit", type=int, default=1200, metavar="SECONDS", help="end a process that takes longer (%(default)s)")
    parser.add_argument("--tune", type=int, default=0, metavar="SECONDS", help="at most so long, leanattn tunes in its first process (%(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="without vLLM's own compilation of the model, which takes a minute a process")
    parser.add_argument("--report-only", action="store_true", help="write the Markdown again from engines.json; needs no GPU")
    options = parser.parse_args(given)
    engine = engine_report.ENGINES[options.engine]
    if options.model not in engine.backends:
        parser.error(f"--model takes {', '.join(engine.backends)} with {engine.title}")
    known = engine.backends[options.model]
    options.backends = options.backends.split(",") if options.backends else [name for name in known if name not in engine.only_by_name]
    if not set(options.backends) <= set(known):
        parser.error("--backends takes " + ", ".join(known))
    named = {engine_report.shape_name(contexts): contexts for contexts in shapes()}
    wanted = options.shapes.split(";") if options.shapes else list(named)
    if unknown := [name for name in wanted if name not in named]:
        parser.error(f"--shapes does not take {unknown[0]!r}; there are {'; '.join(named)}")
    options.shapes = [named[name] for name in wanted]
    return options


def ragged_mix():
    with gzip.open(TRACE, "rb") as data:
        requests = batcher.read_trace(io.TextIOWrapper(data, encoding="ascii"), TRACE_RATE)
    return engine_report.ragged_contexts(batcher.steps(requests, engine_report.RAGGED_REQUESTS, 0.03))


def shapes():
    """The contexts of every shape: a list of one number for each request."""
    return [*([context] * requests for requests, context in engine_report.UNIFORM), ragged_mix()]


def settings_for(contexts, steps, model_dir, vocabulary, compiled=True, tune=0):
    """What a process of a backend is told."""
    batches = sorted({len(of_shape) for of_shape in contexts})
    # Room for the steps that are timed, profiled and run while other prompts are still read.
    longest = max(max(of_shape) for of_shape in contexts) + 4 * steps + 64 * batches[-1]
    return {"model_dir": str(model_dir), "vocabulary": vocabulary, "shapes": contexts, "batches": batches, "most_requests": batches[-1],
            "longest": longest, "steps": steps, "utilization": 0.85, "compile": compiled, "tune": tune, "prompts": PROMPTS, "token_steps": TOKEN_STEPS}


def measure(options):
    from peers import environment

    results = {"schema_version": 1, "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
               "environment": environment.environment([]), "engine": options.engine, "model": MODELS[options.model][0],
               "peer": engine_report.ENGINES[options.engine].backends[options.model][0], "compiled": not options.no_compile, "backends": {}}
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder, "model")
        model.mkdir()
        config = MODELS[options.model][1]
        (model / "config.json").write_text(json.dumps(config))
        settings = pathlib.Path(folder, "settings.json")
        rounds = {backend: [] for backend in options.backends}
        for index in range(options.rounds):
            told = settings_for(options.shapes, options.steps, model, config["vocab_size"], not options.no_compile, 0 if index else options.tune)
            settings.write_text(json.dumps(told))
            for backend in options.backends:
                print(f"{options.engine}, {backend}: process {index + 1} of {options.rounds}", file=sys.stderr, flush=True)
                rounds[backend].append(run(options.engine, backend, settings, pathlib.Path(folder, "out.json"), options.limit))
        results["backends"] = {backend: median_round(made) for backend, made in rounds.items()}
    compare_answers(results)
    for backend in results["backends"].values():
        for name in (*engine_report.ENGINES, "torch"):
            if name in backend:
                results["environment"][name] = backend.pop(name)
    return results


def compare_answers(results):
    """Puts in the place of each backend's answers how they agree with those of the peer."""
    answers = {name: backend.pop("answers") for name, backend in results["backends"].items() if "answers" in backend}
    peer = engine_report.peer_of(results)
    for name in answers if peer in answers else ():
        if name != peer:
            results["backends"][name]["agreement"] = engine_report.agreement(answers[peer], answers[name])


def run(engine, backend, settings, out, limit):
    """The figures of one process, or why there are none. After `limit` seconds the process is ended, and all that it has started."""
    out.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, HERE / f"{engine}_decode.py", backend, settings, out], stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    failure = None
    try:
        messages = process.communicate(timeout=limit)[1]
        if process.returncode != 0:
            lines = messages.strip().splitlines() or ["no message"]
            # What went wrong is the last line that names an error; threads that end later may add lines.
            failure = next((line for line in reversed(lines) if "Error" in line), lines[-1])[:300]
    except BaseException as end:  # an interruption from the keyboard, too
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if not isinstance(end, subprocess.TimeoutExpired):
            raise
        failure = f"it had not ended after {limit} s"
    made = json.loads(out.read_text()) if out.exists() else {}
    return made if failure is None else {**made, "error": failure}


def median_round(rounds):
    """Of several processes of a backend: for each shape the line of the median step, and the medians of start and memory."""
    whole = [made for made in rounds if "error" not in made]
    if not whole:
        return rounds[0]
    made = {name: whole[0][name] for name in (*engine_report.ENGINES, "torch", "answers") if name in whole[0]}
    for name in ("start_s", "warm_s", "memory_bytes"):
        made[name] = statistics.median(one[name] for one in whole)
    made["shapes"] = {}
    for shape in whole[0]["shapes"]:
        lines = sorted((one["shapes"][shape] for one in whole if shape in one["shapes"]), key=lambda line: line["ms_per_step"])
        made["shapes"][shape] = lines[(len(lines) - 1) // 2]
    return made


if __name__ == "__main__":
    sys.exit(main())
