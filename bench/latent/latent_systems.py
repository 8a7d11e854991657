"""latent_systems.py -- what attends to a latent cache: leanattn, FlashMLA and FlashAttention-3, as candidates of peers.systems.

FlashMLA and FlashAttention-3 are taken from the extensions that vLLM's wheel carries, which PyTorch loads by itself.
"""
import torch

import steps
from peers import system_leanattn, systems
from step_data import split_view


class LeanattnLatent(system_leanattn.LeanattnSystem):
    """The plan that the look-up answers, without or with dependent launch."""

    def __init__(self, library_path, cache_dir, pdl_choices):
        super().__init__(library_path, cache_dir)
        self.pdl_choices = lambda: pdl_choices

    def candidate(self, data, pdl):
        step = data.case
        features = {"q_len": step.q_len} if step.q_len > 1 else {}
        if step.selected:
            features |= {"selection_block": 1, "selection_in_pool": 1}
        if step.kv_format:
            features |= {"kv_format": self.library.enums["leanattn_kv_format"][f"LEANATTN_KV_{step.kv_format.upper()}"]}
        if step.split:
            features |= {"second_cache": 1}
        plan = self.query(step, pdl, page_size=steps.PAGE_SIZE, latent=1, v_head_dim=steps.VALUES, **features).plan()
        workspace = self.workspace(plan)
        outputs = [torch.empty(step.batch, step.q_len, step.heads, steps.VALUES, dtype=data.q.dtype, device="cuda") for _ in range(data.copies)]
        if step.selected:
            lengths, lists = None, {"selection": data.selection.data_ptr(), "selected_counts": data.counts.data_ptr(), "selection_capacity": step.selected}
        else:
            lengths, lists = data.lengths.data_ptr(), {"page_table": data.page_table.data_ptr(), "max_pages": data.page_table.shape[1]}
        second = [{"k_stride_batch": steps.SPLIT_PAGE_BYTES, "second_k": data.seconds[copy].data_ptr(), "second_page_table": data.second_table.data_ptr(),
                   "second_lengths": data.second_lengths.data_ptr(), "second_max_pages": data.second_table.shape[1], "second_pool_pages": len(data.seconds[copy])}
                  if step.split else {} for copy in range(data.copies)]
        # By default q and o are dense with the query tokens outside the heads, as here.
        arguments = [plan.arguments(data.q.data_ptr(), data.pools[copy].data_ptr(), None, outputs[copy].data_ptr(), lengths,
                                    step.batch, 0, scale=steps.SCALE, pool_pages=step.pages, **lists, **second[copy]) for copy in range(data.copies)]

        def launch(copy):
            plan.launch(arguments[copy], workspace, systems.stream())

        return systems.Candidate(self.name, "tuned", launch, lambda copy: data.flat(outputs[copy]), pdl, facts=plan.info())


