"""report.py -- the Markdown of a run, from its JSON record alone."""
import statistics

from . import summary
from .markdown_parts import escape, measured_on, table

LISTS = {
    "published": "Published shapes, which were tuned",
    "ragged": "Ragged batches, whose kernels were tuned on uniform batches",
    "unusual": "Unusual shapes, which were not tuned",
    "drawn": "Shapes drawn at random, which were not tuned",
    "fresh": "Shapes drawn anew in this run, which were not tuned",
}


def markdown(results):
    """The whole report: for each L2 mode and list of shapes a table and its summary, then agreement with the oracle and failures."""
    parts = [head(results)]
    for mode in ("cold", "warm"):
        measured = [case for case in results["cases"] if summary.timed(case["modes"].get(mode))]
        if not measured:
            continue
        parts.append(f"## {mode.capitalize()} L2")
        for group, title in LISTS.items():
            cases = [case for case in measured if case["list"] == group]
            if cases:
                seed = f"The seed of these is {results['fresh_seed']}." if group == "fresh" else ""
                parts += [f"### {title}", seed, case_table(cases, mode), sums(cases, mode)]
        if len({case["list"] for case in measured}) > 1:
            parts += ["### All lists", sums(measured, mode)]
    parts.append(failures(results))
    return "\n\n".join(part for part in parts if part) + "\n"


def head(results):
    return (f"# leanattn and its peers\n\n{measured_on(results['environment'])}\n\n"
            "Each time is the median of interleaved rounds, in microseconds a launch, of a CUDA graph's replay. Every step has one query token a request, in bf16. "
            "With a cold L2, K and V rotate over copies of at least four times the L2; with a warm L2 every launch reads the same copy.\n\n"
            "- *read limit*: the best of several kernels that only read the same bytes.\n"
            "- *over limit*: leanattn's time over the read limit.\n"
            "- *best peer*: the fastest variant of all peers.\n"
            "- *speed-up*: the best peer's time over leanattn's, with its 95 % bootstrap interval. Above 1, leanattn is faster.\n"
            "- *provenance*: how leanattn's look-up chose its kernel. *exact* means that this very shape was tuned.\n"
            "- *plan() us*: host time of FlashInfer's plan(), which must run whenever lengths change. It is not part of FlashInfer's time. "
            "A variant called *exact* was planned for these lengths only; the others hold for a captured graph of changing lengths.\n"
            "- *+ PDL*: with programmatic dependent launch between consecutive launches.\n\n"
            "FlashInfer reads pages of 16 tokens, in the layout HND or NHD; the other systems read a dense cache.")


def case_table(cases, mode):
    systems = list(dict.fromkeys((line["system"], line["pdl"]) for case in cases for line in summary.timed(case["modes"][mode]) if line["system"] != summary.LIMIT))
    systems.sort(key=lambda pair: (pair[1], pair[0] != summary.OURS))
    has_pdl = any(system == summary.OURS and pdl for system, pdl in systems)
    plain = [system for system, pdl in systems if not pdl]
    dependent = [system for system, pdl in systems if pdl]
    titles = ["shape (B, Hq/Hkv, d, context)", "KV MB", "read limit", *plain, "best peer", "speed-up", "over limit", "provenance", "plan() us"]
    titles += [summary.label(system, True) for system in dependent] + (["speed-up + PDL"] if has_pdl else [])
    return table(titles, [row(case, mode, plain, dependent, has_pdl) for case in cases])


def row(case, mode, plain, dependent, has_pdl):
    measured = case["modes"][mode]
    limit, ours, peer = summary.best_line(measured, summary.LIMIT), summary.best_line(measured, summary.OURS), summary.best_peer(measured)
    cells = [escape(case["name"]), f"{case['kv_bytes'] / 1e6:.4g}", time_of(limit)]
    cells += [time_of(summary.best_line(measured, system), system) for system in plain]
    cells.append(f"{peer['system']} ({peer['variant']})" if peer else "-")
    cells.append(ratio(peer, ours, with_interval=True))
    cells.append(ratio(ours, limit))
    cells.append(ours["facts"].get("provenance", "-") if ours else "-")
    cells.append(plan_of(summary.best_line(measured, "FlashInfer")))
    cells += [time_of(summary.best_line(measured, system, True), system) for system in dependent]
    if has_pdl:
        cells.append(ratio(summary.best_peer(measured, pdl_too=True), summary.best_line(measured, summary.OURS, True), with_interval=True))
    return cells


