"""mixed_report.py -- the Markdown of a run, from its JSON record alone."""
import statistics

from peers import markdown_parts, summary

SUM = "decode + prefill"
PEERS = ("FA3", "FA3 best split", "FA3 two launches", "FA3 two streams", "FlashInfer persistent", "FlashInfer fa3", "FlashInfer fa2", "FA4", "cuDNN")
DENSE = ("FA4 dense", "cuDNN dense")  # of steps with pages: what other kernels take without pages, which is no peer's time
COLUMNS = (summary.OURS, SUM, *PEERS, *DENSE)
GROUPS = {"mixed": "Decodes beside chunks", "chunks": "Chunks, and several query tokens of each request", "uniform": "Whole prompts",
          "drawn mixed": "Drawn: decodes beside chunks", "drawn chunks": "Drawn: chunks", "drawn uniform": "Drawn: whole prompts",
          "fp8": "Caches of fp8 e4m3", "latent": "Latent prompts, keys of 192 and values of 128 columns", "head sizes": "Other head sizes",
          "windows": "Windows"}
LEAST = 0.97  # speed-ups below it are listed
SHARE = 1 / 3  # of a sum that both launches must take for one launch to gain much


def markdown(results):
    parts = [head(results)]
    for group, title in GROUPS.items():
        cases = [case for case in results["cases"] if case["list"] == group]
        if cases:
            parts += [f"## {title}", table(cases), *sums(cases)]
    return "\n\n".join(parts + failures(results)) + "\n"


def head(results):
    missing = [f"{name} is left out: {markdown_parts.escape(reason)}." for name, reason in results["not_installed"].items()]
    return ("# Mixed steps: leanattn and its peers\n\n"
            f"{markdown_parts.measured_on(results['environment'])} The drawn steps are those of `--seed {results['seed']}`.\n\n"
            "Each time is the median of interleaved rounds, in microseconds a step, of a CUDA graph's replay, with a cold L2. Query tokens are causal and "
            f"end their contexts. K and V are bf16, in pages of 16 tokens in random order ({results['layout']}), and dense where there is no cache yet "
            "(latent prompts). A step's name has its query heads / KV heads; heads have 128 columns unless it says otherwise.\n\n"
            f"- *leanattn*: one launch. *{SUM}*: leanattn's decode launch and, after it, the better of leanattn's and FA3's launches for the other "
            "requests.\n"
            "- *FA3*: FlashAttention-3 as engines call it, and with its best number of splits; in two launches, each with its best number, one after the "
            "other and on two streams.\n"
            "- *FlashInfer*: BatchAttention (persistent), and batch prefill in its two forms. Their plans, made on the host for every step, are not in "
            "the times.\n"
            "- *dense*: K and V without pages, which is no peer's time here.\n"
            "- *speed-up*: the time of the best peer over leanattn's, with its 95 % bootstrap interval.\n"
            f"- *of {SUM}*: leanattn's time over this sum; in brackets where one of its two launches takes less than a third of it.\n"
            "- *TFLOP/s*: leanattn's, without what masks hide." + "".join(f"\n\n{line}" for line in missing))


def lines_of(case):
    """The fastest line of each column that has one."""
    measured = case["modes"].get("cold")
    return {column: line for column in COLUMNS if (line := summary.best_line(measured, column))}


def best_peer(lines):
    return min((lines[peer] for peer in PEERS if peer in lines), key=summary.median_us, default=None)


def table(cases):
    columns = [column for column in COLUMNS if any(column in lines_of(case) for case in cases)]
    return markdown_parts.table(["step", "MB", *columns, "speed-up", f"of {SUM}", "TFLOP/s", "provenance"], [row(case, columns) for case in cases])


def row(case, columns):
    lines = lines_of(case)
    ours, peer = lines.get(summary.OURS), best_peer(lines)
    cells = [markdown_parts.escape(case["name"]), f"{case['kv_bytes'] / 1e6:.4g}",
             *(f"{summary.median_us(lines[column]):.1f}" if column in lines else "-" for column in columns)]
    if not ours:
        return cells + ["-"] * 4
    speed_up = summary.ratios(peer, ours) if peer else []
    low, high = summary.median_interval(speed_up) if peer else (0, 0)
    return cells + [f"{statistics.median(speed_up):.3f} ({low:.3f} to {high:.3f})" if peer else "-", of_sum(lines),
                    f"{case['flops'] / summary.median_us(ours) / 1e6:.0f}", ours["facts"].get("provenance", "-")]


