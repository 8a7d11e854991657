"""vllm_steps.py -- leanattn.vllm with vLLM's own Python: steps that mix prefill, decode and speculation, compared with attention over the whole context.

    python3 python/tests/vllm_steps.py [FOLDER]          # FOLDER has vLLM's files, such as an unpacked wheel; default: the installed one
    python3 python/tests/vllm_steps.py --gpu             # with the real kernels of both, on CUDA device 0
    python3 python/tests/vllm_steps.py --gpu FOLDER      # with leanattn's; vLLM's compiled modules, FlashAttention among them, need not be there

vLLM's builder, implementation and backend are the real ones, and so are those of leanattn. Without --gpu neither a GPU nor compiled kernels are
needed: tensors are in host memory, and attention in plain PyTorch stands in for kernels. That of leanattn.decode reads pages, lengths and offsets
as they are given, that of FlashAttention likewise. There contexts are spread over ranks, too (decode context parallelism), which are threads
(vllm_ranks.py). The last line says how many steps agree; the line before, how long a builder takes for one without prefill.
"""
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import itertools
import math
import pathlib
import sys
import threading
import time
import types
from unittest.mock import MagicMock

import torch

import leanattn
import vllm_ranks

Q_HEADS, KV_HEADS, HEAD_DIM, PAGE, PAGES, WIDTH = 4, 2, 64, 16, 128, 40
DEVICE = torch.device("cuda" if "--gpu" in sys.argv else "cpu", 0)
# What caches hold where nothing was written, and page tables behind a request's end. FlashAttention's kernels multiply the one by zero, and follow
# the other to memory that they do not use, as vLLM allows; on the CPU any use would show.
UNWRITTEN, STALE = (1e4, PAGES - 1) if DEVICE.type == "cuda" else (float("nan"), 10**6)
WHOLE = vllm_ranks.Part(page=PAGE)
COMPILED = ("vllm._C", "vllm._moe_C", "vllm.cumem_allocator", "vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C")
# Packages that vLLM looks for to find out where it is.
LEFT_OUT = {"libtpu", "amdsmi", "torch_xla", "tpu_inference", "vllm_xpu_kernels", "flash_attn", "aiter", "ray", "deep_gemm", "flashinfer", "quack",
            "helion", "torchvision", "torchaudio", "tilelang", "torch_npu", "intel_extension_for_pytorch"}


class Missing(types.ModuleType):
    """A compiled module, or a package that only servers need."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__, self.__version__ = [], "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None})


class Finder:
    """Finds, for vLLM's own imports and for no others, what is not installed."""

    def find_spec(self, name, path=None, target=None):
        parent = name.rpartition(".")[0]
        inside = isinstance(sys.modules.get(parent), Missing)
        if name.split(".")[0] in LEFT_OUT or (parent and not inside and not name.startswith(COMPILED)):
            return None
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if not inside and (frame is None or "/vllm/" not in frame.f_code.co_filename):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Missing(spec.name)

    def exec_module(self, module):
        pass


def load(folder):
    """Makes `vllm` the package in the folder, on a machine with a Hopper GPU, as far as it can tell. Its __init__ is not run: it looks at the machine."""
    import numpy  # noqa: F401  (before anything can be missing)
    import transformers  # noqa: F401

    sys.path.insert(0, str(folder))
    sys.meta_path.append(Finder())
    package = types.ModuleType("vllm")
    package.__path__ = [str(folder / "vllm")]
    package.__spec__ = importlib.machinery.ModuleSpec("vllm", None, is_package=True)
    package.__version__ = next(distribution.version for distribution in importlib.metadata.distributions(path=[str(folder)])
                               if distribution.metadata["Name"] == "vllm")
    sys.modules["vllm"] = package
    platforms, interface = importlib.import_module("vllm.platforms"), importlib.import_module("vllm.platforms.interface")

    class Hopper(interface.Platform):
        _enum = interface.PlatformEnum.CUDA
        device_name = device_type = "cuda"
        dispatch_key = "CUDA"
        is_pin_memory_available = classmethod(lambda cls: False)
        get_device_capability = classmethod(lambda cls, device_id=0: interface.DeviceCapability(9, 0))
        has_device_capability = classmethod(lambda cls, capability, device_id=0: True)
        is_device_capability_family = classmethod(lambda cls, capability, device_id=0: capability // 10 == 9)
        get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H200")

    platforms._current_platform = Hopper()
    return package.__version__


def attention(*given, **features):
    """The first of attention_and_lse."""
    return attention_and_lse(*given, **features)[0]


def attention_and_lse(q, k, v, first, *, scale, window=0, soft_cap=0.0, sinks=None, slopes=None, also=False, full=False):
    """q [tokens, heads, d] at positions first..., k and v [context, kv_heads, d], in fp64. Also the log-sum-exp, [tokens, heads]. `also`: what query
    tokens see beside the causal mask and the window, [tokens, context]. `full`: there is no causal mask, and a window reaches both ways."""
    group = q.shape[1] // k.shape[1]
    k, v = (tensor.double().repeat_interleave(group, 1) for tensor in (k, v))
    scores = torch.einsum("thd,chd->htc", q.double(), k) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    own, key = first + torch.arange(q.shape[0], device=q.device)[:, None], torch.arange(k.shape[0], device=q.device)
    if slopes is not None:
        scores = scores + slopes.double()[:, None, None] * (key - own)
    hidden = (key > own) & (not full)
    if window:
        hidden = hidden | (key <= own - window) | (key >= own + window)
    scores = scores.masked_fill(hidden & ~torch.as_tensor(also, device=q.device), float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None, None].expand(-1, q.shape[0], 1)), -1)
    weights = torch.softmax(scores, -1)[..., :k.shape[0]].nan_to_num(0.0)
    return torch.einsum("htc,chd->thd", weights, v), torch.logsumexp(scores, -1).T


