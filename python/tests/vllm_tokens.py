"""vllm_tokens.py -- greedy decoding in vLLM with leanattn, token by token beside another attention backend of vLLM.

    python3 python/tests/vllm_tokens.py [--backends FLASH_ATTN,CUSTOM] [--models llama,gemma] [--steps 256] [--decode-context-parallel 2]

Every model of MODELS is made with the same random weights for each backend, in a process of its own, and decodes the same prompts. Prompts are
longer than a step may read, so that steps mix prefill and decode. Two things are checked:

- The first backend is the yardstick. Two runs of a model agree where all tokens are the same, or where they first differ by a near tie: two kernels
  that sum in different orders give logits that differ in their last bits. So at the first different token, and at all before, the log-probabilities
  of the yardstick's token must differ by less than the model's tolerance. A third backend, such as TRITON_ATTN, shows what differences vLLM's own
  kernels have between each other; for latent attention also FLASHMLA, which reads long prompts by the same way as leanattn's backend, and
  FLASH_ATTN_MLA does not: it takes up to 512 tokens of a prompt for decode.
- Afterwards the same engine reads prompt and answer as one prompt. Its log-probabilities of the answer's tokens then come from the kernels of
  prefill, and those of decode must differ from them by less than the tolerance. These kernels are FlashAttention's with FLASH_ATTN, and leanattn's
  where it computes prefill, which is not over fp8 caches and not with latent attention.

Where two runs do not agree, the report names the first token that differs and the one that prefill sees most differently. Of first tokens, which
follow from prefill alone, it says whether they agree.

With --decode-context-parallel, each of so many GPUs has a part of every context and of the query heads. vLLM asks that all GPUs share a KV head, so
models without latent attention get a single one. Models with sliding windows or selected tokens are left out, because leanattn leaves them to vLLM.

This program needs a GPU, vLLM, and the leanattn package where vLLM finds it; for models with selected tokens also DeepGEMM as vLLM brings it, which
compiles the indexer's kernels with nvcc. It exits with 1 if a model does not agree.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import typing

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
# Weights of which every rank of tensor parallelism has a part of its own.
SPLIT = ("q_proj.weight", "q_b_proj.weight", "kv_b_proj.weight", "o_proj.weight", "embed_tokens.weight", "embedding.weight", "lm_head.weight")
SPECULATION = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}}
# What vLLM calls the backends of latent attention.
LATENT = {"FLASH_ATTN": "FLASH_ATTN_MLA", "TRITON_ATTN": "TRITON_MLA"}
OF_SELECTED = {"FLASH_ATTN": "FLASHMLA_SPARSE"}
FOR_LATENT_ONLY = {"FLASHMLA"}  # backends that models without latent attention do not have
ONLY_BY_NAME = {"deepseek, fp8 cache"}  # FLASH_ATTN_MLA does not have these, and beside FLASHMLA or TRITON_ATTN prefill of vLLM 0.26 differs
# Graphs of decode, and of any step: vLLM replays the latter for all mixes up to their size.
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]}
GRAPHS_OF_ANY_STEP = {"mode": 0, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 256, 512]}
# Kinds of attention, each a configuration and what the engine is told beside it.
MODELS = {
    "llama": (LLAMA, {}),
    "llama, fp8 cache": (LLAMA, {"kv_cache_dtype": "fp8"}),
    "llama, speculation": (LLAMA, SPECULATION),
    "llama, graphs of any step": (LLAMA, {"compilation_config": GRAPHS_OF_ANY_STEP}),
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
    "deepseek, fp8 cache": (DEEPSEEK, {"kv_cache_dtype": "fp8"}),
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
           "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
OF_RANKS = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}  # a process that forks must not have asked for GPUs before


def main():
    parser = argparse.ArgumentParser(prog="vllm_tokens.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="FLASH_ATTN,CUSTOM", help="the yardstick first (%(default)s)")
    parser.add_argument("--models", help=f"of {','.join(MODELS).replace(', ', '+')}; all that there can be unless given")
    parser.add_argument("--steps", type=int, default=256, help="tokens that are decoded (%(default)s)")
    parser.add_argument("--jobs", type=int, default=6, help="processes that share the GPU at a time (%(default)s)")
    parser.add_argument("--decode-context-parallel", type=int, default=1, metavar="GPUS", help="over which contexts are spread (%(default)s)")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for what each process found, as JSON, and for what it said")
    parser.add_argument("--run", nargs=3, metavar=("BACKEND", "MODEL", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        backend, model, out = options.run
        pathlib.Path(out).write_text(json.dumps(decode(backend, model, options.steps, options.decode_context_parallel)))
        return 0
    known = [name for name in MODELS if options.decode_context_parallel == 1 or can_be_spread(name)]
    usual = [name for name in known if name not in ONLY_BY_NAME]
    models = [name.replace("+", ", ") for name in options.models.split(",")] if options.models else usual
    if not set(models) <= set(known):
        parser.error("--models takes " + ",".join(known).replace(", ", "+"))
    backends = options.backends.split(",")
    if others := [name for name in models if not FOR_LATENT_ONLY.isdisjoint(backends) and not is_latent(name)]:
        parser.error(f"{'+'.join(FOR_LATENT_ONLY.intersection(backends))} takes models with latent attention over all tokens, and not {', '.join(others)}")
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {(backend, model): pool.submit(run, backend, model, options.steps, options.decode_context_parallel, options.keep)
                for model in models for backend in backends}
    made = {backend: {model: runs[backend, model].result() for model in models} for backend in backends}
    if options.keep:
        (options.keep / "tokens.json").write_text(json.dumps(made))
    yardstick, *others = made
    results = [(model, backend, compare(made[yardstick][model], made[backend][model], tolerance_of(model)))
               for backend in others for model in models]
    for model, backend, (agrees, text) in results:
        print(f"{model}: {backend} beside {yardstick}: {'agrees' if agrees else 'DIFFERS'}: {text}")
    print(f"{sum(agrees for _, _, (agrees, _) in results)} of {len(results)} agree")
    return 0 if all(agrees for _, _, (agrees, _) in results) else 1


def can_be_spread(model):
    """Whether leanattn has a part in decode over the contexts of this model where they are spread over GPUs."""
    return "sliding_window" not in MODELS[model][0] and "index_topk" not in MODELS[model][0]


def is_latent(model):
    """Whether all tokens of a latent cache are seen."""
    return "kv_lora_rank" in MODELS[model][0] and "index_topk" not in MODELS[model][0]


def tolerance_of(model):
    return TOLERANCE_FP8 if "fp8" in model else TOLERANCE


class Difference(typing.NamedTuple):
    """How far two log-probabilities of a token are apart."""

    amount: float  #: infinite where one of them is not known
    index: int  #: of the token, 0 that which follows the prompt
    prompt: int  #: how long that is

    def __str__(self):
        amount = f"{self.amount:.3f}" if self.amount < math.inf else f"more than is known of the likeliest {LIKELIEST}"
        return f"{amount} at token {self.index} after a prompt of {self.prompt}"


def compare(yardstick, made, tolerance):
    """Whether two runs of a model agree, and how, in words. A run is what decode() returns, or {"error"}."""
    for one in (yardstick, made):
        if "error" in one:
            return False, one["error"]
    for wanted, got in zip(yardstick["tokens"], made["tokens"], strict=True):
        if len(wanted) != len(got):
            return False, f"{len(got)} tokens instead of {len(wanted)}"
    found, beside_yardstick, beside = differences(yardstick, made), max(from_prefill(yardstick)), max(from_prefill(made))
    same = sum(wanted == got for wanted, got in zip(yardstick["tokens"], made["tokens"]))
    text = f"{same} of {len(made['tokens'])} sequences are the same; over {len(found)} tokens log-probabilities differ by {max(found)} at most"
    apart = [one for one in found if one.amount >= tolerance]
    if apart:
        text += f", and first by {min(apart, key=lambda one: (one.index, one.prompt))}"
    if apart or beside.amount >= tolerance:
        # Nothing is decoded for them, so that they tell prefill that differs from decode that does.
        firsts = [one for one in found if one.index == 0]
        text += f"; first tokens, which prefill makes, {'differ' if max(firsts).amount >= tolerance else 'agree'}: by {max(firsts)} at most"
    return not apart and beside.amount < tolerance, f"{text}; beside prefill by {beside} (the yardstick: by {beside_yardstick})"


def differences(yardstick, made):
    """Of every token of the yardstick, up to and with the first of its sequence that the other run does not have."""
    found = []
    for prompt, wanted, got, wanted_logs, got_logs in zip(*(yardstick[name] for name in ("prompts", "tokens")), made["tokens"], yardstick["logprobs"],
                                                          made["logprobs"], strict=True):
        until = next((at for at, pair in enumerate(zip(wanted, got)) if pair[0] != pair[1]), len(wanted) - 1)
        for index, (token, wanted_log, got_log) in enumerate(zip(wanted[:until + 1], wanted_logs, got_logs)):
            found.append(Difference(distance(wanted_log[str(token)], got_log.get(str(token), math.inf)), index, prompt))
    return found


def distance(log, other):
    """Infinite where one of them is no finite number, too."""
    amount = abs(log - other)
    return amount if amount < math.inf else math.inf


def from_prefill(run):
    """Of every token of a run, from what prefill of prompt and answer gives for it."""
    return [Difference(distance(log[str(token)], prefill), index, prompt)
            for prompt, tokens, logs, prefills in zip(*(run[name] for name in ("prompts", "tokens", "logprobs", "prefill")), strict=True)
            for index, (token, log, prefill) in enumerate(zip(tokens, logs, prefills))]


def run(backend, model, steps, ranks, keep):
    """What decode() returns in a process of its own, or {"error"}. What the process says goes to the folder `keep`, if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = pathlib.Path(folder, "tokens.json"), pathlib.Path(keep or folder, f"{backend} {model}.log".replace(", ", "+").replace(" ", "-"))
        with log.open("w") as said:
            ran = subprocess.run([sys.executable, __file__, "--steps", str(steps), "--decode-context-parallel", str(ranks),
                                  "--run", backend, model, out], stdout=said, stderr=said)
        if ran.returncode == 0:
            return json.loads(out.read_text())
        lines = log.read_text(errors="replace").strip().splitlines()
        # What went wrong is the last line that names an error; threads that end later may add lines.
        return {"error": next((line for line in reversed(lines) if "Error" in line), (lines or ["no message"])[-1])[:400]}


