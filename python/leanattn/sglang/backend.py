"""backend.py -- what all tried versions of SGLang share: which layers and steps run on leanattn, and with what arguments.

The backend is a FlashAttentionBackend of SGLang, whose cache, metadata and CUDA graphs are kept as they are. Its metadata has what the kernels of
leanattn read: context lengths, query offsets and page tables, on the GPU and at fixed addresses in a graph. So a step costs nothing more on the
host, and any step or layer in which leanattn has no part is FlashAttention's own.
"""
import dataclasses
import logging
from typing import Any

import torch
from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention

import leanattn

from .._serving import plans
from . import CONTEXT, tensors

logger = logging.getLogger(__name__)

_ONE_BYTE = {"torch.float8_e4m3fn": "fp8_e4m3", "torch.float8_e5m2": "fp8_e5m2"}
_OTHER = "Choose another --attention-backend"


@dataclasses.dataclass
class Tree:
    """What the verification of a tree of drafts reads, beside FlashAttention's metadata."""

    lengths: Any  #: [requests] int32, with the draft tokens
    page_table: Any  #: [requests, pages] int32
    words: Any  #: [requests * draft tokens] int32: the tree_mask of leanattn.decode


class BackendBase(FlashAttentionBackend):
    """FlashAttention's backend, with decode steps, prefill and the verification of drafts on leanattn.

    Launches of one backend follow one another, and share a workspace. One instance serves one ModelRunner, on the thread that runs its forward
    passes.
    """

    @classmethod
    def for_runner(cls, model_runner):
        """The backend for a ModelRunner, after a look at what that needs. Raises ValueError, with what to do."""
        _check(model_runner, cls.is_deterministic(model_runner))
        # FlashAttention 4 is SGLang's for what is newer than Hopper.
        return cls(model_runner, fa_impl_ver=3 if torch.cuda.get_device_capability()[0] < 10 else 4)

    def __init__(self, model_runner, *args, **kwargs):
        super().__init__(model_runner, *args, **kwargs)
        self._pool, self._dtype = model_runner.token_to_kv_pool, model_runner.dtype
        self._kv_dtype = _ONE_BYTE.get(str(model_runner.kv_cache_dtype))
        self._deterministic = self.is_deterministic(model_runner)
        self._device = plans.Device(model_runner.gpu_id)
        self._layers, self._scales, self._problems, self._batches, self._shapes = {}, {}, (), {}, {}
        self._tree = self._graph_trees = None
        tokens = self.speculative_num_draft_tokens or 1
        self._verified = tokens if 1 < tokens <= plans.MOST_QUERY_TOKENS else None
        longest = self.max_context_len
        self._pages = plans.pages_for(longest + plans.MOST_QUERY_TOKENS, self.page_size)
        # A plan's context is a limit where results must not depend on the batch.
        context = self._pages * self.page_size if self._deterministic else plans.context_for(longest, CONTEXT)
        self._sizes = plans.Sizes(plans.batches_for((), model_runner.req_to_token_pool.size), context, _most_new_tokens(model_runner.server_args))
        found = dict.fromkeys((self._options(layer, sinks)) for layer, sinks in _layers_of(model_runner.model) if self._takes(layer))
        provenances, seconds = self._need(found)
        if provenances:
            logger.info("leanattn has plans for %d problems and %d batches up to %d at context %d, after %.1f s; looked up as %s",
                        len(self._problems), len(self._sizes.batches), self._sizes.batches[-1], context, seconds,
                        ", ".join(f"{name}: {count}" for name, count in provenances.most_common()))

    # What differs between versions of SGLang.

    #: Whether windows of encoders reach to both sides; FlashAttention's reach to the left only where SGLang says no more.
    windows_both_ways = False

    @staticmethod
    def is_deterministic(model_runner):
        """Whether results must not depend on the batch."""
        return bool(model_runner.server_args.enable_deterministic_inference)

    def write(self, layer, forward_batch, k, v):
        """Writes the new keys and values of a step into the cache: [tokens, kv_heads, head_dim] each."""
        raise NotImplementedError

    def caches(self, layer):
        """The keys and values of a layer, [pages, page_size, kv_heads, head_dim] each."""
        keys, values = self._pool.get_kv_buffer(layer.layer_id)
        return (keys.view(-1, self.page_size, layer.tp_k_head_num, layer.head_dim),
                values.view(-1, self.page_size, layer.tp_k_head_num, layer.v_head_dim))

    def reads_slots(self):
        """Whether req_to_token has the slots of the cache themselves."""
        return True

    # SGLang's interface.

    def init_forward_metadata(self, forward_batch):
        super().init_forward_metadata(forward_batch)
        self.init_tree(forward_batch)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        metadata = self.forward_metadata
        table = self._table_of(layer, metadata) if self._takes_step(layer, metadata, q, kwargs) else None
        lengths = metadata.cache_seqlens_int32
        # Several drafts of a step are FlashAttention's, which computes the tokens before them and them apart.
        if table is None or q.shape[0] != lengths.shape[0] or (forward_batch.spec_info is not None and self.topk > 1) or _is_encoder(layer):
            return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        if k is not None and save_kv_cache:
            self.write(layer, forward_batch, k, v)
        return self._launch(layer, forward_batch, q, lengths, table, {}, kwargs.get("sinks"))

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        rows = None
        if self._takes_step(layer, self.forward_metadata, q, kwargs):
            rows = self._rows_of(layer, forward_batch, q, k)
        if rows is None:
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        if k is not None and save_kv_cache and not self.fa_skip_kv_cache:
            self.write(layer, forward_batch, k, v)
        return self._launch(layer, forward_batch, q, *rows, kwargs.get("sinks"), (k, v))

    def init_cuda_graph_state(self, max_bs, max_num_tokens):
        super().init_cuda_graph_state(max_bs, max_num_tokens)
        if self._has_trees:
            # Of zeros, so that a graph's warm-up reads nothing: its requests are empty.
            self._graph_trees = Tree(*(torch.zeros(shape, dtype=torch.int32, device=self.device)
                                       for shape in ((max_bs,), (max_bs, self._pages), (max_bs * self._verified,))))

    # The rest is ours.

    @property
    def _has_trees(self):
        """Pages of several tokens are left to FlashAttention, because SGLang promises of a tree's tokens only that each has a slot."""
        return self.topk > 1 and self.page_size == 1 and self._verified is not None

    def init_tree(self, forward_batch):
        """Makes what the verification of a tree needs, for a step that is no graph."""
        self._tree = None
        if self._has_trees and forward_batch.forward_mode.is_target_verify() and self.reads_slots():
            seq_lens, indices, width = forward_batch.seq_lens, forward_batch.req_pool_indices, self._width(forward_batch.seq_lens_cpu)
            self._tree = Tree((seq_lens + self._verified).to(torch.int32), tensors.page_table(self.req_to_token, indices, width),
                              tensors.tree_words(forward_batch.spec_info.custom_mask, seq_lens, self._verified))

    def init_graph(self, requests, forward_mode, capture, seq_lens=None, req_pool_indices=None, seq_lens_cpu=None, spec_info=None):
        """The same for a CUDA graph of so many requests, in memory that the graph knows, before it is captured and before each replay; before a
        capture also the plans of its batch. Versions call it after FlashAttention's metadata is made."""
        self._tree = None
        if capture:
            self._batch_for(requests, exactly=True)
        if not (self._has_trees and forward_mode.is_target_verify() and self.reads_slots()):
            return
        whole = self._graph_trees
        self._tree = tree = Tree(whole.lengths[:requests], whole.page_table[:requests], whole.words[:requests * self._verified])
        if not capture:
            seq_lens, width = seq_lens[:requests], self._width(seq_lens_cpu)
            tree.lengths.copy_(seq_lens + self._verified)
            tree.page_table[:, :width].copy_(tensors.page_table(self.req_to_token, req_pool_indices[:requests], width))
            tree.words.copy_(tensors.tree_words(spec_info.custom_mask, seq_lens, self._verified))

    def _width(self, seq_lens_cpu):
        """Tokens of the longest request with its draft; as many as there may be where the host does not know the lengths."""
        if seq_lens_cpu is None or not len(seq_lens_cpu):
            return min(self._pages, self.req_to_token.shape[1])
        return int(seq_lens_cpu.max()) + self._verified

    def _takes(self, layer):
        return ((layer.attn_type == AttentionType.DECODER or _is_encoder(layer) and (self.windows_both_ways or not _window(layer)))
                and not layer.is_cross_attention and layer.logit_capping_method == "tanh")

    def _takes_step(self, layer, metadata, q, kwargs):
        """Whether leanattn has a part in attention of this layer in this step, as far as one can tell without its rows."""
        # A chunk of the context that a layer sees alone (Llama 4), and what only FlashAttention 4 has.
        alone = getattr(metadata, "local_attn_metadata", None) is not None and layer.use_irope
        return (self._takes(layer) and not alone and q.dtype == self._dtype and not getattr(self, "is_prefill_aware_swa", False)
                and all(value is None or value is False for name, value in kwargs.items() if name != "sinks"))

    def _table_of(self, layer, metadata):
        """The page table of a layer; None where FlashAttention makes it in the layer."""
        if self.use_sliding_window_kv_pool and _window(layer):
            return metadata.swa_page_table
        return metadata.page_table

    def _rows_of(self, layer, forward_batch, q, k):
        """Lengths, page table and further arguments of a launch for several query tokens of a request; None where it is FlashAttention's.

        Drafts of which every request has as many as at start-up run on the kernels of decode. All other steps have query offsets: prompts, chunks,
        these beside decode, and chains of any lengths."""
        metadata, verified = self.forward_metadata, self._verified
        if forward_batch.forward_mode.is_target_verify() and self.topk > 1:
            tree = self._tree
            if tree is None or _window(layer) or q.shape[0] != tree.words.shape[0] or _is_encoder(layer):
                return None
            return tree.lengths, tree.page_table, {"tokens": verified, "mask": "tree", "tree_mask": tree.words}
        lengths, table, offsets = metadata.cache_seqlens_int32, self._table_of(layer, metadata), metadata.cu_seqlens_q
        packed = self.fa_skip_kv_cache  # prompts whose K and V nobody needs later
        if (k if packed else table) is None or offsets is None or offsets.shape[0] != lengths.shape[0] + 1:
            return None
        alike = forward_batch.forward_mode.is_target_verify() and getattr(forward_batch.spec_info, "ragged_verify_layout", None) is None
        if alike and not _is_encoder(layer) and metadata.max_seq_len_q == verified and q.shape[0] == verified * lengths.shape[0]:
            return lengths, table, {"tokens": verified}
        # The kernels that are made for prefill are Hopper's, over caches of 16 bits. Elsewhere FlashAttention is faster, which has no fp8_e5m2.
        kv_dtype = None if packed else self._kv_dtype
        made_for_it = torch.cuda.get_device_capability()[0] == 9 and kv_dtype is None and layer.head_dim % 64 == 0 and layer.head_dim <= 256
        if not made_for_it and kv_dtype != "fp8_e5m2":
            return None
        # Of a step that is divided among ranks this would compute something else.
        if (self._deterministic or self.attn_cp_size > 1 or getattr(metadata, "image_token_ranges", None) is not None
                or metadata.max_seq_len_q > plans.MOST_PREFILL_TOKENS):
            return None
        options = {"q_offsets": offsets, "max_q_len": plans.MOST_PREFILL_TOKENS, "mask": _mask(layer)}
        return lengths, table, {**options, "kv_offsets": offsets} if packed else options

    def _launch(self, layer, forward_batch, q, lengths, table, options, sinks, new=None):
        """`options` are further arguments of leanattn.decode, beside which "tokens" is the number of query tokens that every request has; `new` are K
        and V of the step, which with kv_offsets are read in place of the cache."""
        rows, requests = q.shape[0], lengths.shape[0]
        key = layer, sinks is not None
        constant = self._layers.get(key)
        if constant is None:
            self._need((self._options(layer, sinks is not None),))
            constant = self._layers[key] = self._constant_arguments(layer)
        tokens = options.pop("tokens", 1)
        if "kv_offsets" in options:
            keys, values = new[0].view(-1, layer.tp_k_head_num, layer.head_dim), new[1].view(-1, layer.tp_v_head_num, layer.v_head_dim)
            lengths = table = None
        else:
            keys, values = self.caches(layer)
        if self._kv_dtype is not None and lengths is not None:
            keys, values = keys.view(torch.uint8), values.view(torch.uint8)
            options.update(kv_dtype=self._kv_dtype, k_scale=self._scale(layer, "k_scale", q), v_scale=self._scale(layer, "v_scale", q))
        if sinks is not None:
            options["sink_logits"] = sinks.detach().float().contiguous()
        if self._deterministic and table.shape[1] > self._pages:  # with which all K and V are in the cache
            table = table[:, :self._pages]
        given = getattr(forward_batch, "_attn_output", None)
        width = layer.tp_q_head_num * layer.v_head_dim
        out = q.new_empty((rows, width)) if given is None else given.view(rows, width)
        shape = (rows,) if tokens == 1 else (requests, tokens)
        leanattn.decode(q.reshape(*shape, layer.tp_q_head_num, layer.head_dim), keys, values, lengths, table,
                        out=out.view(*shape, layer.tp_q_head_num, layer.v_head_dim), kv_layout="NHD", shape=self._shape_for(requests, options),
                        engine=self._device.engine, workspace=self._device.workspace, **constant, **options)
        return out

    def _constant_arguments(self, layer):
        """The arguments that are the same in every step."""
        return {"scale": layer.scaling, "window": _window(layer), "soft_cap": float(layer.logit_cap or 0.0), "batch_invariant": self._deterministic}

    def _scale(self, layer, name, q):
        """The scale of a one-byte cache as a tensor on the GPU; None: 1. Some models have a number instead."""
        scale = getattr(layer, name)
        if not isinstance(scale, (int, float)):
            return scale
        key = layer, name, scale
        if key not in self._scales:
            self._scales[key] = q.new_full((1,), scale, dtype=torch.float32)
        return self._scales[key]

    def _options(self, layer, sinks):
        """What the kernels of this layer depend on. Raises ValueError, with what to do, where there are none."""
        q_heads, kv_heads, head_dim, v_head_dim = layer.tp_q_head_num, layer.tp_k_head_num, layer.head_dim, layer.v_head_dim
        if q_heads % kv_heads or q_heads > plans.LARGEST_GROUP * kv_heads:
            raise ValueError(f"{q_heads} query heads share {kv_heads} KV heads, but leanattn has at most {plans.LARGEST_GROUP}, and the same number, "
                             f"for each. {_OTHER}")
        for name, size in (("head_dim", head_dim), ("v_head_dim", v_head_dim)):
            if size % 16 or size > 512:
                raise ValueError(f"{name} of layer {layer.layer_id} is {size}, but leanattn has multiples of 16 up to 512. {_OTHER}")
        return plans.Options(
            q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=0 if v_head_dim == head_dim else v_head_dim, window=_window(layer),
            sink_logits=sinks, soft_cap=float(layer.logit_cap or 0.0), mask=_mask(layer), packed_kv=self.fa_skip_kv_cache,
            kv_dtype=None if self.fa_skip_kv_cache else self._kv_dtype, kv_layout="NHD" if self.fa_skip_kv_cache else self._layout(layer))

    def _layout(self, layer):
        """The layout of a layer's cache as its strides are, whose tokens may well be adjacent (docs/python.md)."""
        keys, values = self.caches(layer)
        adjacent = self.page_size == 1 or all(cache.stride(1) == cache.shape[3] for cache in (keys, values))
        return "HND" if adjacent else "NHD"

    def _need(self, options):
        """Sees to the plans of layers. Returns what Device.prepare does."""
        given = {"dtype": plans.dtype_name(self._dtype), "batch_invariant": self._deterministic, "page_size": 0 if self.fa_skip_kv_cache else self.page_size}
        decoders = [] if self.fa_skip_kv_cache else [one for one in options if one.mask == "causal"]
        problems = [plans.problem_of(one, **given) for one in decoders]
        if not self._deterministic:
            problems += [plans.problem_of(one, query_tokens=plans.MOST_PREFILL_TOKENS, **given) for one in options]
        if self._has_trees or (self.topk <= 1 and self._verified is not None):
            mask = "tree" if self.topk > 1 else "causal"
            problems += [plans.problem_of(one, query_tokens=self._verified, ragged=False, **{**given, "mask": mask}) for one in decoders
                         if not (mask == "tree" and one.window)]
        self._problems = tuple(dict.fromkeys((*self._problems, *problems)))
        return self._device.prepare(self._problems, self._sizes)

    def _shape_for(self, requests, options):
        """The shape whose plan serves a launch for so many requests."""
        key = self._batch_for(requests), "q_offsets" in options
        if key not in self._shapes:
            self._shapes[key] = leanattn.Shape(key[0], self._sizes.context, query_tokens=self._sizes.query_tokens if key[1] else 0)
        return self._shapes[key]

    def _batch_for(self, requests, exactly=False):
        """The batch whose plan serves so many requests. `exactly`: a graph's, which gets a plan of its own."""
        batch = self._batches.get(requests)
        if batch is None or (exactly and batch != requests):
            batch = self._batches[requests] = requests if exactly else self._sizes.batch_for(requests)
            if batch not in self._sizes.batches:
                self._sizes = dataclasses.replace(self._sizes, batches=tuple(sorted((*self._sizes.batches, batch))))
                self._device.prepare(self._problems, self._sizes)
        return batch


