"""variants.py -- which features are timed, on which shapes, and what each may cost. Plain Python, no GPU.

A variant's time is compared with the dense bf16 kernel of the same heads and context lengths. `most` is the goal for that ratio, None where
there is none: a window reads less, several query tokens compute more.
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    fields: tuple = ()  # of leanattn_problem
    flags: tuple = ()  # of `leanattn tune`
    layout: str = "contiguous"
    most: float | None = None
    format: str | None = None  # torch dtype of one-byte K and V

    def field(self, name, default=0):
        return dict(self.fields).get(name, default)


def paged(size, most, layout="contiguous", **more):
    named = f"page {size}" + (", token-major" if layout == "strided" else "")
    return Variant(named, (("page_size", size),), ("--page-size", str(size)), layout, most, **more)


def one_byte(name, number, torch_name, most=0.6):
    return Variant(name, (("kv_format", number),), ("--kv-dtype", name), most=most, format=torch_name)


DENSE = Variant("dense")
VARIANTS = [
    DENSE,
    paged(256, 1.03),
    paged(64, 1.03),
    paged(16, 1.03),
    paged(16, 1.03, "strided"),
    paged(1, 1.15),
    one_byte("fp8_e4m3", 1, "float8_e4m3fn"),
    one_byte("fp8_e5m2", 2, "float8_e5m2"),
    one_byte("int8", 3, "int8"),
    Variant("window 4096 + 4 sink tokens", (("window", 4096), ("sink_tokens", 4)), ("--window", "4096", "--sink-tokens", "4")),
    Variant("4 query tokens", (("q_len", 4),), ("--q-len", "4")),
    Variant("soft cap 50", (("soft_cap", 50.0),), ("--soft-cap", "50")),
    Variant("batch-invariant", (("batch_invariant", 1),), ("--batch-invariant",), most=1.10),
]

# batch, q_heads, kv_heads, head_dim, context: 537 MB, 1074 MB, 2147 MB and 34 MB of bf16 KV
SHAPES = [(1, 32, 8, 128, 131072), (64, 32, 8, 128, 4096), (16, 32, 8, 128, 32768), (1, 32, 8, 128, 8192)]


def read_share(variant, context):
    """What a launch reads of K and V: of a window those tokens that some query token sees."""
    if not variant.field("window"):
        return 1.0
    return min(variant.field("window") + variant.field("q_len", 1) - 1 + variant.field("sink_tokens"), context) / context


def goal(variant, shape):
    """What the ratio may be at a shape: one-byte caches have their goal at 512 MB of bf16 KV and shall nowhere be slower; batch
    invariance has its at 16 x 32k."""
    if variant.format:
        return variant.most if shape == SHAPES[0] else 1.0
    if variant.name == "batch-invariant":
        return variant.most if shape == SHAPES[2] else None
    return variant.most


def shape_name(shape):
    batch, q_heads, kv_heads, head_dim, context = shape
    return f"{batch}, {q_heads}/{kv_heads}, {head_dim}, {context // 1024}k"


def markdown(results):
    """One table a shape: time, over the dense kernel with its interval, goal, kernel."""
    lines = []
    for case in results["cases"]:
        lines += [f"### {case['name']} ({case['kv_megabytes']:.0f} MB of bf16 KV)", "",
                  "| variant | us | over dense | 95 % | goal | answered | kernel |", "|---|---|---|---|---|---|---|"]
        for line in case["lines"]:
            goal_text = f"{line['goal']:.2f}" if line["goal"] else ""
            lines.append(f"| {line['variant']} | {line['us']:.2f} | {line['ratio']:.3f} | {line['low']:.3f} to {line['high']:.3f} | {goal_text} | "
                         f"{line['provenance']} | {line['kernel']} |")
        lines += [f"| ({name}) | | | | | | {reason} |" for name, reason in case["failures"].items()]
        lines.append("")
    return "\n".join(lines)
