"""vllm_selected_steps.py -- leanattn.vllm with vLLM's own Python for latent attention over selected tokens: steps of decode, speculation and prefill.

    python3 python/tests/vllm_selected_steps.py [FOLDER]     # FOLDER has vLLM's files, such as an unpacked wheel; default: the installed one
    python3 python/tests/vllm_selected_steps.py --gpu        # with the real kernels of both, on CUDA device 0

vLLM's backend for FlashMLA, its builder and its implementation are the real ones, and so are those of leanattn. Without --gpu tensors are in host
memory, and plain PyTorch stands in for the kernels of both and for those that make places in the pool and convert rows. What an indexer could have
chosen is drawn at random. Every row is compared with attention over the rows of the cache that its list names and, with --gpu, every step with what
vLLM's kernels give for all of it. The last line says how many steps agree.
"""
import importlib
import itertools
import sys
import types
from unittest.mock import MagicMock

import torch

import leanattn
import vllm_steps

LATENT, ROPE, PAGE, PAGES, WIDTH, ENTRIES, MOST_REQUESTS, MOST_TOKENS = 512, 64, 64, 24, 4, 128, 8, 256
ROW, GROUP, PACKED_ROW, SCALE = LATENT + ROPE, 128, 656, 0.07
DEVICE, ON_GPU = vllm_steps.DEVICE, vllm_steps.DEVICE.type == "cuda"
TOLERANCE = 0.05 if ON_GPU else 0.03  # kernels also round the rows of a packed cache and the weights to bf16


def pack(rows):
    """[n, 576] as [n, 656] bytes: latent columns in fp8, their four scales, rotated columns in bf16."""
    latent = rows[:, :LATENT].float().unflatten(-1, (-1, GROUP))
    scales = latent.abs().amax(-1, keepdim=True) / 448
    parts = (latent / scales).to(torch.float8_e4m3fn).flatten(1), scales.flatten(1), rows[:, LATENT:].bfloat16().contiguous()
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)


def unpack(rows):
    """[n, 656] bytes as [n, 576] in fp64."""
    rows = rows.contiguous()
    latent = rows[:, :LATENT].contiguous().view(torch.float8_e4m3fn).double().unflatten(-1, (-1, GROUP))
    scales, rotated = rows[:, LATENT:LATENT + 16].contiguous().view(torch.float32).double(), rows[:, LATENT + 16:].contiguous().view(torch.bfloat16).double()
    return torch.cat(((latent * scales[..., None]).flatten(1), rotated), -1)


def values_of(pages):
    """The rows of a cache, packed or not, as [places, 576] in fp64."""
    rows = pages.reshape(-1, pages.shape[-1])
    return unpack(rows.view(torch.uint8)) if rows.shape[-1] == PACKED_ROW else rows.double()


def attention(q, rows, places, scale):
    """q [tokens, heads, 576], rows [n, 576], places [tokens, entries] with -1 for holes. Returns [tokens, heads, 512] in fp64."""
    made = []
    for query, of_token in zip(q.double(), places.long()):
        chosen = rows[of_token[of_token >= 0]]
        made.append(torch.softmax(query @ chosen.T * scale, -1) @ chosen[:, :LATENT])
    return torch.stack(made)