class FlashMlaSystem:
    """FlashMLA's decode kernel for dense attention. Its variant `metadata` also makes the schedule, which must be made whenever lengths change."""

    name = "FlashMLA"

    def __init__(self, library):
        torch.ops.load_library(library)

    def versions(self):
        return {"flash_mla": "of vLLM's wheel"}

    def candidates(self, data, attempt):
        if data.case.selected:
            return [attempt("kernel", False, lambda: self.sparse_rows(data) if data.case.kv_format else self.sparse(data))]
        return [attempt("kernel", False, lambda: self.candidate(data, "kernel")),
                attempt("metadata and kernel", False, lambda: self.candidate(data, "metadata and kernel"))]

    def candidate(self, data, variant):
        outputs = [None] * data.copies

        def call(copy, schedule):
            return torch.ops._flashmla_C.dense_decode_fwd(data.q, data.pools[copy], steps.VALUES, data.lengths, data.page_table, steps.SCALE,
                                                          data.case.q_len > 1, *schedule, None)

        made = tuple(call(0, (None, None))[2:]) if variant == "kernel" else (None, None)

        def launch(copy):
            outputs[copy] = call(copy, made)[0]

        # Its output is [batch, q_len, heads, VALUES].
        return systems.Candidate(self.name, variant, launch, lambda copy: data.flat(outputs[copy]))


    def sparse(self, data):
        """Its kernel over selected rows of a bf16 cache, which has no schedule. It takes 64 or 128 heads: fewer are padded, as engines do."""
        step = data.case
        q = data.q.view(-1, step.heads, steps.WIDTH)
        if step.heads % 64:
            q = torch.nn.functional.pad(q, (0, 0, 0, 64 - step.heads % 64))
        rows = [pool.view(-1, 1, steps.WIDTH) for pool in data.pools]
        indices, counts = data.selection.view(-1, 1, step.selected), data.counts.view(-1)
        outputs = [None] * data.copies

        def launch(copy):
            outputs[copy] = torch.ops._flashmla_C.sparse_prefill_fwd(q, rows[copy], indices, steps.SCALE, steps.VALUES, None, counts, None)[0]

        return systems.Candidate(self.name, "kernel", launch, lambda copy: data.flat(outputs[copy][:, :step.heads].contiguous()))

    def sparse_rows(self, data):
        """Its decode kernel over selected rows of ROW_BYTES, or over a window and selected rows of DeepSeek V4, with a schedule that is made once."""
        step = data.case
        q = torch.nn.functional.pad(data.q, (0, 0, 0, -step.heads % 64))
        indices = data.selection.view(step.batch, step.q_len, step.selected)
        decode = torch.ops._flashmla_C.sparse_decode_fwd
        # Newer versions have one argument more, whether bits may depend on the batch.
        more = (False,) * (len(decode.default._schema.arguments) - 13)
        outputs = [None] * data.copies
        if step.split:
            places = data.second_table[:, :, None] * steps.PAGE_SIZE + torch.arange(steps.PAGE_SIZE, device=q.device)
            window = places.int().view(step.batch, 1, -1).contiguous()
            first, extra = [[split_view(pool) for pool in pools] for pools in (data.seconds, data.pools)]

        def call(copy, schedule):
            if step.split:
                return decode(q, first[copy], window, None, None, *schedule, extra[copy], indices, None, steps.VALUES, steps.SCALE, None, *more)
            return decode(q, data.pools[copy], indices, None, None, *schedule, None, None, None, steps.VALUES, steps.SCALE, None, *more)

        made = tuple(call(0, (None, None))[2:])

        def launch(copy):
            outputs[copy] = call(copy, made)[0]

        return systems.Candidate(self.name, "kernel", launch, lambda copy: data.flat(outputs[copy][:, :, :step.heads].contiguous()))


class FlashAttention3Latent:
    """FlashAttention-3 with q_v: its keys are the rotated columns, and its values are also keys, for q_v."""

    name = "FA3"
    SPLITS = [0, 1, 2, 4, 8, 16, 32, 64]  # 0: its own heuristic

    def __init__(self, library):
        torch.ops.load_library(library)

    def versions(self):
        return {"flash_attn_3": "of vLLM's wheel"}

    def candidates(self, data, attempt):
        if data.case.selected:
            return []
        return [attempt(f"{splits} splits", False, lambda: self.candidate(data, splits)) for splits in self.SPLITS]

    def candidate(self, data, splits):
        q, q_v = data.q[..., steps.VALUES:].contiguous(), data.q[..., :steps.VALUES].contiguous()
        keys, values = [pool[..., steps.VALUES:] for pool in data.pools], [pool[..., :steps.VALUES] for pool in data.pools]
        outputs = [None] * data.copies

        def launch(copy):
            outputs[copy] = torch.ops._vllm_fa3_C.fwd(
                q, keys[copy], values[copy],
                None, None,  # new tokens to append
                q_v, None,  # out
                None, None, None,  # cumulative lengths of packed batches
                None, data.lengths,
                None, None,  # longest q and k of packed batches
                data.page_table, None, None,  # batch index, left padding
                None, None, None,  # rotary embedding
                None, None, None,  # scales of one-byte elements
                steps.SCALE,
                data.case.q_len > 1, -1, -1, 0.0, True,  # causal, window, soft cap, interleaved rotary embedding
                None, splits, None, 0,  # scheduler metadata, splits, packing of the group, SMs left free
                None, 1, 0, None,  # sinks, context parallelism
            )[0]

        return systems.Candidate(self.name, f"{splits} splits", launch, lambda copy: data.flat(outputs[copy]))