def seen_images(images, first, tokens, context, clamp):
    """What query tokens at positions first... see of images, from first to last token each, [tokens, context]; `clamp`: no more than so many tokens
    behind themselves; 0: all."""
    own, key = first + torch.arange(tokens)[:, None], torch.arange(context)
    seen = torch.zeros(tokens, context, dtype=torch.bool)
    for begin, end in images:
        seen |= (begin <= own) & (own <= end) & (begin <= key) & (key <= end)
    return seen & (own - key < clamp) if clamp else seen


class Calls:
    """What stands in for kernels, and how many rows each computed."""

    def __init__(self):
        self.decoded = self.prefilled = 0
        self.prefills = True  # whether there are kernels for prefill
        self.planned = set()  # query heads, KV heads, whether with log-sum-exp and with spans, the mask, and whether without a cache
        self._counting = threading.Lock()

    def decode(self, q, k_cache, v_cache, context_lengths, page_table=None, *, out=None, return_lse=False, q_offsets=None, max_q_len=None, spans=None,
               kv_offsets=None, mask="causal", scale, window=0, soft_cap=0.0, sink_logits=None, alibi_slopes=None, shape, engine, workspace, batch_invariant):
        packed = kv_offsets is not None
        assert packed == (page_table is None) == (context_lengths is None)
        if packed:
            context_lengths = kv_offsets[1:] - kv_offsets[:-1]
        assert shape.batch >= len(context_lengths) and (packed or k_cache.shape[2] == v_cache.shape[2] == PAGE and len(context_lengths) == len(page_table))
        kind = q.shape[1], k_cache.shape[1], return_lse, spans is not None, mask, packed
        assert (q_offsets is None) == (max_q_len is None) and kind in self.planned
        assert spans is None or spans.shape == (len(q), 2) and q_offsets is not None
        out, lse = torch.full_like(q, float("nan")) if out is None else out, torch.full(q.shape[:2], float("nan"), dtype=torch.float32)
        starts = list(range(len(context_lengths) + 1)) if q_offsets is None else q_offsets.tolist()
        assert max(b - a for a, b in itertools.pairwise(starts)) <= (max_q_len or 1) and starts[-1] <= len(q) == len(out)
        for request, (begin, end) in enumerate(itertools.pairwise(starts)):
            length = int(context_lengths[request])
            if packed:
                k, v = (tensor[kv_offsets[request]:kv_offsets[request + 1]] for tensor in (k_cache, v_cache))
            else:
                pages = page_table[request, :-(-length // PAGE)].long()
                k, v = (cache[pages].transpose(1, 2).reshape(-1, cache.shape[1], cache.shape[3])[:length] for cache in (k_cache, v_cache))
            of, key = None if spans is None else spans[begin:end, :, None], torch.arange(length)
            out[begin:end], lse[begin:end] = attention_and_lse(q[begin:end], k, v, length - (end - begin), scale=scale, window=window,
                                                               soft_cap=soft_cap, sinks=sink_logits, slopes=alibi_slopes,
                                                               also=of is not None and (of[:, 0] <= key) & (key < of[:, 1]), full=mask == "full")
        self._count(decoded=starts[-1])
        return (out, lse) if return_lse else out

    def flash(self, q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, softmax_scale, causal, window_size, out, seqused_k=None, cu_seqlens_k=None,
              block_table=None, softcap=0.0, alibi_slopes=None, s_aux=None, return_softmax_lse=False, **_):
        """Over the cache by its pages, or over the tokens of k and v. Over ranks both are for prefill: the first, which is not causal, for what lies
        before its tokens."""
        lengths = seqused_k if block_table is not None else cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        assert max_seqlen_q >= int((cu_seqlens_q[1:] - cu_seqlens_q[:-1]).max()) and cu_seqlens_q[0] == 0
        assert cu_seqlens_q[-1] == len(q) and max_seqlen_k >= int(lengths.max())
        lse = torch.full(q.shape[:2], float("nan"), dtype=torch.float32)
        for request, (begin, end) in enumerate(itertools.pairwise(cu_seqlens_q.tolist())):
            length = int(lengths[request])
            if block_table is None:
                keys, values = (tensor[cu_seqlens_k[request]:cu_seqlens_k[request + 1]] for tensor in (k, v))
            else:
                pages = block_table[request, :-(-length // PAGE)].long()
                keys, values = (cache[pages].reshape(-1, cache.shape[2], cache.shape[3])[:length] for cache in (k, v))
            window = window_size[0] + 1 if window_size and window_size[0] >= 0 else 0
            first = length - (end - begin) if causal else length
            out[begin:end], lse[begin:end] = attention_and_lse(q[begin:end], keys, values, first, scale=softmax_scale, window=window,
                                                               soft_cap=softcap, sinks=s_aux, slopes=alibi_slopes)
        if causal:
            self._count(prefilled=len(q))
        return (out, lse.T) if return_softmax_lse else out

    def _count(self, decoded=0, prefilled=0):
        with self._counting:
            self.decoded, self.prefilled = self.decoded + decoded, self.prefilled + prefilled

    def plan(self, problem, shape, *, max_batch):
        """Of the engine."""
        assert shape.batch == max_batch and shape.longest_context > 0 and problem.head_dim == HEAD_DIM
        assert problem.page_size == (0 if problem.packed_kv else PAGE)
        self.planned.add((problem.q_heads, problem.kv_heads, problem.lse, problem.spans, problem.mask, problem.packed_kv))
        return types.SimpleNamespace(provenance="exact", workspace_bytes=4096)


def update_cache(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale):
    """vLLM's: caches [blocks, block, kv_heads, d], tokens to slots; a negative slot is another rank's."""
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            key_cache[slot // PAGE, slot % PAGE], value_cache[slot // PAGE, slot % PAGE] = key[token], value[token]


def configuration(speculative, part, kv_heads, images):
    """What vLLM's builder reads of its configuration; everything else may be anything."""
    made = MagicMock()
    made.model_config.max_model_len, made.model_config.dtype = WIDTH * PAGE, torch.bfloat16
    made.model_config.get_num_attention_heads.return_value, made.model_config.get_num_kv_heads.return_value = Q_HEADS, kv_heads
    made.model_config.get_head_size.return_value, made.model_config.rswa_window = HEAD_DIM, None
    made.kernel_config.enable_jit_warmup = made.use_v2_model_runner = False
    made.model_config.is_mm_prefix_lm = images
    made.parallel_config.decode_context_parallel_size, made.parallel_config.cp_kv_cache_interleave_size = part.ranks, part.interleave
    made.cache_config.cache_dtype, made.scheduler_config.max_num_seqs = "auto", 8
    made.scheduler_config.max_num_batched_tokens, made.scheduler_config.max_num_encoder_input_tokens = 512, 1500
    made.compilation_config.max_cudagraph_capture_size, made.compilation_config.cudagraph_capture_sizes = 8, [1, 2, 4, 8]
    made.compilation_config.cudagraph_mode.has_full_cudagraphs.return_value = True
    made.attention_config.flash_attn_max_num_splits_for_cuda_graph = 16
    made.speculative_config = None
    if speculative:
        made.speculative_config = types.SimpleNamespace(num_speculative_tokens=speculative, parallel_drafting=False)
    return made


class Model:
    """A layer and the builder of its metadata; on one of several ranks, where `part` says so. These share a KV head and have Q_HEADS heads each.
    `images`: the model sees images both ways; "clamped": in layers with a window no further back than that. `attn_type`: as vLLM has it."""

    def __init__(self, backend, speculative, layout, part=WHOLE, images=None, attn_type="decoder", **features):
        from vllm.v1.kv_cache_interface import CrossAttentionSpec, EncoderOnlyAttentionSpec, FullAttentionSpec

        self.clamp = features.get("sliding_window") if images == "clamped" else 0
        self.features, self.part, self.kv_heads = features, part, KV_HEADS if part.ranks == 1 else 1
        with DEVICE:  # as vLLM does while it makes a model
            self.impl = backend.get_impl_cls()(Q_HEADS, HEAD_DIM, HEAD_DIM**-0.5, self.kv_heads, features.get("alibi_slopes"),
                                               features.get("sliding_window"), "auto", features.get("logits_soft_cap"), attn_type, None,
                                               **{k: v for k, v in features.items() if k == "sinks"})
        self.impl.process_weights_after_loading(torch.bfloat16)
        if part.ranks > 1:
            self.impl.other._dcp_dtype = torch.bfloat16  # in an engine, of vLLM's configuration
        one = torch.ones((), device=DEVICE)
        self.layer = types.SimpleNamespace(impl=self.impl, _q_scale=one, _k_scale=one, _v_scale=one, mm_prefix_clamp_sliding_window=images == "clamped",
                                           kv_sharing_target_layer_name=None)
        config = configuration(speculative, part, self.kv_heads, images is not None)
        config.compilation_config.static_forward_context = {"layer": self.layer}
        sizes = {"block_size": PAGE, "num_kv_heads": self.kv_heads, "head_size": HEAD_DIM, "dtype": torch.bfloat16}
        spec = (FullAttentionSpec(**sizes, sliding_window=features.get("sliding_window")) if attn_type == "decoder" else
                EncoderOnlyAttentionSpec(**sizes) if attn_type == "encoder_only" else CrossAttentionSpec(**sizes))
        self.builder = backend.get_builder_cls()(spec, ["layer"], config, DEVICE)
        whole = torch.full((PAGES, PAGE, self.kv_heads, 2 * HEAD_DIM), UNWRITTEN, dtype=torch.bfloat16, device=DEVICE)
        self.cache = whole.permute(0, 2, 1, 3) if layout == "NHD" else whole.permute(0, 2, 1, 3).contiguous()

    def step(self, query_tokens, contexts, generator, padding=0, images=None):
        """Fills the cache, runs one step through vLLM's interface, and returns the largest error. `padding` requests of a graph are empty. `images` has
        those of each request."""
        from vllm.v1.attention.backend import CommonAttentionMetadata
        from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens

        part, kv_heads = self.part, self.kv_heads
        requests, tokens = len(query_tokens), sum(query_tokens)
        order = torch.randperm(PAGES, generator=generator, dtype=torch.int32)
        table = torch.full((requests + padding, WIDTH), STALE, dtype=torch.int32)
        table[requests:] = 0
        qkv = torch.randn(tokens, (part.ranks * Q_HEADS + 2 * kv_heads) * HEAD_DIM, generator=generator).bfloat16().to(DEVICE)
        query, key, value = (part.unflatten(-1, (-1, HEAD_DIM)) for part in
                             qkv.split([n * HEAD_DIM for n in (part.ranks * Q_HEADS, kv_heads, kv_heads)], -1))
        query = query[:, part.rank * Q_HEADS:(part.rank + 1) * Q_HEADS]
        slots, whole, used = [], [], 0
        for request, (new, context) in enumerate(zip(query_tokens, contexts)):
            pages = part.pages(context)
            table[request, :pages] = order[used:used + pages]
            used += pages
            begin = sum(query_tokens[:request])
            old = torch.randn(2, context - new, kv_heads, HEAD_DIM, generator=generator).bfloat16().to(DEVICE)
            k, v = (torch.cat((before, fresh[begin:begin + new])) for before, fresh in zip(old, (key, value)))
            whole.append((k, v))
            places = [part.slot(table[request], token) for token in range(context)]
            before = slice(0, context - new)  # the new tokens are vLLM's to write
            update_cache(k[before], v[before], *self.cache.transpose(1, 2).split(HEAD_DIM, -1), torch.tensor(places[before]), None, None, None)
            slots += places[context - new:]
        starts = torch.tensor([0, *itertools.accumulate(query_tokens), *[tokens] * padding], dtype=torch.int32)
        rows, lengths = tokens + padding, torch.tensor([*contexts, *[0] * padding], dtype=torch.int32)
        local = {} if part.ranks == 1 else {"dcp_local_seq_lens": get_dcp_local_seq_lens(lengths, part.ranks, part.rank, part.interleave).to(DEVICE)}
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(DEVICE), query_start_loc_cpu=starts, seq_lens=lengths.to(DEVICE), seq_lens_cpu_upper_bound=lengths,
            num_reqs=requests + padding, num_actual_tokens=rows, max_query_len=max(query_tokens), max_seq_len=max(contexts), block_table_tensor=table.to(DEVICE),
            slot_mapping=torch.tensor(slots, device=DEVICE), mm_req_doc_ranges=images and dict(enumerate(images)), **local)
        metadata = self.builder.build(0, common)
        output = torch.full((rows, Q_HEADS, HEAD_DIM), float("nan"), dtype=torch.bfloat16, device=DEVICE)
        if padding:
            query = torch.cat((query, query.new_zeros(padding, Q_HEADS, HEAD_DIM)))
        self.impl.do_kv_cache_update(self.layer, key, value, self.cache, common.slot_mapping)
        self.impl.forward(self.layer, query, key, value, self.cache, metadata, output)
        sinks, slopes = self.features.get("sinks"), self.features.get("alibi_slopes")
        wanted = torch.cat([attention(query[begin:begin + new], k, v, context - new, scale=HEAD_DIM**-0.5, sinks=sinks,
                                      window=self.features.get("sliding_window") or 0, soft_cap=self.features.get("logits_soft_cap") or 0.0,
                                      slopes=None if slopes is None else torch.tensor(slopes, device=DEVICE),
                                      also=images is not None and seen_images(of, context - new, new, context, self.clamp))
                            for begin, new, context, (k, v), of in zip(starts.tolist(), query_tokens, contexts, whole, images or whole)])
        assert part.ranks == 1 or not output.isnan().any()  # not of padding either, for which all ranks have nothing to read
        return (output[:tokens].double() - wanted).abs().max().item(), common


    def encode(self, query_tokens, generator, padding):
        """Runs a step of an encoder through vLLM's interface. `padding` tokens are nobody's. Returns the largest error."""
        q, k, v = (torch.randn(sum(query_tokens) + padding, heads, HEAD_DIM, generator=generator).bfloat16().to(DEVICE)
                   for heads in (Q_HEADS, KV_HEADS, KV_HEADS))
        common = self._common(query_tokens, query_tokens, torch.zeros(len(query_tokens), 1, dtype=torch.int32), padding)
        output = torch.full_like(q, float("nan"))
        self.impl.do_kv_cache_update(self.layer, k, v, torch.empty(0), common.slot_mapping)
        self.impl.forward(self.layer, q, k, v, torch.empty(0, device=DEVICE), self.builder.build(0, common), output)
        parts = [torch.arange(begin, end) for begin, end in itertools.pairwise(common.query_start_loc_cpu.tolist())]
        return self._error(output, [(q[part], k[part], v[part], 0) for part in parts])

    def look_at(self, query_tokens, contexts, encoded, generator):
        """Runs a step of cross attention through vLLM's interface: requests without a context before the step bring an encoder's keys and values, which
        later steps of the same requests find. `encoded`: how many, and where those are that are there. Returns the largest error."""
        q = torch.randn(sum(query_tokens), Q_HEADS, HEAD_DIM, generator=generator).bfloat16().to(DEVICE)
        for new, context, of in zip(query_tokens, contexts, encoded, strict=True):
            if new == context:
                of.kv = torch.randn(2, of.length, KV_HEADS, HEAD_DIM, generator=generator).bfloat16().to(DEVICE)
        fresh = [of.kv for new, context, of in zip(query_tokens, contexts, encoded) if new == context]
        key, value = torch.cat(fresh, 1) if fresh else (None, None)
        lengths, table = torch.tensor([of.length for of in encoded], dtype=torch.int32), torch.full((len(encoded), WIDTH), STALE, dtype=torch.int32)
        for row, of in zip(table, encoded):
            row[:len(of.pages)] = of.pages
        common = self._common(query_tokens, contexts, table, 0)
        common.encoder_seq_lens, common.encoder_seq_lens_cpu = lengths.to(DEVICE), lengths.numpy()
        output = torch.full_like(q, float("nan"))
        self.impl.forward(self.layer, q, key, value, self.cache, self.builder.build(0, common), output)
        return self._error(output, [(rows, *of.kv, 0) for rows, of in zip(q.split(query_tokens), encoded)])

    def _common(self, query_tokens, contexts, table, padding):
        from vllm.v1.attention.backend import CommonAttentionMetadata

        starts, lengths = torch.tensor([0, *itertools.accumulate(query_tokens)], dtype=torch.int32), torch.tensor(contexts, dtype=torch.int32)
        return CommonAttentionMetadata(
            query_start_loc=starts.to(DEVICE), query_start_loc_cpu=starts, seq_lens=lengths.to(DEVICE), seq_lens_cpu_upper_bound=lengths,
            num_reqs=len(query_tokens), num_actual_tokens=sum(query_tokens) + padding, max_query_len=max(query_tokens), max_seq_len=max(contexts),
            block_table_tensor=table.to(DEVICE), slot_mapping=torch.zeros(sum(query_tokens), dtype=torch.int64, device=DEVICE))

    def _error(self, output, requests):
        wanted = torch.cat([attention(*request, scale=HEAD_DIM**-0.5, window=self.features.get("sliding_window") or 0, full=True,
                                      soft_cap=self.features.get("logits_soft_cap") or 0.0, sinks=self.features.get("sinks")) for request in requests])
        return (output[:len(wanted)].double() - wanted).abs().max().item()


# Query tokens and contexts of the requests, and requests that only pad a graph.
STEPS = {0: [([1, 1, 1], [33, 96, 1], 0), ([1, 1], [50, 7], 2), ([1, 1, 20, 5], [40, 16, 20, 64], 0), ([9, 30], [9, 95], 0), ([1, 60], [96, 60], 0),
             ([1, 20, 5], [40, 20, 64], 3), ([1, 1, 200, 3], [600, 31, 333, 640], 0), ([300, 1], [300, 1], 0)],
         2: [([3, 3], [33, 96], 0), ([3, 1, 2], [17, 64, 2], 1), ([1, 1], [5, 80], 0), ([3, 2, 20, 4], [30, 31, 20, 64], 0), ([40], [50], 0),
             ([3, 1, 150], [500, 31, 400], 2)]}
FEATURES = [{}, {"sliding_window": 9}, {"logits_soft_cap": 5.0}, {"sinks": torch.linspace(-1, 2, Q_HEADS).bfloat16().to(DEVICE)}, {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
            {"sliding_window": 20, "logits_soft_cap": 3.0, "sinks": torch.linspace(1, -2, Q_HEADS).bfloat16().to(DEVICE)}]


# Of encoders: query tokens, and tokens of nobody. Of cross attention: tokens that encoders left for each request, then query tokens and contexts.
ENCODER_STEPS = [([20, 7], 0), ([1, 1, 1], 0), ([130, 1, 40], 5), ([9], 0)]
ENCODED = [100, 33, 7]
CROSS_STEPS = [([4], [4]), ([1, 4, 3], [5, 4, 3]), ([1, 1, 1], [6, 5, 4]), ([1, 1], [7, 6])]
# The same with the images of each request.
IMAGE_STEPS = [([1, 20, 5], [40, 20, 64], 0, [[(3, 9)], [(0, 6), (9, 17)], [(50, 58)]]),  # a chunk before the end of one, and whole ones
               ([30, 9], [70, 50], 3, [[(35, 43), (45, 50), (66, 74)], [(1, 7)]]),  # which a chunk begins and ends within, and one before it
               ([1, 1], [40, 60], 0, [[(33, 41)], []]), ([17, 40], [17, 95], 0, [[], []]), ([6], [6], 0, [[(0, 5)]]),
               ([2, 1, 130], [64, 9, 333], 0, [[(60, 63)], [], [(230, 238), (300, 308)]])]
IMAGE_FEATURES = [({}, "whole"), ({"sliding_window": 9}, "whole"), ({"sliding_window": 4}, "clamped"), ({}, "clamped"),
                  ({"sliding_window": 12, "logits_soft_cap": 3.0, "sinks": torch.linspace(1, -2, Q_HEADS).bfloat16().to(DEVICE)}, "whole")]


# Over ranks: with contexts that leave some of them without a token.
RANK_STEPS = {0: [([1, 1, 1], [33, 96, 1], 0), ([1, 1], [2, 1], 0), ([1, 1], [50, 7], 2), ([1, 1, 20, 5], [40, 16, 20, 64], 0), ([9, 30], [9, 95], 0),
                  ([20], [20], 0)],
              2: [([3, 3], [33, 96], 0), ([1, 3, 20], [5, 80, 50], 0)]}


def load_given():
    """Makes `vllm` what the command line names: the package in a folder, else the installed one, which with --gpu is imported as it is. Returns its
    version."""
    given = [argument for argument in sys.argv[1:] if argument != "--gpu"]
    if DEVICE.type == "cuda" and not given:
        import vllm

        return vllm.__version__
    version = load(pathlib.Path(given[0]) if given else pathlib.Path(importlib.util.find_spec("vllm").origin).parents[1])
    from leanattn.vllm import implementation

    implementation.reshape_and_cache_flash = update_cache
    return version


def main():
    version = load_given()
    import leanattn.vllm
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    leanattn.vllm.register()
    backend = AttentionBackendEnum.CUSTOM.get_class()
    assert AttentionBackendEnum[backend.get_name()] is AttentionBackendEnum.CUSTOM
    check_selection(backend)
    calls = None if DEVICE.type == "cuda" else stand_in_for_kernels()
    generator, steps, worst = torch.Generator().manual_seed(11), 0, 0.0
    # Also as where prefill has no kernels, such as on other GPUs; there it is FlashAttention's.
    whole = (True, False) if calls is not None else (True,)
    for prefills, features, layout, (speculative, given) in itertools.product(whole, FEATURES, ("NHD", "HND"), STEPS.items()):
        if calls is not None:
            calls.prefills = prefills
        model = Model(backend, speculative, layout, **features)
        for query_tokens, contexts, padding in given:
            decode = all(count <= 1 + speculative for count in query_tokens)
            if padding and not decode and not prefills:
                continue  # no graph has such a step
            before = calls and (calls.decoded, calls.prefilled)
            error, common = model.step(query_tokens, contexts, generator, padding)
            if calls is not None:
                mine = sum(query_tokens if prefills else itertools.takewhile(lambda count: count <= 1 + speculative, query_tokens))
                padded = padding * (decode and speculative == 0)  # single tokens of nobody
                assert (calls.decoded - before[0], calls.prefilled - before[1]) == (mine + padded, sum(query_tokens) - mine)
            assert error < 0.02, (features, layout, query_tokens, error)
            steps, worst = steps + 1, max(worst, error)
    for more, largest in [steps_with_images(backend, calls), steps_of_encoders(backend, calls), *([steps_over_ranks(backend, calls)] if calls is not None else [])]:
        steps, worst = steps + more, max(worst, largest)
    common = step_without_prefill(model, generator)
    print(f"vLLM {version}, PyTorch {torch.__version__}: the builder takes {host_time(model.builder, common):.1f} us for a step without prefill")
    print(f"{steps} steps agree; largest error {worst:.4f}")


def steps_with_images(backend, calls):
    """Of a model whose images see each other both ways. Returns how many steps agree, and the largest error."""
    generator, steps, worst = torch.Generator().manual_seed(12), 0, 0.0
    if calls is not None:
        calls.prefills = True
    for (features, kind), layout, speculative in itertools.product(IMAGE_FEATURES, ("NHD", "HND"), (0, 2)):
        model = Model(backend, speculative, layout, images=kind, **features)
        for query_tokens, contexts, padding, images in IMAGE_STEPS:
            before = calls and calls.decoded
            error, _ = model.step(query_tokens, contexts, generator, padding, images)
            assert calls is None or calls.decoded == before + sum(query_tokens)
            assert error < 0.02, (features, kind, layout, query_tokens, error)
            steps, worst = steps + 1, max(worst, error)
    return steps, worst


def steps_of_encoders(backend, calls):
    """Of encoders and of cross attention, by vLLM's own builders for them, also where FlashAttention has the prefill. Returns how many steps agree, and
    the largest error."""
    from vllm.model_executor.layers.attention.cross_attention import create_cross_attention_backend
    from vllm.model_executor.layers.attention.encoder_only_attention import create_encoder_only_attention_backend

    generator, errors = torch.Generator().manual_seed(13), []
    encoder, cross = create_encoder_only_attention_backend(backend), create_cross_attention_backend(backend)
    for prefills in (True, False) if calls is not None else (True,):
        if calls is not None:
            calls.prefills = prefills
        for features in FEATURES if prefills else ({},):
            model = None if "alibi_slopes" in features else Model(encoder, 0, "NHD", attn_type="encoder_only", **features)
            for query_tokens, padding in ENCODER_STEPS if model is not None else ():
                if padding and not prefills:
                    continue  # no graph has such a step
                before = calls and calls.decoded
                errors.append(model.encode(query_tokens, generator, padding))
                assert calls is None or calls.decoded - before == (sum(query_tokens) if prefills else 0)
        for features, layout in itertools.product(FEATURES if prefills else ({},), ("NHD", "HND")):
            if "alibi_slopes" in features or "sliding_window" in features:
                continue
            model, pages = Model(cross, 0, layout, attn_type="encoder_decoder", **features), torch.randperm(PAGES, generator=generator, dtype=torch.int32)
            encoded = [types.SimpleNamespace(length=length, pages=pages[10 * i:10 * i + math.ceil(length / PAGE)]) for i, length in enumerate(ENCODED)]
            for query_tokens, contexts in CROSS_STEPS:
                before = calls and calls.decoded
                errors.append(model.look_at(query_tokens, contexts, encoded[:len(query_tokens)], generator))
                mine = sum(query_tokens if prefills else itertools.takewhile(lambda count: count == 1, query_tokens))
                assert calls is None or calls.decoded - before == mine
    assert max(errors) < 0.02, errors
    return len(errors), max(errors)


def steps_over_ranks(backend, calls):
    """Decode context parallelism: every step on each rank, all with the same random numbers. Returns how many steps agree, and the largest error."""
    from vllm.distributed import parallel_state

    steps, worst = 0, 0.0
    kinds = itertools.product((2, 4), (1, 4, PAGE), ({}, {"logits_soft_cap": 5.0}), RANK_STEPS.items())
    for size, interleave, features, (speculative, given) in kinds:
        parallel_state._DCP = group = vllm_ranks.Group(size)
        models = []
        for rank in range(size):
            group.mine.rank = rank
            models.append(Model(backend, speculative, "NHD", vllm_ranks.Part(rank, size, interleave, PAGE), **features))
        for query_tokens, contexts, padding in given:
            before = calls.decoded, calls.prefilled
            found = group.run(lambda rank: models[rank].step(query_tokens, contexts, torch.Generator().manual_seed(steps), padding)[0])  # noqa: B023
            if failures := [error for error in found if isinstance(error, Exception)]:
                raise min(failures, key=lambda error: isinstance(error, threading.BrokenBarrierError))  # else it only waited for a rank that failed
            # With speculation all rows are FlashAttention's.
            mine = 0 if speculative else sum(itertools.takewhile(lambda count: count == 1, query_tokens)) + padding
            counted = calls.decoded - before[0], calls.prefilled - before[1]
            assert counted == (size * mine, size * (sum(query_tokens) + padding - mine)), (size, interleave, query_tokens, counted)
            assert all(error < 0.02 for error in found), (size, interleave, features, query_tokens, found)
            steps, worst = steps + 1, max(worst, *found)
    parallel_state._DCP = None
    return steps, worst


def stand_in_for_kernels():
    from leanattn._serving import plans
    from leanattn.vllm import implementation
    from vllm.v1.attention.backends import flash_attn

    calls = Calls()
    leanattn.decode, leanattn.engine = calls.decode, lambda ordinal: calls
    leanattn.Workspace = lambda engine, size: types.SimpleNamespace(bytes=size)
    assert implementation.leanattn is plans.leanattn is leanattn
    implementation.takes_all_query_tokens = lambda *_: calls.prefills
    flash_attn.flash_attn_varlen_func = calls.flash
    flash_attn.get_scheduler_metadata = lambda **_: torch.zeros(5, dtype=torch.int32)
    flash_attn.merge_attn_states = vllm_ranks.merge_attn_states
    sys.modules[flash_attn.cp_lse_ag_out_rs.__module__].correct_attn_out = vllm_ranks.correct_attn_out
    flash_attn.current_workspace_manager = lambda: types.SimpleNamespace(
        get_simultaneous=lambda *specs: [torch.full(shape, float("nan"), dtype=dtype) for shape, dtype in specs])
    return calls


def step_without_prefill(model, generator):
    return model.step([1] * 8, [90] * 8, generator)[1]


def check_selection(backend):
    """vLLM's own check of a backend against a model."""
    from vllm.platforms.interface import DeviceCapability

    given = dict(head_size=128, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=16, use_mla=False, has_sink=False, use_sparse=False,
                 use_mm_prefix=True, use_per_head_quant_scales=False, device_capability=DeviceCapability(9, 0), attn_type="decoder",
                 has_sliding_window=True, use_batch_invariant=True)
    assert backend.validate_configuration(**given) == []
    one_byte = {"use_mm_prefix": False, "kv_cache_dtype": "fp8"}
    for changed in ({"has_sink": True}, {"head_size": 256}, one_byte, {"use_per_head_quant_scales": True, **one_byte}, {"block_size": 528},
                    {"attn_type": "encoder_only"}):
        assert backend.validate_configuration(**{**given, **changed}) == [], changed
    for changed in ({"use_mla": True}, {"head_size": 72}, {"kv_cache_dtype": "float16"}, {"dtype": torch.float32}):
        assert backend.validate_configuration(**{**given, **changed}) != [], changed


def host_time(builder, common):
    samples = []
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(100):
            builder.build(0, common)
        samples.append((time.perf_counter() - start) * 1e4)
    return sorted(samples)[len(samples) // 2]


if __name__ == "__main__":
    main()
