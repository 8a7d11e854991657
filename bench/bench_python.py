"""Times what Python adds to a launch: leanattn.decode() beside the C interface's launch of the same step.

    python3 bench/bench_python.py --library build/shared/libleanattn.so [--json FILE]

Figures are the host time of a call in microseconds, the median of rounds. The GPU has less to do than the host, so the host never waits for it.
`C launch` is leanattn_plan_launch through ctypes; what Python adds is counted against it without the time of an empty ctypes call. This program
needs a GPU and PyTorch.
"""
import argparse
import ctypes
import pathlib
import statistics
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent))

from peers import files, leanattn_c  # noqa: E402

CALLS, ROUNDS = 200, 41


def main():
    parser = argparse.ArgumentParser(prog="bench_python", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libleanattn.so")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures here")
    options = parser.parse_args()
    import torch

    import leanattn
    import leanattn.torch  # noqa: F401

    q = torch.randn(1, 32, 128, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, 8, 256, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    lengths = torch.full((1,), 256, dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)
    operator = torch.ops.leanattn.decode
    library = leanattn_c.Library(options.library)
    engine = leanattn_c.Engine(library)
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        stream = torch.cuda.current_stream().cuda_stream
        query = engine.query(32, 8, 128, 1, 256, 256, stream=stream)
        plan = query.plan()
        workspace = torch.zeros(max(plan.workspace_bytes(), 256), dtype=torch.uint8, device="cuda")
        arguments = plan.arguments(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lengths.data_ptr(), 1, 256)
        launched = (plan.handle, ctypes.byref(arguments), ctypes.c_void_p(workspace.data_ptr()), ctypes.c_void_p(stream))
        ways = {
            "C plan": lambda: library.engine_plan(*query.arguments),
            "C launch": lambda: library.plan_launch(*launched),
            "empty ctypes call": lambda: library.plan_workspace_bytes(None),
            "decode(out=)": lambda: leanattn.decode(q, k, v, lengths, out=out),
            "decode()": lambda: leanattn.decode(q, k, v, lengths),
            "torch.ops.leanattn.decode": lambda: operator(q, k, v, lengths),
            "torch.empty": lambda: q.new_empty(q.shape),
        }
        samples = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, call in ways.items():
                torch.cuda.synchronize()
                call()
                began = time.perf_counter_ns()
                for _ in range(CALLS):
                    call()
                samples[name].append((time.perf_counter_ns() - began) / CALLS / 1000)
    us = {name: statistics.median(values) for name, values in samples.items()}
    us["decode(out=) over the C launch"] = us["decode(out=)"] - (us["C launch"] - us["empty ctypes call"])
    for name, value in us.items():
        print(f"{name:32s} {value:7.2f} us")
    if options.json:
        files.write_json(options.json, {"schema_version": 1, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "us": us, "samples_us": samples})


if __name__ == "__main__":
    main()
