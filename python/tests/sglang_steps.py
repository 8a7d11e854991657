"""sglang_steps.py -- leanattn.sglang with SGLang's own Python: steps of decode, verification and prefill, compared with attention over the whole context.

    python3 python/tests/sglang_steps.py [FOLDER]        # FOLDER has SGLang's files, such as an unpacked wheel; default: the installed one

SGLang's FlashAttentionBackend, with all that it makes of a batch, its RadixAttention and its ForwardMode are the real ones, and so is leanattn's
backend. Neither a GPU nor compiled kernels are needed: tensors are in host memory, and attention in plain PyTorch stands in for leanattn.decode, which
reads pages, lengths, offsets and masks as they are given. There is no FlashAttention. A CUDA graph is what the kernel was given when it was captured:
a replay calls it again with the same tensors. All that SGLang's four modules import beside these is a stand-in that does nothing. The last line says
how many steps agree.
"""
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import itertools
import pathlib
import sys
import types

import torch

import leanattn

Q_HEADS, KV_HEADS, HEAD_DIM, SLOTS, CONTEXT, MOST_REQUESTS = 4, 2, 64, 512, 96, 4
UNWRITTEN, STALE = float("nan"), 10**6  # what caches and page tables hold where nothing was written; any use shows
REAL = ("sglang.srt.layers.attention.base_attn_backend", "sglang.srt.layers.attention.flashattention_backend", "sglang.srt.layers.radix_attention",
        "sglang.srt.model_executor.forward_batch_info")
FLASH = REAL[1]


