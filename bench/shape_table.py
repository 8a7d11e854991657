#!/usr/bin/env python3
"""shape_table.py -- tunes and times the 25 dense decode shapes that published kernels are compared on, and two ragged batches.

    bench/shape_table.py --program build/cli/leanattn --out bench/results/h200 [--budget 8s] [--only 4,12] [--skip-tune]

It runs `leanattn tune` once per problem (for all its shapes together, with --budget for each) and `leanattn bench` for each shape, which
interleaves its modes with the measured read limit. It writes shape_table.json (provenance and raw samples, as bench prints them) and
shape_table.md. It needs a GPU, and of Python only the standard library.
"""
import argparse
import json
import pathlib
import subprocess
import sys

from peers import files, summary
from peers.markdown_parts import table

# (batch, query heads, KV heads, head_dim, context)
SHAPES = [
    (1, 32, 32, 128, 1024), (1, 32, 32, 128, 8192), (1, 32, 32, 128, 65536), (16, 32, 32, 128, 4096),
    (1, 32, 8, 128, 1024), (1, 32, 8, 128, 8192), (1, 32, 8, 128, 32768), (1, 32, 8, 128, 131072),
    (1, 32, 8, 128, 524288), (16, 32, 8, 128, 4096), (64, 32, 8, 128, 4096), (8, 32, 8, 128, 32768),
    (1, 8, 1, 128, 8192), (1, 8, 1, 128, 131072), (32, 8, 1, 128, 8192),
    (1, 56, 56, 64, 8192), (1, 56, 56, 64, 65536), (1, 56, 56, 64, 262144), (1, 24, 24, 64, 65536),
    (1, 16, 16, 64, 524288), (1, 40, 10, 128, 16384), (3, 40, 10, 128, 16384),
    (1, 16, 8, 256, 8192), (8, 16, 8, 256, 8192), (5, 12, 12, 64, 3000),
]
RAGGED = [
    ("131072 + 31 x 1024", [131072] + [1024] * 31),
    ("64, log-uniform 128..32768", [int(128 * 256 ** (i / 63)) for i in range(64)]),
]


def problem_flags(q_heads, kv_heads, head_dim):
    return ["--heads", str(q_heads), "--kv-heads", str(kv_heads), "--head-dim", str(head_dim)]


def run(program, arguments):
    print("+", "leanattn", *arguments, file=sys.stderr, flush=True)
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"leanattn {arguments[0]} ended with {done.returncode}")
    return done.stdout


def seconds(text):
    return float(text.rstrip("s"))


def measure(options, shapes):
    if not options.skip_tune:
        for problem in dict.fromkeys(shape[1:4] for shape in shapes):
            for batch in dict.fromkeys(s[0] for s in shapes if s[1:4] == problem):
                contexts = [str(s[4]) for s in shapes if s[1:4] == problem and s[0] == batch]
                run(options.program, ["--quiet", "tune", *problem_flags(*problem), "--batch", str(batch), "--context", ",".join(contexts),
                                      "--budget", f"{seconds(options.budget) * len(contexts):g}s"])
    bench = lambda *flags: json.loads(run(options.program, ["--quiet", "--json", "bench", *flags]))
    reports = [bench(*problem_flags(q_heads, kv_heads, head_dim), "--batch", str(batch), "--context", str(context))
               for batch, q_heads, kv_heads, head_dim, context in shapes]
    if not options.only:
        reports += [bench(*problem_flags(32, 8, 128), "--lengths", ",".join(map(str, lengths))) for _, lengths in RAGGED]
    return reports


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/cli/leanattn")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for shape_table.json and shape_table.md")
    parser.add_argument("--budget", default="8s", help="tuning time for each shape")
    parser.add_argument("--only", default="", help="rows of the table, by number, comma-separated")
    parser.add_argument("--skip-tune", action="store_true", help="use the tuning database as it is")
    parser.add_argument("--report-only", action="store_true", help="write shape_table.md again from shape_table.json or shape_table.json.gz; needs no GPU")
    options = parser.parse_args()
    if options.report_only:
        reports = files.read_json(options.out / "shape_table.json")
    else:
        chosen = [int(i) for i in options.only.split(",") if i] or range(len(SHAPES))
        reports = measure(options, [SHAPES[i] for i in chosen])
        files.write_json(options.out / "shape_table.json", reports)
    text = markdown(reports)
    files.write_text(options.out / "shape_table.md", text)
    print(text, end="")


def markdown(reports):
    """The page of the reports that `leanattn bench` printed, one for each shape."""
    rows, ratios = [], []
    for report in map(first_of, reports):
        us = {line["mode"]: line["median_us"] for line in report["lines"]}
        ratios.append(us["lean"] / us["read"])
        rows.append([name_of(report), *(f"{us[mode]:.2f}" for mode in ("lean", "fa2", "fd", "read")), f"{ratios[-1]:.3f}"])
    return (f"# Three kinds of grid\n\nMeasured on one {first_of(reports[0])['device']['name']}: microseconds a launch, medians, bf16, cold L2. *lean* is the tuned kernel. *FA2* is the best "
            "kernel whose grid has one CTA for each output tile, as that of FlashAttention-2; *FD* is the best one with equally many CTAs for each output tile, as FlashDecoding has. The "
            "*read limit* is the time of kernels that only read the same bytes.\n\n"
            + table(["shape (B, Hq/Hkv, d, context)", "lean", "FA2", "FD", "read limit", "lean over the limit"], rows)
            + f"\n\nThe geometric mean of lean's time over the read limit is {summary.geometric_mean(ratios):.3f}.\n")


def first_of(report):
    """The first shape of what `leanattn bench --json` printed."""
    shapes = report["reports"] if "reports" in report else report
    return shapes[0] if isinstance(shapes, list) else shapes


def name_of(report):
    problem, shape = report["problem"], report["shape"]
    for name, lengths in RAGGED:
        if (shape["batch"], shape["total_context"]) == (len(lengths), sum(lengths)):
            return name
    return f"{shape['batch']}, {problem['q_heads']}/{problem['kv_heads']}, {problem['head_dim']}, {shape['longest_context']}"


if __name__ == "__main__":
    main()
