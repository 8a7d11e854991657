"""mixed_systems.py -- what does a mixed step: leanattn and FlashAttention-3 of vLLM's wheel, as candidates of peers.systems.

A `run` is a function of a copy and an output, which enqueues a launch over the requests of some StepData. Candidates consist of one or two of them.
"""
import functools

import torch

from peers import system_leanattn, systems, timing
import mixed_data

FP8_TOLERANCE = 4  # softmax weights in e4m3 have relative errors of up to 2^-4, about 0.025 of a row's root mean square
MOST_PARTIAL_BYTES = 4 << 30  # of the partial results of FlashAttention-3's splits
ALL = slice(None)  # rows of an output


def candidate(system, variant, data, runs, side=None, **more):
    """The candidate that enqueues each (rows of the output, run), one after the other, or the first one on the stream `side` beside the others. A run
    may return its output instead of writing the one it is given."""
    outputs = [data.output() for _ in range(data.copies)]

    def launch(copy):
        main = torch.cuda.current_stream()
        for i, (rows, run) in enumerate(runs):
            apart = side is not None and i == 0
            if apart:
                side.wait_stream(main)
            with torch.cuda.stream(side if apart else main):
                made = run(copy, outputs[copy][rows])
            if made is not None:
                outputs[copy] = made
        if side is not None:
            main.wait_stream(side)

    return systems.Candidate(system, variant, launch, lambda copy: outputs[copy], **more)


def microseconds(data, run):
    """The time of a run alone, as a graph."""
    made = candidate("", "", data, [(ALL, run)])
    made.launch(0)
    replay = timing.Replay(made.launch, data.copies, timing.launches_for(data.case.kv_bytes, data.copies, data.case.flops))
    us = min(timing.time_round([replay], [0])[0] for _ in range(timing.SCREEN_ROUNDS))
    del made, replay
    torch.cuda.empty_cache()  # a graph has memory of its own
    return us


class LeanattnMixed(system_leanattn.LeanattnSystem):
    """One launch for the whole step by the plan that the look-up answers."""

    def run(self, data):
        """The run, and the plan's facts."""
        step, fields = data.case, dict(data.case.features)
        if step.fp8:
            fields["kv_format"] = self.library.enums["leanattn_kv_format"]["LEANATTN_KV_FP8_E4M3"]
        query = self.query(step, False, kv_layout=int(data.layout == "NHD"), **fields)
        for name, value in step.mix.items():
            setattr(query.shape, name, value)
        plan = query.plan()
        workspace = self.workspace(plan)
        more = {"q_offsets": data.q_offsets.data_ptr(), "query_tokens": data.q.shape[0]} if step.q_len > 1 else {}
        if step.paged:
            more |= {"page_table": data.page_table.data_ptr(), "max_pages": data.page_table.shape[1], "pool_pages": data.k[0].shape[0]}
        if step.fp8:
            more |= {"k_scale": data.scale.data_ptr(), "v_scale": data.scale.data_ptr()}

        def run(copy, output):
            arguments = plan.arguments(data.q.data_ptr(), data.k[copy].data_ptr(), data.v[copy].data_ptr(), output.data_ptr(), data.lengths.data_ptr(),
                                       step.batch, 0 if step.paged else step.longest, **more)
            plan.launch(arguments, workspace, systems.stream())

        return run, plan.info()

    def candidates(self, data, attempt):
        def build():
            run, facts = self.run(data)
            return candidate(self.name, "tuned", data, [(ALL, run)], facts=facts)

        return [attempt("tuned", False, build)]


