"""plot.py -- scatter plots as self-contained SVG: axes, points, legend. Plain Python, no GPU.

A series is a list of points (x, y). Both axes are logarithmic, and x is a number of bytes. All points of a series are one path of dots, so that
a plot of a thousand points stays a small file.
"""
import dataclasses
import html
import math

MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM, LEGEND_HEIGHT = 64, 24, 44, 56, 34
PANEL_WIDTH, PANEL_HEIGHT = 560, 380
GAP = 76  # between panels
Y_TICKS = (0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


@dataclasses.dataclass(frozen=True)
class Theme:
    background: str
    text: str
    muted: str  # text that explains
    grid: str
    shade: str  # an area that is set apart
    colours: tuple[str, ...]  # of the series, in order


# The colours of series are those of Okabe and Ito, which colour-blind readers can tell apart; the dark theme has lighter ones.
LIGHT = Theme("#ffffff", "#1f2328", "#59636e", "#e0e0e0", "#f3f4f6", ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442"))
DARK = Theme("#0d1117", "#f0f6fc", "#9198a1", "#2a313c", "#1c2129", ("#ffffff", "#ff8c42", "#4cb3f0", "#2fd4a3", "#e79fc8", "#ffc04d", "#9bd8ff", "#f7ef7a"))


@dataclasses.dataclass(frozen=True)
class Frame:
    """The rectangle that points are drawn in, and where a value lies in it."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    @property
    def right(self):
        return self.left + self.width

    @property
    def bottom(self):
        return self.top + self.height

    @property
    def middle(self):
        return self.left + self.width / 2

    def x(self, value):
        return self.left + self.width * share(value, self.x_range)

    def y(self, value):
        return self.bottom - self.height * share(value, self.y_range)

    def grid(self, theme, suffix=""):
        """Lines at ticks with their labels; the line at 1 is the strongest."""
        parts = []
        for step in x_ticks(*self.x_range):
            parts.append(line(self.x(step), self.top, self.x(step), self.bottom, theme.grid))
            parts.append(text(self.x(step), self.bottom + 18, bytes_text(step), theme.text, "middle"))
        for tick in [tick for tick in Y_TICKS if self.y_range[0] <= tick <= self.y_range[1]]:
            parts.append(line(self.left, self.y(tick), self.right, self.y(tick), theme.muted if tick == 1 else theme.grid, 2 if tick == 1 else 1))
            parts.append(text(self.left - 8, self.y(tick) + 4, f"{tick:g}{suffix}", theme.text, "end"))
        return parts


def share(value, span):
    """Where a value lies in a range of a logarithmic axis, 0..1."""
    return math.log(value / span[0]) / math.log(span[1] / span[0])


def padded(values):
    """The range of some values, a little wider at both ends, so that no point lies on the edge."""
    low, high = min(values), max(values)
    factor = max(high / low, 1.1) ** 0.05
    return low / factor, high * factor


def x_ticks(low, high):
    """1, 2 and 5 times the powers of ten within a range; over more than two decades the powers of ten alone."""
    ticks = [digit * 10**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return ticks if high <= 100 * low else [tick for tick in ticks if f"{tick:e}"[0] == "1"]


def figure(title, y_label, panels):
    """The SVG of panels side by side, each (title, {label: series}), with one legend; None where there is no point."""
    panels = [(name, series) for name, series in panels if any(series.values())]
    if not panels:
        return None
    theme = LIGHT
    labels = list(dict.fromkeys(label for _, series in panels for label in series))
    style = {label: theme.colours[i % len(theme.colours)] for i, label in enumerate(labels)}
    points = [point for _, series in panels for of_label in series.values() for point in of_label]
    x_range, y_range = padded([x for x, _ in points]), padded([1.0] + [y for _, y in points])
    width = MARGIN_LEFT + len(panels) * PANEL_WIDTH + (len(panels) - 1) * GAP + MARGIN_RIGHT
    height = MARGIN_TOP + PANEL_HEIGHT + MARGIN_BOTTOM + LEGEND_HEIGHT
    parts = head(title, width, height, theme, 12)
    for number, (name, series) in enumerate(panels):
        frame = Frame(MARGIN_LEFT + number * (PANEL_WIDTH + GAP), MARGIN_TOP, PANEL_WIDTH, PANEL_HEIGHT, x_range, y_range)
        parts += [text(frame.left, MARGIN_TOP - 16, name, theme.text, size=14), *frame.grid(theme)]
        parts.append(text(frame.middle, frame.bottom + 38, "bytes of K and V", theme.text, "middle"))
        parts.append(text(frame.left - 42, frame.top + frame.height / 2, y_label, theme.text, "middle", upwards=True))
        parts += [dots([(frame.x(x), frame.y(y)) for x, y in of_label], style[label], 3.4, 0.6) for label, of_label in series.items() if of_label]
    return "\n".join([*parts, *legend(style, height - LEGEND_HEIGHT + 8), "</svg>"]) + "\n"


def head(title, width, height, theme, font_size):
    return [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="{font_size}">',
            f"<title>{html.escape(title)}</title>", f'<rect width="{width}" height="{height}" fill="{theme.background}"/>']


def text(x, y, words, colour, anchor="start", size=None, bold=False, upwards=False):
    more = (f' text-anchor="{anchor}"' if anchor != "start" else "") + (f' font-size="{size}"' if size else "") + (' font-weight="600"' if bold else "")
    where = f'transform="translate({number(x)} {number(y)}) rotate(-90)"' if upwards else f'x="{number(x)}" y="{number(y)}"'
    return f'<text {where} fill="{colour}"{more}>{html.escape(words)}</text>'


def line(x1, y1, x2, y2, colour, width=1):
    return f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" stroke="{colour}" stroke-width="{width}"/>'


def dots(points, colour, diameter, opacity=1.0):
    """Points of one colour as one path: strokes without length, whose round caps are the dots."""
    path = "".join(f"M{number(x)} {number(y)}h0" for x, y in points)
    return f'<path d="{path}" stroke="{colour}" stroke-width="{diameter}" stroke-linecap="round" opacity="{opacity:g}" fill="none"/>'


def legend(style, y):
    """A dot and a label for each of {label: colour}, in one row."""
    parts, x = [], MARGIN_LEFT
    for label, colour in style.items():
        parts += [dots([(x + 5, y)], colour, 10), text(x + 16, y + 4, label, LIGHT.text)]
        x += 16 + 7 * len(label) + 24
    return parts


def number(value):
    return f"{value:.1f}".removesuffix(".0")


def bytes_text(value):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"
