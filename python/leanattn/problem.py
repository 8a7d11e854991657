"""problem.py -- Problem: what never changes in a model, for Engine.plan()."""
import dataclasses

from ._leanattn import _check_problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """What never changes in a model. decode() derives it from its arguments; docs/features.md has the limits of each field.

    A field that no kernel can be made for raises here: a TypeError or ValueError for what makes no sense, leanattn.Unsupported for what is
    beyond a limit. The message names the field.
    """

    q_heads: int = 32
    kv_heads: int = 8  #: divides q_heads; at most 128 query heads share a KV head
    head_dim: int = 128  #: a multiple of 16 up to 512 (latent: 640)
    dtype: str = "bf16"  #: of q and the result: "bf16", "fp16"
    kv_layout: str = "HND"  #: "HND": the tokens of a KV head are adjacent; "NHD": any token stride
    lse: bool = False  #: launches also write the log-sum-exp of every query row
    pdl: bool = False  #: launches may overlap the kernel before them
    page_size: int = 0  #: tokens per page of a paged cache; 0: dense
    packed_kv: bool = False  #: K and V are no cache: the rows of all requests follow each other
    q_len: int = 1  #: most query tokens of a request
    ragged_q: bool = False  #: each request has its own number of query tokens
    mask: str = "causal"  #: which of a request's query tokens each sees: "causal", "tree", "full"
    spans: bool = False  #: query tokens lie in spans of tokens that see each other both ways, such as images
    window: int = 0  #: tokens that a query token sees, itself the last of them; mask full: to either side; 0: all
    sink_tokens: int = 0  #: first tokens of a context that stay visible beside the window
    sink_logits: bool = False  #: each query head has a logit that counts in the softmax's denominator
    alibi: bool = False  #: the distance times a slope for each query head is added to scores
    soft_cap: float = 0.0  #: scores become cap * tanh(score / cap); 0: unchanged
    score: str = ""  #: an expression of score, q_index, kv_index and head that replaces scores (docs/features.md)
    kv_dtype: str = "same"  #: element type of the cache: "same" as q, "fp8_e4m3", "fp8_e5m2", "int8", "fp8_ds_mla", "int4", "nvfp4", "fp8_ds_v4"
    kv_scale: str = "tensor"  #: what has a scale of its own: "tensor" (of "int4" "in_row"), "head", "token", "in_row"
    v_head_dim: int = 0  #: columns of v and the result; 0: head_dim
    batch_invariant: bool = False  #: the bits of a request do not depend on other requests
    append: bool = False  #: the kernel first writes new keys and values into the cache
    rope: str = "none"  #: rotation of q and new keys: "none", "half_split", "interleaved"
    rope_dim: int = 0  #: the first dims of a head (latent: behind the columns of v), which are rotated; 0: all
    latent: bool = False  #: v is the first v_head_dim columns of k, so that there is no v (multi-head latent attention)
    selection_block: int = 0  #: tokens of the blocks of which each query token brings a list; 0: it sees its whole context
    selection_in_pool: bool = False  #: the lists count blocks from the start of the pool, not of the request's context
    second_cache: bool = False  #: beside what they select, query tokens see the first tokens of a second cache
    context_parallel: int = 1  #: ranks of a group, each of which holds a part of every context, 2 to 8; 1: one has all of it
    context_interleave: int = 0  #: ranks hold units of so many tokens in turn; 0: rank r holds the r-th contiguous part
    replicate_output: bool = False  #: every rank writes the result of all query heads, instead of its share of them

    def __post_init__(self) -> None:
        _check_problem(self)
