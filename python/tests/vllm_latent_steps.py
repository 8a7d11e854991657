"""vllm_latent_steps.py -- leanattn.vllm with vLLM's own Python for latent attention: steps that mix prefill, decode and speculation, compared with
attention over keys and values that were expanded from the latent rows.

    python3 python/tests/vllm_latent_steps.py [FOLDER]     # FOLDER has vLLM's files, such as an unpacked wheel; default: the installed one
    python3 python/tests/vllm_latent_steps.py --gpu        # with the real kernels of both, on CUDA device 0

vLLM's layer with its projections, its builder, its prefill and what writes the cache are the real ones, and so are those of leanattn. Without --gpu
tensors are in host memory, and plain PyTorch stands in for the kernels of both. There contexts are spread over ranks, too (decode context
parallelism), which are threads (vllm_ranks.py).

vLLM has two runners, which order the requests of a step differently: both put decode first, and behind it the one has prefill with a context before
prefill without, and the other has short prefill before long. Every step comes in both orders. Contexts of prefill are read in one chunk and in
several.

The largest errors are printed, for decode and prefill apart. With --gpu every step also runs through backends of vLLM, whose errors fail nothing: that
of FlashMLA has the same prefill as leanattn's, and that of FlashAttention takes up to 512 tokens of a prompt for decode. The last line says how many
steps of leanattn agree.
"""
import importlib
import itertools
import os
import sys
import threading
import types
from unittest.mock import MagicMock

import torch

import leanattn
import vllm_ranks
import vllm_steps

HEADS, LATENT, ROPE, NOPE, VALUE, PAGE, WIDTH, MOST_REQUESTS = 16, 512, 64, 128, 128, 64, 10, 8
PAGES = vllm_steps.PAGES  # on a GPU, page tables name one of them behind a request's end
ROW, SCALE, K_SCALE = LATENT + ROPE, 0.15, 0.03125
SMALL_CHUNKS = 4 * PAGE  # tokens of all contexts together that a chunk has
DEVICE, ON_GPU = vllm_steps.DEVICE, vllm_steps.DEVICE.type == "cuda"
WHOLE = vllm_ranks.Part(page=PAGE)
# Absorbed queries, expanded keys and values, results and what is merged of them are rounded to bf16; kernels also round weights.
TOLERANCE = 0.08 if ON_GPU else 0.05
FP8, FP8_MOST = torch.float8_e4m3fn, 448.0
YARDSTICKS = {"FLASHMLA": "flashmla.FlashMLABackend", "FLASH_ATTN_MLA": "flashattn_mla.FlashAttnMLABackend"}

# Requests, each its new tokens and its whole context with these; and how many requests of a graph are empty.
STEPS = {0: [([(1, 33), (1, 400), (1, 1)], 0), ([(1, 50), (1, 7)], 2), ([(1, 40), (1, 160), (20, 20), (69, 69)], 0), ([(40, 40)], 0), ([(30, 300)], 0),
             ([(1, 96), (60, 500), (17, 17)], 0), ([(1, 64), (1, 65), (40, 333), (60, 130), (25, 25), (1, 1)], 0), ([(10, 600), (20, 70), (15, 15)], 0)],
         3: [([(4, 33), (4, 96)], 0), ([(4, 17), (4, 64)], 1), ([(4, 30), (2, 31), (50, 170), (20, 20)], 0), ([(1, 5), (1, 80)], 0), ([(40, 350)], 0)]}


def orders(requests, speculative):
    """The orders that vLLM's two runners have of the requests of a step: [(what it is called, requests)]."""
    def regions(request):
        new, context = request
        return 3 if context == new else 2 if new > 1 + speculative else 0

    by_context, by_length = sorted(requests, key=regions), sorted(requests, key=lambda request: (request[0] != 1 + speculative, request[0]))
    return [("either order", by_context)] if by_context == by_length else [("contexts first", by_context), ("short first", by_length)]


