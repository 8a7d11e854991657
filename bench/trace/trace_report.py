"""trace_report.py -- the Markdown and the plot of a replayed trace, from its JSON record alone. Plain Python, no GPU."""
import mixes
from peers import plot, summary
from peers.markdown_parts import measured_on, table

BEST = "FlashInfer, its best kernel at every step"
PAGED = ", pages"


def rows(steps):
    """{name: {column: values}}, a value for each step: "us" is the time of a launch, "plan_us" the host time before it, "over" the first over the
    read limit and "over_with_plan" their sum over it."""
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
            # The fastest kernel and the one that is fastest together with its plan may differ.
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


def best_kernel(found, column):
    """The kernel of FlashInfer whose median of a column is the lowest over the whole trace."""
    names = [name for name in found if name.startswith("FlashInfer ")]
    return min(names, key=lambda name: middle(found[name][column]), default=None)


def middle(values):
    return summary.percentile(values, 0.5)


def mix_of(results):
    """Which requests were replayed. Records from before there was a choice do not say it."""
    mix = mixes.CONVERSATION
    return results.get("mix", {"name": mix.name, "title": mix.title, "text": mix.text})


def arrival(mix, rate):
    if mix["name"] == mixes.CONVERSATION.name:
        return f"They arrive {rate:g} times as fast as they did,"
    return f"The seed is {mix['seed']}. They arrive" + ("" if rate == 1 else f" {rate:g} times as fast")


def markdown(results):
    pages = "; *leanattn, pages* reads the pages that FlashInfer reads" if has_pages(results) else ""
    mix = mix_of(results)
    parts = [f"# Decode steps of {mix['title']}\n\n{measured_on(results['environment'])}\n\n"
             f"{mix['text']} {arrival(mix, results['rate'])} at a continuous batcher whose "
             f"steps take {results['step_seconds'] * 1000:g} ms. The context lengths of every {results['every']}th decode step are one ragged batch. What is timed is the attention of "
             f"one layer: 32 query heads and 8 KV heads of 128, bf16, cold L2. leanattn reads a dense cache{pages}. FlashInfer reads pages of 16 tokens, which lie in the order of the requests.\n\n"
             "*Over the limit* is a step's time over the read limit, the time of kernels that only read the same bytes. *With plan* adds the host time of FlashInfer's plan() or of "
             "leanattn's look-up, as if nothing ran at the same time."]
    for limit, steps in results["runs"].items():
        measured = [step for step in steps["steps"] if not step["wrong"]]
        if not measured:
            continue
        found = rows(measured)
        batches = sorted(len(step["contexts"]) for step in measured)
        contexts, sizes = [max(step["contexts"]) for step in measured], [step["kv_bytes"] / 1e6 for step in measured]
        parts.append(f"## At most {limit} requests at a time\n\n{len(measured)} steps were timed out of {steps['sampled']} sampled ones; {steps['small']} of those sampled were left out because "
                     f"their K and V are less than twice the L2. A step has {batches[0]} to {batches[-1]} requests (median {batches[len(batches) // 2]}), a longest context of at most "
                     f"{max(contexts)} tokens, and {min(sizes):.0f} to {max(sizes):.0f} MB of K and V.")
        lines = []
        for name, row in found.items():
            cells = [name, f"{middle(row['us']):.1f}", f"{middle(row['plan_us']):.1f}"]
            for column in ("over", "over_with_plan"):
                cells += [f"{middle(row[column]):.3f}", f"{summary.percentile(row[column], 0.99):.3f}", f"{max(row[column]):.3f}"]
            lines.append(cells)
        ends = ["99th percentile", "worst"]
        parts.append(table(["system", "us, median", "plan us, median", "over the limit: median", *ends, "with plan: median", *ends], lines))
        if best_kernel(found, "over"):
            parts.append(f"The kernel of FlashInfer with the lowest median over the limit is {best_kernel(found, 'over')}; with plan() counted it is {best_kernel(found, 'over_with_plan')}.")
    failures = {(f["system"], f["variant"], f["pdl"], f["reason"]) for run in results["runs"].values() for f in run["failures"]}
    errors = {}
    for run in results["runs"].values():
        for step in run["steps"]:
            for name, error in step["errors"].items():
                errors[name] = max(error, errors.get(name, 0.0))
    if errors:
        parts.append(table(["checked against the FP64 oracle at every step", "largest error over the tolerance"], [[name, f"{error:.2f}"] for name, error in sorted(errors.items())]))
    if failures:
        parts.append(table(["system", "variant", "did not run because"], [[summary.label(system, pdl), variant, reason] for system, variant, pdl, reason in sorted(failures)]))
    return "\n\n".join(parts) + "\n"


def svg(results):
    """Time over the limit against KV bytes, a panel for each batch limit."""
    panels = []
    for limit, run in results["runs"].items():
        found = rows([step for step in run["steps"] if not step["wrong"]])
        series = {name: points(found[name], "over") for cache in ("dense", "pages") for pdl in (False, True)
                  for name in [summary.label(ours(cache), pdl)] if name in found}
        if BEST in found:
            series["FlashInfer"] = points(found[BEST], "over")
            series["FlashInfer with plan()"] = points(found[BEST], "over_with_plan")
        panels.append((f"at most {limit} requests at a time", series))
    return plot.figure(f"Time over the read limit of decode steps of {mix_of(results)['title']}", "time over the read limit (lower is better)", panels)


def points(row, column):
    return sorted(zip(row["kv_bytes"], row[column]))