def time_of(line, system=None):
    """A median; FlashInfer's comes with the name of its kernel, since the fastest one changes with the shape."""
    if line is None:
        return "-"
    text = f"{summary.median_us(line):.2f}"
    return f"{text} ({line['variant']})" if system == "FlashInfer" else text


def plan_of(line):
    return f"{line['plan_us']:.0f}" if line and line["plan_us"] is not None else "-"


def ratio(numerator, denominator, with_interval=False):
    if not numerator or not denominator:
        return "-"
    paired = summary.ratios(numerator, denominator)
    text = f"{statistics.median(paired):.3f}"
    if with_interval:
        low, high = summary.median_interval(paired)
        text += f" [{low:.3f}, {high:.3f}]"
    return text


def sums(cases, mode):
    """Summary tables of a list of cases."""
    ends = ["geometric mean", "95 %", "least", "most"]
    parts = [table(["time over the read limit", "shapes", *ends], [[line["name"], str(line["shapes"]), *ends_of(line)] for line in summary.over_limit(cases, mode)])]
    for pdl in (False, True):
        rows = [[line["name"], str(line["shapes"]), str(line["wins"]), *ends_of(line)] for line in summary.speed_ups(cases, mode, pdl)]
        if rows:
            parts.append(table([f"speed-up of {summary.label(summary.OURS, pdl)} over", "shapes", "faster on", *ends], rows))
    return "\n\n".join(parts)


def ends_of(line):
    """Cells of a summary: the geometric mean, its interval, the smallest and the largest ratio with their shapes."""
    return [f"{line['geometric_mean']:.3f}", f"{line['low']:.3f} to {line['high']:.3f}",
            *(f"{line[end]:.3f} ({escape(line[f'{end}_shape'])})" for end in ("min", "max"))]


def failures(results):
    """How well each variant agreed with the oracle, and what did not run and why. A system's failures with one reason are one line."""
    cases, reasons = results["cases"], {}
    for case in cases:
        for failure in case["failures"]:
            variants, names = reasons.setdefault((failure["system"], failure["reason"]), ({}, {}))
            variants[summary.label(failure["variant"], failure["pdl"])] = names[case["name"]] = None  # dicts, for their order
    rows = [[system, ", ".join(variants), reason, f"{len(names)}: {'; '.join(list(names)[:3])}{' ...' if len(names) > 3 else ''}"]
            for (system, reason), (variants, names) in reasons.items()]
    rows += [[crash["system"], crash["variant"], f"broke the CUDA context: {crash['reason']}", f"1: {crash['name']}"] for crash in results["crashed"]]
    rows += [[system, "-", f"not installed: {reason}", "all"] for system, reason in results["not_installed"].items()]
    errors = {}
    for case in cases:
        for name, error in case["errors"].items():
            errors[name] = max(error, errors.get(name, 0.0))
    checked = table(["checked against the FP64 oracle", "largest error over the tolerance; above 1 it is wrong"], [[escape(name), f"{error:.2f}"] for name, error in sorted(errors.items())])
    failed = table(["system", "variant", "did not run because", "shapes"], [list(map(escape, row)) for row in rows])
    return "\n\n".join(filter(None, ["## Agreement and failures", checked if errors else "", failed if rows else "", throttled(cases)]))


def throttled(cases):
    """Names the shapes at which NVML gave a reason for lower clocks other than idleness or a clock that somebody set."""
    names = [case["name"] for case in cases if any(state.get("throttle_reasons", 0) & ~0b11 for state in case.get("gpu_state", []))]
    return f"NVML reported throttling at these shapes, whose figures are to be doubted: {escape('; '.join(names))}." if names else ""
