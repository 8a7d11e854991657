"""plot.py -- time over the read limit against KV bytes, a line a system and a panel a list of shapes, as one self-contained SVG.

A panel's lines are {label: [(kv_bytes, time over limit, name)]}. A label that ends in SECOND is drawn dashed, in the colour of the label without it.
"""
import html
import math

from . import summary

PANEL_WIDTH, PANEL_HEIGHT = 560, 380
MARGIN_LEFT, MARGIN_TOP, MARGIN_BOTTOM, LEGEND_HEIGHT = 64, 44, 56, 34
GAP = 76  # between panels
SECOND = " + PDL"
DASHES = ' stroke-dasharray="5 3"'
# Colour-blind safe (Okabe and Ito); leanattn first.
COLOURS = ["#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442"]


def series(cases, mode):
    """{label: [(kv_bytes, time over limit, shape name)]}, points in order of bytes; leanattn first."""
    result = {}
    for case in sorted(cases, key=lambda case: case["kv_bytes"]):
        measured = case["modes"].get(mode)
        limit = summary.best_line(measured, summary.LIMIT)
        if not limit:
            continue
        for system, pdl in dict.fromkeys((line["system"], line["pdl"]) for line in summary.timed(measured) if line["system"] != summary.LIMIT):
            over = summary.median_us(summary.best_line(measured, system, pdl)) / summary.median_us(limit)
            result.setdefault(summary.label(system, pdl), []).append((case["kv_bytes"], over, case["name"]))
    return dict(sorted(result.items(), key=lambda item: not item[0].startswith(summary.OURS)))


def svg(cases, mode):
    """The picture of one L2 mode; None where nothing was measured in it."""
    panels = [(f"{title}, {mode} L2", series([case for case in cases if case["list"] in groups], mode))
              for title, groups in [("published and ragged shapes", ("published", "ragged")), ("shapes drawn at random", ("drawn",))]]
    return figure(f"Time over the read limit, {mode} L2", panels)


def figure(title, panels):
    """An SVG of panels, (title, lines) each; None where no panel has a line."""
    panels = [(name, lines) for name, lines in panels if lines]
    if not panels:
        return None
    labels = list(dict.fromkeys(label for _, lines in panels for label in lines))
    bases = list(dict.fromkeys(label.removesuffix(SECOND) for label in labels))
    style = {label: (COLOURS[bases.index(label.removesuffix(SECOND)) % len(COLOURS)], label.endswith(SECOND)) for label in labels}
    points = [point for _, lines in panels for line in lines.values() for point in line]
    x_range = rounded(min(p[0] for p in points), max(p[0] for p in points))
    top = max(2.0, max(p[1] for p in points) * 1.05)
    bottom = min(1.0, min(p[1] for p in points) * 0.97)
    width = MARGIN_LEFT + len(panels) * PANEL_WIDTH + (len(panels) - 1) * GAP + 24
    height = MARGIN_TOP + PANEL_HEIGHT + MARGIN_BOTTOM + LEGEND_HEIGHT
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f"<title>{html.escape(title)}</title>", f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
    for number, (name, lines) in enumerate(panels):
        parts += panel(MARGIN_LEFT + number * (PANEL_WIDTH + GAP), name, lines, style, x_range, (bottom, top))
    parts += legend(style, height - LEGEND_HEIGHT + 8)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def steps_of(low, high):
    """1, 2 and 5 times the powers of ten around a range, from one that is not above it to one that is not below it."""
    steps = [digit * 10**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for digit in (1, 2, 5)]
    first = max(i for i, step in enumerate(steps) if step <= low)
    last = min(i for i, step in enumerate(steps) if step >= high and i > first)
    return steps[first:last + 1]


def rounded(low, high):
    """The range, widened to 1, 2 or 5 times a power of ten at both ends."""
    steps = steps_of(low, high)
    return steps[0], steps[-1]


def panel(left, title, lines, style, x_range, y_range):
    """Axes, grid and lines of one list; both axes are logarithmic."""
    def x(value):
        return left + PANEL_WIDTH * math.log(value / x_range[0]) / math.log(x_range[1] / x_range[0])

    def y(value):
        return MARGIN_TOP + PANEL_HEIGHT * (1 - math.log(value / y_range[0]) / math.log(y_range[1] / y_range[0]))

    bottom, right = MARGIN_TOP + PANEL_HEIGHT, left + PANEL_WIDTH
    parts = [f'<text x="{left}" y="{MARGIN_TOP - 16}" font-size="14">{html.escape(title)}</text>']
    steps = steps_of(*x_range)
    # Over more than two decades the powers of ten are enough.
    for step in steps if len(steps) <= 7 else [step for step in steps if f"{step:e}"[0] == "1"]:
        at = x(step)
        parts.append(f'<line x1="{at:.1f}" y1="{MARGIN_TOP}" x2="{at:.1f}" y2="{bottom}" stroke="#e0e0e0"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{bytes_text(step)}</text>')
    for tick in [tick for tick in (0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64) if y_range[0] <= tick <= y_range[1]]:
        parts.append(f'<line x1="{left}" y1="{y(tick):.1f}" x2="{right}" y2="{y(tick):.1f}" stroke="{"#808080" if tick == 1 else "#e0e0e0"}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<text x="{(left + right) / 2:.1f}" y="{bottom + 38}" text-anchor="middle">bytes of K and V</text>')
    parts.append(f'<text transform="translate({left - 42} {(MARGIN_TOP + bottom) / 2:.1f}) rotate(-90)" text-anchor="middle">time / read limit</text>')
    for label, points in lines.items():
        colour, dashed = style[label]
        path = " ".join(f"{x(size):.1f},{y(over):.1f}" for size, over, _ in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4" stroke-opacity="0.7"{DASHES if dashed else ""}/>')
        for size, over, name in points:
            hover = html.escape(f"{label}: {name}: {over:.3f}")
            parts.append(f'<circle cx="{x(size):.1f}" cy="{y(over):.1f}" r="2.6" fill="{"#ffffff" if dashed else colour}" stroke="{colour}"><title>{hover}</title></circle>')
    return parts


def legend(style, y):
    parts, x = [], MARGIN_LEFT
    for label, (colour, dashed) in style.items():
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 26}" y2="{y}" stroke="{colour}" stroke-width="2"{DASHES if dashed else ""}/>')
        parts.append(f'<text x="{x + 32}" y="{y + 4}">{html.escape(label)}</text>')
        x += 32 + 8 * len(label) + 24
    return parts


def bytes_text(value):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"
