"""markdown_parts.py -- the parts that the Markdown reports of bench/ share."""

NAMES = {"cuda": "CUDA", "torch": "PyTorch", "cudnn": "cuDNN", "flashinfer": "FlashInfer", "transformers": "Transformers", "leanattn_warnings": "warnings of leanattn:"}


def measured_on(facts):
    """A sentence that names the GPU, the driver and the libraries of a run, from environment.environment()."""
    left = {name: value for name, value in facts.items() if value not in (None, "")}
    sizes = [text.format(left.pop(name) / unit) for name, text, unit in
             [("sms", "{:.0f} SMs", 1), ("l2_bytes", "{:.0f} MB of L2", 1e6), ("memory_bytes", "{:.0f} GB of memory", 1e9)] if name in left]
    gpu = left.pop("gpu", "GPU") + (f" ({', '.join(sizes)})" if sizes else "")
    versions = ", ".join(f"{NAMES.get(name, name)} {value}" for name, value in left.items())
    return f"Measured on one {escape(gpu)}{' with ' + escape(versions) if versions else ''}."


def table(head, rows):
    """A table of text cells."""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(cells) + " |" for cells in rows)])


def escape(text):
    """Text as it may stand in a table's cell."""
    return str(text).replace("|", "\\|").replace("\n", " ")
