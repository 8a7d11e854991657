"""Times generation with OPT models after a long prompt: PyTorch's SDPA, FlashAttention-2 and leanattn, through Hugging Face Transformers.

    python3 bench/e2e --program build/tune/cli/leanattn --tune 4s --out results [--models opt-1.3b,opt-6.7b] [--prompt 50000]

The models have OPT's sizes and random weights; batch 1, bf16, a static cache. A decode step is a CUDA graph of the whole model. Systems differ
in their attention alone, and are timed in interleaved rounds at several positions of the output. SDPA and FlashAttention-2 are given exactly the
tokens that are there, with a graph for every length, whose capture is not counted. leanattn has one graph, which reads the length from the
device. Before a position is timed, leanattn's logits may differ from SDPA's by at most twice as much as FlashAttention-2's do. The attention of
one layer of four models is timed as well, at 4k, 32k and 128k tokens, as Transformers calls it.

This program needs a GPU, PyTorch, Transformers and the leanattn package. It writes e2e.json (raw samples), e2e.md and e2e.svg.
Exit codes: 0 done, 2 wrong usage, 5 a result was wrong.
"""
import argparse
import datetime
import math
import pathlib
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for the packages beside this one

import e2e_report  # noqa: E402  (the path first)
import shape_table  # noqa: E402
from peers import files  # noqa: E402

