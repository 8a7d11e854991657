"""engine_report.py -- what bench/engines measures, as shapes and figures, and its Markdown. Plain Python, no GPU."""
import dataclasses
import math
import re
import statistics

from peers.markdown_parts import escape, measured_on, table


@dataclasses.dataclass(frozen=True)
class Engine:
    """An inference engine, and what it calls the attention backends that are compared in it."""

    title: str
    own: str  # the name of leanattn
    backends: dict  # by model; the first is the one that speed-ups are over
    steps: str  # how a decode step runs, for the report
    only_by_name: tuple = ()  # backends that run where --backends names them, and not otherwise


ENGINES = {
    "vllm": Engine("vLLM", "CUSTOM", {"llama": ("FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", "CUSTOM"),
                                      "deepseek": ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA", "CUSTOM")}, "every step as one CUDA graph"),
    "transformers": Engine("Transformers' continuous batching", "leanattn", {"llama": ("flash_attention_3", "sdpa", "leanattn")},
                           "with FlashAttention and leanattn every step as one CUDA graph", ("sdpa",)),
    "sglang": Engine("SGLang", "leanattn", {"llama": ("fa3", "triton", "leanattn")},
                     "every step as one CUDA graph and by SGLang's own benchmark of one batch, without a scheduler"),
}
UNIFORM = ((1, 8192), (16, 8192), (64, 4096), (8, 32768))  # requests, tokens of each context
RAGGED_REQUESTS = 64

# The kernels that a decode step runs for attention beside its projections, by their names. The update of the cache is counted apart, because it
# is the same kernel with every backend. FlashInfer has norms and activations, too.
_UPDATE = re.compile(r"reshape_and_cache|concat_and_cache|store_kvcache", re.IGNORECASE)
_ATTENTION = re.compile(r"\blean_|flash(?!infer::(?:norm|activation|sampling))|fmha|\bmla_|attention|attn|reduce_segments|batch_?decode|batch_?prefill|merge_state|xqa|prepare_varlen|combine",
                        re.IGNORECASE)


def part_of(kernel):
    """"attention", "update" (of the cache) or "rest", for the name of a kernel."""
    if _UPDATE.search(kernel):
        return "update"
    return "attention" if _ATTENTION.search(kernel) else "rest"


def microseconds_by_part(kernels):
    """Time of a step by part, from {kernel: microseconds a step}."""
    parts = {"attention": 0.0, "update": 0.0, "rest": 0.0}
    for name, time in kernels.items():
        parts[part_of(name)] += time
    return parts


def ragged_contexts(steps, requests=RAGGED_REQUESTS):
    """The contexts of one decode step of a trace, of bench/trace's steps the fullest one, as they are; ascending. ValueError where none is so full."""
    for step in steps:
        if len(step.contexts) == requests:
            return sorted(step.contexts)
    raise ValueError(f"no step of the trace has {requests} requests")


def shape_name(contexts):
    """Of the requests' contexts: "16 x 8192", or "64 ragged, 91 to 4050"."""
    if len(set(contexts)) == 1:
        return f"{len(contexts)} x {contexts[0]}"
    return f"{len(contexts)} ragged, {min(contexts)} to {max(contexts)}"


def decode_line(times_ms, tokens, kernels):
    """The figures of a shape with one backend, from the times of its steps, the tokens that they made, and the kernels of a step."""
    total = sum(times_ms)
    return {"ms_per_step": statistics.median(times_ms), "tokens_per_s": 1000 * tokens / total, "steps": len(times_ms),
            "us_by_part": microseconds_by_part(kernels),
            "kernels": dict(sorted(kernels.items(), key=lambda item: -item[1])[:12])}


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def agreement(wanted, got):
    """How the answers of a backend agree with the peer's, each [{"tokens": [id], "logprobs": [of each token]}], one for each prompt.

    "first" and "same": prompts with the same first token, and with the same tokens. "largest": by how much the log-probabilities of both differ at
    most, up to and with the first different token. There both took their own likeliest token, so that near ties differ by little, too.
    """
    made = {"prompts": len(wanted), "first": 0, "same": 0, "tokens": 0, "largest": 0.0}
    for one, other in zip(wanted, got, strict=True):
        pairs = list(zip(one["tokens"], other["tokens"], one["logprobs"], other["logprobs"], strict=True))
        equal = next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), len(pairs))
        made["first"] += equal > 0
        made["same"] += equal == len(pairs)
        made["tokens"] += equal
        made["largest"] = max([made["largest"], *(abs(pair[2] - pair[3]) for pair in pairs[:equal + 1])])
    return made


