"""latent_report.py -- the Markdown of a run, from its JSON record alone."""
import statistics

from peers import markdown_parts, summary

PEERS = {"FlashMLA": ("FlashMLA", "kernel"), "FlashMLA + metadata": ("FlashMLA", "metadata and kernel")}
TITLES = {"fixed": "Fixed steps", "selected": "Selected tokens", "rows": "Selected tokens, rows of 656 bytes",
          "split": "Selected tokens and a window, rows of 584 bytes", "drawn": "Steps drawn at random"}


def markdown(results):
    parts = [head(results)]
    for group, title in TITLES.items():
        cases = [case for case in results["cases"] if case["list"] == group and summary.timed(case["modes"].get("cold"))]
        if cases:
            parts += [f"## {title}", table(cases), sums(cases)]
    failures = [f"- {case['name']}: {failure['system']} {failure['variant']}: {markdown_parts.escape(failure['reason'])}"
                for case in results["cases"] for failure in case["failures"]]
    if failures:
        parts += ["## Failures", "\n".join(failures)]
    return "\n\n".join(parts) + "\n"


def head(results):
    return (f"# Latent caches: leanattn and its peers\n\n{markdown_parts.measured_on(results['environment'])}\n\n"
            "Each time is the median of interleaved rounds, in microseconds a launch, of a CUDA graph's replay, with a cold L2. The cache has "
            "bf16 rows of 576 columns, of which 512 are values, in pages of 64 tokens in random order. Several query tokens are causal.\n\n"
            "- *read limit*: the best of several kernels that only read the same bytes.\n"
            "- *FlashMLA*: its kernel alone. *+ metadata*: with the kernel that makes its schedule, which runs whenever lengths change.\n"
            "- *FA3*: FlashAttention-3 with its best number of splits.\n"
            "- *speed-up*: the time of the best peer, FlashMLA without metadata or FA3, over leanattn's, with its 95 % bootstrap interval.\n"
            "- *TFLOP/s*, *GB/s*: leanattn's, of both matrix products and of the bytes of the cache.")


def table(cases):
    pdl = any(summary.best_line(case["modes"]["cold"], summary.OURS, True) for case in cases)
    titles = ["step (batch, heads, q tokens, context)", "MB", "read limit", "leanattn", *(["+ PDL"] if pdl else []), *PEERS, "FA3", "speed-up",
              "over limit", "TFLOP/s", "GB/s", "provenance"]
    return markdown_parts.table(titles, [row(case, pdl) for case in cases])


def row(case, pdl):
    measured = case["modes"]["cold"]
    limit, ours = summary.best_line(measured, summary.LIMIT), summary.best_line(measured, summary.OURS)
    lines = [limit, ours, *([summary.best_line(measured, summary.OURS, True)] if pdl else []), *(line_of(measured, *peer) for peer in PEERS.values()),
             summary.best_line(measured, "FA3")]
    peer = best_peer(measured)
    cells = [markdown_parts.escape(case["name"]), f"{case['kv_bytes'] / 1e6:.4g}", *(f"{summary.median_us(line):.2f}" if line else "-" for line in lines)]
    if not ours:
        return cells + ["-"] * 5
    low, high = summary.median_interval(summary.ratios(peer, ours)) if peer else (0, 0)
    us = summary.median_us(ours)
    return cells + [f"{statistics.median(summary.ratios(peer, ours)):.3f} ({low:.3f} to {high:.3f})" if peer else "-",
                    f"{statistics.median(summary.ratios(ours, limit)):.3f}" if limit else "-", f"{case['flops'] / us / 1e6:.0f}",
                    f"{case['kv_bytes'] / us / 1e3:.0f}", ours["facts"].get("provenance", "-")]


def line_of(mode, system, variant):
    return next((line for line in summary.timed(mode) if line["system"] == system and line["variant"] == variant), None)


def best_peer(mode):
    """The fastest of FlashMLA without its metadata and FlashAttention-3, or None."""
    lines = [line for line in (line_of(mode, *PEERS["FlashMLA"]), summary.best_line(mode, "FA3")) if line]
    return min(lines, key=summary.median_us, default=None)


def sums(cases):
    """The geometric mean of the speed-ups, and how often leanattn is ahead."""
    pairs = [(best_peer(case["modes"]["cold"]), summary.best_line(case["modes"]["cold"], summary.OURS), case["name"]) for case in cases]
    pairs = [pair for pair in pairs if pair[0] and pair[1]]
    if not pairs:
        return ""
    series = [summary.ratios(peer, ours) for peer, ours, _ in pairs]
    sum_ = summary.summed_up("best peer", series, [name for *_, name in pairs])
    ahead = sum(statistics.median(values) > 1 for values in series)
    return (f"Speed-up over the best peer: {sum_['geometric_mean']:.3f} in geometric mean ({sum_['low']:.3f} to {sum_['high']:.3f}), "
            f"from {sum_['min']:.3f} ({sum_['min_shape']}) to {sum_['max']:.3f} ({sum_['max_shape']}); ahead at {ahead} of {len(series)} steps.")
