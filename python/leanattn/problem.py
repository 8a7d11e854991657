"""problem.py -- Problem: what never changes in a model, for Engine.plan()."""
import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """What never changes in a model. decode() finds it from its arguments; docs/features.md has every field's limits."""

    q_heads: int = 32
    kv_heads: int = 8  #: divides q_heads, at most 128 query heads each
    head_dim: int = 128  #: a multiple of 16 up to 512
    dtype: str = "bf16"  #: of q and the result: "bf16", "fp16"
    kv_layout: str = "HND"  #: tokens of a KV head adjacent; "NHD": any token stride
    lse: bool = False  #: launches also write the log-sum-exp
    pdl: bool = False  #: launches may overlap the kernel before them
    page_size: int = 0  #: tokens per page of a paged cache; 0: dense
    q_len: int = 1  #: most query tokens of a request
    ragged_q: bool = False  #: each request has its own number of them
    mask: str = "causal"  #: among several query tokens: "causal", "tree", "full"
    window: int = 0  #: tokens that a query sees, its own the last of them; 0: all
    sink_tokens: int = 0  #: first tokens that stay visible beside the window
    sink_logits: bool = False  #: a logit per query head counts in the softmax's denominator
    alibi: bool = False  #: a slope per query head times the distance is added to scores
    soft_cap: float = 0.0  #: scores become cap * tanh(score / cap); 0: as they are
    score: str = ""  #: a CUDA expression that replaces scores
    kv_dtype: str = "same"  #: of the cache: q's, or "fp8_e4m3", "fp8_e5m2", "int8"
    kv_scale: str = "tensor"  #: what has a scale of its own: "tensor", "head", "token"
    v_head_dim: int = 0  #: columns of v and the result; 0: head_dim
    batch_invariant: bool = False  #: a request's bits do not depend on its batch mates
    append: bool = False  #: new keys and values are written into the cache first
    rope: str = "none"  #: rotation of q and new keys: "none", "half_split", "interleaved"
    rope_dim: int = 0  #: dims that turn; 0: all