class FlashAttention3Mixed:
    """One launch as engines make it, one with its best number of splits, and two launches with theirs."""

    name = "FA3"
    SPLITS = (0, 1, 2, 4, 8, 16, 32)  # 0: its own choice

    def __init__(self, library):
        torch.ops.load_library(library)
        self.side = torch.cuda.Stream()

    def versions(self):
        return {"flash_attn_3": "of vLLM's wheel"}

    def run(self, data, splits):
        step, q, more = data.case, data.q, [None] * 3
        if step.fp8:
            q = q.to(torch.float8_e4m3fn)
            shape = (step.batch, step.kv_heads)
            more = [torch.full(shape, scale, dtype=torch.float32, device="cuda") for scale in (1.0, mixed_data.KV_SCALE, mixed_data.KV_SCALE)]

        def run(copy, output):
            torch.ops._vllm_fa3_C.fwd(
                q, data.k[copy], data.v[copy],
                None, None, None, output,  # new tokens to append, q_v
                data.q_offsets, None, None,  # cumulative lengths of packed batches
                None, data.lengths,
                step.q_len, step.longest,
                data.page_table, None, None,  # batch index, left padding
                None, None, None,  # rotary embedding
                *more,  # scales of one-byte elements
                step.head_dim ** -0.5,
                True, step.window - 1, 0 if step.window else -1, 0.0, True,  # causal, window, soft cap, interleaved rotary embedding
                None, splits, None, 0,  # scheduler metadata, splits, packing of the group, SMs left free
                None, 1, 0, None,  # sinks, context parallelism
            )

        return run

    def best(self, data):
        """The run with the best number of splits, this number, and its time alone in microseconds."""
        partial = data.case.query_tokens * data.case.q_heads * (data.case.values + 1) * 4
        timed = [(microseconds(data, self.run(data, splits)), splits) for splits in self.SPLITS if splits * partial <= MOST_PARTIAL_BYTES]
        us, splits = min(timed)
        return self.run(data, splits), splits, us

    def candidates(self, data, attempt):
        more = {"tolerance": FP8_TOLERANCE if data.case.fp8 else 1.0}

        def one():
            run, splits, _ = self.best(data)
            return candidate("FA3 best split", f"{splits} splits", data, [(ALL, run)], **more)

        @functools.cache
        def best_of_parts():
            return [(part.rows, *self.best(part)) for part in (data.part(*requests) for requests in data.case.parts())]

        def two(system, side):
            (_, _, _, decode_us), (_, _, _, prefill_us) = best_of_parts()
            runs = [(rows, run) for rows, run, *_ in best_of_parts()]
            return candidate(system, " and ".join(f"{splits} splits" for _, _, splits, _ in best_of_parts()), data, runs, side,
                             facts={"decode_us": decode_us, "prefill_us": prefill_us}, **more)

        made = [attempt("its own choice", False, lambda: candidate(self.name, "its own choice", data, [(ALL, self.run(data, 0))], **more)),
                attempt("best split", False, one)]
        if data.case.parts():
            made += [attempt("two launches", False, lambda: two("FA3 two launches", None)),
                     attempt("two streams", False, lambda: two("FA3 two streams", self.side))]
        return made


class SumOfTwo:
    """Leanattn's decode launch for the decodes and, after it, the best launch for the other requests: leanattn's or FlashAttention-3's."""

    name = "decode + prefill"

    def __init__(self, ours, flash3):
        self.ours, self.flash3 = ours, flash3

    def versions(self):
        return {}

    def candidates(self, data, attempt):
        if not data.case.parts():
            return []
        decode, rest = (data.part(*requests) for requests in data.case.parts())

        def with_flash3():
            run, splits, us = self.flash3.best(rest)
            return run, us, f"leanattn + FA3 {splits} splits"

        def with_ours():
            run, _ = self.ours.run(rest)
            return run, microseconds(rest, run), "leanattn + leanattn"

        def build(prefill):
            run, us, variant = prefill()
            first, _ = self.ours.run(decode)
            facts = {"decode_us": microseconds(decode, first), "prefill_us": us}
            return candidate(self.name, variant, data, [(decode.rows, first), (rest.rows, run)], facts=facts,
                             tolerance=FP8_TOLERANCE if data.case.fp8 and prefill is with_flash3 else 1.0)

        return [attempt(name, False, lambda: build(prefill)) for name, prefill in [("leanattn + leanattn", with_ours), ("leanattn + FA3", with_flash3)]
                if self.flash3 or prefill is with_ours]