def both_count(line):
    """Whether both launches of a sum take at least SHARE of it."""
    times = line["facts"]["decode_us"], line["facts"]["prefill_us"]
    return min(times) >= SHARE * sum(times)


def of_sum(lines):
    if not (SUM in lines and summary.OURS in lines):
        return "-"
    text = f"{statistics.median(summary.ratios(lines[summary.OURS], lines[SUM])):.3f}"
    return text if both_count(lines[SUM]) else f"({text})"


def sums(cases):
    """Sentences: the geometric mean of the speed-ups, which steps are behind, and the largest share of the sum."""
    found = [(lines, case["name"]) for case in cases if (lines := lines_of(case)) and summary.OURS in lines]
    pairs = [(summary.ratios(best_peer(lines), lines[summary.OURS]), name) for lines, name in found if best_peer(lines)]
    said = []
    if pairs:
        total = summary.summed_up("best peer", [series for series, _ in pairs], [name for _, name in pairs])
        behind = [f"{name} ({statistics.median(series):.3f})" for series, name in pairs if statistics.median(series) < LEAST]
        said.append(f"Speed-up over the best peer: {total['geometric_mean']:.3f} in geometric mean of {len(pairs)} steps ({total['low']:.3f} to "
                    f"{total['high']:.3f}), from {total['min']:.3f} ({total['min_shape']}) to {total['max']:.3f} ({total['max_shape']}). Below {LEAST}: "
                    f"{markdown_parts.escape('; '.join(behind)) or 'none'}.")
    shares = [(statistics.median(summary.ratios(lines[summary.OURS], lines[SUM])), name) for lines, name in found if SUM in lines and both_count(lines[SUM])]
    if shares:
        said.append(f"Of {SUM}, where both take at least a third of it: at most {max(shares)[0]:.3f} ({max(shares)[1]}).")
    return said


def failures(results):
    """What did not run, each reason once; and what broke the run."""
    steps = {}
    for case in results["cases"]:
        for failure in case["failures"]:
            steps.setdefault((failure["system"], failure["variant"], failure["reason"]), []).append(case["name"])
    lines = [f"- {system}, {variant}, {f'{len(names)} steps, such as ' if len(names) > 1 else ''}{names[0]}: {markdown_parts.escape(reason)}"
             for (system, variant, reason), names in steps.items()]
    lines += [f"- not tuned: {name}: {markdown_parts.escape(reason)}" for name, reason in results["not_tuned"].items()]
    if "broke" in results:
        lines.append("- the run ended: {system}, {variant}, {name}: {reason}".format_map(results["broke"]))
    return ["## What did not run", "\n".join(lines)] if lines else []


def progress(case):
    """A line for the terminal."""
    times = ", ".join(f"{column} {summary.median_us(line):.1f}" for column, line in lines_of(case).items())
    return f"{case['list']}: {case['name']}: {times or 'no figures'}"


def ideal(results):
    """The page of --ideal."""
    def state(each, *names):
        return [f"{each['gpu_state'][name]:.0f}" if name in each["gpu_state"] else "-" for name in names]

    reads = [[str(each["sms"]), f"{each['gbps']:.0f}", f"{each['gbps'] / each['sms']:.1f}", *state(each, "sm_mhz", "memory_mhz", "watts")]
             for each in results["reads"]]
    steps = [[markdown_parts.escape(each["name"]), f"{each['decode_bytes'] / 1e6:.4g}", f"{each['decode_us']:.1f}", f"{each['prefill_us']:.1f}",
              *state(each, "sm_mhz", "watts"), f"{each['ideal_us']:.1f}"] for each in results["steps"]]
    return "\n\n".join([
        f"# The ideal of mixed steps\n\n{markdown_parts.measured_on(results['environment'])}",
        "N SMs read pieces of 4 KiB, which are 16 tokens of one KV head, in random order, with 192 KiB in flight on each. Clocks and power are NVML's "
        "meanwhile.",
        markdown_parts.table(["SMs", "GB/s", "GB/s of one", "SM MHz", "memory MHz", "W"], reads),
        "*decodes* is the time in which the SMs that read fastest read the bytes of the decodes. *prefill* is that of FlashAttention-3 for the other "
        "requests alone, with its best number of splits, and beside it the clock and the power. *ideal* is the time of all SMs for both: the bytes of the "
        "decodes at the rate of one SM where few read, and the SM time of the prefill. It is no less than *decodes*.",
        markdown_parts.table(["step", "MB of decodes", "decodes", "prefill", "SM MHz", "W", "ideal"], steps)]) + "\n"
