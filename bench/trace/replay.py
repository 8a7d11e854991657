"""replay.py -- times the decode steps of the trace one after the other: leanattn on a dense cache and on pages, FlashInfer's kernels on pages,
and kernels that only read.

The attention is that of Llama-3-8B: 32 query heads and 8 KV heads of 128, bf16. The i-th running request has slot i of caches that are filled
once; only the lengths change from step to step. Launches read two copies of the caches in turn, so that a step whose K and V are at least twice
the L2 finds it cold.
"""
import torch

from peers import data as case_data
from peers import measure, oracle, shapes, summary, system_flashinfer, systems, timing

Q_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
COPIES = 2
ROUNDS = 9
PLAN_REPEATS = 5


class Caches:
    """Dense and paged K and V of max_running slots with `capacity` tokens each. Every copy has the same values."""

    def __init__(self, max_running, capacity, layouts, seed):
        self.max_running = max_running
        slots = shapes.Case("trace", "slots", Q_HEADS, KV_HEADS, HEAD_DIM, (capacity,) * max_running)
        self.capacity = slots.capacity
        self.data = case_data.CaseData(slots, COPIES, seed)
        self.paged = {layout: self.data.paged(layout) for layout in layouts}
        self.lengths = torch.zeros(max_running, dtype=torch.int32, device="cuda")
        self.outputs = {}

    def output(self, key, copy, batch):
        """The output of a candidate, [batch, q_heads, head_dim]. It is kept, since captured graphs write to it."""
        whole = self.outputs.setdefault((key, copy), torch.empty_like(self.data.q))
        return whole[:batch]

    def page_table(self, contexts):
        first = [slot * (self.capacity // shapes.PAGE_SIZE) for slot in range(len(contexts))]
        return system_flashinfer.PageTable(list(contexts), first)


def memory_needed(max_running, capacity, layouts):
    """Bytes that Caches takes."""
    return COPIES * (1 + len(layouts)) * shapes.kv_bytes((capacity,) * max_running, KV_HEADS, HEAD_DIM)


class Replayer:
    """Measures steps, and keeps kernels and plans from step to step where it can."""

    def __init__(self, caches, leanattn, flashinfer, limit, plan_once, seed):
        self.caches, self.leanattn, self.flashinfer, self.limit = caches, leanattn, flashinfer, limit
        self.plan_once, self.seed = plan_once, seed
        self.kernels = {}  # of FlashInfer, by name, layout and batch, since a captured graph fixes the batch
        self.limit_variants = limit.kernels.variants
        self.failures = {}

    def measure(self, step):
        """The step's record: contexts, and per candidate the median and samples in microseconds a launch, and the host's part."""
        case = shapes.Case("trace", f"step {step.index}", Q_HEADS, KV_HEADS, HEAD_DIM, step.contexts)
        self.caches.lengths[:case.batch].copy_(torch.tensor(step.contexts, dtype=torch.int32))
        data = self.caches.data
        reference = oracle.attention(data.q[:case.batch], data.k[0], data.v[0], step.contexts)
        launches = timing.launches_for(case.kv_bytes, COPIES)
        running, replays, errors, wrong = [], [], {}, []
        pages = self.caches.page_table(step.contexts)
        for candidate in [*self.limits(case), *self.ours(case, pages), *self.theirs(case, pages)]:
            if isinstance(candidate, systems.Failure):
                self.failures.setdefault((candidate.system, candidate.variant, candidate.pdl), candidate.reason)
                continue
            try:
                replay = timing.Replay(candidate.launch, COPIES, launches)
                error = measure.check(candidate, replay, COPIES, reference)
            except Exception as problem:
                self.failures.setdefault(candidate.key, systems.reason_of(problem))
                systems.ensure_context(*candidate.key, self.failures[candidate.key])
                continue
            name = " ".join(filter(None, [summary.label(candidate.system, candidate.pdl), candidate.variant]))
            if error is not None:
                errors[name] = error
            if error is not None and error > 1:
                wrong.append(name)
                continue
            running.append(candidate)
            replays.append(replay)
        samples = timing.race(replays, 0, self.seed, rounds=ROUNDS)
        lines = [{"system": candidate.system, "variant": candidate.variant, "pdl": candidate.pdl, "plan_us": candidate.plan_us,
                  "facts": candidate.facts, "samples_us": times} for candidate, times in zip(running, samples)]
        self.keep_best_limits(lines)
        return {"step": step.index, "time": step.time, "waiting": step.waiting, "contexts": list(step.contexts), "kv_bytes": case.kv_bytes,
                "launches_per_sample": launches, "lines": lines, "errors": errors, "wrong": wrong}

    def limits(self, case):
        data, bytes_each = self.caches.data, case.kv_bytes // 2

        def of(variant):
            def launch(copy):
                self.limit.kernels.launch(variant, data.k[copy].data_ptr(), data.v[copy].data_ptr(), bytes_each, systems.stream())

            return systems.Candidate(summary.LIMIT, variant.name, launch, lambda copy: None)

        return [of(variant) for variant in self.limit_variants]

    def keep_best_limits(self, lines):
        """After the first step only the two fastest kernels that read stay; the faster one at a step is its limit."""
        ranked = sorted((line for line in lines if line["system"] == summary.LIMIT), key=summary.median_us)
        best = [line["variant"] for line in ranked[:2]]
        self.limit_variants = [variant for variant in self.limit_variants if variant.name in best]

    def ours(self, case, pages):
        """On the dense cache ("dense") and, where there are such pages, on those of FlashInfer's layout HND ("pages")."""
        if self.leanattn is None:
            return []
        return [self.attempt(self.leanattn.name, cache, pdl, lambda: self.ours_with(case, cache, pages, pdl))
                for cache in ["dense", *(["pages"] if "HND" in self.caches.paged else [])] for pdl in self.leanattn.pdl_choices()]

    def ours_with(self, case, cache, pages, pdl):
        data, batch = self.caches.data, case.batch
        copies, capacity, features, more = list(zip(data.k, data.v)), self.caches.capacity, {}, {}
        if cache == "pages":
            copies, capacity, features = self.caches.paged["HND"], 0, {"page_size": shapes.PAGE_SIZE}
            more = {"page_table": pages.table.data_ptr(), "max_pages": pages.table.shape[1], "pool_pages": copies[0][0].shape[0]}
        query = self.leanattn.query(self.plan_once or case, pdl, max_batch=self.caches.max_running, **features)
        plan = query.plan()  # a kernel that is new to the process is compiled here, not in the timed look-up
        plan_us = systems.host_us(query.ask, PLAN_REPEATS)
        workspace = self.leanattn.workspace(plan)
        outputs = [self.caches.output(("leanattn", cache, pdl), copy, batch) for copy in range(COPIES)]
        arguments = [plan.arguments(data.q.data_ptr(), k.data_ptr(), v.data_ptr(), output.data_ptr(), self.caches.lengths.data_ptr(), batch, capacity, **more)
                     for (k, v), output in zip(copies, outputs)]

        def launch(copy, kept=pages):  # the page table must outlive the launches
            plan.launch(arguments[copy], workspace, systems.stream())

        facts = {name: value for name, value in plan.info().items() if name in ("kernel_name", "grid", "provenance")}
        return systems.Candidate(self.leanattn.name, cache, launch, lambda copy: outputs[copy], pdl, None if self.plan_once else plan_us, facts)

    def theirs(self, case, pages):
        if self.flashinfer is None:
            return []
        result = []
        for layout in self.caches.paged:
            for name in self.flashinfer.KERNELS:
                planned = {}

                def candidate(pdl):
                    if not planned:
                        planned.update(self.plan_theirs(name, layout, pages, case.batch))
                    return self.theirs_with(name, layout, planned, case.batch, pdl)

                result += [self.attempt(self.flashinfer.name, f"{name} {layout}", pdl, lambda: candidate(pdl)) for pdl in self.flashinfer.pdl_choices(name)]
        return result

    def plan_theirs(self, name, layout, pages, batch):
        key = (name, layout, batch)
        if key not in self.kernels:
            most_pages = batch * (self.caches.capacity // shapes.PAGE_SIZE)
            self.kernels[key] = self.flashinfer.kernel(name, layout, batch, most_pages)
        plan = lambda: self.kernels[key].plan(pages, Q_HEADS, KV_HEADS, HEAD_DIM)
        plan()
        return {"kernel": self.kernels[key], "plan_us": None if name == "xqa" else systems.host_us(plan, PLAN_REPEATS)}

    def theirs_with(self, name, layout, planned, batch, pdl):
        q, caches = self.caches.data.q[:batch], self.caches.paged[layout]
        outputs = [self.caches.output((name, layout, pdl), copy, batch) for copy in range(COPIES)]

        def launch(copy):
            planned["kernel"].run(q, caches[copy], outputs[copy], pdl)

        return systems.Candidate(self.flashinfer.name, f"{name} {layout}", launch, lambda copy: outputs[copy], pdl, planned["plan_us"])

    def attempt(self, system, variant, pdl, build):
        """As systems.attempt, but what has failed at one step is not tried again at later ones."""
        if (system, variant, pdl) in self.failures:
            return systems.Failure(system, variant, pdl, self.failures[system, variant, pdl])
        return systems.attempt(system, {}, variant, pdl, build)
