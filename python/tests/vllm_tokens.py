"""vllm_tokens.py -- greedy decoding in vLLM with leanattn, token by token beside another attention backend of vLLM.

    python3 python/tests/vllm_tokens.py [--backends FLASH_ATTN,CUSTOM] [--models llama,gemma] [--steps 256]

Every model of MODELS is made with the same random weights for each backend, in a process of its own, and decodes the same prompts. Prompts are
longer than a step may read, so that steps mix prefill and decode. Two things are checked:

- The first backend is the yardstick. Two runs of a model agree where all tokens are the same, or where they first differ by a near tie: two kernels
  that sum in different orders give logits that differ in their last bits. So at the first different token, and at all before, the log-probabilities
  of the yardstick's token must differ by less than the model's tolerance. A third backend, such as TRITON_ATTN, shows what differences vLLM's own
  kernels have between each other.
- Afterwards the same engine reads prompt and answer as one prompt. Its log-probabilities of the answer's tokens then come from the kernels of
  prefill, which are FlashAttention's with every backend, and those of decode must differ from them by less than the tolerance.

This program needs a GPU, vLLM, and the leanattn package where vLLM finds it; for models with selected tokens also DeepGEMM as vLLM brings it, which
compiles the indexer's kernels with nvcc. It exits with 1 if a model does not agree.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

COMMON = {"vocab_size": 32000, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
          "max_position_embeddings": 8192, "rope_theta": 500000.0, "num_hidden_layers": 4, "attention_bias": False}
LLAMA = {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 4096, "hidden_act": "silu"}
DEEPSEEK = {**COMMON, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048, "num_attention_heads": 16,
            "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "intermediate_size": 2048, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "n_shared_experts": 1,
            "first_k_dense_replace": COMMON["num_hidden_layers"], "hidden_act": "silu"}
# An indexer chooses tokens, from contexts of more than index_topk on. What it chooses follows from the same projections with every backend, but where two
# scores nearly tie, it may choose differently.
SELECTED = {**{name: value for name, value in DEEPSEEK.items() if name != "q_lora_rank"}, "architectures": ["DeepseekV32ForCausalLM"],
            "model_type": "deepseek_v32", "q_lora_rank": 1536, "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128, "n_group": 1,
            "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 1.0,
            "moe_layer_freq": 1}
SPECULATION = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}}
# What vLLM calls the backends of latent attention.
LATENT = {"FLASH_ATTN": "FLASH_ATTN_MLA", "TRITON_ATTN": "TRITON_MLA"}
OF_SELECTED = {"FLASH_ATTN": "FLASHMLA_SPARSE"}
# Kinds of attention, each a configuration and what the engine is told beside it.
MODELS = {
    "llama": (LLAMA, {}),
    "llama, fp8 cache": (LLAMA, {"kv_cache_dtype": "fp8"}),
    "llama, speculation": (LLAMA, SPECULATION),
    "gemma": ({**COMMON, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 2048, "num_attention_heads": 8,
               "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 2048, "hidden_activation": "gelu_pytorch_tanh",
               "sliding_window": 256, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
               "tie_word_embeddings": True}, {}),
    "gpt-oss": ({**COMMON, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64,
                 "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 4, "num_experts_per_tok": 2,
                 "sliding_window": 128, "hidden_act": "silu", "initial_context_length": 4096,
                 "layer_types": ["sliding_attention", "full_attention"] * 2,
                 "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                  "original_max_position_embeddings": 4096}}, {}),
    "deepseek": (DEEPSEEK, {}),
    "deepseek, speculation": (DEEPSEEK, SPECULATION),
    "deepseek selected": ({**SELECTED, "num_attention_heads": 64, "num_key_value_heads": 64}, {}),
    "deepseek selected, packed rows": (SELECTED, {"kv_cache_dtype": "fp8_ds_mla"}),
    "qwen": ({**COMMON, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14,
              "num_key_value_heads": 2, "intermediate_size": 4864, "hidden_act": "silu"}, {}),
}
# The largest difference of a log-probability. Logits are of the order of 4 and have 8 bits: their spacing is 0.016, and a few of these add up over
# the layers. FlashAttention rounds queries to fp8 where the cache is, and leanattn does not.
TOLERANCE, TOLERANCE_FP8 = 0.25, 1.0
LIKELIEST = 20  # tokens whose log-probability is known at every step
PROMPTS = [37, 300, 511, 700, 999, 1500, 64, 1, 2048, 129]  # tokens
OFFLINE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
           "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}


def main():
    parser = argparse.ArgumentParser(prog="vllm_tokens.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="FLASH_ATTN,CUSTOM", help="the yardstick first (%(default)s)")
    parser.add_argument("--models", default=",".join(MODELS).replace(", ", "+"), help="of %(default)s")
    parser.add_argument("--steps", type=int, default=256, help="tokens that are decoded (%(default)s)")
    parser.add_argument("--jobs", type=int, default=6, help="processes that share the GPU at a time (%(default)s)")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for what each process found, as JSON")
    parser.add_argument("--run", nargs=3, metavar=("BACKEND", "MODEL", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        backend, model, out = options.run
        pathlib.Path(out).write_text(json.dumps(decode(backend, model, options.steps)))
        return 0
    models = [name.replace("+", ", ") for name in options.models.split(",")]
    if not set(models) <= set(MODELS):
        parser.error("--models takes " + ",".join(MODELS).replace(", ", "+"))
    backends = options.backends.split(",")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {(backend, model): pool.submit(run, backend, model, options.steps) for model in models for backend in backends}
    made = {backend: {model: runs[backend, model].result() for model in models} for backend in backends}
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        (options.keep / "tokens.json").write_text(json.dumps(made))
    yardstick, *others = made
    results = [(model, backend, compare(made[yardstick][model], made[backend][model], tolerance_of(model)))
               for backend in others for model in models]
    for model, backend, (agrees, text) in results:
        print(f"{model}: {backend} beside {yardstick}: {'agrees' if agrees else 'DIFFERS'}: {text}")
    print(f"{sum(agrees for _, _, (agrees, _) in results)} of {len(results)} agree")
    return 0 if all(agrees for _, _, (agrees, _) in results) else 1


def tolerance_of(model):
    return TOLERANCE_FP8 if "fp8" in model else TOLERANCE


def compare(yardstick, made, tolerance):
    """Whether two runs of a model agree, and how, in words. A run is what decode() returns, or {"error"}."""
    for one in (yardstick, made):
        if "error" in one:
            return False, one["error"]
    beside_prefill = [max(abs(log[str(token)] - prefill) for tokens, logs, prefills in zip(one["tokens"], one["logprobs"], one["prefill"], strict=True)
                          for token, log, prefill in zip(tokens, logs, prefills)) for one in (yardstick, made)]
    beside = f"; beside prefill by {beside_prefill[1]:.3f} (the yardstick: {beside_prefill[0]:.3f})"
    same, total, largest = 0, 0, 0.0
    for wanted, got, wanted_logs, got_logs in zip(yardstick["tokens"], made["tokens"], yardstick["logprobs"], made["logprobs"], strict=True):
        if len(wanted) != len(got):
            return False, f"{len(got)} tokens instead of {len(wanted)}"
        until = next((at for at, pair in enumerate(zip(wanted, got)) if pair[0] != pair[1]), len(wanted) - 1)
        for token, wanted_log, got_log in zip(wanted[:until + 1], wanted_logs, got_logs):
            if str(token) not in got_log:
                return False, f"a token of the yardstick is not among the likeliest {len(got_log)}{beside}"
            largest = max(largest, abs(wanted_log[str(token)] - got_log[str(token)]))
        same += wanted == got
        total += until + 1
    text = f"{same} of {len(made['tokens'])} sequences are the same; over {total} tokens log-probabilities differ by {largest:.3f} at most"
    return max(largest, beside_prefill[1]) < tolerance, text + beside


def run(backend, model, steps):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "tokens.json")
        ran = subprocess.run([sys.executable, __file__, "--steps", str(steps), "--run", backend, model, out], capture_output=True, text=True)
        if ran.returncode == 0:
            return json.loads(out.read_text())
        lines = ran.stderr.strip().splitlines()
        # What went wrong is the last line that names an error; threads that end later may add lines.
        return {"error": next((line for line in reversed(lines) if "Error" in line), (lines or ["no message"])[-1])[:400]}


def decode(backend, model, steps):
    """Of every prompt: "tokens" [id], "logprobs" [{id: log-probability}] of each step's likeliest tokens, and "prefill" [log-probability], the tokens'
    own when prompt and answer are read as one prompt."""
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    import vllm

    config, told = MODELS[model]
    if "kv_lora_rank" in config:
        backend = (OF_SELECTED if "index_topk" in config else LATENT).get(backend, backend)
    if config["model_type"] == "gpt_oss":
        leave_out_experts()
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        llm = vllm.LLM(model=folder, load_format=random_weights(), skip_tokenizer_init=True, dtype="bfloat16", seed=0, kv_cache_memory_bytes=2**31,
                       gpu_memory_utilization=0.1, max_model_len=4096, max_num_seqs=16, max_num_batched_tokens=512, enable_prefix_caching=False,
                       max_logprobs=LIKELIEST, attention_config={"backend": backend}, **told,
                       compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]})
    layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
    found = {layer.attn_backend.get_name() for layer in layers if hasattr(layer, "attn_backend")}
    if found != {backend}:
        raise RuntimeError(f"asked for {backend}, but layers have {sorted(found)}")
    drawn = random.Random(7)
    prompts = [{"prompt_token_ids": prompt(drawn, length, config["vocab_size"])} for length in PROMPTS]
    options = vllm.SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True, detokenize=False, logprobs=LIKELIEST)
    outputs = [request.outputs[0] for request in llm.generate(prompts, options, use_tqdm=False)]
    again = [{"prompt_token_ids": given["prompt_token_ids"] + list(output.token_ids)} for given, output in zip(prompts, outputs)]
    options = vllm.SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, prompt_logprobs=LIKELIEST)
    read = [request.prompt_logprobs[-steps:] for request in llm.generate(again, options, use_tqdm=False)]
    return {"tokens": [list(output.token_ids) for output in outputs],
            "logprobs": [[{str(token): entry.logprob for token, entry in step.items()} for step in output.logprobs] for output in outputs],
            "prefill": [[step[token].logprob for token, step in zip(output.token_ids, steps_of)] for output, steps_of in zip(outputs, read)]}


def prompt(drawn, length, vocabulary):
    """Random tokens of which some runs repeat, so that speculation by n-grams finds something."""
    made = []
    while len(made) < length:
        if len(made) > 40 and drawn.random() < 0.5:
            begin = drawn.randrange(len(made) - 20)
            made += made[begin:begin + 20]
        else:
            made += [drawn.randrange(10, vocabulary) for _ in range(20)]
    return made[:length]


def random_weights():
    """The name of a loader that makes them, before vLLM and its backends derive anything from them."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    @register_model_loader("random_weights")
    class RandomWeights(DummyModelLoader):
        def load_weights(self, model, model_config):
            super().load_weights(model, model_config)
            make_attention_matter(model)

    return "random_weights"