def _most_new_tokens(arguments):
    """The most query tokens of a step with prefill, by SGLang's arguments."""
    chunk = arguments.chunked_prefill_size
    return chunk if chunk is not None and chunk > 0 else arguments.max_prefill_tokens


def _check(runner, deterministic):
    """Raises ValueError, with what to do, for what leanattn cannot serve."""
    if runner.use_mla_backend:
        raise ValueError(f"the backend of leanattn has no latent attention (MLA), which this model needs. {_OTHER}")
    if runner.is_draft_worker:
        raise ValueError("leanattn serves no draft models, only the verification of drafts. Choose a --speculative-draft-attention-backend, "
                         "such as fa3")
    dtype, cache = str(runner.dtype), str(runner.kv_cache_dtype)
    if dtype not in ("torch.bfloat16", "torch.float16"):
        raise ValueError(f"leanattn has models of bfloat16 and float16, and this one is {dtype}. Give --dtype bfloat16, or choose another "
                         "--attention-backend")
    # Formats with scales in blocks have the element type of others.
    blocks = getattr(runner, "kv_cache_dtype_str", None) in ("mxfp8", "fp4_e2m1", "nvfp4")
    if blocks or cache not in (dtype, *_ONE_BYTE):
        raise ValueError(f"leanattn has KV caches of the model's {dtype}, fp8_e4m3 and fp8_e5m2, and this one is "
                         f"{runner.kv_cache_dtype_str if blocks else cache}. Give --kv-cache-dtype auto, or choose another --attention-backend")
    arguments = runner.server_args
    prefill = getattr(arguments, "prefill_attention_backend", None) or getattr(arguments, "attention_backend", None)
    if cache == "torch.float8_e5m2" and deterministic and prefill == "leanattn":
        raise ValueError("with deterministic inference prefill is FlashAttention's, which has no KV cache of fp8_e5m2. Give --kv-cache-dtype "
                         "fp8_e4m3, or --prefill-attention-backend triton --decode-attention-backend leanattn")


def _is_encoder(layer):
    """Whether all tokens of a request see each other, in the layer of an encoder or of a diffusion model."""
    return layer.attn_type == AttentionType.ENCODER_ONLY


def _mask(layer):
    return "full" if _is_encoder(layer) else "causal"


def _window(layer):
    """Tokens that a query token sees, itself the last of them; 0: all. SGLang counts those to its left."""
    left = layer.sliding_window_size
    return left + 1 if left is not None and left > -1 else 0


def _layers_of(model):
    """(attention layer, whether it has sink logits) for all of a model. Sinks are a parameter of the module around the layer."""
    for module in model.modules():
        for child in module.children():
            if isinstance(child, RadixAttention):
                yield child, getattr(module, "sinks", None) is not None
