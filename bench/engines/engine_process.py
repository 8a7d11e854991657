"""engine_process.py -- what the programs that bench/engines starts share. Each runs one engine with one attention backend, in a process of its own."""
import collections
import json
import os
import pathlib
import random
import sys

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}


def arguments(**environment):
    """The backend, the settings and the file of results that the command line names. Sets what keeps engines from looking for a network."""
    for name, value in {**OFFLINE, **environment}.items():
        os.environ.setdefault(name, value)
    backend, settings, out = sys.argv[1:]
    return backend, json.loads(pathlib.Path(settings).read_text()), pathlib.Path(out)


def random_tokens(drawn, count, vocabulary):
    return [drawn.randrange(10, vocabulary) for _ in range(count)]


def prompts(lengths, vocabulary):
    """The prompts whose answers are compared between backends."""
    drawn = random.Random(7)
    return [random_tokens(drawn, length, vocabulary) for length in lengths]


def memory_beyond_tensors(torch):
    """Bytes that the GPU has allocated beyond torch's tensors, such as weights and the KV cache."""
    known = torch.cuda.memory_allocated()
    free, total = torch.cuda.mem_get_info()
    return total - free - known


def kernel_times(profiler, steps):
    """{kernel: microseconds a step} of a profiler that saw so many steps."""
    found = collections.Counter()
    for event in profiler.events():
        if str(event.device_type).endswith("CUDA"):
            found[event.name] += event.time_range.elapsed_us() / steps
    return dict(found)


def check_kernels(backend, own, kernels):
    """Raises RuntimeError where leanattn was asked for, and none of its kernels ran."""
    if backend == own and not any("lean_" in name for name in kernels):
        raise RuntimeError("no kernel of leanattn ran in a decode step")
