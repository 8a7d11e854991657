"""speedup_plot.py -- how much faster leanattn is than each peer on the shapes that were tuned for, as one SVG. Plain Python, no GPU."""
import statistics

from . import plot, summary

LONG_NAMES = {"FA2": "FlashAttention-2", "FA3": "FlashAttention-3"}
GROUP = "published"  # the list of shapes that --tune tunes for


def series(cases):
    """{peer: [(kv_bytes, time of the peer over leanattn's)]} with a cold L2 and ordinary launches, a point a shape that both ran."""
    result = {}
    for case in cases:
        measured = case["modes"].get("cold")
        ours = summary.best_line(measured, summary.OURS)
        if case["list"] != GROUP or not ours:
            continue
        for peer in dict.fromkeys(line["system"] for line in summary.timed(measured)):
            theirs = summary.best_line(measured, peer)
            if theirs and peer not in (summary.LIMIT, summary.OURS):
                result.setdefault(peer, []).append((case["kv_bytes"], statistics.median(summary.ratios(theirs, ours))))
    return result


def svg(results, theme):
    """The picture in the colours of a plot.Theme; None where leanattn ran beside no peer."""
    found = series(results["cases"])
    if not found:
        return None
    means = {peer: summary.geometric_mean([ratio for _, ratio in points]) for peer, points in found.items()}
    order = sorted(found, key=means.get, reverse=True)
    style = dict(zip(order, theme.colours[1:]))
    points = [point for of_peer in found.values() for point in of_peer]
    low, high = plot.padded([ratio for _, ratio in points] + [1.0])
    # A part of the plot lies below 1, so that one sees whether a point does.
    frame = plot.Frame(64, 84, 770, 320, plot.padded([size for size, _ in points]), (min(low, 0.88), high))
    width, height = frame.right + 24, frame.bottom + 78
    gpu = results["environment"].get("gpu")
    title = f"Speed-up of leanattn{f' on one {gpu}' if gpu else ''} (higher is better)"
    parts = [*plot.head(title, width, height, theme, 14), plot.text(24, 30, title, theme.text, size=18, bold=True)]
    x = 24
    for peer in order:
        label = f"{means[peer]:.2f}x over {LONG_NAMES.get(peer, peer)}"
        parts += [plot.dots([(x + 6, 57)], style[peer], 11), plot.text(x + 18, 62, label, theme.text)]
        x += 18 + 7.4 * len(label) + 26
    parts.append(f'<rect x="{frame.left}" y="{plot.number(frame.y(1))}" width="{frame.width}" height="{plot.number(frame.bottom - frame.y(1))}" fill="{theme.shade}"/>')
    parts += frame.grid(theme, "x")
    parts += [plot.text(frame.right - 8, frame.top + 20, "leanattn is faster above the line at 1x", theme.muted, "end"),
              plot.text(frame.right - 8, frame.bottom - 10, "the other kernel is faster down here", theme.muted, "end")]
    parts += [plot.dots([(frame.x(size), frame.y(ratio)) for size, ratio in found[peer]], style[peer], 10) for peer in order]
    captions = ["bytes of K and V that a decode step reads",
                f"A point is one of {max(map(len, found.values()))} decode shapes (bf16, cold L2). The figures beside the names are geometric means."]
    parts += [plot.text(frame.middle, frame.bottom + below, caption, theme.muted, "middle") for below, caption in zip((42, 66), captions)]
    return "\n".join([*parts, "</svg>"]) + "\n"
