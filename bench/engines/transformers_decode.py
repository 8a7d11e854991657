"""transformers_decode.py -- decode steps of Transformers' continuous batching with one attention backend, in this process; bench/engines starts it.

    python3 bench/engines/transformers_decode.py BACKEND SETTINGS.json OUT.json

SETTINGS has the model's configuration, the contexts of every shape and how many steps are timed. BACKEND is an attention implementation of
Transformers, or "leanattn", for which leanattn.transformers.register_continuous_batching() is called before FlashAttention is asked for. Requests
are added to the manager that generate_batch uses. The one that is added last streams its tokens: from its first token on, every step is a decode
step of all requests.
"""
import contextlib
import json
import pathlib
import random
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import engine_process  # noqa: E402  (the path first)
import engine_report  # noqa: E402
import random_weights  # noqa: E402

OWN = engine_report.ENGINES["transformers"].own
DEVICE = "cuda"
FLASH = "flash_attention_3"  # has block tables, and computes prefill beside leanattn
BATCH_TOKENS = 8192  # that a step reads, prefill included
CACHE_SHARE = 0.75  # of the memory that weights leave; a tuning needs some, too
WAIT_S = 300.0  # for the next token, or for the end of requests that were cancelled


class Requests:
    """The requests of one shape, decoded together."""

    def __init__(self, manager, contexts, vocabulary, steps, seed):
        drawn = random.Random(seed)
        self.manager, self.names, self.last = manager, [], None
        for index, context in enumerate(contexts):
            prompt = engine_process.random_tokens(drawn, context, vocabulary)
            streams = index + 1 == len(contexts)
            self.names.append(manager.add_request(prompt, max_new_tokens=steps, streaming=streams, record_timestamps=streams))

    def until(self, tokens):
        """Waits until the last request has so many tokens."""
        stop = time.monotonic() + WAIT_S
        while self.last is None or len(self.last.generated_tokens) < tokens:
            output = self.manager.get_result(timeout=1)
            if output is not None and output.error:
                raise RuntimeError(f"a request failed: {output.error}")
            if output is not None and output.request_id == self.names[-1]:
                self.last, stop = output, time.monotonic() + WAIT_S
            elif not self.manager.is_running() or time.monotonic() > stop:
                raise RuntimeError(f"Transformers stopped at {self.tokens()} of {tokens} tokens")

    def tokens(self):
        return 0 if self.last is None else len(self.last.generated_tokens)

    def end(self):
        """Cancels all requests, and waits until Transformers knows of none of them."""
        for name in self.names:
            self.manager.cancel_request(name)
        stop = time.monotonic() + WAIT_S
        while self.manager.batch_processor.has_pending_requests():
            if not self.manager.is_running() or time.monotonic() > stop:
                raise RuntimeError("Transformers did not end requests that were cancelled")
            self.manager.get_result(timeout=0.1)
        while self.manager.get_result(timeout=0.1) is not None:
            pass


def main():
    backend, settings, out = engine_process.arguments()
    import torch
    import transformers
    from transformers.generation.configuration_utils import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.utils import WorkloadHints

    start = time.perf_counter()
    tuning = contextlib.nullcontext()
    if backend == OWN:
        import leanattn
        from leanattn.transformers import register_continuous_batching

        register_continuous_batching()
        if settings["tune"]:
            tuning = leanattn.autotune(budget=settings["tune"])
    config = transformers.AutoConfig.from_pretrained(settings["model_dir"])
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=FLASH if backend == OWN else backend)
    random_weights.fill(model)
    greedy = transformers.GenerationConfig(max_new_tokens=settings["token_steps"], do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = {"max_batch_tokens": BATCH_TOKENS, "max_requests_per_batch": settings["most_requests"], "auto_switch_to_flash": False}
    made = {"transformers": transformers.__version__, "torch": torch.__version__, "shapes": {}}
    hints = WorkloadHints(max_prompt_length=settings["longest"], max_generated_length=0, num_requests=settings["most_requests"])
    with contextlib.ExitStack() as stack:
        with tuning:  # until the graphs are made
            manager = stack.enter_context(model.continuous_batching_context_manager(
                greedy, continuous_batching_config=ContinuousBatchingConfig(max_memory_percent=CACHE_SHARE, **batching),
                workload_hints=hints, timeout=30))
        made["start_s"], start = time.perf_counter() - start, time.perf_counter()
        for batch in settings["batches"]:
            requests = Requests(manager, [64] * batch, settings["vocabulary"], 16 + 2 * batch, batch)
            requests.until(4)
            requests.end()
        made["warm_s"] = time.perf_counter() - start
        made["memory_bytes"] = engine_process.memory_beyond_tensors(torch)
        for contexts in settings["shapes"]:
            made["shapes"][engine_report.shape_name(contexts)] = decode(torch, manager, contexts, settings, backend)
            out.write_text(json.dumps(made))
    made["answers"] = answers(model, settings, greedy, ContinuousBatchingConfig(max_memory_percent=0.3, return_logprobs=True, **batching))
    out.write_text(json.dumps(made))


def decode(torch, manager, contexts, settings, backend):
    steps = settings["steps"]
    requests = Requests(manager, contexts, settings["vocabulary"], 4 * steps + 64 * len(contexts), len(contexts))
    requests.until(1)
    first = requests.tokens() + 4
    requests.until(first + steps)
    moments = requests.last.timestamps[first - 1:first + steps]
    kernels = profile(torch, manager, requests)
    requests.end()
    engine_process.check_kernels(backend, OWN, kernels)
    times = [1000 * (later - earlier) for earlier, later in zip(moments, moments[1:])]
    return engine_report.decode_line(times, steps * len(contexts), kernels)


def profile(torch, manager, requests, steps=8):
    """{kernel: microseconds a step}. The manager pauses while the profiler starts and stops, so that it sees whole steps."""
    with contextlib.ExitStack() as stack:
        with manager.pause():
            profiler = stack.enter_context(torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]))
            before = manager.current_batch
        requests.until(requests.tokens() + steps)
        with manager.pause():
            torch.cuda.synchronize()
            seen = manager.current_batch - before
            stack.close()
    return engine_process.kernel_times(profiler, seen)


def answers(model, settings, greedy, batching):
    """Greedy tokens of prompts of several lengths and their log-probabilities, by generate_batch: [{"tokens", "logprobs"}]."""
    prompts = engine_process.prompts(settings["prompts"], settings["vocabulary"])
    outputs = model.generate_batch(prompts, generation_config=greedy, continuous_batching_config=batching)
    failed = [output.error for output in outputs.values() if output.error]
    if failed or len(outputs) != len(prompts):
        raise RuntimeError(f"generate_batch: {failed or 'answers are missing'}")
    of_prompt = {tuple(output.prompt_ids): output for output in outputs.values()}
    return [{"tokens": answer.generated_tokens, "logprobs": answer.logprobs} for answer in (of_prompt[tuple(prompt)] for prompt in prompts)]


if __name__ == "__main__":
    main()
