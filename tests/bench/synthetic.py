"""synthetic.py -- made-up results with known medians and seeded noise, for the tests of summary and reports."""
import random

ENVIRONMENT = {"gpu": "a <fictional> GPU & more", "driver": None}


def line(system, variant, median_us, generator, pdl=False, plan_us=None, rounds=15, facts=None):
    samples = [median_us * (1 + generator.uniform(-0.002, 0.002)) for _ in range(rounds)]
    return {"system": system, "variant": variant, "pdl": pdl, "plan_us": plan_us, "facts": facts or {}, "screened_us": median_us, "samples_us": samples}


def case(group, name, kv_bytes, times, seed=1, modes=("cold",)):
    """`times` gives the microseconds of each (system, variant, pdl)."""
    generator = random.Random(seed)
    lines = [line(system, variant, us, generator, pdl, 66.0 if system == "FlashInfer" and variant != "xqa HND" else None,
                  facts={"provenance": "exact"} if system == "leanattn" else {}) for (system, variant, pdl), us in times.items()]
    return {"list": group, "name": name, "kv_bytes": kv_bytes, "copies": 2, "failures": [], "errors": {"leanattn tuned": 0.2},
            "modes": {mode: {"launches_per_sample": 4, "lines": lines} for mode in modes}}


def times(limit, ours, cudnn, flashinfer, ours_pdl=None, flashinfer_pdl=None):
    found = {("read limit", "plain", False): limit, ("read limit", "bulk", False): limit * 1.1, ("leanattn", "tuned", False): ours,
             ("cuDNN", "heads", False): cudnn, ("FlashInfer", "cuda-core HND", False): flashinfer, ("FlashInfer", "xqa HND", False): flashinfer * 1.5}
    if ours_pdl:
        found["leanattn", "tuned", True] = ours_pdl
    if flashinfer_pdl:
        found["FlashInfer", "cuda-core HND", True] = flashinfer_pdl
    return found


def results():
    """Three lists of shapes, in which leanattn is 1.2, 0.9 and 1.5 times as fast as the best peers: cuDNN, cuDNN and FlashInfer."""
    cases = [case("published", "1, 32/8, 128, 1024", 4 << 20, times(2, 5, 6, 8, 4, 5), modes=("cold", "warm")),
             case("published", "16, 32/8, 128, 4096", 256 << 20, times(60, 70, 63, 72, 65, 71)),
             case("ragged", "64 | ragged", 1 << 30, times(100, 120, 200, 180))]
    return {"environment": ENVIRONMENT, "cases": cases, "crashed": [], "not_installed": {"FA3": "No module named 'flash_attn_interface'"}}


def trace_step(index, contexts, ours, theirs, limit=100.0):
    """`theirs` gives the (microseconds, microseconds of plan) of each variant."""
    generator = random.Random(index)
    lines = [line("read limit", "bulk", limit, generator), line("leanattn", "tuned", ours, generator, plan_us=2.0)]
    lines += [line("FlashInfer", variant, us, generator, plan_us=plan) for variant, (us, plan) in theirs.items()]
    return {"step": index, "time": index * 0.025, "waiting": 0, "contexts": contexts, "kv_bytes": sum(contexts) * 4096, "lines": lines,
            "errors": {"leanattn tuned": 0.3}, "wrong": []}


def trace_results():
    steps = [trace_step(50 * i, [1000 + i, 2000], 105.0 + i, {"persistent HND": (120.0, 200.0), "xqa HND": (130.0 + 40 * (i % 2), None)}) for i in range(10)]
    return {"environment": ENVIRONMENT, "rate": 8.0, "step_seconds": 0.025, "every": 50,
            "runs": {"64": {"sampled": 12, "small": 2, "chosen": 10, "steps": steps, "failures": []}}}
