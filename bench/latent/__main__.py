"""Times leanattn, FlashMLA and FlashAttention-3 on latent caches (multi-head latent attention with absorbed projections), beside the read limit.

    python3 bench/latent --library build/shared/libleanattn.so --program build/release/cli/leanattn --tune 6s \\
        --flash-mla _flashmla_C.abi3.so --flash3 _vllm_fa3_C.abi3.so --out results

The two extensions are vllm/_flashmla_C.abi3.so and vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so out of vLLM's wheel; PyTorch loads them without vLLM.
All kernels run in one process, as CUDA graphs in interleaved rounds, with a cold L2. Every captured graph must reproduce attention in FP64 before
anything is timed. This program needs a GPU and PyTorch. It writes latent.json (raw samples, after every step) and latent.md. Exit codes: 0 done;
2 wrong usage; 5 a result of leanattn was wrong; 6 --time-limit ended the run with steps left over.
"""
import argparse
import datetime
import functools
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # for the packages beside this one

from peers import capture, files  # noqa: E402  (the path first)
import latent_report  # noqa: E402
import steps  # noqa: E402


def main():
    options = parse()
    path = options.out / "latent.json"
    if options.report_only:
        files.write_text(options.out / "latent.md", latent_report.markdown(files.read_json(path)))
        return 0
    chosen = steps.fixed() + (steps.selected() + steps.rows() + steps.split() if options.selected else []) + (steps.drawn(options.drawn) if options.drawn is not None else [])
    if options.only:
        chosen = [chosen[int(i)] for i in options.only.split(",")]
    if options.tune:
        tune(options, [step for step in chosen if step.group != "drawn"])
    return measure(options, chosen, path)


def parse():
    parser = argparse.ArgumentParser(prog="latent", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libleanattn.so")
    parser.add_argument("--flash-mla", type=pathlib.Path, help="FlashMLA's extension; without it FlashMLA is left out")
    parser.add_argument("--flash3", type=pathlib.Path, help="FlashAttention-3's extension; without it it is left out")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--db", type=pathlib.Path, help="cache directory with leanattn's tuning database; default: the user's")
    parser.add_argument("--tune", metavar="TIME", help="first tune all steps but the drawn ones with --program, this long each, e.g. 6s")
    parser.add_argument("--program", type=pathlib.Path, help="the leanattn program, for --tune")
    parser.add_argument("--selected", action="store_true", help="also time steps in which each query token sees 2048 tokens of its context, of bf16 rows and of "
                        f"the rows of {steps.ROW_BYTES} bytes that engines keep (fp8_ds_mla), and DeepSeek V4's, of 512 tokens and a window (fp8_ds_v4)")
    parser.add_argument("--drawn", type=int, metavar="SEED", help=f"also time {steps.DRAWN_COUNT} steps drawn with this seed, which are not tuned")
    parser.add_argument("--pdl", action="store_true", help="also tune and time leanattn with programmatic dependent launch")
    parser.add_argument("--only", default="", help="steps by number, the fixed ones first, e.g. 0,4,20")
    parser.add_argument("--seconds", type=float, default=1.0, help="time of a step's race, which has 15 to 31 rounds whatever this is (%(default)s)")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="start no further step after this long")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the order of rounds")
    parser.add_argument("--report-only", action="store_true", help="write Markdown again from latent.json or latent.json.gz; needs no GPU")
    options = parser.parse_args()
    if not options.report_only and not options.library:
        parser.error("--library is missing")
    if options.tune and not options.program:
        parser.error("--tune needs --program")
    return options


def tune(options, chosen):
    import shape_table

    lines = [call(step, pdl) for step in chosen for pdl in pdl_choices(options)]
    failed = capture.tune(options.program, options.db, options.out / "latent-steps.jsonl", lines, shape_table.seconds(options.tune))
    if failed:
        sys.exit(failed)


def pdl_choices(options):
    return (False, True) if options.pdl else (False,)


def call(step, pdl):
    """A line of a call capture that asks for the step once."""
    features = {"page_size": steps.PAGE_SIZE, "latent": True, "v_head_dim": steps.VALUES, **({"q_len": step.q_len} if step.q_len > 1 else {}),
                **({"selection_block": 1, "selection_in_pool": True} if step.selected else {}), **({"kv_format": step.kv_format} if step.kv_format else {}), **({"second_cache": True} if step.split else {})}
    return capture.line({"q_heads": step.heads, "kv_heads": 1, "head_dim": step.head_dim, "pdl": pdl},
                        {"batch": step.batch, "longest_context": step.longest, "total_context": step.tokens if step.ragged and not step.selected else 0}, features)


def measure(options, chosen, path):
    import torch  # after --help and --report-only, which need none of this

    from peers import environment, system_limit
    import latent_systems

    began = time.monotonic()
    left = 0
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        all_systems = [latent_systems.LeanattnLatent(options.library, options.db, pdl_choices(options))]
        if options.flash_mla:
            all_systems.append(latent_systems.FlashMlaSystem(str(options.flash_mla.resolve())))
        if options.flash3:
            all_systems.append(latent_systems.FlashAttention3Latent(str(options.flash3.resolve())))
        all_systems.append(system_limit.ReadLimitSystem())
        results = {"schema_version": 1, "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                   "seconds": options.seconds, "seed": options.seed, "environment": environment.environment(all_systems), "cases": []}
        for step in chosen:
            if time.monotonic() - began > options.time_limit:
                left += 1
                continue
            results["cases"].append(measure_step(step, all_systems, options))
            files.write_json(path, results)
            torch.cuda.empty_cache()
    files.write_text(options.out / "latent.md", latent_report.markdown(results))
    wrong = any(failure.get("wrong") and failure["system"] == "leanattn" for case in results["cases"] for failure in case["failures"])
    return 5 if wrong else 6 if left else 0


def measure_step(step, all_systems, options):
    """The record of one step, in the form of peers.measure."""
    import torch

    from peers import data as case_data, measure as one_case, systems
    from step_data import StepData

    began = time.perf_counter()
    copies = case_data.copies_for(step.kv_bytes, torch.cuda.get_device_properties(0).L2_cache_size)
    record = dict(one_case.empty_record(step), q_len=step.q_len, flops=step.flops, copies=copies, gpu_state=[one_case.gpu_state()])
    data = StepData(step, copies, options.seed)
    candidates = []
    for system in all_systems:
        for made in system.candidates(data, functools.partial(systems.attempt, system.name, {})):
            if isinstance(made, systems.Failure):
                record["failures"].append(vars(made))
            else:
                candidates.append(made)
    record["modes"]["cold"] = one_case.measure_mode("cold", step, candidates, copies, data.reference(), record, options.seconds, options.seed)
    record["gpu_state"].append(one_case.gpu_state())
    record["seconds"] = time.perf_counter() - began
    return record


if __name__ == "__main__":
    sys.exit(main())
