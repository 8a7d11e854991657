"""Times what features cost: each beside the dense bf16 kernel of the same heads and lengths, through leanattn's C interface.

    python3 bench/features --library build/shared/libleanattn.so --program build/release/cli/leanattn --tune 4s --out results

All variants run in one process, as CUDA graphs in interleaved rounds, with a cold L2. Before anything is timed, every variant's result must
agree with attention in FP64 on the same (dequantised) data. This program needs a GPU and PyTorch. It writes features.json (raw samples) and
features.md. Exit codes: 0 done, 2 wrong usage, 5 a result was wrong.
"""
import argparse
import datetime
import math
import pathlib
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for the packages beside this one

import shape_table  # noqa: E402  (the path first)
import variants  # noqa: E402
from peers import files, leanattn_c, summary  # noqa: E402

COLD_BYTES = 256 << 20  # of all copies of K and V that a graph reads in turn; it is more than four times the L2 of any supported GPU
MOST_ERROR = 0.02  # of O, whose elements are below 1


def main():
    options = parse()
    if options.report_only:
        files.write_text(options.out / "features.md", variants.markdown(files.read_json(options.out / "features.json")))
        return 0
    chosen = [variant for variant in variants.VARIANTS if not options.only or any(name in variant.name for name in ["dense", *options.only.split(",")])]
    if options.tune:
        tune(options, chosen)
    return measure(options, chosen)


def parse():
    parser = argparse.ArgumentParser(prog="features", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libleanattn.so")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--db", type=pathlib.Path, help="cache directory with leanattn's tuning database; default: the user's")
    parser.add_argument("--tune", metavar="TIME", help="first tune every variant and shape with --program, this long each, e.g. 4s; variants with append have the winners of those without")
    parser.add_argument("--program", type=pathlib.Path, help="the leanattn program, for --tune")
    parser.add_argument("--only", default="", help="time only variants whose name contains one of these, comma-separated, and dense")
    parser.add_argument("--seconds", type=float, default=1.0, help="time of a shape's race, which has 15 to 31 rounds whatever this is (%(default)s)")
    parser.add_argument("--report-only", action="store_true", help="write Markdown again from features.json or features.json.gz; needs no GPU")
    options = parser.parse_args()
    if not options.report_only and not options.library:
        parser.error("--library is missing")
    if options.tune and not options.program:
        parser.error("--tune needs --program")
    return options