class _Nothing(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing(name)


def nothing(name):
    """A class that can be anything that a module names: a decorator, a base, a function that says no."""
    return _Nothing(name, (), {"__init__": lambda self, *_, **__: None, "__bool__": lambda self: False,
                               "__call__": lambda self, *given, **_: given[0] if given else None, "__class_getitem__": classmethod(lambda cls, _: cls)})


class Missing(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing(name)


class Finder:
    """Finds SGLang's real modules in the folder, and stand-ins for its others and for what they import that is not installed."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        if name in REAL:
            return importlib.util.spec_from_file_location(name, self.folder / f"{name.replace('.', '/')}.py")
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        from_sglang = frame is not None and "/sglang/srt/" in frame.f_code.co_filename and str(self.folder) in frame.f_code.co_filename
        inside = isinstance(sys.modules.get(name.rpartition(".")[0]), Missing)
        if name.split(".")[0] == "sglang" or inside or (from_sglang and importlib.machinery.PathFinder.find_spec(name, path) is None):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Missing(spec.name)

    def exec_module(self, module):
        pass


class KVWriteLoc:
    """Where new keys and values go."""

    def __init__(self, loc, swa_loc=None):
        self.loc = loc

    @classmethod
    def for_layer(cls, forward_batch, layer, *, swa_loc=None, full_loc=None):
        return cls(forward_batch.out_cache_loc)


class Pool:
    """A pool of slots, token-major, page after page."""

    swa_layer_nums = 0

    def __init__(self):
        self.buffers, self.written = tuple(torch.full((SLOTS, KV_HEADS, HEAD_DIM), UNWRITTEN, dtype=torch.bfloat16) for _ in range(2)), 0

    def get_kv_buffer(self, layer_id):
        return self.buffers

    def set_kv_buffer(self, layer, where, k, v, k_scale=None, v_scale=None):
        slots, self.written = getattr(where, "loc", where), self.written + 1
        for buffer, new in zip(self.buffers, (k, v)):
            buffer[slots] = new.view(-1, KV_HEADS, HEAD_DIM)


def attention(q, k, v, seen, *, scale, soft_cap=0.0, sinks=None):
    """q [tokens, heads, d], k and v [context, kv_heads, d], seen [tokens, context]; in fp64."""
    group = q.shape[1] // k.shape[1]
    k, v = (tensor.double().repeat_interleave(group, 1) for tensor in (k, v))
    scores = torch.einsum("thd,chd->htc", q.double(), k) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None, None].expand(-1, q.shape[0], 1)), -1)
    weights = torch.softmax(scores, -1)[..., :k.shape[0]].nan_to_num(0.0)
    return torch.einsum("htc,chd->thd", weights, v)


def shown(tokens, context, window=0, full=False):
    """What the last tokens of a context see by the causal mask, or `full`y, and by a window."""
    own, key = context - tokens + torch.arange(tokens)[:, None], torch.arange(context)
    seen = (key <= own) | torch.tensor(full)
    return seen & (key > own - window) & (key < own + window) if window else seen


def pages_of(table, request, length, cache):
    """[length, kv_heads, d] of a request."""
    pages = table[request, :-(-length // cache.shape[1])].long()
    return cache[pages].flatten(0, 1)[:length]


class Calls:
    """What stands in for kernels, how many rows it computed, and the calls for a replay."""

    def __init__(self):
        self.rows, self.made = 0, []

    def decode(self, q, k_cache, v_cache, context_lengths, page_table, *, out, kv_layout, scale, window, soft_cap, batch_invariant, shape, engine,
               workspace, sink_logits=None, mask="causal", tree_mask=None, q_offsets=None, max_q_len=None, kv_offsets=None):
        given = dict(locals())
        self.made.append(lambda: Calls._decode(**{name: value for name, value in given.items() if name not in Calls.UNREAD}))
        assert kv_layout == "NHD" and shape.longest_context == CONTEXT and q.dtype == out.dtype == torch.bfloat16
        if kv_offsets is None:
            assert shape.batch >= len(context_lengths) == len(page_table) and context_lengths.dtype == page_table.dtype == torch.int32
        else:
            assert context_lengths is page_table is None and kv_offsets is q_offsets
        assert (q_offsets is None) == (max_q_len is None) and max_q_len in (None, 131072) and (q_offsets is None or shape.query_tokens == 8192)
        self.made[-1]()
        self.rows += q.shape[:-2].numel()
        return out

    UNREAD = {"kv_layout", "shape", "engine", "workspace", "batch_invariant", "max_q_len"}

    @staticmethod
    def _decode(self, q, k_cache, v_cache, context_lengths, page_table, out, scale, window, soft_cap, sink_logits, mask, tree_mask, q_offsets, kv_offsets):
        rows, made_rows = q.reshape(-1, *q.shape[-2:]), out.view(-1, *out.shape[-2:])
        uniform = q.shape[1] if q.ndim == 4 else 1
        starts = list(range(0, len(rows) + 1, uniform)) if q_offsets is None else q_offsets.tolist()
        if kv_offsets is not None:
            context_lengths = kv_offsets[1:] - kv_offsets[:-1]
        assert len(starts) == len(context_lengths) + 1 and (starts[-1] == len(rows) or q_offsets is not None)
        for request, (length, (begin, end)) in enumerate(zip(context_lengths.tolist(), itertools.pairwise(starts))):
            tokens = end - begin
            if length < tokens:  # a graph's that is captured
                continue
            k, v = (pages_of(page_table, request, length, cache) if kv_offsets is None else cache[kv_offsets[request]:kv_offsets[request + 1]]
                    for cache in (k_cache, v_cache))
            seen = shown(tokens, length, window, mask == "full")
            if mask == "tree":
                assert not window and tree_mask.shape == (len(context_lengths) * tokens,)
                words = tree_mask[begin:end]
                seen = torch.ones(tokens, length, dtype=torch.bool)
                seen[:, length - tokens:] = (words[:, None] >> torch.arange(tokens)) & 1 == 1
            made = attention(rows[begin:end], k, v, seen, scale=scale, soft_cap=soft_cap, sinks=sink_logits)
            made_rows[begin:end] = made.to(out.dtype)


def set_metadata(lengths, starts, table, req_to_token, req_pool_indices, *rest, **_):
    """What SGLang's kernel does before a graph is replayed: the lengths and page tables of its requests."""
    # Version 0.5.12 gives the tokens that begin a page, and how many there are; both then have lengths, what they grow by and the page's size.
    rest = rest[1:] if isinstance(rest[0], torch.Tensor) else rest
    _, seq_lens, grown, page_size = rest[:4]
    lengths.copy_(seq_lens + grown)
    table.fill_(STALE)
    for row, (slot, length) in enumerate(zip(req_pool_indices.tolist(), lengths.tolist())):
        first = req_to_token[slot, :length:page_size] // page_size
        table[row, :len(first)] = first


def set_page_table(*, req_to_token, req_pool_indices, cache_seqlens, page_table, page_size, **_):
    for row, (slot, length) in enumerate(zip(req_pool_indices.tolist(), cache_seqlens.tolist())):
        first = req_to_token[slot, :length:page_size] // page_size
        page_table[row, :len(first)] = first


def no_flash_attention(*_, **__):
    raise AssertionError("a step has gone to FlashAttention")


def load(folder):
    """SGLang's modules and leanattn's backend for it. Returns the backend's class."""
    sys.meta_path.insert(0, Finder(folder))
    memory = importlib.import_module("sglang.srt.mem_cache.memory_pool")
    memory.KVWriteLoc = KVWriteLoc
    for name in ("sglang.kernel_api_logging", "sglang.kernels.kernel_api_logging"):
        importlib.import_module(name).debug_kernel_api = lambda function: function
    off = types.SimpleNamespace(enable_deterministic_inference=False)
    importlib.import_module("sglang.srt.runtime_context").get_exec = lambda: types.SimpleNamespace(deterministic=off)
    config = importlib.import_module("sglang.srt.configs.model_config")
    config.AttentionArch = types.SimpleNamespace(MLA="mla")
    version = next(distribution.version for distribution in importlib.metadata.distributions(path=[str(folder)])
                   if distribution.metadata["Name"] == "sglang")
    importlib.import_module("sglang").__version__ = version
    torch.cuda.get_device_capability = lambda: (9, 0)
    flash = importlib.import_module(FLASH)
    flash.flash_attn_with_kvcache, flash.normal_decode_set_metadata = no_flash_attention, set_metadata
    flash.flash_attn_varlen_func = no_flash_attention
    flash.build_trtllm_mha_page_table, flash.get_kv_shard_pool = set_page_table, lambda pool: None
    flash.paged_kv_view = lambda buffer, page_size, heads, size: buffer.view(-1, page_size, heads, size)
    flash.assert_buffer_fits = lambda *_: None
    import leanattn.sglang

    return version, importlib.import_module(f"leanattn.sglang.{leanattn.sglang.module_for(version)}").Backend


class Engine:
    """Of plans that are never launched."""

    def plan(self, problem, shape, *, max_batch):
        assert shape.batch == max_batch and shape.longest_context == CONTEXT and problem.head_dim == HEAD_DIM
        assert problem.kv_layout == ("HND" if problem.page_size == 1 else "NHD") and (problem.page_size == 0) == problem.packed_kv
        return types.SimpleNamespace(provenance="exact", workspace_bytes=4096)


class Model:
    def __init__(self, backend, page_size, draft_tokens=None, topk=0, window=0, soft_cap=0.0, sinks=None, encodes=False, without_cache=False):
        from sglang.srt.layers.radix_attention import AttentionType, RadixAttention

        self.encodes, self.without_cache = encodes, without_cache

        self.page_size, self.draft_tokens, self.topk, self.window, self.soft_cap, self.sinks = page_size, draft_tokens, topk, window, soft_cap, sinks
        self.layer = RadixAttention(Q_HEADS, HEAD_DIM, HEAD_DIM**-0.5, KV_HEADS, 0, logit_cap=soft_cap, sliding_window_size=window - 1,
                                    attn_type=AttentionType.ENCODER_ONLY if encodes else AttentionType.DECODER)
        self.attention = torch.nn.Module()
        self.attention.attn, self.attention.sinks = self.layer, sinks
        self.pool = Pool()
        self.req_to_token = torch.full((MOST_REQUESTS + 1, CONTEXT + 20), STALE, dtype=torch.int32)
        pool = types.SimpleNamespace(req_to_token=self.req_to_token, size=MOST_REQUESTS)
        self.requests = pool
        parallel = types.SimpleNamespace(attn_tp_size=1, attn_cp_size=1, attn_dcp_size=1, tp_size=1, enable_prefill_cp=False, attn_dp_enabled=False)
        arguments = types.SimpleNamespace(
            speculative_eagle_topk=topk, speculative_num_draft_tokens=draft_tokens, enable_deterministic_inference=False, disable_cuda_graph=False,
            is_embedding=without_cache, chunked_prefill_size=-1 if without_cache else 8192, max_prefill_tokens=8192 if without_cache else 16384,
            disable_radix_cache=without_cache, kv_cache_dtype="auto", attention_backend="leanattn", prefill_attention_backend=None, enable_prefill_cp=False, enable_dp_attention=False)
        flash = sys.modules[FLASH]
        flash.get_spec = lambda: arguments
        flash.get_exec = sys.modules["sglang.srt.runtime_context"].get_exec
        flash.get_parallel = lambda: parallel
        flash.get_model = flash.get_schedule = flash.get_memory = lambda: arguments
        flash.is_cp_active = lambda batch: False
        flash.get_device_capability = lambda: (9, 0)
        translator = types.SimpleNamespace(is_translating=False, reads_are_translated=False)
        config = types.SimpleNamespace(
            is_encoder_decoder=False, context_len=CONTEXT, attention_arch="mha", is_local_attention_model=False, head_dim=HEAD_DIM,
            hf_text_config=types.SimpleNamespace(num_attention_heads=Q_HEADS), get_num_kv_heads=lambda _: KV_HEADS)
        self.backend = backend.for_runner(types.SimpleNamespace(
            model=self.attention, model_config=config, page_size=page_size, dtype=torch.bfloat16, kv_cache_dtype=torch.bfloat16, kv_cache_dtype_str="auto",
            gpu_id=0, token_to_kv_pool=self.pool, req_to_token_pool=pool, use_mla_backend=False, is_draft_worker=False, server_args=arguments,
            sliding_window_size=window - 1 if window else None, device="cpu", attn_cp_size=1, tp_size=1, ps=parallel, kv_index_translator=translator,
            spec_algorithm=types.SimpleNamespace(is_uno=lambda: False)))
        # FlashAttention's own schedule, which needs its kernels.
        self.backend._get_scheduler_metadata = None
        self.backend.init_cuda_graph_state(MOST_REQUESTS, MOST_REQUESTS * (draft_tokens or 1))

    def step(self, name, contexts, new, generator, tree=None, graph=False, calls=None):
        """One step in which requests of these contexts, the new tokens included, have so many of them. Returns the largest error."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        requests, tokens, layer, page = len(contexts), sum(new), self.layer, self.page_size
        order = torch.randperm(SLOTS // page, generator=generator)
        rows = torch.randperm(MOST_REQUESTS + 1, generator=generator)[:requests]
        qkv = torch.randn(tokens, (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM, generator=generator).bfloat16()
        q, k, v = qkv.split([heads * HEAD_DIM for heads in (Q_HEADS, KV_HEADS, KV_HEADS)], -1)
        starts, slots, whole, used = [0, *itertools.accumulate(new)], [], [], 0
        self.req_to_token.fill_(STALE)
        for request, (context, count) in enumerate(zip(contexts, new)):
            pages = -(-context // page)
            places = (order[used:used + pages, None] * page + torch.arange(page)).flatten()[:context]
            used += pages
            self.req_to_token[rows[request], :context] = places.to(torch.int32)
            old = torch.randn(2, context - count, KV_HEADS, HEAD_DIM, generator=generator).bfloat16()
            self.pool.set_kv_buffer(layer, places[:context - count], *old)
            fresh = slice(starts[request], starts[request] + count)
            whole.append([torch.cat((before, now[fresh].view(-1, KV_HEADS, HEAD_DIM))) for before, now in zip(old, (k, v))])
            slots.append(places[context - count:])
        lengths = torch.tensor(contexts)
        before = lengths - torch.tensor(new) if name == "TARGET_VERIFY" else lengths  # SGLang counts drafts when they are accepted
        batch = types.SimpleNamespace(
            forward_mode=ForwardMode[name], batch_size=requests, seq_lens=before, seq_lens_cpu=before, seq_lens_sum=int(before.sum()),
            req_pool_indices=rows, req_to_token_pool=self.requests, out_cache_loc=torch.cat(slots), out_cache_loc_is_physical=True,
            token_to_kv_pool=self.pool, spec_info=None, encoder_lens=None, positions=torch.zeros(tokens), input_ids=torch.zeros(tokens),
            extend_seq_lens=torch.tensor(new), extend_seq_lens_cpu=list(new), extend_prefix_lens_cpu=[c - n for c, n in zip(contexts, new)],
            attn_cp_metadata=None, mha_return_lse=False, kv_loc_plan=None, extend_num_tokens=tokens, spec_algorithm=None)
        seen = [shown(count, context, self.window, self.encodes) for context, count in zip(contexts, new)]
        if name == "TARGET_VERIFY":
            batch.spec_info = types.SimpleNamespace(custom_mask=None, positions=batch.positions, ragged_verify_layout=None)
            if tree is not None:
                for request, count in enumerate(new):
                    seen[request][:, -count:] = tree[request]
                    seen[request][:, :-count] = True
                batch.spec_info.custom_mask = torch.cat([one.flatten() for one in seen])
        given = {} if self.sinks is None else {"sinks": self.sinks}
        if graph:
            self.backend.full_cg_prefill_metadata = None  # has one number of requests for good
            output = self._graph(batch, (q, k, v), given, generator, calls)
        else:
            self.backend.init_forward_metadata(batch)
            written = self.pool.written
            output = self.backend.forward(q, k, v, layer, batch, **given)
            assert (self.pool.written == written) == self.without_cache
        assert output.shape == (tokens, Q_HEADS * HEAD_DIM)
        wanted = torch.cat([attention(q.view(-1, Q_HEADS, HEAD_DIM)[starts[request]:starts[request + 1]], *whole[request], seen[request], scale=HEAD_DIM**-0.5,
                                      soft_cap=self.soft_cap, sinks=self.sinks) for request in range(requests)])
        return (output.view(-1, Q_HEADS, HEAD_DIM).double() - wanted).abs().max().item()

    def _graph(self, batch, qkv, given, generator, calls):
        """Captures a graph as SGLang does, with lengths and new tokens of 1, and replays it for the batch."""
        backend, requests = self.backend, batch.batch_size
        old = hasattr(backend, "init_forward_metadata_capture_cuda_graph")
        filled = {name: getattr(batch, name) for name in ("seq_lens", "seq_lens_cpu", "req_pool_indices", "out_cache_loc", "extend_seq_lens")}
        drafts = batch.spec_info
        batch.seq_lens, batch.req_pool_indices = torch.ones_like(batch.seq_lens), torch.zeros_like(batch.req_pool_indices)
        batch.seq_lens_cpu, batch.out_cache_loc, batch.extend_seq_lens = batch.seq_lens, torch.zeros_like(batch.out_cache_loc), batch.seq_lens
        self.req_to_token[0] = self.req_to_token[0].where(self.req_to_token[0] != STALE, torch.tensor(0, dtype=torch.int32))
        if drafts is not None:
            batch.spec_info = types.SimpleNamespace(**{**vars(drafts), "custom_mask": None})
        kept = [buffer.clone() for buffer in self.pool.buffers]
        if old:
            backend.init_forward_metadata_capture_cuda_graph(requests, len(qkv[0]), batch.req_pool_indices, batch.seq_lens, None, batch.forward_mode,
                                                             batch.spec_info)
        else:
            backend.init_forward_metadata_out_graph(batch, in_capture=True)
            backend.init_forward_metadata_in_graph(batch)
        calls.made.clear()
        output = backend.forward(*qkv, self.layer, batch, **given)
        for buffer, saved in zip(self.pool.buffers, kept):
            buffer.copy_(saved)
        for name, value in filled.items():
            setattr(batch, name, value)
        batch.spec_info = drafts
        if old:
            backend.init_forward_metadata_replay_cuda_graph(requests, batch.req_pool_indices, batch.seq_lens, batch.seq_lens_sum, None, batch.forward_mode,
                                                            drafts, seq_lens_cpu=batch.seq_lens_cpu)
        else:
            backend.init_forward_metadata_out_graph(batch)
            backend.init_forward_metadata_in_graph(batch)
        self.pool.set_kv_buffer(self.layer, batch.out_cache_loc, *qkv[1:])
        output.fill_(float("nan"))
        (launch,) = calls.made
        launch()
        return output


def trees(requests, tokens, generator):
    """Random trees: each token sees itself, and what its parent sees."""
    made = torch.zeros(requests, tokens, tokens, dtype=torch.bool)
    for request in range(requests):
        for token in range(tokens):
            if token:
                made[request, token] = made[request, int(torch.randint(token, (), generator=generator))]
            made[request, token, token] = True
    return made


FEATURES = [{}, {"window": 9}, {"soft_cap": 5.0}, {"sinks": torch.linspace(-1, 2, Q_HEADS).bfloat16()},
            {"window": 20, "soft_cap": 3.0, "sinks": torch.linspace(1, -2, Q_HEADS).bfloat16()}]


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    folder = sys.argv[1] if len(sys.argv) == 2 else importlib.metadata.distribution("sglang").locate_file("")
    calls, engine, generator = Calls(), Engine(), torch.Generator().manual_seed(3)
    leanattn.decode, leanattn.engine = calls.decode, lambda ordinal: engine
    leanattn.Workspace = lambda engine, size: types.SimpleNamespace(bytes=size)
    version, backend = load(pathlib.Path(folder).resolve())
    steps, worst = 0, 0.0
    for features, page_size, (drafts, topk) in itertools.product(FEATURES, (1, 16), ((None, 0), (4, 1), (5, 2))):
        if topk == 2 and (page_size > 1 or features.get("window")):
            continue  # FlashAttention's, as test_sglang_backend.py checks
        model = Model(backend, page_size, drafts, topk, **features)
        for contexts in ([33, 96 - (drafts or 0), 6], [17], [64, 50]):
            plans = [("DECODE", contexts, [1] * len(contexts), None)] if topk < 2 else []
            plans += [("EXTEND", contexts, [min(5, context) for context in contexts], None), ("EXTEND", contexts, contexts, None)]
            plans += [("MIXED", contexts, [min(40, contexts[0]), *[1] * (len(contexts) - 1)], None)]
            if drafts:
                tree = trees(len(contexts), drafts, generator) if topk == 2 else None
                plans += [("TARGET_VERIFY", contexts, [drafts] * len(contexts), tree)]
            for name, of, new, tree in plans:
                # Version 0.5.12 has no graphs of prefill.
                for graph in (False, True) if name in ("DECODE", "TARGET_VERIFY") or hasattr(backend, "_init_full_cg_prefill_metadata") else (False,):
                    before = calls.rows
                    error = model.step(name, of, new, generator, tree, graph, calls)
                    assert calls.rows - before == sum(new), (features, page_size, name, graph)
                    assert error < 0.02, (features, page_size, topk, name, graph, error)
                    steps, worst = steps + 1, max(worst, error)
    # Encoders, and prompts that skip the cache.
    for features, page_size, (encodes, without_cache) in itertools.product(FEATURES, (1, 16), ((True, False), (True, True), (False, True))):
        if encodes and features.get("window") and not backend.windows_both_ways:
            continue  # FlashAttention's
        model = Model(backend, page_size, encodes=encodes, without_cache=without_cache, **features)
        for contexts in ([33, 96, 6], [17], [1, 1]):
            before = calls.rows
            error = model.step("EXTEND", contexts, contexts, generator)
            assert calls.rows - before == sum(contexts) and error < 0.02, (features, page_size, encodes, without_cache, error)
            steps, worst = steps + 1, max(worst, error)
    print(f"SGLang {version}, PyTorch {torch.__version__}; largest error {worst:.4f}")
    print(f"{steps} steps agree")


if __name__ == "__main__":
    main()
