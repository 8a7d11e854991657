"""e2e_report.py -- the Markdown and the picture of bench/e2e, from its JSON record alone. Plain Python, no GPU."""
import html
import statistics

from peers import plot

SYSTEMS = ("leanattn", "flash", "sdpa")
BAR, GAP = 26, 22


def median_us(step, system):
    return statistics.median(step["samples_us"][system])


def seconds(model, system, output):
    """Time of `output` decode steps: straight lines between the places that were measured."""
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
    facts = ", ".join(f"{name} {value}" for name, value in results["environment"].items() if value not in (None, ""))
    parts = [f"# Generation after a long prompt\n\n{facts}.\n\nOPT models with random weights, batch 1, bf16, a prompt of {results['prompt']} tokens; every decode step is a "
             "CUDA graph of the whole model. *flash* is FlashAttention-2 as PyTorch has it, *sdpa* PyTorch's own choice of kernel; both have a graph for every "
             "length, whose capture is not counted, leanattn has one. Tokens per second of the decode steps; *with the prompt*: prefill included."]
    for model in results["models"]:
        lines = [f"## {model['name']} ({model['parameters'] / 1e9:.2f} billion parameters, prefill {model['prefill_ms'] / 1000:.2f} s)", "",
                 "| output tokens | " + " | ".join(SYSTEMS) + " | over flash | over sdpa | with the prompt: over flash |", "|---" * (len(SYSTEMS) + 4) + "|"]
        for output in results["outputs"]:
            rates = {system: rate(model, system, output) for system in SYSTEMS}
            whole = {system: model["prefill_ms"] / 1000 + seconds(model, system, output) for system in SYSTEMS}
            lines.append(f"| {output} | " + " | ".join(f"{rates[system]:.1f}" for system in SYSTEMS)
                         + f" | {rates['leanattn'] / rates['flash']:.3f} | {rates['leanattn'] / rates['sdpa']:.3f} | {whole['flash'] / whole['leanattn']:.3f} |")
        lines += ["", "| tokens in the cache | " + " | ".join(f"{system}, us a step" for system in SYSTEMS) + " |", "|---" * (len(SYSTEMS) + 1) + "|"]
        lines += [f"| {results['prompt'] + step['output']} | " + " | ".join(f"{median_us(step, system):.0f}" for system in SYSTEMS) + " |" for step in model["steps"]]
        lines += [f"\nWrong: {reason}." for reason in model["wrong"]]
        parts.append("\n".join(lines))
    if results["layers"]:
        lines = ["## Attention of one layer", "", "As Transformers calls it for one token, batch 1, L2 cold; Gemma-2 with its soft cap, which SDPA leaves out.", "",
                 "| model | heads, head_dim | context | sdpa, us | leanattn, us | speed-up | largest difference |", "|---|---|---|---|---|---|---|"]
        for line in results["layers"]:
            sdpa, ours = (statistics.median(line["samples_us"][system]) for system in ("sdpa", "leanattn"))
            lines.append(f"| {line['model']} | {line['q_heads']}/{line['kv_heads']}, {line['head_dim']} | {line['context']} | {sdpa:.1f} | {ours:.1f} | {sdpa / ours:.2f} | {line['error']:.4f} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def svg(results):
    """Tokens per second, a group of bars an output length and a panel a model."""
    panel_width = len(results["outputs"]) * (len(SYSTEMS) * BAR + GAP) + GAP
    width = plot.MARGIN_LEFT + len(results["models"]) * (panel_width + plot.GAP)
    height = plot.MARGIN_TOP + plot.PANEL_HEIGHT + plot.MARGIN_BOTTOM + plot.LEGEND_HEIGHT
    title = f"Tokens per second after a prompt of {results['prompt']} tokens"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f"<title>{title}</title>", f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
    for number, model in enumerate(results["models"]):
        parts += panel(plot.MARGIN_LEFT + number * (panel_width + plot.GAP), panel_width, model, results["outputs"])
    parts += plot.legend({system: (plot.COLOURS[i], False) for i, system in enumerate(SYSTEMS)}, height - plot.LEGEND_HEIGHT + 8)
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(left, width, model, outputs):
    bottom = plot.MARGIN_TOP + plot.PANEL_HEIGHT
    most = max(rate(model, system, output) for system in SYSTEMS for output in outputs) * 1.1
    parts = [f'<text x="{left}" y="{plot.MARGIN_TOP - 16}" font-size="14">{html.escape(model["name"])}, tokens per second</text>',
             f'<line x1="{left}" y1="{bottom}" x2="{left + width}" y2="{bottom}" stroke="#808080"/>']
    for group, output in enumerate(outputs):
        start = left + GAP + group * (len(SYSTEMS) * BAR + GAP)
        for i, system in enumerate(SYSTEMS):
            value = rate(model, system, output)
            tall = plot.PANEL_HEIGHT * value / most
            parts.append(f'<rect x="{start + i * BAR}" y="{bottom - tall:.1f}" width="{BAR - 3}" height="{tall:.1f}" fill="{plot.COLOURS[i]}">'
                         f"<title>{system}, {output} tokens: {value:.1f} tokens/s</title></rect>")
            parts.append(f'<text x="{start + i * BAR + (BAR - 3) / 2}" y="{bottom - tall - 4:.1f}" text-anchor="middle" font-size="9">{value:.0f}</text>')
        parts.append(f'<text x="{start + len(SYSTEMS) * BAR / 2}" y="{bottom + 18}" text-anchor="middle">{output}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{bottom + 38}" text-anchor="middle">output tokens</text>')
    return parts
