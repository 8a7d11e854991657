"""measure.py -- measures one shape: makes its data and every system's candidates, compares them with the oracle, then races them with a cold and a
warm L2. The result is plain JSON data.

A candidate is timed only after its captured graph has reproduced the oracle's result in every copy.
"""
import functools
import math
import time

import torch

from . import data as case_data
from . import oracle, systems, timing

MEMORY_SHARE = 0.8  # of the GPU's memory that the copies may take
WARM_L2_SHARE = 2  # a warm L2 is measured for K and V of at most this many times its size


def measure_case(case, all_systems, modes, seconds, avoided, seed):
    """The record of one shape. `avoided` is {system: {kernel: reason}} of the kernels that are not tried."""
    began = time.perf_counter()
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    copies = case_data.copies_for(case.kv_bytes, l2_bytes)
    record = dict(empty_record(case), copies=copies, gpu_state=[gpu_state()])
    # The paged caches exist beside the dense one.
    needed = copies * (case.dense_bytes + len(case_data.LAYOUTS) * case.kv_bytes)
    if needed > MEMORY_SHARE * torch.cuda.get_device_properties(0).total_memory:
        return without_figures(case, f"{copies} copies take {needed >> 30} GB")
    data = case_data.CaseData(case, copies, seed)
    reference = oracle.attention(data.q, data.k[0], data.v[0], case.lengths)

    candidates = []
    for system in all_systems:
        try:
            made = system.candidates(data, functools.partial(systems.attempt, system.name, avoided.get(system.name, {})))
        except systems.ContextLost:
            raise
        except Exception as problem:
            made = [systems.Failure(system.name, "-", False, systems.reason_of(problem))]
            systems.ensure_context(system.name, "-", False, made[0].reason)
        for each in made:
            if isinstance(each, systems.Failure):
                record["failures"].append(vars(each))
            else:
                candidates.append(each)

    for mode in modes:
        if mode == "warm" and case.kv_bytes > WARM_L2_SHARE * l2_bytes:
            continue
        record["modes"][mode] = measure_mode(mode, case, candidates, copies, reference, record, seconds, seed)
    record["gpu_state"].append(gpu_state())
    record["seconds"] = time.perf_counter() - began
    return record


def empty_record(case):
    return {"list": case.group, "name": case.name, "batch": case.batch, "q_heads": case.q_heads, "kv_heads": case.kv_heads, "head_dim": case.head_dim,
            "longest_context": case.longest, "total_context": case.tokens, "lengths": list(case.lengths) if case.ragged else None,
            "kv_bytes": case.kv_bytes, "modes": {}, "failures": [], "errors": {}}


def without_figures(case, reason):
    """The record of a shape that could not be measured at all."""
    return dict(empty_record(case), failures=[vars(systems.Failure("all", "-", False, reason))])


def measure_mode(mode, case, candidates, copies, reference, record, seconds, seed, *, rows=slice(None), flops=0, rounds=None):
    """Captures, checks, screens and races; failures and errors go into the shape's record. `reference` has the first dimension's `rows` of the outputs.
    `flops` are those of a launch whose time they decide, and `rounds` those of the race, if not what fits in `seconds`."""
    used_copies = copies if mode == "cold" else 1
    launches = timing.launches_for(case.kv_bytes, used_copies, flops)
    running, replays = [], []
    for candidate in candidates:
        try:
            replay = timing.Replay(candidate.launch, used_copies, launches)
            error = check(candidate, replay, used_copies, reference, rows)
        except Exception as problem:
            failure = systems.Failure(*candidate.key, systems.reason_of(problem))
            record["failures"].append(vars(failure))
            systems.ensure_context(*candidate.key, failure.reason)
            continue
        if error is not None:
            name = " ".join(filter(None, [candidate.system, candidate.variant, "pdl" if candidate.pdl else ""]))
            record["errors"][name] = max(error, record["errors"].get(name, 0.0))
            if error > candidate.tolerance:
                reason = f"disagrees with the oracle: {error:.3g} times the tolerance, {mode} L2"
                record["failures"].append(dict(vars(systems.Failure(*candidate.key, reason)), wrong=True))
                continue
        running.append(candidate)
        replays.append(replay)

    if not running:
        return {"launches_per_sample": launches, "lines": []}
    kept, screened = timing.screen(replays, [(candidate.system, candidate.pdl) for candidate in running])
    samples = timing.race([replays[i] for i in kept], seconds, seed, rounds)
    lines = []
    for i, candidate in enumerate(running):
        line = {"system": candidate.system, "variant": candidate.variant, "pdl": candidate.pdl, "plan_us": candidate.plan_us,
                "facts": candidate.facts, "screened_us": screened[i]}
        if i in kept:
            line["samples_us"] = samples[kept.index(i)]
        lines.append(line)
    return {"launches_per_sample": launches, "lines": lines}


def check(candidate, replay, copies, reference, rows=slice(None)):
    """The largest error of the graph's results in any copy, over the tolerance; None for kernels that only read. Rows that the reference does not have
    must at least be finite."""
    if candidate.output(0) is None:
        replay()
        torch.cuda.synchronize()
        return None
    for copy in range(copies):
        candidate.output(copy).fill_(float("nan"))
    replay()
    outputs = [candidate.output(copy) for copy in range(copies)]
    if not all(output.isfinite().all() for output in outputs):
        return math.inf
    return oracle.error(torch.stack([output[rows] for output in outputs]), reference)


def gpu_state():
    """Clocks in MHz, power in W, temperature and throttle reasons, as NVML gives them; empty where NVML is not available."""
    try:
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        return {
            "sm_mhz": pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM), "memory_mhz": pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_MEM),
            "watts": pynvml.nvmlDeviceGetPowerUsage(device) / 1000, "celsius": pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device),
        }
    except Exception:
        return {}
