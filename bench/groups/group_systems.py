"""group_systems.py -- the ways to do a decode step on several GPUs, as candidates. Each is made on every rank, by calls in the same order.

A candidate's attention is always leanattn's, with the kernel that the look-up answers, so that they differ in how work is dealt out and results are
brought together.
"""
import dataclasses
from typing import Callable

import torch
import torch.distributed as dist

import group_kernels
import leanattn
from group_report import ALL_TO_ALL, GATHER, HEADS, ONE, OURS, OVER_NCCL, OWN


@dataclasses.dataclass
class Candidate:
    """`launch(copy)` enqueues the step on the current stream with copy `copy` of the caches. `outputs[copy]` is what it writes on this rank,
    [batch, heads, head_dim], of the query heads `heads`; None where it is only a part of the result."""

    name: str
    launch: Callable[[int], None]
    outputs: list
    heads: slice | None
    facts: dict


class Rank:
    """This process's rank: its engine, its group, and what the baselines need. nccl: a process group, or None for none."""

    def __init__(self, rank, ranks, control, nccl, largest, cache_dir):
        self.rank, self.ranks, self.nccl = rank, ranks, nccl
        device = torch.cuda.current_device()
        self.engine = leanattn.Engine(device, cache_dir=cache_dir) if cache_dir else leanattn.engine(device)
        self.kernels = group_kernels.GroupKernels() if nccl else None
        self.group = self._make_group(control, largest, "peers")
        self.group_over_nccl = self._make_group(control, largest, "nccl") if nccl else None

    def _make_group(self, control, largest, transport):
        return leanattn.Group.from_process_group(control, problem=group_problem(largest, self.ranks), max_batch=largest.batch, engine=self.engine, transport=transport)

    def close(self):
        for group in (self.group, self.group_over_nccl):
            if group is not None:
                group.close(barrier=False)

    def candidates(self, data):
        """The candidates of a step, not launched yet. Plans are made here, so that no rank waits in a kernel while another one compiles."""
        yield self._ours, data, OURS, self.group
        yield self._one, data
        yield self._heads, data
        yield self._own, data
        if self.nccl is not None:
            yield self._gather, data
            yield self._all_to_all, data
            yield self._ours, data, OVER_NCCL, self.group_over_nccl

    def _ours(self, data, name, group):
        step, caches = data.step, data.part
        options = dict(shape_of(caches), group=group, context_interleave=step.interleave, page_table=caches.page_table)
        facts = facts_of(self.engine.plan(group_problem(step, self.ranks), step.batch, group=group, **shape_of(caches)))
        outputs = [torch.empty_like(data.q) for _ in range(data.copies)]

        def launch(copy):
            leanattn.decode(data.q, *caches.copies[copy], caches.lengths, out=outputs[copy], **options)

        heads = group.heads(step.q_heads)
        return Candidate(name, launch, [o[:, heads] for o in outputs], heads, facts)

    def _one(self, data):
        return self._plain(ONE, data, data.whole, data.whole.copies, slice(0, data.step.q_heads), slice(0, data.step.q_heads))

    def _heads(self, data):
        step = data.step
        mine = [slice(count * self.rank // self.ranks, count * (self.rank + 1) // self.ranks) for count in (step.q_heads, step.kv_heads)]
        return self._plain(HEADS, data, data.whole, data.whole.heads(mine[1].start, mine[1].stop), mine[0], mine[0])

    def _own(self, data):
        return self._plain(OWN, data, data.part, data.part.copies, slice(0, data.step.q_heads), None)

    def _plain(self, name, data, caches, copies, q_heads, written):
        """Attention of some query heads over some caches, with no other rank."""
        step, q = data.step, data.q[:, q_heads]
        outputs = [torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(data.copies)]
        problem = problem_of(step, q_heads=q.shape[1], kv_heads=copies[0][0].shape[1])
        facts = facts_of(self.engine.plan(problem, step.batch, **shape_of(caches)))

        def launch(copy):
            leanattn.decode(q, *copies[copy], caches.lengths, caches.page_table, out=outputs[copy], engine=self.engine, **shape_of(caches))

        return Candidate(name, launch, outputs, written, facts)

    def _partial(self, data):
        """Attention over this rank's part with its LSE: a launch, its o and its lse, and facts."""
        step, caches = data.step, data.part
        o = torch.empty_like(data.q)
        lse = torch.empty(step.batch, step.q_heads, dtype=torch.float32, device=o.device)
        facts = facts_of(self.engine.plan(problem_of(step, lse=True), step.batch, **shape_of(caches)))

        def launch(copy):
            leanattn.decode(data.q, *caches.copies[copy], caches.lengths, caches.page_table, out=o, out_lse=lse, engine=self.engine, **shape_of(caches))

        return launch, o, lse, facts

    def _gather(self, data):
        """As vLLM's decode context parallelism does it: all ranks get all LSE, scale their o, and a reduce-scatter adds o up."""
        step = data.step
        attend, o, lse, facts = self._partial(data)
        share = step.q_heads // self.ranks
        lses = torch.empty(self.ranks, step.batch, step.q_heads, dtype=torch.float32, device=o.device)
        corrected = torch.empty(step.q_heads, step.batch, step.head_dim, dtype=o.dtype, device=o.device)
        outputs = [torch.empty(share, step.batch, step.head_dim, dtype=o.dtype, device=o.device) for _ in range(data.copies)]

        def launch(copy):
            attend(copy)
            dist.all_gather_into_tensor(lses, lse.view(1, step.batch, step.q_heads), group=self.nccl)
            self.kernels.correct(o, lses, corrected, self.rank)
            dist.reduce_scatter_tensor(outputs[copy], corrected, group=self.nccl)

        return Candidate(GATHER, launch, [made.transpose(0, 1) for made in outputs], self.group.heads(step.q_heads), facts)

    def _all_to_all(self, data):
        step = data.step
        attend, o, lse, facts = self._partial(data)
        bytes_each = group_kernels.chunk_bytes(step.batch, step.q_heads, step.head_dim, self.ranks)
        sent, received = (torch.zeros(self.ranks, bytes_each, dtype=torch.uint8, device=o.device) for _ in range(2))
        parts, lses = group_kernels.unpacked(received, step.batch, step.q_heads, step.head_dim)
        outputs = [torch.empty_like(parts[0]) for _ in range(data.copies)]

        def launch(copy):
            attend(copy)
            self.kernels.pack(o, lse, sent)
            dist.all_to_all_single(received, sent, group=self.nccl)
            leanattn.merge_partials(parts, lses, out=outputs[copy], engine=self.engine)

        return Candidate(ALL_TO_ALL, launch, outputs, self.group.heads(step.q_heads), facts)


def problem_of(step, **changed):
    return leanattn.Problem(**{"q_heads": step.q_heads, "kv_heads": step.kv_heads, "head_dim": step.head_dim, "page_size": step.page_size, **changed})


def group_problem(step, ranks):
    return problem_of(step, context_parallel=ranks, context_interleave=step.interleave)


def shape_of(caches):
    """What is told to the look-up."""
    return {"longest_context": max(caches.longest, 1), "total_context": max(sum(caches.counts), 1)}


def facts_of(plan):
    return {"kernel": plan.kernel_name, "grid": plan.grid, "provenance": plan.provenance, "layer": plan.layer, "tuned_us": plan.tuned_us}


def tuned_shapes(steps, ranks):
    """What the steps look up but for groups, which group_steps.captured_groups() names: {problem: {(batch, longest context, all tokens)}}."""
    wanted = {}
    for step in steps:
        parts = [[len(tokens) for tokens in step.part(rank, ranks)] for rank in range(ranks)]
        asked = [(problem_of(step), step.lengths), (problem_of(step, q_heads=step.q_heads // ranks, kv_heads=step.kv_heads // ranks), step.lengths)]
        asked += [(problem_of(step, lse=lse), counts) for counts in parts for lse in (False, True)]
        for problem, counts in asked:
            wanted.setdefault(problem, {})[step.batch, max(max(counts), 1), max(sum(counts), 1)] = None
    return {problem: list(shapes) for problem, shapes in wanted.items()}
