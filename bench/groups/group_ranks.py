"""group_ranks.py -- the process of one rank: makes every step's candidates, has their results checked, and times them together with the other ranks.

What one rank finds, such as a result that is wrong, is told to all (`Ranks.tell`), so that all leave out the same candidate and none waits for a
collective that another one does not make. Rank 0 writes the record after every step.
"""
import datetime
import os
import pathlib
import random
import statistics
import time

import torch
import torch.distributed as dist

import group_data
import group_report
import group_steps
import group_systems
from peers import data as case_data
from peers import measure, oracle, systems, timing

SAMPLE_US = 2000  # a graph runs for about this long
LEAD_CYCLES = 2_000_000  # the GPUs wait about 1 ms while their hosts queue a round
SECONDS_TO_WAIT = 60  # for a rank that does not come


def run(rank, settings):
    """All steps. settings: what main() has made, plain data."""
    device = 0 if settings["one_gpu"] else rank
    torch.cuda.set_device(device)
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        ranks = Ranks(rank, settings)
        try:
            measure_all(ranks, settings)
        finally:
            ranks.end()


class Ranks:
    """The processes of all ranks: `control` is a Gloo process group, `nccl` one of NCCL, or None where all ranks are on one GPU."""

    def __init__(self, rank, settings):
        self.rank, self.count = rank, settings["ranks"]
        self.device = torch.device("cuda", torch.cuda.current_device())
        timeout = datetime.timedelta(seconds=SECONDS_TO_WAIT)
        dist.init_process_group("gloo", init_method=f"file://{settings['folder']}/meeting", rank=rank, world_size=self.count, timeout=timeout)
        self.control = dist.group.WORLD
        # The communicator of the baselines does nothing else, as in an engine; the ranks meet by another one.
        self.nccl, self.meet = (None, None) if settings["one_gpu"] else (dist.new_group(backend="nccl", timeout=timeout) for _ in range(2))
        self.token = torch.zeros(1, device=self.device)
        all_steps = group_steps.steps()
        chosen = [all_steps[key] for key in settings["steps"]]
        largest = max(chosen, key=lambda step: step.batch * step.q_heads * step.head_dim)
        self.systems = group_systems.Rank(rank, self.count, self.control, self.nccl, largest, settings["cache_dir"])
        self.meeting = None if self.nccl is not None else Meeting(self.systems)
        self.align()
        torch.cuda.synchronize()

    def tell(self, value):
        """The values of all ranks."""
        values = [None] * self.count
        dist.all_gather_object(values, value, group=self.control)
        return values

    def align(self):
        """Enqueues work that ends on all GPUs at nearly the same time."""
        if self.nccl is not None:
            dist.all_reduce(self.token, group=self.meet)
        else:
            self.meeting()

    def end(self):
        torch.cuda.synchronize()
        self.systems.close()
        dist.destroy_process_group()


class Meeting:
    """Where all ranks are on one GPU, they meet in a small step of their group."""

    def __init__(self, of_rank):
        import leanattn

        step = group_steps.Step("groups", "meeting", 2 * of_rank.ranks, 2 * of_rank.ranks, 64, (16,))
        q = torch.zeros(1, step.q_heads, 64, dtype=torch.bfloat16, device="cuda")
        cache = torch.zeros(1, step.kv_heads, 16, 64, dtype=torch.bfloat16, device="cuda")
        lengths, out = torch.full((1,), 16, dtype=torch.int32, device="cuda"), torch.empty_like(q)
        of_rank.engine.plan(group_systems.group_problem(step, of_rank.ranks), 1, longest_context=16, group=of_rank.group)
        self._launch = lambda: leanattn.decode(q, cache, cache, lengths, out=out, group=of_rank.group)

    def __call__(self):
        self._launch()


