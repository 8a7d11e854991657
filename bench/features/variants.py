"""variants.py -- which features are timed, on which shapes, and the report of their times. Plain Python, no GPU.

The time of a variant is compared with that of the dense bf16 kernel of the same heads and context lengths.
"""
import dataclasses

from peers import shapes
from peers.markdown_parts import measured_on, table


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    fields: tuple = ()  # of leanattn_problem
    flags: tuple = ()  # of `leanattn tune`
    layout: str = "contiguous"
    format: str | None = None  # torch dtype of one-byte K and V
    selected: int = 1  # each query token and KV head sees one of so many blocks; 1: there is no selection
    packed: bool = False  # K and V of a token and head lie side by side in one pool of token-major pages, as in vLLM

    def field(self, name, default=0):
        return dict(self.fields).get(name, default)


def paged(size, layout="contiguous"):
    name = f"page {size}" + (", token-major" if layout == "strided" else "")
    return Variant(name, (("page_size", size),), ("--page-size", str(size)), layout)


def with_append(variant):
    """The same variant, whose kernel also writes the newest token's K and V into the cache."""
    return dataclasses.replace(variant, name=f"{variant.name}, append", fields=(*variant.fields, ("append", 1)), flags=(*variant.flags, "--append"))


def tunings(chosen):
    """What to tune for these variants: each of them without `append`. Look-ups take its winner over, so that a variant with `append` has the same
    configuration as the one without, and their times differ by the append alone."""
    return list(dict.fromkeys(dataclasses.replace(variant, name=variant.name.removesuffix(", append"), fields=tuple(field for field in variant.fields if field[0] != "append"),
                                                  flags=tuple(flag for flag in variant.flags if flag != "--append")) for variant in chosen))


def one_byte(name, number, torch_name):
    return Variant(name, (("kv_format", number),), ("--kv-dtype", name), format=torch_name)


DENSE = Variant("dense")
AS_IN_VLLM = dataclasses.replace(paged(16, "strided"), name="page 16, as in vLLM", packed=True)
VARIANTS = [
    DENSE,
    paged(256),
    paged(64),
    paged(16),
    paged(16, "strided"),
    AS_IN_VLLM,
    with_append(AS_IN_VLLM),
    paged(1),
    with_append(DENSE),
    one_byte("fp8_e4m3", 1, "float8_e4m3fn"),
    one_byte("fp8_e5m2", 2, "float8_e5m2"),
    one_byte("int8", 3, "int8"),
    Variant("window 4096 + 4 sink tokens", (("window", 4096), ("sink_tokens", 4)), ("--window", "4096", "--sink-tokens", "4")),
    Variant("4 query tokens", (("q_len", 4),), ("--q-len", "4")),
    Variant("soft cap 50", (("soft_cap", 50.0),), ("--soft-cap", "50")),
    Variant("a quarter of the blocks of 64", (("page_size", 64), ("selection_block", 64)), ("--page-size", "64", "--selection-block", "64"), selected=4),
    Variant("a quarter of the blocks of 16", (("page_size", 64), ("selection_block", 16)), ("--page-size", "64", "--selection-block", "16"), selected=4),
    Variant("batch-invariant", (("batch_invariant", 1),), ("--batch-invariant",)),
]

# batch, q_heads, kv_heads, head_dim, context: 537 MB, 1074 MB, 2147 MB and 34 MB of bf16 KV
SHAPES = [(1, 32, 8, 128, 131072), (64, 32, 8, 128, 4096), (16, 32, 8, 128, 32768), (1, 32, 8, 128, 8192)]


def kv_bytes(variant, shape):
    """Bytes of K and V that a launch of the variant reads."""
    batch, _, kv_heads, head_dim, context = shape
    return shapes.kv_bytes((context // variant.selected,) * batch, kv_heads, head_dim, element_bytes=1 if variant.format else shapes.ELEMENT_BYTES,
                           q_len=variant.field("q_len", 1), window=variant.field("window"), sink_tokens=variant.field("sink_tokens"))


def shape_name(shape):
    batch, q_heads, kv_heads, head_dim, context = shape
    return f"{batch}, {q_heads}/{kv_heads}, {head_dim}, {context // 1024}k"


def markdown(results):
    """A page with one table for each shape."""
    parts = [f"# What features cost\n\n{measured_on(results['environment'])}\n\n"
             "Each variant is timed beside the dense bf16 kernel of the same heads and context lengths: one process, CUDA graphs, interleaved rounds, cold L2. *us* is the median "
             "time of a launch in microseconds, and *over dense* the median over rounds of its ratio to the dense kernel's, with a 95 % bootstrap interval. *provenance* is how "
             "leanattn's look-up chose the kernel; *exact* means that this shape was tuned with this feature."]
    for case in results["cases"]:
        rows = [[line["variant"], f"{line['us']:.2f}", f"{line['ratio']:.3f}", f"{line['low']:.3f} to {line['high']:.3f}", line["provenance"], line["kernel"]] for line in case["lines"]]
        rows += [[name, "-", "-", "-", "-", f"did not run: {reason}"] for name, reason in case["failures"].items()]
        parts.append(f"## {case['name']} ({case['kv_megabytes']:.0f} MB of bf16 K and V)\n\n" + table(["variant", "us", "over dense", "95 %", "provenance", "kernel"], rows))
    return "\n\n".join(parts) + "\n"
