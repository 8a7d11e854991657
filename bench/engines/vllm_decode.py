"""vllm_decode.py -- decode steps of one vLLM engine with one attention backend, in this process; bench/engines starts it.

    python3 bench/engines/vllm_decode.py BACKEND SETTINGS.json OUT.json

SETTINGS has the model's configuration, the contexts of every shape and how many steps are timed. Prompts are random token ids, and requests never
end by themselves, so from the step in which the last one has its first token on, every step is a decode step of all of them.
"""
import collections
import importlib.util
import json
import os
import pathlib
import random
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import engine_process  # noqa: E402  (the path first)
import engine_report  # noqa: E402


class Requests:
    """The requests of one shape, stepped together."""

    serial = 0

    def __init__(self, engine, contexts, vocabulary, steps, seed):
        from vllm import SamplingParams

        self.engine, self.made = engine, collections.Counter()
        drawn = random.Random(seed)
        options = SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True, detokenize=False)
        self.names = []  # as the engine knows them; its outputs have the names that were given
        for context in contexts:
            Requests.serial += 1
            prompt = {"prompt_token_ids": engine_process.random_tokens(drawn, context, vocabulary)}
            self.names.append(engine.add_request(f"request-{Requests.serial}", prompt, options))

    def step(self):
        """One step of the engine; returns the new tokens."""
        before = sum(self.made.values())
        for output in self.engine.step():
            self.made[output.request_id] = len(output.outputs[0].token_ids)
        return sum(self.made.values()) - before

    def until_all_decode(self):
        while len(self.made) < len(self.names) or not all(self.made.values()):
            self.step()

    def end(self):
        self.engine.abort_request(self.names, internal=True)
        while self.engine.has_unfinished_requests():
            self.engine.step()


def main():
    backend, settings, out = engine_process.arguments(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
    if settings["tune"]:
        os.environ["LEANATTN_VLLM_TUNE"] = str(settings["tune"])
    if importlib.util.find_spec("flashinfer") is None:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # vLLM does not look whether it is installed
    import torch
    import vllm

    start = time.perf_counter()
    llm = vllm.LLM(model=settings["model_dir"], load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", seed=0,
                   gpu_memory_utilization=settings["utilization"], max_model_len=settings["longest"], max_num_seqs=settings["most_requests"],
                   enable_prefix_caching=False, attention_config={"backend": backend},
                   compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": settings["batches"],
                                       **({} if settings["compile"] else {"mode": 0})})
    engine = llm.llm_engine
    made = {"vllm": vllm.__version__, "torch": torch.__version__, "start_s": time.perf_counter() - start, "shapes": {}}
    layers = engine.vllm_config.compilation_config.static_forward_context.values()
    found = {layer.attn_backend.get_name() for layer in layers if hasattr(layer, "attn_backend")}
    if found != {backend}:
        raise RuntimeError(f"asked for {backend}, but layers have {sorted(found)}")
    start = time.perf_counter()
    for batch in settings["batches"]:
        requests = Requests(engine, [64] * batch, settings["vocabulary"], 16, batch)
        requests.until_all_decode()
        requests.end()
    made["warm_s"] = time.perf_counter() - start
    made["memory_bytes"] = engine_process.memory_beyond_tensors(torch)
    for contexts in settings["shapes"]:
        made["shapes"][engine_report.shape_name(contexts)] = decode(torch, engine, contexts, settings)
        out.write_text(json.dumps(made))
    out.write_text(json.dumps(made))


def decode(torch, engine, contexts, settings):
    steps = settings["steps"]
    requests = Requests(engine, contexts, settings["vocabulary"], 4 * steps + 64 * len(contexts), len(contexts))
    requests.until_all_decode()
    for _ in range(4):
        requests.step()
    torch.cuda.synchronize()
    times, tokens, last = [], 0, time.perf_counter()
    while len(times) < steps:
        tokens += requests.step()
        now = time.perf_counter()
        times.append(1000 * (now - last))
        last = now
    kernels = profile(torch, requests)
    requests.end()
    return engine_report.decode_line(times, tokens, kernels)


def profile(torch, requests, steps=4):
    """{kernel: microseconds a step}."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            requests.step()
        torch.cuda.synchronize()
    return engine_process.kernel_times(profiler, steps)


if __name__ == "__main__":
    main()