class Kernels:
    """What stands in for kernels, and how many query tokens each computed."""

    def __init__(self):
        self.mine = self.others = 0
        self.planned = set()

    def plan(self, problem, shape, *, max_batch):
        """Of leanattn's engine."""
        assert problem.latent and (problem.page_size, problem.selection_block, problem.selection_in_pool) == (PAGE, 1, True)
        self.planned.add((problem.q_heads, problem.kv_dtype, shape.batch))
        return types.SimpleNamespace(provenance="exact", workspace_bytes=4096)

    def decode(self, q, pages, v_cache, context_lengths, page_table=None, *, out, v_head_dim, scale, selection, selected_counts, typical_batch,
               longest_context, engine, workspace, kv_dtype=None):
        assert v_cache is context_lengths is page_table is None and v_head_dim == LATENT and longest_context == ENTRIES
        assert (q.shape[1], kv_dtype or "same", typical_batch) in self.planned and typical_batch >= len(q) == len(selected_counts)
        assert pages.shape[1] == PAGE and (pages.dtype == torch.uint8) == (kv_dtype == "fp8_ds_mla")
        counted = torch.arange(selection.shape[-1]) < selected_counts[:, None]
        self.mine += len(q)
        return out.copy_(attention(q, values_of(pages), selection[:, 0].masked_fill(~counted, -1), scale))

    def flash_packed(self, q, k_cache, block_table, head_dim_v, cache_seqlens, tile_scheduler_metadata, is_fp8_kvcache, indices, softmax_scale):
        requests, tokens, heads, _ = q.shape
        self.others += requests * tokens
        made = attention(q.flatten(0, 1), values_of(k_cache[:, :, 0]), indices.flatten(0, 1), softmax_scale)
        return made.unflatten(0, (requests, tokens)).to(q.dtype), torch.zeros(requests, heads, tokens)

    def flash(self, q, kv, indices, sm_scale, topk_length=None, out=None):
        self.others += len(q)
        made = attention(q, kv[:, 0].double(), indices[:, 0].masked_fill(torch.arange(indices.shape[-1]) >= topk_length[:, None], -1), sm_scale)
        made = made.to(q.dtype) if out is None else out.copy_(made)
        return made, None, torch.zeros(q.shape[:2])