def decode(backend, model, steps, ranks):
    """Of every prompt: "prompts", its length, "tokens" [id], "logprobs" [{id: log-probability}] of each step's likeliest tokens, and "prefill"
    [log-probability], the tokens' own when prompt and answer are read as one prompt."""
    for name, value in {**OFFLINE, **(OF_RANKS if ranks > 1 else {})}.items():
        os.environ.setdefault(name, value)
    import vllm

    config, told = MODELS[model][0], {"compilation_config": GRAPHS, **MODELS[model][1]}
    if ranks > 1:
        config = config if "kv_lora_rank" in config else {**config, "num_key_value_heads": 1}
        # What other layers exchange is left to NCCL, which needs nothing of the machine that attention does not.
        told = {**told, "tensor_parallel_size": ranks, "decode_context_parallel_size": ranks, "disable_custom_all_reduce": True}
    if "kv_lora_rank" in config:
        backend = (OF_SELECTED if "index_topk" in config else LATENT).get(backend, backend)
    if config["model_type"] == "gpt_oss":
        leave_out_experts()
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        llm = vllm.LLM(model=folder, load_format=random_weights(), skip_tokenizer_init=True, dtype="bfloat16", seed=0, kv_cache_memory_bytes=2**31,
                       gpu_memory_utilization=0.1, max_model_len=4096, max_num_seqs=16, max_num_batched_tokens=512, enable_prefix_caching=False,
                       max_logprobs=LIKELIEST, attention_config={"backend": backend}, **told)
    found = set().union(*llm.apply_model(backends_of))
    if found != {backend}:
        raise RuntimeError(f"asked for {backend}, but layers have {sorted(found)}")
    drawn = random.Random(7)
    prompts = [{"prompt_token_ids": prompt(drawn, length, config["vocab_size"])} for length in PROMPTS]
    options = vllm.SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True, detokenize=False, logprobs=LIKELIEST)
    outputs = [request.outputs[0] for request in llm.generate(prompts, options, use_tqdm=False)]
    again = [{"prompt_token_ids": given["prompt_token_ids"] + list(output.token_ids)} for given, output in zip(prompts, outputs)]
    options = vllm.SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, prompt_logprobs=LIKELIEST)
    read = [request.prompt_logprobs[-steps:] for request in llm.generate(again, options, use_tqdm=False)]
    return {"prompts": PROMPTS, "tokens": [list(output.token_ids) for output in outputs],
            "logprobs": [[{str(token): entry.logprob for token, entry in step.items()} for step in output.logprobs] for output in outputs],
            "prefill": [[step[token].logprob for token, step in zip(output.token_ids, steps_of)] for output, steps_of in zip(outputs, read)]}


