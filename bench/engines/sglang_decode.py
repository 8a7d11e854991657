"""sglang_decode.py -- decode steps of SGLang's model runner with one attention backend, in this process; bench/engines starts it.

    python3 bench/engines/sglang_decode.py BACKEND SETTINGS.json OUT.json

SETTINGS has the model's configuration, the contexts of every shape and how many steps are timed. The model runner, its CUDA graphs, and a step are
those of SGLang's own benchmark of one batch (sglang.benchmark.one_batch), which has neither scheduler nor tokenizer: a step is timed from the batch on
the host until the GPU has the next tokens. Packages that SGLang imports, that such a step does not use, and that are not installed, are stood in for.
"""
import contextlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import random
import sys
import time
import types

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import engine_process  # noqa: E402  (the path first)
import engine_report  # noqa: E402
import random_weights  # noqa: E402

OWN = engine_report.ENGINES["sglang"].own
SPARE = ("IPython", "xgrammar", "rnc2rng")  # of notebooks, grammars and a parser of tool calls
STATIC_SHARE = 0.75  # of the GPU's memory for weights and KV cache
PREFILL_TOKENS = 65536  # of a pass


class Absent(types.ModuleType):
    """A package that is not installed. What it has can be named and made, and does nothing."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__, self.__version__ = [], "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None, "__get_pydantic_core_schema__": classmethod(_anything)})


def _anything(cls, source, handler):
    from pydantic_core import core_schema

    return core_schema.any_schema()


class Finder:
    """Finds SPARE packages, and the part of FlashInfer that SGLang's sampler imports, though it samples with PyTorch here."""

    def find_spec(self, name, path=None, target=None):
        root, _, below = name.partition(".")
        if root not in SPARE and not (root == "flashinfer" and below in ("", "sampling") and _importer().endswith("layers/sampler.py")):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        pass


def _importer():
    """The file that imports something now."""
    frame = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename == __file__ or "importlib" in frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def in_passes(lengths, most):
    """Slices of consecutive prompts, of these lengths, that have at most so many tokens together; a longer prompt is alone."""
    start, tokens = 0, 0
    for index, length in enumerate(lengths):
        if index > start and tokens + length > most:
            yield slice(start, index)
            start, tokens = index, 0
        tokens += length
    yield slice(start, len(lengths))


class Batch:
    """The requests of one shape, decoded together. Reads their prompts, some requests at a time."""

    def __init__(self, torch, one_batch, runner, prompts):
        self.runner, self.batch = runner, None
        runner.clear()
        requests = one_batch.prepare_synthetic_inputs_for_latency_test(len(prompts), 0, prompts)
        read = []
        for part in in_passes([len(prompt) for prompt in prompts], PREFILL_TOKENS):
            *made, batch = runner.extend(requests[part])
            read.append(made)
            if self.batch is None:
                self.batch = batch
            else:
                self.batch.merge_batch(batch)
        self.tokens, self.logits = (torch.cat(parts) for parts in zip(*read))

    def step(self):
        """One decode step; returns when the GPU has the new tokens."""
        self.tokens, self.logits = self.runner.decode(self.tokens, self.batch)
        self.runner.synchronize()


def main():
    backend, settings, out = engine_process.arguments(SGLANG_DISABLE_TP_MEMORY_INBALANCE_CHECK="1")
    if importlib.util.find_spec("flashinfer") is None:
        os.environ["SGLANG_IS_FLASHINFER_AVAILABLE"] = "false"
    sys.meta_path.append(Finder())
    import sglang
    import torch
    from sglang.benchmark import one_batch

    start = time.perf_counter()
    tuning = contextlib.nullcontext()
    if backend == OWN:
        import leanattn
        import leanattn.sglang

        leanattn.sglang.register()
        if settings["tune"]:
            tuning = leanattn.autotune(budget=settings["tune"])
    with tuning:  # until the graphs are made
        runner = load(one_batch, settings, backend)
    model = runner.torch_runner
    random_weights.fill(model.model)
    made = {"sglang": sglang.__version__, "torch": torch.__version__, "start_s": time.perf_counter() - start, "shapes": {}}
    start = time.perf_counter()
    for count in settings["batches"]:
        batch = Batch(torch, one_batch, runner, engine_process.prompts([64] * count, settings["vocabulary"]))
        for _ in range(4):
            batch.step()
    made["warm_s"] = time.perf_counter() - start
    made["memory_bytes"] = engine_process.memory_beyond_tensors(torch)
    for contexts in settings["shapes"]:
        made["shapes"][engine_report.shape_name(contexts)] = decode(torch, one_batch, runner, contexts, settings, backend)
        out.write_text(json.dumps(made))
    made["answers"] = answers(torch, one_batch, runner, settings)
    out.write_text(json.dumps(made))


def server_args(settings, backend):
    from sglang.srt.server_args import ServerArgs

    return ServerArgs(model_path=settings["model_dir"], load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, attention_backend=backend,
                      sampling_backend="pytorch", mem_fraction_static=STATIC_SHARE, max_running_requests=settings["most_requests"],
                      context_length=settings["longest"], disable_radix_cache=True, random_seed=0, cuda_graph_bs_decode=settings["batches"],
                      cuda_graph_backend_prefill="disabled")


def load(one_batch, settings, backend):
    """SGLang's model runner, with its graphs."""
    from sglang.srt.server_args import PortArgs

    one_batch.get_tokenizer = lambda *_, **__: None  # prompts are tokens
    told = server_args(settings, backend)
    for initialize in (one_batch.initialize_moe_config, one_batch.initialize_fp8_gemm_config, one_batch.initialize_fp4_gemm_config):
        initialize(told)
    runner, _ = one_batch.load_model(told, PortArgs.init_new(told), 0, 0)
    return runner


def decode(torch, one_batch, runner, contexts, settings, backend):
    drawn = random.Random(len(contexts))
    batch = Batch(torch, one_batch, runner, [engine_process.random_tokens(drawn, context, settings["vocabulary"]) for context in contexts])
    for _ in range(4):
        batch.step()
    times = []
    for _ in range(settings["steps"]):
        start = time.perf_counter()
        batch.step()
        times.append(1000 * (time.perf_counter() - start))
    steps = 4
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            batch.step()
    kernels = engine_process.kernel_times(profiler, steps)
    engine_process.check_kernels(backend, OWN, kernels)
    return engine_report.decode_line(times, len(contexts) * len(times), kernels)


def answers(torch, one_batch, runner, settings):
    """Greedy tokens of prompts of several lengths and their log-probabilities: [{"tokens", "logprobs"}]."""
    prompts = engine_process.prompts(settings["prompts"], settings["vocabulary"])
    batch = Batch(torch, one_batch, runner, prompts)
    tokens, logprobs = [], []
    for step in range(settings["token_steps"]):
        if step:
            batch.step()
        tokens.append(batch.tokens.long())
        logprobs.append(torch.log_softmax(batch.logits.float(), -1).gather(-1, tokens[-1][:, None])[:, 0])
    tokens, logprobs = (torch.stack(parts, 1).tolist() for parts in (tokens, logprobs))
    return [{"tokens": of_prompt, "logprobs": logs} for of_prompt, logs in zip(tokens, logprobs)]


if __name__ == "__main__":
    main()