def engine_of(results):
    return ENGINES[results.get("engine", "vllm")]


def name_of(results, backend):
    return "leanattn" if backend == engine_of(results).own else backend


def peer_of(results):
    return results.get("peer", "FLASH_ATTN")


def speed_ups(results, part=None):
    """For each shape that both have: the time of the peer over that of leanattn, of a whole step or of a part of it."""
    def time(line):
        return line["ms_per_step"] if part is None else line["us_by_part"][part]

    own, peer = (results["backends"].get(name, {}).get("shapes", {}) for name in (engine_of(results).own, peer_of(results)))
    return {shape: time(peer[shape]) / time(own[shape]) for shape in peer if shape in own and time(own[shape]) > 0}


def markdown(results):
    engine = engine_of(results)
    text = [f"# Decode in {engine.title}\n\n{measured_on(results['environment'])}\n\nA model of {results['model']} with random weights decodes in "
            f"{engine.title}, {engine.steps}, with each attention backend in a process of its own, in turn. *Attention* is the time of the attention "
            "kernels on the GPU in a step, from the profiler, and *of the step* its share of all kernels; the update of the cache is not in it."
            + ("" if results.get("compiled", True) else " vLLM's own compilation of the model is off.")]
    shapes = list(dict.fromkeys(shape for backend in results["backends"].values() for shape in backend.get("shapes", {})))
    for shape in shapes:
        rows = []
        for name, backend in results["backends"].items():
            line = backend.get("shapes", {}).get(shape)
            if line is None:
                continue
            parts = line["us_by_part"]
            rows.append([name_of(results, name), f"{line['ms_per_step']:.3f}", f"{line['tokens_per_s']:.0f}", f"{parts['attention']:.0f}",
                         f"{100 * parts['attention'] / sum(parts.values()):.0f} %"])
        text += [f"## {shape}", table(["backend", "ms a step", "tokens a second", "attention, us", "of the step"], rows)]
    ratios = [(title, values) for title, part in (("a step", None), ("attention in a step", "attention")) if (values := speed_ups(results, part))]
    if ratios:
        text += [f"## leanattn over {peer_of(results)}", table(["", *ratios[0][1], "geometric mean"], [
            [title, *(f"{value:.3f}" for value in values.values()), f"{geometric_mean(values.values()):.3f}"] for title, values in ratios])]
    rows = [[name_of(results, name), f"{of['first']} of {of['prompts']}", f"{of['same']} of {of['prompts']}", f"{of['tokens']}", f"{of['largest']:.3f}"]
            for name, backend in results["backends"].items() if (of := backend.get("agreement"))]
    if rows:
        text += ["## Tokens", f"Greedy answers to prompts of several lengths, beside those of {peer_of(results)}. Two kernels that sum in different "
                 "orders give logits that differ in their last bits, so answers part where two tokens are nearly tied. *Log-probabilities* is by how much "
                 "those of both backends' tokens differ at most, up to and with the first different token.",
                 table(["backend", "same first token", "same answer", "tokens before a difference", "log-probabilities"], rows)]
    rows = [[name_of(results, name), f"{backend['start_s']:.1f}", f"{backend['warm_s']:.1f}", f"{backend['memory_bytes'] / 2**30:.2f}"]
            for name, backend in results["backends"].items() if "start_s" in backend]
    text += ["## Start and memory", "*Start* is making the engine, graphs and plans included, and *first steps* what the first requests add to that. "
             "*Memory* is what the GPU has allocated beyond weights and KV cache.",
             table(["backend", "start, s", "first steps, s", "memory, GiB"], rows)]
    left_out = [f"{name_of(results, name)}: {escape(backend['error'])}" for name, backend in results["backends"].items() if "error" in backend]
    if left_out:
        text += ["## Not measured", "\n".join(f"- {line}" for line in left_out)]
    return "\n\n".join(text) + "\n"
