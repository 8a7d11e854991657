"""trace_report.py -- the Markdown and the lines of the picture of a replayed trace, from its JSON record alone. Plain Python."""
from peers import plot, summary

BEST = "FlashInfer, its best kernel at every step"
PAGED = ", pages"


def rows(steps):
    """{name: {"us", "plan_us", "over", "over_with_plan"}}, a value a step: time, host time before the launch, and both over the read limit."""
    result = {}
    for step in steps:
        limit = summary.best_line(step, summary.LIMIT)
        if limit is None:
            continue
        limit_us, theirs = summary.median_us(limit), []
        for line in step["lines"]:
            if line["system"] == summary.LIMIT:
                continue
            us, plan_us = summary.median_us(line), line["plan_us"] or 0.0
            if line["system"] == summary.OURS:
                add(result, summary.label(ours(line["variant"]), line["pdl"]), step, us, plan_us, us, us + plan_us, limit_us)
            else:
                add(result, summary.label(f"{line['system']} {line['variant']}", line["pdl"]), step, us, plan_us, us, us + plan_us, limit_us)
                theirs.append((us, plan_us))
        if theirs:
            # The fastest kernel, and the one that is fastest together with its plan, need not be the same.
            us, plan_us = min(theirs)
            add(result, BEST, step, us, plan_us, us, min(map(sum, theirs)), limit_us)
    return result


def has_pages(results):
    return any(line["variant"] == "pages" for run in results["runs"].values() for step in run["steps"] for line in step["lines"])


def ours(cache):
    """leanattn's row for a kind of cache."""
    return summary.OURS + (PAGED if cache == "pages" else "")


def add(result, name, step, us, plan_us, alone, with_plan, limit_us):
    row = result.setdefault(name, {"kv_bytes": [], "step": [], "us": [], "plan_us": [], "over": [], "over_with_plan": []})
    row["kv_bytes"].append(step["kv_bytes"])
    row["step"].append(step["step"])
    row["us"].append(us)
    row["plan_us"].append(plan_us)
    row["over"].append(alone / limit_us)
    row["over_with_plan"].append(with_plan / limit_us)


def best_kernel(table, column):
    """FlashInfer's kernel with the lowest median of a column, if one has to be chosen for the whole trace."""
    names = [name for name in table if name.startswith("FlashInfer ")]
    return min(names, key=lambda name: middle(table[name][column]), default=None)


def middle(values):
    return summary.percentile(values, 0.5)


def markdown(results):
    environment = ", ".join(f"{name} {value}" for name, value in results["environment"].items() if value not in (None, ""))
    parts = [f"# A conversation trace, decode steps\n\n{environment}.\n\nOne hour of requests of a production conversation service (data/NOTICE), arriving "
             f"{results['rate']:g} times as fast, through a continuous batcher with steps of {results['step_seconds'] * 1000:g} ms; the context lengths of every "
             f"{results['every']}th decode step are one ragged batch. 32/8 heads of 128, bf16, one layer's attention, cold L2. Time over the read limit of each step; "
             "*with plan*: the host time of plan() (for leanattn, of the look-up) is added, as if nothing hid it. FlashInfer reads pages of 16 tokens in the order of "
             f"the requests, leanattn a dense cache{' and, as *leanattn, pages*, the same pages' if has_pages(results) else ''}."]
    for limit, steps in results["runs"].items():
        measured = [step for step in steps["steps"] if not step["wrong"]]
        if not measured:
            continue
        table = rows(measured)
        batches = sorted(len(step["contexts"]) for step in measured)
        parts.append(f"## At most {limit} running\n\n{len(measured)} steps of {steps['sampled']} sampled; {steps['small']} of those sampled were left out because their K and V are less than "
                     f"twice the L2. Running: {batches[0]} to {batches[-1]}, median {batches[len(batches) // 2]}; longest context {max(max(s['contexts']) for s in measured)}; "
                     f"K and V {min(s['kv_bytes'] for s in measured) / 1e6:.0f} to {max(s['kv_bytes'] for s in measured) / 1e6:.0f} MB.")
        lines = ["| system | us, median | plan us, median | over the limit: median | 99th percentile | worst | with plan: median | 99th percentile | worst |", "|---" * 9 + "|"]
        for name, row in table.items():
            cells = [f"{middle(row['us']):.1f}", f"{middle(row['plan_us']):.1f}"]
            for column in ("over", "over_with_plan"):
                cells += [f"{middle(row[column]):.3f}", f"{summary.percentile(row[column], 0.99):.3f}", f"{max(row[column]):.3f}"]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
        if best_kernel(table, "over"):
            parts.append(f"FlashInfer's best single kernel: {best_kernel(table, 'over')}; with plan() counted: {best_kernel(table, 'over_with_plan')}.")
    failures = {(f["system"], f["variant"], f["pdl"], f["reason"]) for run in results["runs"].values() for f in run["failures"]}
    errors = {}
    for run in results["runs"].values():
        for step in run["steps"]:
            for name, error in step["errors"].items():
                errors[name] = max(error, errors.get(name, 0.0))
    if errors:
        parts.append("\n".join(["| checked against the FP64 oracle at every step | largest error over the tolerance |", "|---|---|", *(f"| {name} | {error:.2f} |" for name, error in sorted(errors.items()))]))
    if failures:
        parts.append("\n".join(["| system | variant | did not run because |", "|---|---|---|",
                                *(f"| {summary.label(system, pdl)} | {variant} | {reason} |" for system, variant, pdl, reason in sorted(failures))]))
    return "\n\n".join(parts) + "\n"


def svg(results):
    """Time over the limit against KV bytes, a panel a batch limit."""
    panels = []
    for limit, run in results["runs"].items():
        table = rows([step for step in run["steps"] if not step["wrong"]])
        lines = {name: points(table[name], "over") for cache in ("dense", "pages") for name in (ours(cache), ours(cache) + plot.SECOND) if name in table}
        if BEST in table:
            lines["FlashInfer"] = points(table[BEST], "over")
            lines["FlashInfer with plan()"] = points(table[BEST], "over_with_plan")
        panels.append((f"at most {limit} running", lines))
    return plot.figure("Time over the read limit, decode steps of a conversation trace", panels)


def points(row, column):
    return sorted((size, over, f"step {step}") for size, over, step in zip(row["kv_bytes"], row[column], row["step"]))
