"""e2e_report.py -- the Markdown and the plot of bench/e2e, from its JSON record alone. Plain Python, no GPU."""
import statistics

from peers import plot
from peers.markdown_parts import measured_on, table

SYSTEMS = ("leanattn", "flash", "sdpa")
BAR, GAP = 26, 22


def median_us(step, system):
    return statistics.median(step["samples_us"][system])


def seconds(model, system, output):
    """Time of `output` decode steps; between the steps that were measured it is interpolated linearly."""
    points = [(step["output"], median_us(step, system) / 1e6) for step in model["steps"]]
    total = 0.0
    for (left, left_s), (right, right_s) in zip(points, points[1:]):
        for token in range(left, min(right, output)):
            total += left_s + (right_s - left_s) * (token - left) / (right - left)
    last, last_s = points[-1]
    return total + max(0, output - last) * last_s


def rate(model, system, output):
    """Tokens per second of the decode steps."""
    return output / seconds(model, system, output)


def markdown(results):
    parts = [f"# Generation after a long prompt\n\n{measured_on(results['environment'])}\n\n"
             f"OPT models with random weights generate after a prompt of {results['prompt']} tokens, with batch 1 and bf16. Every decode step is a CUDA graph of the whole model. "
             "*flash* is FlashAttention-2 as PyTorch has it; *sdpa* is the kernel that PyTorch chooses by itself. Both have a graph for every length, whose capture is not counted; "
             "leanattn has one graph for all lengths. The tables show tokens per second of the decode steps, and the speed-up of leanattn over the others; *with the prompt* counts prefill as well."]
    for model in results["models"]:
        rows = []
        for output in results["outputs"]:
            rates = {system: rate(model, system, output) for system in SYSTEMS}
            whole = {system: model["prefill_ms"] / 1000 + seconds(model, system, output) for system in SYSTEMS}
            rows.append([str(output), *(f"{rates[system]:.1f}" for system in SYSTEMS), f"{rates['leanattn'] / rates['flash']:.3f}",
                         f"{rates['leanattn'] / rates['sdpa']:.3f}", f"{whole['flash'] / whole['leanattn']:.3f}"])
        steps = [[str(results["prompt"] + step["output"]), *(f"{median_us(step, system):.0f}" for system in SYSTEMS)] for step in model["steps"]]
        parts += [f"## {model['name']} ({model['parameters'] / 1e9:.2f} billion parameters, prefill {model['prefill_ms'] / 1000:.2f} s)",
                  table(["output tokens", *SYSTEMS, "over flash", "over sdpa", "with the prompt: over flash"], rows),
                  table(["tokens in the cache", *(f"{system}, us a step" for system in SYSTEMS)], steps), *(f"Wrong: {reason}." for reason in model["wrong"])]
    if results["layers"]:
        rows = []
        for line in results["layers"]:
            sdpa, ours = (statistics.median(line["samples_us"][system]) for system in ("sdpa", "leanattn"))
            rows.append([line["model"], f"{line['q_heads']}/{line['kv_heads']}, {line['head_dim']}", str(line["context"]), f"{sdpa:.1f}", f"{ours:.1f}", f"{sdpa / ours:.2f}", f"{line['error']:.4f}"])
        parts += ["## Attention of one layer", "The attention of one layer as Transformers calls it for one token, with batch 1 and a cold L2. Gemma-2 has a soft cap, which SDPA leaves out.",
                  table(["model", "heads, head_dim", "context", "sdpa, us", "leanattn, us", "speed-up", "largest difference"], rows)]
    return "\n\n".join(parts) + "\n"


def svg(results):
    """Tokens per second: a panel for each model, with a group of bars for each output length."""
    theme = plot.LIGHT
    panel_width = len(results["outputs"]) * (len(SYSTEMS) * BAR + GAP) + GAP
    width = plot.MARGIN_LEFT + len(results["models"]) * (panel_width + plot.GAP)
    height = plot.MARGIN_TOP + plot.PANEL_HEIGHT + plot.MARGIN_BOTTOM + plot.LEGEND_HEIGHT
    parts = plot.head(f"Tokens per second after a prompt of {results['prompt']} tokens", width, height, theme, 12)
    for number, model in enumerate(results["models"]):
        parts += panel(plot.MARGIN_LEFT + number * (panel_width + plot.GAP), panel_width, model, results["outputs"], theme)
    parts += plot.legend(dict(zip(SYSTEMS, theme.colours)), height - plot.LEGEND_HEIGHT + 8)
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(left, width, model, outputs, theme):
    bottom = plot.MARGIN_TOP + plot.PANEL_HEIGHT
    most = max(rate(model, system, output) for system in SYSTEMS for output in outputs) * 1.1
    parts = [plot.text(left, plot.MARGIN_TOP - 16, f"{model['name']}: tokens per second (higher is better)", theme.text, size=14), plot.line(left, bottom, left + width, bottom, theme.muted)]
    for group, output in enumerate(outputs):
        start = left + GAP + group * (len(SYSTEMS) * BAR + GAP)
        for i, system in enumerate(SYSTEMS):
            value = rate(model, system, output)
            tall = plot.PANEL_HEIGHT * value / most
            parts.append(f'<rect x="{start + i * BAR}" y="{plot.number(bottom - tall)}" width="{BAR - 3}" height="{plot.number(tall)}" fill="{theme.colours[i]}"/>')
            parts.append(plot.text(start + i * BAR + (BAR - 3) / 2, bottom - tall - 4, f"{value:.0f}", theme.text, "middle", size=9))
        parts.append(plot.text(start + len(SYSTEMS) * BAR / 2, bottom + 18, str(output), theme.text, "middle"))
    return [*parts, plot.text(left + width / 2, bottom + 38, "output tokens", theme.text, "middle")]
