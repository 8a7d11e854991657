"""LeanAttention decode kernels, generated, compiled and tuned at run time.

    import leanattn
    o = leanattn.decode(q, k_cache, v_cache, context_lengths)

decode() takes CUDA tensors of PyTorch, CuPy, JAX or any other library that speaks DLPack. It does not copy them, and launches on the current
stream. `import leanattn.torch` adds torch.ops.leanattn, for torch.compile. `import leanattn.transformers` adds the attention implementation
"leanattn" to Hugging Face Transformers. vLLM and SGLang find their backends by themselves. Start with help(leanattn.decode).
"""
from ._leanattn import Engine, Group, Plan, Workspace, __version__, decode, engine, merge_partials, page_table, plan, recurrent
from .errors import ArgumentError, ArgumentTypeError, Error, GroupBroken, NotPrepared, OutOfMemory, Unsupported
from .problem import Problem
from .tuning import Shape, TunedShape, TuneProgress, autotune, shape_of, tune

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "Engine",
    "Error",
    "Group",
    "GroupBroken",
    "NotPrepared",
    "OutOfMemory",
    "Plan",
    "Problem",
    "Shape",
    "TuneProgress",
    "TunedShape",
    "Unsupported",
    "Workspace",
    "__version__",
    "autotune",
    "decode",
    "engine",
    "merge_partials",
    "page_table",
    "plan",
    "recurrent",
    "shape_of",
    "tune",
]