def backends_of(model):
    """What the attention backends of its layers are called."""
    return sorted({layer.attn_backend.get_name() for layer in model.modules() if hasattr(layer, "attn_backend")})


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
    """Random weights are uniform and tiny: attention is flat then, and all logits are alike. This gives scores and logits the size of 1.

    Ranks draw the same weights, because most are the same on all of them. Of those that are split, each rank's part is its own."""
    import torch
    from vllm import distributed

    generator = torch.Generator(device="cuda").manual_seed(4711)
    alone = distributed.get_tensor_model_parallel_world_size() == 1
    own = generator if alone else torch.Generator(device="cuda").manual_seed(4712 + distributed.get_tensor_model_parallel_rank())
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
                weight.uniform_(-1, 1, generator=own if name.endswith(SPLIT) else generator)
                if name.endswith("qkv_proj.weight") and not alone:  # all ranks have the KV head
                    layer = model.get_submodule(name.removesuffix(".weight"))
                    weight[:layer.num_heads * layer.head_size].uniform_(-1, 1, generator=own)
                weight.mul_(2 / weight.shape[1] ** 0.5)
            elif name.endswith(("embed_tokens.weight", "embedding.weight", "lm_head.weight")):
                weight.uniform_(-1, 1, generator=own).mul_((0.25 if gemma else 4) / weight.shape[1] ** 0.5)


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
if __name__ == "__mp_main__":  # a rank
    random_weights()