def measure_all(ranks, settings):
    results = {"schema_version": 1, "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "ranks": ranks.count,
               "one_gpu": settings["one_gpu"], "rounds": settings["rounds"], "seed": settings["seed"], "environment": settings["environment"], "finished": False,
               "steps": []}
    for key in settings["steps"]:
        step = group_steps.steps()[key]
        # The clock is the machine's, so that it is the same in all processes.
        if any(ranks.tell(time.monotonic() > settings["deadline"])):
            results["steps"].append(dict(empty_record(key, step, ranks.count), failures=[{"name": "all", "reason": "no time was left", "left": True}]))
        else:
            results["steps"].append(measure_step(key, step, ranks, settings))
        torch.cuda.empty_cache()
        write(ranks, settings, results)
        if ranks.rank == 0:
            print(progress(results["steps"][-1]), flush=True)
    results["finished"] = True
    write(ranks, settings, results)


def write(ranks, settings, results):
    if ranks.rank == 0:
        group_report.write(pathlib.Path(settings["out"]), results)


def empty_record(key, step, ranks):
    return {"key": key, "name": step.name, "batch": step.batch, "q_heads": step.q_heads, "kv_heads": step.kv_heads, "head_dim": step.head_dim,
            "page_size": step.page_size, "interleave": step.interleave, "longest_context": step.longest, "total_context": step.tokens,
            "kv_bytes": step.kv_bytes, "part_bytes": [step.part_bytes(rank, ranks) for rank in range(ranks)],
            "exchanged_bytes": step.exchanged_bytes(ranks), "lines": [], "failures": []}


def measure_step(key, step, ranks, settings):
    """The record of a step. A line has the samples of every rank: microseconds a launch, in each round."""
    began = time.perf_counter()
    record = empty_record(key, step, ranks.count)
    least = min(record["part_bytes"])
    copies = 2 if settings["one_gpu"] else case_data.copies_for(least, torch.cuda.get_device_properties(ranks.device).L2_cache_size)
    launches = copies if settings["one_gpu"] else launches_for(least, copies)
    record.update(copies=copies, launches_per_sample=launches, gpu_state=[ranks.tell(measure.gpu_state())])
    data, reason = attempt(lambda: group_data.StepData(step, ranks.rank, ranks.count, copies, settings["seed"]))
    if not agreed(ranks, record, "all", reason):
        return record
    reference = data.reference()
    running, replays = [], []
    for make, *arguments in ranks.systems.candidates(data):
        candidate, replay, failure = prepare(ranks, make, arguments, copies, launches, reference)
        if failure is not None:
            record["failures"].append(failure)
        else:
            running.append(candidate)
            replays.append(replay)
    record["seconds_to_prepare"] = time.perf_counter() - began
    if not any(failure.get("wrong") for failure in record["failures"]) and running:
        samples, reason = attempt(lambda: race(ranks, replays, settings["rounds"], settings["seed"]))
        told = ranks.tell((samples, [candidate.facts for candidate in running], reason))
        broken = next((reason for *_, reason in told if reason), None)
        if broken:
            record["failures"].append({"name": "all", "reason": broken})
        else:
            record["lines"] = [{"name": candidate.name, "facts": [facts[i] for _, facts, _ in told], "samples_us": [of_rank[i] for of_rank, *_ in told]}
                               for i, candidate in enumerate(running)]
    record["gpu_state"].append(ranks.tell(measure.gpu_state()))
    record["seconds"] = time.perf_counter() - began
    return record


def prepare(ranks, make, arguments, copies, launches, reference):
    """(candidate, replay, None), or (None, None, failure): makes, warms up, captures and checks a candidate, on all ranks or on none."""
    name = arguments[1] if len(arguments) > 1 else make.__name__.strip("_")
    candidate, reason = attempt(lambda: make(*arguments))
    told = ranks.tell((candidate.name if candidate else None, reason))
    name = next((name for name, _ in told if name), name)
    failure = failure_of(name, [reason for _, reason in told])
    if failure is not None:
        return None, None, failure

    def captured():
        for copy in range(2):  # all libraries start what they start at their first calls
            candidate.launch(copy % copies)
        torch.cuda.synchronize()
        return timing.Replay(candidate.launch, copies, launches)

    replay, reason = attempt(captured)
    failure = failure_of(name, ranks.tell(reason))
    if failure is not None:
        recover(ranks)
        return None, None, failure
    error, reason = attempt(lambda: error_of(ranks, candidate, replay, reference))
    told = ranks.tell((error, reason))
    failure = failure_of(name, [reason for _, reason in told])
    if failure is not None:
        recover(ranks)
    elif candidate.heads is not None:
        candidate.facts["error"] = max(error for error, _ in told)
        if candidate.facts["error"] > 1:
            worst = [f"rank {rank}: {error:.3g}" for rank, (error, _) in enumerate(told) if error > 1]
            failure = {"name": name, "reason": f"disagrees with attention in FP64: {', '.join(worst)} times the tolerance", "wrong": True}
    return (None, None, failure) if failure is not None else (candidate, replay, None)


