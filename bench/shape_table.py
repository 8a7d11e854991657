#!/usr/bin/env python3
"""shape_table.py -- tunes and benches the 25 dense decode shapes that published kernels are compared on, and two ragged batches.

    bench/shape_table.py --program build/cli/leanattn --out bench/results/h200 [--budget 8s] [--only 4,12] [--skip-tune]

Runs `leanattn tune` once per problem (all its shapes together, --budget per shape) and `leanattn bench` per shape, every mode interleaved
with the measured read limit. Writes shape_table.json (provenance and raw samples, as bench prints them) and shape_table.md. Needs a GPU;
only the standard library. The reference column is a kernel measured on one H200 by the same method (graph replay, cold L2).
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys

# (batch, query heads, KV heads, head_dim, context): reference us on an H200, None where it was not measured.
SHAPES = {
    (1, 32, 32, 128, 1024): 10.5, (1, 32, 32, 128, 8192): 36.6, (1, 32, 32, 128, 65536): 238, (16, 32, 32, 128, 4096): 240,
    (1, 32, 8, 128, 1024): 7.5, (1, 32, 8, 128, 8192): 14.7, (1, 32, 8, 128, 32768): 37.9, (1, 32, 8, 128, 131072): 125,
    (1, 32, 8, 128, 524288): 470, (16, 32, 8, 128, 4096): 63.9, (64, 32, 8, 128, 4096): 242, (8, 32, 8, 128, 32768): 240,
    (1, 8, 1, 128, 8192): 12.5, (1, 8, 1, 128, 131072): 30.3, (32, 8, 1, 128, 8192): 39.4,
    (1, 56, 56, 64, 8192): 33.4, (1, 56, 56, 64, 65536): 214, (1, 56, 56, 64, 262144): 812, (1, 24, 24, 64, 65536): 97.6,
    (1, 16, 16, 64, 524288): 469, (1, 40, 10, 128, 16384): 28.0, (3, 40, 10, 128, 16384): 63.4,
    (1, 16, 8, 256, 8192): None, (8, 16, 8, 256, 8192): None, (5, 12, 12, 64, 3000): 17.1,
}
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
    parser.add_argument("--budget", default="8s", help="tuning time per shape")
    parser.add_argument("--only", default="", help="rows of the table, by number, comma-separated")
    parser.add_argument("--skip-tune", action="store_true", help="use the tuning database as it is")
    parser.add_argument("--report-only", action="store_true", help="write shape_table.md again from shape_table.json; needs no GPU")
    options = parser.parse_args()
    chosen = [int(i) for i in options.only.split(",") if i] or range(len(SHAPES))
    shapes = [list(SHAPES)[i] for i in chosen]

    reports = json.loads((options.out / "shape_table.json").read_text()) if options.report_only else measure(options, shapes)
    names = [(f"{batch}, {q_heads}/{kv_heads}, {head_dim}, {context}", SHAPES[shape]) for shape in shapes for batch, q_heads, kv_heads, head_dim, context in [shape]]
    names += [(name, None) for name, _ in RAGGED]
    rows = [(name, reference, lines_of(report)) for (name, reference), report in zip(names, reports)]
    reference_ratios = []

    table = ["| shape (B, Hq/Hkv, d, context) | lean us | FA2 mode | FD mode | read limit | of the limit | reference | lean / reference |",
             "|---|---|---|---|---|---|---|---|"]
    ratios = []
    for name, reference, lines in rows:
        lean, read = lines["lean"]["median_us"], lines["read"]["median_us"]
        ratios.append(lean / read)
        if reference:
            reference_ratios.append(lean / reference)
        table.append(f"| {name} | {lean:.2f} | {lines['fa2']['median_us']:.2f} | {lines['fd']['median_us']:.2f} | {read:.2f} | {read / lean:.0%} | "
                     f"{reference or '-'} | {f'{lean / reference:.3f}' if reference else '-'} |")
    geometric = lambda values: math.exp(sum(map(math.log, values)) / len(values))
    table.append("")
    table.append(f"Geometric means: time over the read limit {geometric(ratios):.3f}; lean over the reference {geometric(reference_ratios):.3f}, at most {max(reference_ratios):.3f}.")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "shape_table.json").write_text(json.dumps(reports))
    (options.out / "shape_table.md").write_text("\n".join(table) + "\n")
    print("\n".join(table))


def lines_of(report):
    shapes = report["reports"] if "reports" in report else report
    first = shapes[0] if isinstance(shapes, list) else shapes
    return {line["mode"]: line for line in first["lines"]}


if __name__ == "__main__":
    main()