def tune(options, chosen):
    database = ["--db", str(options.db.resolve())] if options.db else []
    for batch, *heads, context in variants.SHAPES:
        for variant in variants.tunings(chosen):
            shape_table.run(str(options.program), ["--quiet", *database, "tune", *shape_table.problem_flags(*heads), "--batch", str(batch),
                                                   "--context", str(context // variant.selected), "--layout", variant.layout, "--budget", options.tune, *variant.flags])


def measure(options, chosen):
    import torch

    from peers import environment, timing

    library = leanattn_c.Library(options.library)
    engine = leanattn_c.Engine(library, torch.cuda.current_device(), options.db)
    results = {"schema_version": 1, "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
               "generator_revision": generator_revision(options), "environment": environment.environment([]), "cases": []}
    wrong = False
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        for shape in variants.SHAPES:
            case, replays, lines = {"name": variants.shape_name(shape), "kv_megabytes": variants.kv_bytes(variants.DENSE, shape) / 1e6, "lines": [], "failures": {}}, [], []
            results["cases"].append(case)
            source = Source(torch, shape)
            for variant in chosen:
                try:
                    step = Step(torch, engine, source, variant)
                except leanattn_c.LeanattnError as problem:
                    case["failures"][variant.name] = str(problem)
                    continue
                error = step.error()
                if not error < MOST_ERROR:
                    case["failures"][variant.name] = f"wrong: error {error:.3g}"
                    wrong = True
                    continue
                launches = timing.launches_for(variants.kv_bytes(variant, shape), step.copies)
                replays.append(timing.Replay(step.launch, step.copies, launches))
                lines.append({"variant": variant.name, "error": error, "kernel": step.info["kernel_name"],
                              "grid": step.info["grid"], "provenance": step.info["provenance"], "step": step})
            samples = timing.race(replays, options.seconds, seed=1)
            dense = {"samples_us": samples[0]}
            for line, of_line in zip(lines, samples, strict=True):
                del line["step"]
                ratios = summary.ratios({"samples_us": of_line}, dense)
                low, high = summary.median_interval(ratios)
                case["lines"].append({**line, "us": statistics.median(of_line), "ratio": statistics.median(ratios), "low": low, "high": high,
                                      "samples_us": of_line})
            files.write_json(options.out / "features.json", results)
            replays.clear()
            del source
            torch.cuda.empty_cache()
    files.write_text(options.out / "features.md", variants.markdown(results))
    print(variants.markdown(results))
    return 5 if wrong else 0


def generator_revision(options):
    if not options.program:
        return None
    said = subprocess.run([str(options.program), "doctor"], capture_output=True, text=True).stdout
    found = re.search(r"\b[0-9a-f]{32}\b", said)
    return found.group(0) if found else None


class Source:
    """Keys and values of a shape in bf16, and how many copies of them make the L2 cold."""

    def __init__(self, torch, shape):
        self.shape = shape
        batch, self.q_heads, kv_heads, head_dim, context = shape
        generator = torch.Generator(device="cuda").manual_seed(1)
        self.k = torch.randn(batch, kv_heads, context, head_dim, device="cuda", dtype=torch.bfloat16, generator=generator)
        self.v = torch.randn(batch, kv_heads, context, head_dim, device="cuda", dtype=torch.bfloat16, generator=generator)
        self.lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")


class Step:
    """One variant of one shape, ready to launch on any of its copies of K and V."""

    def __init__(self, torch, engine, source, variant):
        self.torch, self.source, self.variant = torch, source, variant
        batch, q_heads, kv_heads, head_dim, context = source.shape
        self.q_len = variant.field("q_len", 1)
        fields = {**dict(variant.fields), "kv_layout": int(variant.layout == "strided")}
        # With a selection, what leanattn calls a context is what a query token sees of it.
        seen = context // variant.selected
        self.plan = engine.query(q_heads, kv_heads, head_dim, batch, seen, batch * seen, stream=stream(torch), **fields).plan()
        self.info = self.plan.info()
        generator = torch.Generator(device="cuda").manual_seed(2)
        self.q = torch.randn(batch, self.q_len, q_heads, head_dim, device="cuda", dtype=torch.bfloat16, generator=generator)
        self.out = torch.full_like(self.q, float("nan"))
        size = self.plan.workspace_bytes()
        self.workspace = torch.empty(max(size, 256), dtype=torch.uint8, device="cuda")
        self.plan.init_workspace(self.workspace.data_ptr(), size, stream(torch))

        k, v, more = source.k, source.v, {}
        self.k_used, self.v_used = k, v
        if variant.format:
            k, k_scale, self.k_used = quantised(torch, k, variant.format)
            v, v_scale, self.v_used = quantised(torch, v, variant.format)
            self.scales = k_scale, v_scale
            more = {"k_scale": k_scale.data_ptr(), "v_scale": v_scale.data_ptr()}
        if variant.field("append"):
            self.new = [x[:, :, -self.q_len:].transpose(1, 2).contiguous() for x in (k, v)]
            k, v = (torch.cat([x[:, :, :-self.q_len], torch.zeros_like(x[:, :, -self.q_len:])], dim=2) for x in (k, v))
            more |= {"k_new": self.new[0].data_ptr(), "v_new": self.new[1].data_ptr()}
        page = variant.field("page_size")
        capacity = context
        if page:
            self.table, pages = scattered(torch, batch, -(-context // page))
            k, v = (pool(torch, x, self.table, page, pages, variant.layout) for x in (k, v))
            more |= {"page_table": self.table.data_ptr(), "max_pages": self.table.shape[1], "pool_pages": pages}
            capacity = 0
        if variant.selected > 1:
            self.selection, self.counts = self.select(generator)
            more |= {"selection": self.selection.data_ptr(), "selected_counts": self.counts.data_ptr(), "selection_capacity": self.selection.shape[-1]}
        self.copies = max(1, math.ceil(COLD_BYTES / variants.kv_bytes(variant, source.shape)))
        if variant.packed:
            self.pools = [torch.cat([k, v], dim=-1) for _ in range(self.copies)]
            self.k, self.v = ([both[..., part] for both in self.pools] for part in (slice(k.shape[-1]), slice(k.shape[-1], None)))
            more |= {f"{x}_stride_{name}": stride for x in "kv" for name, stride in zip(("batch", "token", "head"), self.k[0].stride())}
        else:
            self.k, self.v = ([x] + [x.clone() for _ in range(self.copies - 1)] for x in (k, v))
        self.arguments = [self.plan.arguments(self.q.data_ptr(), self.k[i].data_ptr(), self.v[i].data_ptr(), self.out.data_ptr(),
                                              source.lengths.data_ptr(), batch, capacity, **more) for i in range(self.copies)]

    def select(self, generator):
        """The blocks that each query token sees through each KV head, in rising order: [batch, q_len, kv_heads, entries], and their counts."""
        torch, block = self.torch, self.variant.field("selection_block")
        batch, _, kv_heads, _, context = self.source.shape
        blocks = context // block
        draws = torch.rand(batch, self.q_len, kv_heads, blocks, device="cuda", generator=generator)
        chosen = draws.topk(blocks // self.variant.selected, dim=-1).indices.sort(dim=-1).values.int().contiguous()
        return chosen, torch.full((batch, self.q_len), chosen.shape[-1], dtype=torch.int32, device="cuda")

    def launch(self, copy):
        self.plan.launch(self.arguments[copy], self.workspace.data_ptr(), stream(self.torch))

    def error(self):
        """The largest difference from attention in FP64 in the first and the last request, over every copy."""
        torch, worst = self.torch, 0.0
        batch, q_heads, kv_heads, head_dim, context = self.source.shape
        expected = {request: self.attention(request) for request in {0, batch - 1}}
        for copy in range(self.copies):
            self.out.fill_(float("nan"))
            self.launch(copy)
            torch.cuda.synchronize()
            for request, o in expected.items():
                difference = (self.out[request].double() - o).abs().max().item()
                worst = max(worst, difference) if difference == difference else float("inf")
        return worst

    def attention(self, request):
        torch, variant = self.torch, self.variant
        batch, q_heads, kv_heads, head_dim, context = self.source.shape
        group, out = q_heads // kv_heads, []
        position = context - self.q_len + torch.arange(self.q_len, device="cuda")
        token = torch.arange(context, device="cuda")
        seen = token[None] <= position[:, None]
        if window := variant.field("window"):
            seen &= (token[None] > position[:, None] - window) | (token[None] < variant.field("sink_tokens"))
        for head in range(kv_heads):
            q = self.q[request, :, head * group:(head + 1) * group].double()
            scores = torch.einsum("tgd,jd->gtj", q, self.k_used[request, head].double()) / math.sqrt(head_dim)
            if cap := variant.field("soft_cap"):
                scores = cap * torch.tanh(scores / cap)
            of_head = seen
            if variant.selected > 1:
                named = torch.zeros(self.q_len, context // variant.field("selection_block"), dtype=torch.bool, device="cuda")
                named.scatter_(1, self.selection[request, :, head].long(), True)
                of_head = seen & named.repeat_interleave(variant.field("selection_block"), 1)
            weights = torch.softmax(scores.masked_fill(~of_head[None], float("-inf")), dim=-1)
            out.append(torch.einsum("gtj,jd->tgd", weights, self.v_used[request, head].double()))
        return torch.cat(out, dim=1)


def stream(torch):
    return torch.cuda.current_stream().cuda_stream


def quantised(torch, x, name):
    """The tensor with one byte an element, its scale, and the values that it then stands for."""
    dtype = getattr(torch, name)
    most = 127.0 if name == "int8" else torch.finfo(dtype).max
    scale = (x.abs().max().float() / most).reshape(1)
    small = (x.float() / scale)
    small = small.round().to(dtype) if name == "int8" else small.to(dtype)
    return small, scale, small.float() * scale


def scattered(torch, batch, pages_each):
    """A page table whose pages lie in random order in a pool with some to spare."""
    pages = batch * pages_each + 16
    order = torch.randperm(pages, device="cuda", generator=torch.Generator(device="cuda").manual_seed(3))
    return order[:batch * pages_each].reshape(batch, pages_each).int().contiguous(), pages


def pool(torch, x, table, page, pages, layout):
    batch, heads, context, dim = x.shape
    blocks = x.view(torch.uint8 if x.element_size() == 1 else x.dtype).reshape(batch, heads, context // page, page, dim)
    blocks = blocks.permute(0, 2, 1, 3, 4) if layout == "contiguous" else blocks.permute(0, 2, 3, 1, 4)
    made = torch.zeros((pages, *blocks.shape[2:]), dtype=blocks.dtype, device="cuda")
    made[table.long().reshape(-1)] = blocks.reshape(-1, *blocks.shape[2:])
    return made


if __name__ == "__main__":
    sys.exit(main())