def error_of(ranks, candidate, replay, reference):
    """The largest error of the graph's results in any copy over the tolerance; None for parts of a result."""
    for made in candidate.outputs:
        made.fill_(float("nan"))
    torch.cuda.synchronize()
    ranks.tell(None)  # nobody clears an output that a replay has written
    replay()
    torch.cuda.synchronize()
    ranks.systems.engine.check()
    if candidate.heads is None:
        return None
    return max(oracle.error(made, reference[:, candidate.heads]) for made in candidate.outputs)


def race(ranks, replays, rounds, seed):
    """samples[i][round]: microseconds a launch of replay i on this rank. All ranks run the same order."""
    generator = random.Random(seed)
    order = list(range(len(replays)))
    time_round(ranks, replays, order)  # a warm-up, whose samples do not count
    samples = []
    for _ in range(rounds):
        generator.shuffle(order)
        samples.append(time_round(ranks, replays, order))
    ranks.systems.engine.check()
    return [list(times) for times in zip(*samples)]


def time_round(ranks, replays, order):
    """As peers.timing, but the GPUs meet before each replay, so that none is late because another one was slow before."""
    begins, ends = ([torch.cuda.Event(enable_timing=True) for _ in replays] for _ in range(2))
    ranks.tell(None)
    torch.cuda._sleep(LEAD_CYCLES)
    for which in order:
        ranks.align()
        begins[which].record()
        replays[which]()
        ends[which].record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1000 / replay.launches for begin, end, replay in zip(begins, ends, replays)]


def launches_for(part_bytes, copies):
    """Launches of a graph that runs for about SAMPLE_US at 4 TB/s and 5 us a launch, a multiple of the copies."""
    return -(-max(1, round(SAMPLE_US / (part_bytes / 4e6 + 5))) // copies) * copies


def attempt(make):
    """(what make() returned, None), or (None, the reason why it failed)."""
    try:
        return make(), None
    except Exception as problem:  # whatever a library raises is a result of this bench
        return None, systems.reason_of(problem)


def failure_of(name, reasons):
    """A failure where any rank has one, else None."""
    failed = [f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason]
    return {"name": name, "reason": "; ".join(failed)} if failed else None


def agreed(ranks, record, name, reason):
    failure = failure_of(name, ranks.tell(reason))
    if failure is not None:
        record["failures"].append(failure)
    return failure is None


def recover(ranks):
    """After a failed launch: the group and the workspaces are as new, if the context still works."""
    attempt(torch.cuda.synchronize)
    ranks.tell(None)
    attempt(ranks.systems.group.reset)
    attempt(ranks.systems.engine.reset_workspaces)
    ranks.tell(None)


def progress(record):
    """One line a step: medians of the slower rank."""
    medians = [f"{line['name']} {statistics.median(map(max, zip(*line['samples_us']))):.2f}" for line in record["lines"]]
    reasons = [f"{failure['name']}: {failure['reason']}" for failure in record["failures"]]
    return f"{record['name']}: {', '.join(medians + reasons)} ({record.get('seconds', 0):.1f} s)"


def environment():
    """The GPUs, their link and the libraries of this run."""
    from peers import environment as one_gpu

    facts = one_gpu.environment([])
    facts["gpus"] = [torch.cuda.get_device_properties(device).name for device in range(torch.cuda.device_count())]
    facts["torch"] = torch.__version__
    if torch.distributed.is_nccl_available():
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    facts["NCCL_NVLS_ENABLE"] = os.environ.get("NCCL_NVLS_ENABLE")
    return facts
