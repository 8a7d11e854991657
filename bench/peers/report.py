"""report.py -- the Markdown of a run, from its JSON record alone."""
import statistics

from . import summary

LISTS = {
    "published": "Published shapes, tuned for",
    "ragged": "Ragged batches, answered from the uniform shapes' tuning",
    "drawn": "Shapes drawn at random, answered by look-up from what was tuned",
}


def markdown(results):
    """Tables a list and L2 mode, summary lines, failures."""
    parts = [head(results)]
    for mode in ("cold", "warm"):
        measured = [case for case in results["cases"] if summary.timed(case["modes"].get(mode))]
        if not measured:
            continue
        parts.append(f"## {mode.capitalize()} L2")
        for group, title in LISTS.items():
            cases = [case for case in measured if case["list"] == group]
            if cases:
                parts += [f"### {title}", table(cases, mode), sums(cases, mode)]
        if len({case["list"] for case in measured}) > 1:
            parts += ["### All lists", sums(measured, mode)]
    parts.append(failures(results))
    return "\n\n".join(part for part in parts if part) + "\n"


def head(results):
    environment = results["environment"]
    facts = ", ".join(f"{name} {value}" for name, value in environment.items() if value not in (None, ""))
    return (f"# leanattn and its peers\n\n{facts}.\n\nbf16, one query token a request, CUDA-graph replay, microseconds a launch, median of interleaved rounds. Cold: K and V "
            "rotate over copies of at least four times the L2; warm: every launch reads the same copy. The read limit is the best of several kernels "
            "that only read the same bytes. Of a peer's variants the fastest counts; +PDL: programmatic dependent launch between consecutive launches. "
            "FlashInfer reads pages of 16 tokens, HND or NHD, the others a dense cache; its plan(), host work at every change of lengths, is a column of "
            "its own and not part of its time; a plan called *exact* holds for these lengths only, the others for a captured graph of changing lengths. *Speed-up*: the best peer's time over leanattn's, with its 95 % bootstrap interval; above 1 leanattn is faster. "
            "*Over limit*: leanattn's time over the read limit.")


def table(cases, mode):
    systems = list(dict.fromkeys((line["system"], line["pdl"]) for case in cases for line in summary.timed(case["modes"][mode]) if line["system"] != summary.LIMIT))
    systems.sort(key=lambda pair: (pair[1], pair[0] != summary.OURS))
    has_pdl = any(system == summary.OURS and pdl for system, pdl in systems)
    plain = [system for system, pdl in systems if not pdl]
    dependent = [system for system, pdl in systems if pdl]
    titles = ["shape (B, Hq/Hkv, d, context)", "KV MB", "read limit", *plain, "best peer", "speed-up", "over limit", "answered", "plan() us"]
    titles += [summary.label(system, True) for system in dependent] + (["speed-up + PDL"] if has_pdl else [])
    rows = [row(case, mode, plain, dependent, has_pdl) for case in cases]
    return "\n".join(["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles), *("| " + " | ".join(cells) + " |" for cells in rows)])


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
    """A median; for FlashInfer with the kernel that it belongs to, since the fastest one changes with the shape."""
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
    lines = ["| time over the read limit | shapes | geometric mean | 95 % | least | most |", "|---|---|---|---|---|---|"]
    lines += [f"| {s['name']} | {s['shapes']} | {s['geometric_mean']:.3f} | {s['low']:.3f} to {s['high']:.3f} | {s['min']:.3f} ({escape(s['min_shape'])}) | "
              f"{s['max']:.3f} ({escape(s['max_shape'])}) |" for s in summary.over_limit(cases, mode)]
    for pdl in (False, True):
        found = summary.speed_ups(cases, mode, pdl)
        if not found:
            continue
        lines += ["", f"| speed-up of {summary.label(summary.OURS, pdl)} over | shapes | faster on | geometric mean | 95 % | least | most |", "|---|---|---|---|---|---|---|"]
        lines += [f"| {s['name']} | {s['shapes']} | {s['wins']} | {s['geometric_mean']:.3f} | {s['low']:.3f} to {s['high']:.3f} | {s['min']:.3f} ({escape(s['min_shape'])}) | "
                  f"{s['max']:.3f} ({escape(s['max_shape'])}) |" for s in found]
    return "\n".join(lines)


def failures(results):
    """How well each variant agreed with the oracle, and what did not run, with the reason; a system's equal reasons are one line."""
    cases, reasons = results["cases"], {}
    for case in cases:
        for failure in case["failures"]:
            variants, names = reasons.setdefault((failure["system"], failure["reason"]), ({}, {}))
            variants[summary.label(failure["variant"], failure["pdl"])] = names[case["name"]] = None  # dicts, for their order
    lines = [f"| {escape(system)} | {escape(', '.join(variants))} | {escape(reason)} | {len(names)}: {escape('; '.join(list(names)[:3]))}{' ...' if len(names) > 3 else ''} |"
             for (system, reason), (variants, names) in reasons.items()]
    lines += [f"| {escape(c['system'])} | {escape(c['variant'])} | broke the CUDA context: {escape(c['reason'])} | 1: {escape(c['name'])} |" for c in results["crashed"]]
    lines += [f"| {escape(system)} | - | not installed: {escape(reason)} | all |" for system, reason in results["not_installed"].items()]
    errors = {}
    for case in cases:
        for name, error in case["errors"].items():
            errors[name] = max(error, errors.get(name, 0.0))
    checked = "\n".join(["| checked against the FP64 oracle | largest error over the tolerance; above 1 it is wrong |", "|---|---|", *(f"| {escape(n)} | {e:.2f} |" for n, e in sorted(errors.items()))])
    failed = "\n".join(["| system | variant | did not run because | shapes |", "|---|---|---|---|", *lines]) if lines else ""
    return "\n\n".join(filter(None, ["## Agreement and failures", checked if errors else "", failed, throttled(cases)]))


def throttled(cases):
    """The shapes after which NVML named a reason for lower clocks other than idleness or a clock that somebody chose."""
    names = [case["name"] for case in cases if any(state.get("throttle_reasons", 0) & ~0b11 for state in case.get("gpu_state", []))]
    return f"Measured while NVML reported throttling, so to be doubted: {escape('; '.join(names))}." if names else ""


def escape(text):
    return str(text).replace("|", "\\|").replace("\n", " ")