SIZES = {"opt-1.3b": {"hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32, "word_embed_proj_dim": 2048},
         "opt-6.7b": {"hidden_size": 4096, "ffn_dim": 16384, "num_hidden_layers": 32, "num_attention_heads": 32, "word_embed_proj_dim": 4096},
         "tiny": {"hidden_size": 512, "ffn_dim": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "word_embed_proj_dim": 512}}
# name, query heads, KV heads, head_dim, soft cap
LAYERS = [("Llama-3-8B", 32, 8, 128, None), ("Qwen2-7B", 28, 4, 128, None), ("Gemma-2-9B, full layer", 16, 8, 256, 50.0), ("OPT-6.7B", 32, 32, 128, None)]
COLD_BYTES = 256 << 20  # of all copies of K and V that a graph reads in turn; it is more than four times the L2 of any supported GPU
MOST_OVER_FLASH = 2.0  # how many times as far leanattn's logits may be from SDPA's as those of FlashAttention-2 are


def main():
    options = parse()
    if options.report_only:
        write_reports(options.out, files.read_json(options.out / "e2e.json"))
        return 0
    if options.tune:
        tune(options)
    return measure(options)


def parse():
    parser = argparse.ArgumentParser(prog="e2e", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--models", default="opt-1.3b,opt-6.7b", help="of " + ", ".join(SIZES) + " (%(default)s)")
    parser.add_argument("--prompt", type=int, default=50000, help="tokens before the first step (%(default)s)")
    parser.add_argument("--outputs", default="64,256,1024", help="output lengths (%(default)s)")
    parser.add_argument("--contexts", default="4096,32768,131072", help="contexts of the attention layers; empty: none (%(default)s)")
    parser.add_argument("--tune", metavar="TIME", help="first tune the models' shapes with --program, this long each, e.g. 4s")
    parser.add_argument("--program", type=pathlib.Path, help="the leanattn program, for --tune")
    parser.add_argument("--rounds", type=int, default=15, help="samples at every position (%(default)s)")
    parser.add_argument("--report-only", action="store_true", help="write Markdown and SVG again from e2e.json or e2e.json.gz; needs no GPU")
    options = parser.parse_args()
    options.outputs = sorted(int(text) for text in options.outputs.split(","))
    options.contexts = [int(text) for text in options.contexts.split(",") if text]
    options.models = options.models.split(",")
    if not set(options.models) <= set(SIZES):
        parser.error("--models takes " + ", ".join(SIZES))
    if options.tune and not options.program:
        parser.error("--tune needs --program")
    return options


def tune(options):
    shapes = [(heads, kv_heads, head_dim, context, soft_cap) for _, heads, kv_heads, head_dim, soft_cap in LAYERS for context in options.contexts]
    for name in options.models:
        heads = SIZES[name]["num_attention_heads"]
        shapes.append((heads, heads, SIZES[name]["hidden_size"] // heads, options.prompt, None))
    for heads, kv_heads, head_dim, context, soft_cap in dict.fromkeys(shapes):
        shape_table.run(str(options.program), ["--quiet", "tune", *shape_table.problem_flags(heads, kv_heads, head_dim), "--batch", "1", "--context", str(context),
                                               "--budget", options.tune, *(["--soft-cap", str(soft_cap)] if soft_cap else [])])


def write_reports(out, results):
    files.write_text(out / "e2e.md", e2e_report.markdown(results))
    files.write_text(out / "e2e.svg", e2e_report.svg(results))


def measure(options):
    import torch
    import transformers

    import leanattn
    from peers import environment

    register_slices(torch, transformers)
    facts = {**environment.environment([]), "torch": torch.__version__, "transformers": transformers.__version__, "leanattn": leanattn.__version__}
    results = {"schema_version": 1, "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "environment": facts,
               "prompt": options.prompt, "outputs": options.outputs, "models": [], "layers": []}
    wrong = False
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        for name, *heads in LAYERS:
            for context in options.contexts:
                line = layer(torch, name, *heads, context, options.rounds)
                wrong |= line["wrong"]
                results["layers"].append(line)
                torch.cuda.empty_cache()
        files.write_json(options.out / "e2e.json", results)
        for name in options.models:
            results["models"].append(Generation(torch, transformers, name, options).run())
            wrong |= bool(results["models"][-1]["wrong"])
            files.write_json(options.out / "e2e.json", results)
            torch.cuda.empty_cache()
    write_reports(options.out, results)
    print(e2e_report.markdown(results))
    return 5 if wrong else 0


visible = types.SimpleNamespace(tokens=0)  # tokens in the cache, for the systems whose kernels take the length from the host


def register_slices(torch, transformers):
    """"bench_sdpa" and "bench_fa2": SDPA over exactly the tokens there are, by PyTorch's own choice of kernel or by FlashAttention-2."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    import leanattn.transformers  # noqa: F401  (registers "leanattn")

    def slices(backends):
        def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
            tokens, prefill = visible.tokens, query.shape[2] > 1
            key, value = key[:, :, :tokens], value[:, :, :tokens]
            with sdpa_kernel(backends):
                o = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling, is_causal=prefill)
            return o.transpose(1, 2), None

        return attention

    for name, backends in (("bench_sdpa", [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]),
                           ("bench_fa2", [SDPBackend.FLASH_ATTENTION])):
        transformers.AttentionInterface.register(name, slices(backends))
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)


class Generation:
    """One model, its cache after the prompt, and what generating takes with each attention."""

    systems = {"sdpa": "bench_sdpa", "flash": "bench_fa2", "leanattn": "leanattn"}

    def __init__(self, torch, transformers, name, options):
        self.torch, self.name, self.prompt, self.outputs, self.rounds = torch, name, options.prompt, options.outputs, options.rounds
        # Every replay appends a token: those of the race's rounds, and those that run before them untimed.
        self.capacity = self.prompt + self.outputs[-1] + len(self.systems) * 2 * (self.rounds + 2)
        config = transformers.OPTConfig(**SIZES[name], max_position_embeddings=self.capacity, attn_implementation="bench_fa2")
        torch.manual_seed(1)
        with torch.device("cuda"):
            self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="bench_fa2").eval()
        self.cache = transformers.StaticCache(config=config, max_cache_len=self.capacity)
        self.token = torch.full((1, 1), 17, device="cuda")
        self.position = torch.zeros((1, 1), dtype=torch.int64, device="cuda")

    def run(self):
        from peers import timing

        torch = self.torch
        prefill_ms = self.prefill()
        outputs = sorted({0, *(length // 2 for length in self.outputs), *(length - 1 for length in self.outputs)})
        result = {"name": self.name, "parameters": sum(p.numel() for p in self.model.parameters()), "prefill_ms": prefill_ms, "wrong": [], "steps": []}
        lean = self.graph("leanattn", self.prompt + outputs[len(outputs) // 2])
        for output in outputs:
            tokens = self.prompt + output
            graphs = {system: self.graph(system, tokens) for system in ("sdpa", "flash")} | {"leanattn": lean}
            expected, worst = None, {}
            for system, graph in graphs.items():
                self.go_to(tokens)
                graph()
                found = self.logits[system].float()
                expected = found if expected is None else expected
                worst[system] = ((found - expected).abs().max() / expected.std()).item()
            if not worst["leanattn"] <= MOST_OVER_FLASH * worst["flash"]:
                result["wrong"].append(f"at {tokens} tokens leanattn's logits differ from SDPA's by {worst['leanattn']:.3g} of their deviation, "
                                       f"FlashAttention-2's by {worst['flash']:.3g}")
            self.go_to(tokens)
            samples = timing.race(list(graphs.values()), 0, seed=output, rounds=self.rounds)
            result["steps"].append({"output": output, "errors": worst, "samples_us": dict(zip(graphs, samples, strict=True))})
        torch.cuda.synchronize()
        return result

    def prefill(self):
        torch = self.torch
        ids = torch.randint(5, 50000, (1, self.prompt), device="cuda", generator=torch.Generator("cuda").manual_seed(2))
        positions = torch.arange(self.prompt, device="cuda")[None]
        visible.tokens = self.prompt
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self.model(input_ids=ids, attention_mask=self.mask(), position_ids=positions, past_key_values=self.cache, logits_to_keep=1)
        end.record()
        torch.cuda.synchronize()
        self.logits = {}
        return begin.elapsed_time(end)

    def go_to(self, tokens):
        """Sets the cache's own count of its tokens, which every step increases."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(tokens)
        self.position.fill_(tokens)

    def mask(self):
        """The mask that leanattn's mask interface returns for a step. The other systems do not read it."""
        layers = self.cache.layers
        length = layers[0].cumulative_length if layers and layers[0].is_initialized else self.torch.zeros((), dtype=self.torch.int64, device="cuda")
        return (length.to("cuda") + 1).to(self.torch.int32).reshape(1, 1, 1, 1)

    def graph(self, system, tokens):
        from peers import timing

        self.model.set_attn_implementation(self.systems[system])
        visible.tokens = tokens + 1

        def step(_):
            out = self.model(input_ids=self.token, attention_mask=self.mask(), position_ids=self.position, past_key_values=self.cache)
            self.logits[system] = out.logits

        self.go_to(tokens)
        step(0)  # compiles and allocates, before the capture
        self.torch.cuda.synchronize()
        self.go_to(tokens)
        return timing.Replay(step, 1, 1)


def layer(torch, name, q_heads, kv_heads, head_dim, soft_cap, context, rounds):
    """Times the attention of one layer and one token as Transformers calls it, on the tensors of a dynamic cache, with a cold L2."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    import leanattn.transformers
    from peers import shapes, timing

    module = types.SimpleNamespace(num_key_value_groups=q_heads // kv_heads, is_causal=True)
    kv_bytes = shapes.kv_bytes((context,), kv_heads, head_dim)
    copies = max(1, math.ceil(COLD_BYTES / kv_bytes))
    torch.manual_seed(3)
    q = torch.randn(1, q_heads, 1, head_dim, device="cuda", dtype=torch.bfloat16)
    k, v = ([torch.randn(1, kv_heads, context, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(copies)] for _ in range(2))
    mask = torch.full((1, 1, 1, 1), context, dtype=torch.int32, device="cuda")
    outputs = {}

    def sdpa(copy):
        outputs["sdpa"] = sdpa_attention_forward(module, q, k[copy], v[copy], None)[0]

    def ours(copy):
        outputs["leanattn"] = leanattn.transformers.attention(module, q, k[copy], v[copy], mask, softcap=soft_cap)[0]

    for run in (sdpa, ours):
        run(0)
    torch.cuda.synchronize()
    # Scores of random data are far below a soft cap, so SDPA, which has none, still says what is right.
    error = (outputs["sdpa"].float() - outputs["leanattn"].float()).abs().max().item()
    launches = timing.launches_for(kv_bytes, copies)
    samples = timing.race([timing.Replay(run, copies, launches) for run in (sdpa, ours)], 0, seed=1, rounds=rounds)
    return {"model": name, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "context": context, "error": error, "wrong": not error < 0.02,
            "samples_us": {"sdpa": samples[0], "leanattn": samples[1]}}


if __name__ == "__main__":
    sys.exit(main())