def make_attention_matter(model):
    """Random weights are uniform and tiny: attention is flat then, and all logits are alike. This gives scores and logits the size of 1."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(4711)
    gemma = "Gemma" in type(model).__name__
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                # Gemma adds 1. Its embedding is its head, too: small ones keep a token from predicting itself, and the last norm makes up for it.
                weight.fill_(1 if not gemma else 15 if name == "model.norm.weight" else 0)
            elif name.endswith("sinks"):
                weight.uniform_(-1, 2, generator=generator)
            elif name.endswith(("q_proj.weight", "qkv_proj.weight", "kv_a_proj_with_mqa.weight", "kv_b_proj.weight", "o_proj.weight",
                                "fused_qkv_a_proj.weight", "q_b_proj.weight", "wq_b.weight", "wk_weights_proj.weight")):
                weight.uniform_(-1, 1, generator=generator).mul_(2 / weight.shape[1] ** 0.5)
            elif name.endswith(("embed_tokens.weight", "embedding.weight", "lm_head.weight")):
                weight.uniform_(-1, 1, generator=generator).mul_((0.25 if gemma else 4) / weight.shape[1] ** 0.5)


def leave_out_experts():
    """gpt-oss's attention is what is tested, and its experts need kernels that small packages of vLLM leave out."""
    import torch
    from vllm.model_executor.models import gpt_oss

    class Nothing(torch.nn.Module):
        def __init__(self, *_, **__):
            super().__init__()

        def forward(self, x):
            return torch.zeros_like(x)

    gpt_oss.TransformerBlock.mlp_cls = Nothing


if __name__ == "__main__":
    sys.exit(main())