def places(requests, block_table, chosen, BLOCK_SIZE, NUM_TOPK_TOKENS, HAS_PREFILL_WORKSPACE=False, prefill_workspace_request_ids=None,  # noqa: N803
           prefill_workspace_starts=None, return_valid_counts=False, BLOCK_STRIDE_ROWS=None, **_):
    """vLLM's: positions in contexts to places in the pool or, for prefill over a workspace, in that."""
    assert chosen.shape[1] == NUM_TOPK_TOKENS and BLOCK_STRIDE_ROWS in (None, BLOCK_SIZE)
    found = block_table[requests.long()].long().gather(1, chosen.clamp(min=0).long() // BLOCK_SIZE) * BLOCK_SIZE + chosen % BLOCK_SIZE
    if HAS_PREFILL_WORKSPACE:
        here = prefill_workspace_request_ids[:len(chosen)].long()
        found = torch.where(here[:, None] >= 0, prefill_workspace_starts[here.clamp(min=0)][:, None] + chosen, found)
    found = found.masked_fill(chosen < 0, -1).int()
    return (found, (chosen >= 0).sum(1, dtype=torch.int32)) if return_valid_counts else found


def requests_of(starts, buffer, tokens, padded):
    """vLLM's: the request of every query token."""
    return buffer[:padded].copy_(torch.arange(len(starts) - 1).repeat_interleave(starts.diff(), output_size=tokens))


def convert(cache, workspace, block_table, starts, requests):
    """vLLM's: the rows of some requests, one behind the other, as bf16."""
    ends = [*starts.tolist()[1:], len(workspace)]
    for table, begin, end in zip(block_table, starts.tolist(), ends, strict=True):
        pages = cache[table[:-(-(end - begin) // PAGE)].long()]
        workspace[begin:end] = values_of(pages)[:end - begin].to(workspace.dtype)


def count_launches():
    """On a GPU: how many query tokens leanattn computed; `others` is not known."""
    kernels, decode = Kernels(), leanattn.decode

    def counted(q, *given, **named):
        kernels.mine += len(q)
        return decode(q, *given, **named)

    leanattn.decode = counted
    return kernels


def give_workspaces():
    from vllm.model_executor.layers.attention import sparse_mla_attention
    from vllm.v1.attention.backends.mla import flashmla_sparse

    for module in (flashmla_sparse, sparse_mla_attention):
        module.current_workspace_manager = lambda: types.SimpleNamespace(
            get_simultaneous=lambda *specs: tuple(torch.full(shape, float("nan"), dtype=dtype, device=DEVICE) for shape, dtype in specs))


class LayersOfAnIndexer:
    """Layers that share what an indexer chose. vLLM's makes the places once for all of them, on a stream of its own."""

    def __init__(self, chosen):
        pass

    def register_layer(self, *_, **__):
        return self, 0

    def convert_logical_to_physical_topk(self, layer_index, logical_topk_indices, attn_metadata, *, block_stride_rows, return_valid_counts):
        return places(attn_metadata.req_id_per_token[:len(logical_topk_indices)], attn_metadata.block_table, logical_topk_indices, PAGE, ENTRIES,
                      return_valid_counts=return_valid_counts, BLOCK_STRIDE_ROWS=block_stride_rows)


def stand_in_for_kernels():
    from vllm.model_executor.layers.attention import sparse_mla_attention
    from vllm.v1.attention.backends.mla import flashmla_sparse

    kernels = Kernels()
    leanattn.decode, leanattn.engine = kernels.decode, lambda ordinal: kernels
    leanattn.Workspace = lambda engine, size: types.SimpleNamespace(bytes=size)
    flashmla_sparse.flash_mla_with_kvcache, flashmla_sparse.flash_mla_sparse_fwd = kernels.flash_packed, kernels.flash
    flashmla_sparse.get_mla_metadata = lambda *_, **__: (None, None)
    flashmla_sparse.num_compute_units = lambda *_: 132
    if hasattr(sparse_mla_attention, "SparseMLAIndexGroupBuilder"):  # from 0.33 on
        from vllm.v1.attention.ops import metadata

        metadata.compute_token_to_req_indices = requests_of
        sparse_mla_attention.SparseMLAIndexGroupBuilder = LayersOfAnIndexer
        sparse_mla_attention.get_tensor_model_parallel_world_size = lambda: 1
    for module in (flashmla_sparse, sparse_mla_attention):
        module.triton_convert_req_index_to_global_index = places
    flashmla_sparse.ops = types.SimpleNamespace(cp_gather_and_upconvert_fp8_kv_cache=convert, concat_mla_q=concat)
    zeros = torch.zeros
    torch.zeros = lambda *given, pin_memory=False, **named: zeros(*given, **named)  # there is no GPU to pin memory for
    return kernels


def concat(latent, rotated, q):
    q[:, :latent.shape[1]] = torch.cat((latent, rotated), -1)


def configuration(heads, kv_cache_dtype, speculative):
    """What vLLM reads of its configuration; everything else may be anything."""
    made = MagicMock()
    made.model_config.max_model_len, made.model_config.dtype = WIDTH * PAGE, torch.bfloat16
    made.model_config.hf_config = made.model_config.hf_text_config = types.SimpleNamespace(
        index_topk=ENTRIES, q_lora_rank=1536, kv_lora_rank=LATENT, qk_nope_head_dim=128, qk_rope_head_dim=ROPE, v_head_dim=128)
    made.model_config.get_num_attention_heads.return_value = heads
    made.cache_config.cache_dtype, made.cache_config.block_size = kv_cache_dtype, PAGE
    made.scheduler_config.max_num_seqs, made.scheduler_config.max_num_batched_tokens = MOST_REQUESTS, MOST_TOKENS
    made.compilation_config.cudagraph_capture_sizes = [1, 2, 4, 8]
    made.attention_config.hisparse_config, made.attention_config.sparse_mla_force_mqa = None, True
    made.attention_config.sparse_mla_prefill_workspace_factor = 5
    for name in ("prefill_context_parallel_size", "decode_context_parallel_size", "cp_kv_cache_interleave_size", "tensor_parallel_size"):
        setattr(made.parallel_config, name, 1)
    made.kernel_config.enable_jit_warmup = False
    made.speculative_config = types.SimpleNamespace(num_speculative_tokens=speculative, parallel_drafting=False) if speculative else None
    return made


class Model:
    """A layer and the builder of its metadata."""

    def __init__(self, backend, heads, kv_cache_dtype, speculative):
        from vllm.v1.attention.backends.mla import flashmla_sparse
        from vllm.v1.kv_cache_interface import MLAAttentionSpec

        config = configuration(heads, kv_cache_dtype, speculative)
        for module in (flashmla_sparse, sys.modules["vllm.model_executor.layers.attention.sparse_mla_attention"]):
            module.get_current_vllm_config = lambda: config
        self.heads, self.packed = heads, kv_cache_dtype == "fp8_ds_mla"
        self.chosen = torch.full((MOST_TOKENS, ENTRIES), 10**6, dtype=torch.int32, device=DEVICE)  # vLLM's buffer, with what steps before it left
        self.impl = backend.get_impl_cls()(heads, ROW, SCALE, 1, None, None, kv_cache_dtype, None, "decoder", None, topk_indices_buffer=self.chosen,
                                           q_lora_rank=1536, kv_lora_rank=LATENT, qk_nope_head_dim=128, qk_rope_head_dim=ROPE, qk_head_dim=192,
                                           v_head_dim=128, kv_b_proj=None)
        self.layer = types.SimpleNamespace(impl=self.impl, prefill_backend=None)
        config.compilation_config.static_forward_context = {"layer": self.layer}
        spec = MLAAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=ROW, dtype=torch.uint8 if self.packed else torch.bfloat16,
                                cache_dtype_str=kv_cache_dtype if self.packed else None)
        self.builder = backend.get_builder_cls()(spec, ["layer"], config, DEVICE)
        self.most = MOST_REQUESTS * (1 + speculative)

    def step(self, query_tokens, contexts, generator):
        """Fills the cache and the lists, runs one step through vLLM's interface, and returns the largest error, the step's metadata and, on a GPU, the
        largest difference from vLLM's kernels alone."""
        from vllm.v1.attention.backend import CommonAttentionMetadata

        requests, tokens = len(query_tokens), sum(query_tokens)
        rows = torch.randn(PAGES * PAGE, ROW, generator=generator).bfloat16()
        cache = (pack(rows) if self.packed else rows).view(PAGES, PAGE, -1).to(DEVICE)
        table = torch.randperm(PAGES, generator=generator, dtype=torch.int32)[:requests * WIDTH].view(requests, WIDTH)
        here = []  # of every query token, the places that it sees
        for request, (new, context) in enumerate(zip(query_tokens, contexts)):
            for position in range(context - new, context):
                seen = torch.randperm(position + 1, generator=generator, dtype=torch.int32)[:ENTRIES]
                self.chosen[len(here)] = torch.nn.functional.pad(seen, (0, ENTRIES - len(seen)), value=-1)
                found = table[request, (seen // PAGE).long()] * PAGE + seen % PAGE
                here.append(torch.nn.functional.pad(found, (0, ENTRIES - len(found)), value=-1))
        starts, lengths = torch.tensor([0, *itertools.accumulate(query_tokens)], dtype=torch.int32), torch.tensor(contexts, dtype=torch.int32)
        metadata = self.builder.build(0, CommonAttentionMetadata(
            query_start_loc=starts.to(DEVICE), query_start_loc_cpu=starts, seq_lens=lengths.to(DEVICE), seq_lens_cpu_upper_bound=lengths,
            num_reqs=requests, num_actual_tokens=tokens, max_query_len=max(query_tokens), max_seq_len=max(contexts),
            block_table_tensor=table.to(DEVICE), slot_mapping=torch.zeros(tokens, dtype=torch.int64, device=DEVICE)))
        q = torch.randn(tokens, self.heads, ROW, generator=generator).bfloat16().to(DEVICE)
        output, _ = self.impl.forward_mqa((q[..., :LATENT], q[..., LATENT:]), cache, metadata, self.layer)
        wanted = attention(q, values_of(cache), torch.stack(here).to(DEVICE), SCALE)
        assert output.shape == wanted.shape
        return (output.double() - wanted).abs().max().item(), metadata, self.difference(output, q, cache, metadata) if ON_GPU else 0.0

    def difference(self, output, q, cache, metadata):
        """How far the output is from that of FlashMLA, which computes all rows if the layer has no plans."""
        output, own, self.impl.plans = output.clone(), self.impl.plans, None
        try:
            alone, _ = self.impl.forward_mqa((q[..., :LATENT], q[..., LATENT:]), cache, metadata, self.layer)
        finally:
            self.impl.plans = own
        return (output.float() - alone.float()).abs().max().item()


# Query tokens and contexts: decode, speculation, steps with prefill, and prefill alone, with contexts shorter and longer than a list.
STEPS = {0: [([1, 1, 1], [33, 200, 1]), ([1], [256]), ([1, 1, 20], [40, 160, 20]), ([1, 1, 3], [40, 160, 3]), ([60], [90])],
         2: [([3, 3], [33, 200]), ([1, 1], [5, 80]), ([3, 3, 40], [30, 100, 64])]}
KINDS = [("fp8_ds_mla", 16), ("fp8_ds_mla", 64), ("auto", 16), ("auto", 64)]


def main():
    version = vllm_steps.load_given()
    import leanattn.vllm

    module = importlib.import_module(f"leanattn.vllm.{leanattn.vllm.module_for(version)}")
    check_selection(module.SelectedBackend)
    kernels = count_launches() if ON_GPU else stand_in_for_kernels()
    give_workspaces()
    generator, steps, total, worst, apart = torch.Generator().manual_seed(3), 0, 0, 0.0, 0.0
    for (kv_cache_dtype, heads), (speculative, of_kind) in itertools.product(KINDS, STEPS.items()):
        model = Model(module.SelectedBackend, heads, kv_cache_dtype, speculative)
        for query_tokens, contexts in of_kind:
            before = kernels.mine, kernels.others
            error, metadata, difference = model.step(query_tokens, contexts, generator)
            tokens = sum(query_tokens)
            # vLLM makes two kinds of calls where rows are packed and heads are many, else one.
            called = metadata.num_decode_tokens if model.packed and not metadata.fp8_use_mixed_batch else tokens
            mine = called if called <= model.most else 0
            assert kernels.mine - before[0] == mine, (kv_cache_dtype, heads, query_tokens)
            assert ON_GPU or kernels.others - before[1] == tokens - mine, (kv_cache_dtype, heads, query_tokens)
            assert error < TOLERANCE and difference < 2 * TOLERANCE, (kv_cache_dtype, heads, query_tokens, error, difference)
            steps, worst, apart = steps + 1, max(worst, error), max(apart, difference)
            total += tokens
    print(f"vLLM {version}, PyTorch {torch.__version__}: leanattn computed {kernels.mine} query tokens, and FlashMLA {total - kernels.mine}")
    if ON_GPU:
        print(f"the largest difference from a step of FlashMLA alone is {apart:.4f}")
    print(f"{steps} steps agree; largest error {worst:.4f}")


def check_selection(backend):
    """vLLM's own check of a backend against a model."""
    from vllm.platforms.interface import DeviceCapability

    given = dict(head_size=ROW, dtype=torch.bfloat16, kv_cache_dtype="fp8_ds_mla", block_size=PAGE, use_mla=True, has_sink=False, use_sparse=True,
                 use_mm_prefix=False, use_per_head_quant_scales=False, device_capability=DeviceCapability(9, 0), attn_type="decoder")
    assert backend.validate_configuration(**given) == []
    assert backend.validate_configuration(**{**given, "kv_cache_dtype": "auto"}) == []
    for changed in ({"use_sparse": False}, {"head_size": 448}, {"kv_cache_dtype": "fp8"}, {"device_capability": DeviceCapability(10, 0)},
                    {"dtype": torch.float16}):
        assert backend.validate_configuration(**{**given, **changed}) != [], changed


if __name__ == "__main__":
    main()