def stored_rows(cache, table, begin, end, scale):
    """Those of the tokens begin .. end of a request, whose pages the table names, from a cache of either type."""
    tokens = torch.arange(begin, end, device=cache.device)
    rows = cache.reshape(-1, ROW)[table[tokens // PAGE].long() * PAGE + tokens % PAGE]
    return rows.view(FP8).float() * scale if rows.element_size() == 1 else rows


class Kernels(vllm_steps.Calls):
    """What stands in for kernels, and how many rows each computed."""

    def plan(self, problem, shape, *, max_batch):
        """Of leanattn's engine."""
        assert shape.batch == max_batch and shape.longest_context > 0
        if problem.packed_kv:
            assert (problem.head_dim, problem.v_head_dim, problem.q_heads, problem.kv_heads) == (NOPE + ROPE, VALUE, HEADS, HEADS)
            self.planned.add((problem.mask, problem.lse, shape.batch))
            return types.SimpleNamespace(provenance="exact", workspace_bytes=4096)
        assert problem.latent
        assert (problem.head_dim, problem.v_head_dim, problem.page_size) == (ROW, LATENT, PAGE)
        self.planned.add((problem.q_heads, problem.lse, problem.kv_dtype, problem.q_len, shape.batch))
        return types.SimpleNamespace(provenance="exact", workspace_bytes=4096)

    def decode(self, *given, kv_offsets=None, **named):
        return self.decode_rows(*given, **named) if kv_offsets is None else self.decode_packed(*given, kv_offsets=kv_offsets, **named)

    def decode_packed(self, q, k, v, context_lengths, *, q_offsets, kv_offsets, max_q_len, mask, out, scale, return_lse, shape, engine, workspace):
        """That of leanattn for prefill."""
        assert context_lengths is None and (mask, return_lse, shape.batch) in self.planned and shape.batch >= len(q_offsets) - 1 == len(kv_offsets) - 1
        made = self.flash(q, k, v, max(1, len(q)), q_offsets, len(k), scale, mask == "causal", None, q.new_empty((*q.shape[:2], VALUE)) if out is None else out,
                          cu_seqlens_k=kv_offsets, return_softmax_lse=return_lse)
        return (made[0], made[1].T) if return_lse else made

    def decode_rows(self, q, cache, v_cache, context_lengths, page_table, *, out, v_head_dim, return_lse, q_offsets, max_q_len, scale, shape, engine,
                    workspace, batch_invariant, kv_dtype="same", k_scale=1.0):
        assert v_cache is None and cache.shape[1:] == (1, PAGE, ROW) and q.is_contiguous() and out.is_contiguous()
        assert context_lengths.dtype == page_table.dtype == torch.int32 and context_lengths.is_contiguous() and page_table.stride(1) == 1
        assert (q.shape[1], return_lse, kv_dtype, max_q_len or 1, shape.batch) in self.planned
        assert shape.batch >= len(context_lengths) == len(page_table)
        starts = list(range(len(context_lengths) + 1)) if q_offsets is None else q_offsets.tolist()
        assert (cache.element_size() == 1) == (kv_dtype == "fp8_e4m3") and starts[-1] <= len(q) == len(out)
        assert len(q) == starts[-1] or q_offsets is not None
        out.fill_(float("nan"))
        lse = torch.full(q.shape[:2], float("nan"))
        for request, (begin, end) in enumerate(itertools.pairwise(starts)):
            assert end - begin <= (max_q_len or 1)
            length = int(context_lengths[request])
            rows = stored_rows(cache, page_table[request], 0, length, k_scale)[:, None]
            out[begin:end], lse[begin:end] = vllm_steps.attention_and_lse(q[begin:end], rows, rows[..., :v_head_dim], length - (end - begin),
                                                                          scale=scale)
        self._count(decoded=len(q))
        return (out, lse) if return_lse else out

    def prefill(self, q, k, v, cu_seqlens_q, cu_seqlens_k, return_softmax_lse=False, out=None, output_scale=None, fa_version=None, **given):
        """FlashAttention's, which leaves what it likes where a request has no keys."""
        made = self.flash(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, window_size=None, return_softmax_lse=return_softmax_lse,
                          out=q.new_empty((*q.shape[:2], v.shape[-1])), **given)
        result = made[0] if return_softmax_lse else made
        for request, (begin, end) in enumerate(itertools.pairwise(cu_seqlens_q.tolist())):
            if cu_seqlens_k[request] == cu_seqlens_k[request + 1]:
                result[begin:end] = float("nan")
        return made


def write_rows(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale, skip_scale=None):
    """vLLM's: new rows to the cache. A negative slot is padding, or another rank's."""
    for row, slot in zip(torch.cat((kv_c, k_pe), -1), slot_mapping.tolist()):
        if slot >= 0:
            place = kv_cache[slot // PAGE, slot % PAGE]
            place.copy_((row.float() / scale).to(FP8).view(torch.uint8) if kv_cache_dtype == "fp8" else row)


def gather(src_cache, dst, block_table, cu_seq_lens, seq_starts, token_to_seq=None, num_tokens=None, scale=1.0, **_):
    """vLLM's: rows of several requests, one behind the other."""
    for request, (begin, end) in enumerate(itertools.pairwise(cu_seq_lens.tolist())):
        start = int(seq_starts[request])
        dst[begin:end] = stored_rows(src_cache, block_table[request], start, start + end - begin, scale).to(dst.dtype)
        assert token_to_seq is None or (token_to_seq[begin:end] == request).all()
    assert num_tokens is None or num_tokens == cu_seq_lens[-1]


def mask_empty_context(lse, output, query_start_loc, context_start_loc):
    """vLLM's: what is merged of requests without tokens in a chunk."""
    for request, (begin, end) in enumerate(itertools.pairwise(query_start_loc.tolist())):
        if context_start_loc[request] == context_start_loc[request + 1]:
            lse[:, begin:end], output[begin:end] = float("-inf"), 0.0


def stand_in_for_kernels():
    from vllm import _custom_ops
    from vllm.model_executor.layers.attention import mla_attention
    from vllm.v1.attention.backends import flash_attn as flash
    from vllm.v1.attention.backends.mla.prefill import flash_attn

    kernels = Kernels()
    leanattn.decode, leanattn.engine = kernels.decode, lambda ordinal: kernels
    leanattn.Workspace = lambda engine, size: types.SimpleNamespace(bytes=size)
    _custom_ops.concat_and_cache_mla = write_rows
    _custom_ops.gather_and_maybe_dequant_cache = _custom_ops.cp_gather_cache = gather
    flash_attn.flash_attn_varlen_func = kernels.prefill
    mla_attention.get_mla_prefill_backend = lambda config: flash_attn.FlashAttnPrefillBackend
    mla_attention.merge_attn_states = vllm_ranks.merge_attn_states
    mla_attention.mask_empty_context = mask_empty_context
    mla_attention.get_and_maybe_dequant_weights = lambda projection, out_dtype: projection.weight.to(out_dtype)  # which loads half of vLLM
    sys.modules[flash.cp_lse_ag_out_rs.__module__].correct_attn_out = vllm_ranks.correct_attn_out
    torch.distributed.all_gather_into_tensor, torch.cuda.current_device = vllm_ranks.all_gather_into, lambda: 0
    os.environ.update({f"VLLM_USE_DIRECT_DCP_{name}": "0" for name in ("A2A", "Q_GATHER", "KV_GATHER")})  # which need memory that GPUs share
    for name in ("zeros", "empty"):  # there is no GPU to pin memory for
        make = getattr(torch, name)
        setattr(torch, name, lambda *given, pin_memory=False, make=make, **named: make(*given, **named))
    return kernels


class Projection(torch.nn.Module):
    """kv_b_proj of the heads of a rank: [..., latent] to keys and values of heads."""

    quant_method = None

    def __init__(self, weight):
        super().__init__()
        self.weight, self.params_dtype = torch.nn.Parameter(weight, requires_grad=False), weight.dtype

    def forward(self, latent):
        return latent @ self.weight.T, None


def configuration(kv_cache_dtype, speculative, part):
    """What vLLM reads of its configuration; everything else may be anything."""
    made = MagicMock()
    made.model_config.max_model_len, made.model_config.dtype = WIDTH * PAGE * part.ranks, torch.bfloat16
    made.model_config.hf_config = made.model_config.hf_text_config = types.SimpleNamespace(
        q_lora_rank=None, kv_lora_rank=LATENT, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=VALUE)
    made.model_config.get_num_attention_heads.return_value, made.model_config.get_head_size.return_value = HEADS, ROW
    made.cache_config.cache_dtype, made.cache_config.block_size = kv_cache_dtype, PAGE
    made.cache_config.kv_cache_dtype_skip_layers, made.cache_config.calculate_kv_scales = [], False
    made.cache_config.enable_prefix_caching = False
    made.scheduler_config.max_num_seqs, made.scheduler_config.max_num_batched_tokens = MOST_REQUESTS, WIDTH * PAGE
    made.compilation_config.static_forward_context = {}
    made.compilation_config.cudagraph_capture_sizes, made.compilation_config.max_cudagraph_capture_size = [1, 2, 4, 8], 8
    made.compilation_config.cudagraph_mode.has_full_cudagraphs.return_value = True
    made.attention_config.mla_prefill_backend, made.attention_config.use_prefill_query_quantization = None, False
    made.attention_config.flash_attn_max_num_splits_for_cuda_graph = 16
    for name in ("prefill_context_parallel_size", "tensor_parallel_size"):
        setattr(made.parallel_config, name, 1)
    made.parallel_config.decode_context_parallel_size, made.parallel_config.cp_kv_cache_interleave_size = part.ranks, part.interleave
    made.parallel_config.dcp_comm_backend, made.parallel_config.num_ubatches = "ag_rs", 1
    made.kernel_config.enable_jit_warmup = made.use_v2_model_runner = False
    made.num_speculative_tokens = speculative
    made.speculative_config = types.SimpleNamespace(num_speculative_tokens=speculative, parallel_drafting=False) if speculative else None
    return made


class Model:
    """A layer and the builder of its metadata; on one of several ranks, where `part` says so. These have HEADS heads each."""

    def __init__(self, backend, kv_cache_dtype, speculative, part=WHOLE, chunk=None):
        from vllm.model_executor.layers.attention import mla_attention
        from vllm.v1.kv_cache_interface import MLAAttentionSpec

        self.part, self.speculative, self.kv_cache_dtype, one_byte = part, speculative, kv_cache_dtype, kv_cache_dtype == "fp8"
        config = configuration(kv_cache_dtype, speculative, part)
        mla_attention.get_current_vllm_config = mla_attention.get_current_vllm_config_or_none = lambda: config
        # They quantise queries and outputs, of which there are none here.
        mla_attention._DecodeConcatQuantFP8 = mla_attention.QuantFP8 = MagicMock()
        weights = torch.randn(part.ranks, HEADS * (NOPE + VALUE), LATENT, generator=torch.Generator().manual_seed(5)) / LATENT**0.5
        self.weight = weights[part.rank].bfloat16().to(DEVICE)
        with DEVICE:  # as vLLM does while it makes a model
            self.layer = mla_attention.MLAAttention(
                num_heads=HEADS, scale=SCALE, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=VALUE, q_lora_rank=None, kv_lora_rank=LATENT,
                kv_b_proj=Projection(self.weight), cache_config=config.cache_config, prefix="layer", attn_backend=backend)
        self.layer.process_weights_after_loading(torch.bfloat16)
        self.layer._k_scale.fill_(K_SCALE if one_byte else 1.0)
        spec = MLAAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=ROW, dtype=torch.uint8 if one_byte else torch.bfloat16,
                                cache_dtype_str=kv_cache_dtype)
        self.builder = backend.get_builder_cls()(spec, ["layer"], config, DEVICE)
        if self.builder.get_cudagraph_support(config, spec).name == "UNIFORM_BATCH":
            assert self.builder.reorder_batch_threshold > speculative  # else vLLM's builder refuses to capture a graph of it
        if chunk is not None:
            self.builder.chunked_prefill_workspace_size = chunk
        unwritten = FP8_MOST if one_byte and ON_GPU else vllm_steps.UNWRITTEN
        cache = torch.full((PAGES, PAGE, ROW), unwritten, device=DEVICE).to(FP8 if one_byte else torch.bfloat16)
        self.cache = cache.view(torch.uint8) if one_byte else cache

    def step(self, requests, generator, padding=0):
        """Fills the cache, runs one step through vLLM's layer, and returns the largest errors of decode and of prefill, and the step's metadata.
        `padding` requests of a graph are empty."""
        from vllm import _custom_ops
        from vllm.v1.attention.backend import CommonAttentionMetadata
        from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens

        part, (query_tokens, contexts) = self.part, zip(*requests, strict=True)
        tokens, padded = sum(query_tokens), padding * (1 + self.speculative)
        order = torch.randperm(PAGES, generator=generator, dtype=torch.int32)
        table = torch.full((len(requests) + padding, WIDTH), vllm_steps.STALE, dtype=torch.int32)
        table[len(requests):] = 0
        q = torch.randn(tokens, part.ranks, HEADS, NOPE + ROPE, generator=generator)[:, part.rank].bfloat16().to(DEVICE)
        new_rows, slots, whole, used = torch.randn(tokens, ROW, generator=generator).bfloat16().to(DEVICE), [], [], 0
        starts = [0, *itertools.accumulate(query_tokens)]
        for request, (begin, (new, context)) in enumerate(zip(starts, requests)):
            table[request, :part.pages(context)] = order[used:used + part.pages(context)]
            used += part.pages(context)
            rows = torch.cat((torch.randn(context - new, ROW, generator=generator).bfloat16().to(DEVICE), new_rows[begin:begin + new]))
            places = torch.tensor([part.slot(table[request], token) for token in range(context)], device=DEVICE)
            before = slice(0, context - new)  # the new tokens are vLLM's to write
            if context > new:
                _custom_ops.concat_and_cache_mla(rows[before, :LATENT], rows[before, LATENT:], self.cache, places[before], self.kv_cache_dtype,
                                                 self.layer._k_scale)
            slots += places[context - new:].tolist()
            whole.append(rows)
        starts_here = torch.tensor(starts + [tokens] * padding, dtype=torch.int32)
        lengths = torch.tensor([*contexts, *[0] * padding], dtype=torch.int32)
        local = {} if part.ranks == 1 else {"dcp_local_seq_lens": get_dcp_local_seq_lens(lengths, part.ranks, part.rank, part.interleave).to(DEVICE)}
        metadata = self.builder.build(0, CommonAttentionMetadata(
            query_start_loc=starts_here.to(DEVICE), query_start_loc_cpu=starts_here, seq_lens=lengths.to(DEVICE), seq_lens_cpu_upper_bound=lengths,
            num_reqs=len(requests) + padding, num_actual_tokens=tokens + padded, max_query_len=max(query_tokens), max_seq_len=max(contexts),
            block_table_tensor=table.to(DEVICE), slot_mapping=torch.tensor(slots + [-1] * padded, device=DEVICE), **local))
        fill = torch.nn.functional.pad
        q_padded, rows_padded = fill(q, (0, 0, 0, 0, 0, padded)), fill(new_rows, (0, 0, 0, padded))
        latent, rotated = rows_padded[:, :LATENT], rows_padded[:, None, LATENT:]
        self.layer.impl.do_kv_cache_update(latent, rotated, self.cache, metadata.slot_mapping, self.kv_cache_dtype, self.layer._k_scale)
        output = torch.full((tokens + padded, HEADS * VALUE), float("nan"), dtype=torch.bfloat16, device=DEVICE)
        self.layer.forward_impl(q_padded, latent, rotated, self.cache, metadata, output=output)
        wanted = torch.cat([self.attention(q[begin:begin + new], rows, begin < metadata.num_decode_tokens)
                            for begin, (new, _), rows in zip(starts, requests, whole)])
        errors = (output[:tokens].unflatten(-1, (HEADS, VALUE)).double() - wanted).abs().flatten(1).amax(1)
        decoded = min(metadata.num_decode_tokens, tokens)
        return tuple(part.max().item() if len(part) else 0.0 for part in (errors[:decoded], errors[decoded:])), metadata

    def attention(self, q, rows, decoded):
        """Of a request, in fp64, over rows as the cache has them. Those of prefill's own tokens do not come from there."""
        rows, before = rows.double(), len(rows) - len(q)
        if self.kv_cache_dtype == "fp8":
            stored = (rows.float() / K_SCALE).to(FP8).double() * K_SCALE
            rows = stored if decoded else torch.cat((stored[:before], rows[before:]))
        expanded = (rows[:, :LATENT] @ self.weight.double().T).unflatten(-1, (HEADS, NOPE + VALUE))
        keys = torch.cat((expanded[..., :NOPE], rows[:, None, LATENT:].expand(-1, HEADS, -1)), -1)
        return vllm_steps.attention(q, keys, expanded[..., NOPE:], before, scale=SCALE)


def main():
    version = vllm_steps.load_given()
    import leanattn.vllm

    leanattn.vllm.register()
    backend = importlib.import_module(f"leanattn.vllm.{leanattn.vllm.module_for(version)}").LatentBackend
    check_selection(backend)
    kernels = None if ON_GPU else stand_in_for_kernels()
    worst, failed, steps = {}, [], 0
    # Prefill is that of vLLM, and then leanattn's.
    prefills = (False, True) if kernels is not None else (False,)
    for own, kv_cache_dtype, chunk, (speculative, of_kind) in itertools.product(prefills, ("auto", "fp8"), (None, SMALL_CHUNKS), STEPS.items()):
        if own:
            prefill_by(leanattn.vllm.LatentPrefill)
        model = Model(backend, kv_cache_dtype, speculative, chunk=chunk)
        others = yardsticks(kv_cache_dtype, speculative, chunk) if ON_GPU and kv_cache_dtype == "auto" else {}
        for (order, requests), padding in steps_of(of_kind, speculative):
            steps += 1
            before = kernels and (kernels.decoded, kernels.prefilled)
            errors, _ = model.step(requests, torch.Generator().manual_seed(steps), padding)
            if kernels is not None:
                mine = rows_of_decode(requests, 1 + speculative)
                counted = kernels.decoded - before[0], kernels.prefilled - before[1]
                assert counted == (mine + padding * (1 + speculative), sum(new for new, _ in requests) - mine), (requests, counted)
            note(worst, f"leanattn, {order}", errors)
            if not agree(errors):
                failed.append((kv_cache_dtype, chunk, requests, errors))
            for name, other in others.items():
                note(worst, f"{name}, {order}", other.step(requests, torch.Generator().manual_seed(steps), padding)[0])
    if kernels is not None:
        steps += steps_over_ranks(backend, kernels, worst, failed)
    print(f"vLLM {version}, PyTorch {torch.__version__}")
    for name, (decode, prefill) in sorted(worst.items()):
        print(f"{name}: largest error {decode:.4f} of decode, {prefill:.4f} of prefill")
    for kv_cache_dtype, chunk, requests, (decode, prefill) in failed:
        print(f"differs by {decode:.4f} in decode, {prefill:.4f} in prefill: cache {kv_cache_dtype}, chunks of {chunk}, new tokens and contexts {requests}")
    print(f"{steps - len(failed)} steps agree" + (f", {len(failed)} do not" if failed else ""))
    return 1 if failed else 0


def steps_of(of_kind, speculative):
    return [(order, padding) for requests, padding in of_kind for order in orders(requests, speculative)]


def agree(errors):
    """Whether decode and prefill are right. What is no number is not."""
    return all(error < TOLERANCE for error in errors)


def note(worst, name, errors):
    """Keeps the largest errors of decode and of prefill. One that is no number is larger than all."""
    before = worst.get(name, (0.0, 0.0))
    worst[name] = tuple(new if not new <= old else old for new, old in zip(errors, before))


def rows_of_decode(requests, most):
    return sum(itertools.takewhile(lambda new: new <= most, (new for new, _ in requests)))


def yardsticks(kv_cache_dtype, speculative, chunk):
    """Models of those backends of vLLM that can be made here."""
    made = {}
    for name, path in YARDSTICKS.items():
        module, cls = path.split(".")
        try:
            backend = getattr(importlib.import_module(f"vllm.v1.attention.backends.mla.{module}"), cls)
            made[name] = Model(backend, kv_cache_dtype, speculative, chunk=chunk)
            made[name].layer.impl.dcp_world_size = 1  # else the first step asks the group of ranks, which an engine makes
        except (ImportError, AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
            print(f"without {name}: {error}")
    return made


def steps_over_ranks(backend, kernels, worst, failed):
    """Decode context parallelism: every step on each rank, all with the same random numbers. Returns how many steps there are."""
    from vllm.distributed import parallel_state

    steps, size = 0, 2
    # vLLM 0.26 cannot read a context in chunks that are no multiple of what the ranks have in turn, and makes such where many contexts share one.
    for (interleave, chunk), (speculative, of_kind) in itertools.product(((1, None), (1, SMALL_CHUNKS), (PAGE, None)), STEPS.items()):
        parallel_state._DCP = group = vllm_ranks.Group(size)
        models = []
        for rank in range(size):
            group.mine.rank = rank
            models.append(Model(backend, "auto", speculative, vllm_ranks.Part(rank, size, interleave, PAGE), chunk))
        # With speculation all rows are prefill, of which there are no graphs.
        for (order, requests), padding in [(step, padding * (speculative == 0)) for step, padding in steps_of(of_kind, speculative)]:
            before = kernels.decoded, kernels.prefilled
            found = group.run(lambda rank: models[rank].step(requests, torch.Generator().manual_seed(steps), padding)[0])  # noqa: B023
            if failures := [error for error in found if isinstance(error, Exception)]:
                raise min(failures, key=lambda error: isinstance(error, threading.BrokenBarrierError))  # else it only waited for a rank that failed
            mine = rows_of_decode(requests, 1)
            counted = kernels.decoded - before[0], kernels.prefilled - before[1]
            assert counted == (size * (mine + padding), size * (sum(new for new, _ in requests) - mine)), (requests, counted)
            errors = torch.tensor(found).amax(0).tolist()  # no number where one of them is none
            note(worst, f"leanattn over ranks, {order}", errors)
            if not agree(errors):
                failed.append((f"auto, {size} ranks with {interleave} tokens in turn", chunk, requests, errors))
            steps += 1
    parallel_state._DCP = None
    return steps


def prefill_by(backend):
    """Has layers that are made from now on prefill so."""
    from vllm.model_executor.layers.attention import mla_attention
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.mla.prefill.base import MLADimensions
    from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum
    from vllm.v1.attention.backends.mla.prefill.selector import MLAPrefillSelectorConfig

    assert MLAPrefillBackendEnum.CUSTOM.get_class() is backend
    names = "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
    for sizes, taken in (((128, 64, 128), True), ((192, 64, 256), True), ((256, 0, 256), True), ((96, 48, 128), False)):
        config = MLAPrefillSelectorConfig(dtype=torch.bfloat16, mla_dimensions=MLADimensions(**dict(zip(names, sizes))))
        assert (backend.validate_configuration(DeviceCapability(9, 0), config) == []) == taken, sizes
    mla_attention.get_mla_prefill_backend = lambda config: backend


def check_selection(backend):
    """vLLM's own check of a backend against a model."""
    from vllm.platforms.interface import DeviceCapability

    given = dict(head_size=ROW, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=PAGE, use_mla=True, has_sink=False, use_sparse=False,
                 use_mm_prefix=False, use_per_head_quant_scales=False, device_capability=DeviceCapability(9, 0), attn_type="decoder")
    assert backend.validate_configuration(**given) == []
    assert backend.validate_configuration(**{**given, "kv_cache_dtype": "fp8", "use_batch_invariant": True}) == []
    for changed in ({"use_sparse": True}, {"use_mla": False}, {"head_size": 448}, {"kv_cache_dtype": "fp8_e5m2"}):
        assert backend.validate_configuration(**{**given, **changed}) != [], changed


if __name__ == "__main__":
    sys.exit(main())
