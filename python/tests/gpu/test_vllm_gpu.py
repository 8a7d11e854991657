"""vLLM's steps with the real kernels; see vllm_steps.py. And a launch as the backend makes it, without vLLM."""
import importlib.util
import itertools
import pathlib
import subprocess
import sys

import pytest
import torch

import leanattn
import reference

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "vllm_steps.py"
REQUESTS, CAPACITY, PAGE, WIDTH, Q_HEADS, KV_HEADS, HEAD_DIM = 4, 512, 16, 64, 32, 8, 128
# Query tokens and contexts of the requests of a step. Those without any pad a graph.
MIXES = [([1, 1, 300, 5], [900, 17, 640, 1000]), ([509, 1, 1, 1], [509, 1024, 3, 64]), ([1, 130, 0, 0], [77, 130, 0, 0]), ([1, 1, 1, 1], [5, 6, 7, 1024]),
         ([0, 0, 0, 0], [0, 0, 0, 0]), ([512, 0, 0, 0], [1000, 0, 0, 0])]


@pytest.mark.skipif(not all(importlib.util.find_spec(name) for name in ("torch", "vllm")), reason="vLLM and PyTorch are not installed")
def test_mixed_steps_agree_with_attention_over_the_whole_context():
    ran = subprocess.run([sys.executable, PROGRAM, "--gpu"], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "steps agree" in ran.stdout.splitlines()[-1]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("features", [{}, {"window": 100, "soft_cap": 30.0}], ids=str)
def test_a_graph_serves_any_mix_up_to_its_capacity(features, layout):
    """Captured once, with vLLM's layout of a cache; what requests bring is in device memory, and the number of rows of q is the capacity."""
    torch.manual_seed(3)
    pages = 2 * REQUESTS * WIDTH
    shape = (pages, PAGE, KV_HEADS, 2 * HEAD_DIM) if layout == "NHD" else (pages, KV_HEADS, PAGE, 2 * HEAD_DIM)
    cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    k, v = (cache.permute(0, 2, 1, 3) if layout == "NHD" else cache).split(HEAD_DIM, -1)
    q = torch.empty(CAPACITY, Q_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    out, lengths = torch.empty_like(q), torch.zeros(REQUESTS, dtype=torch.int32, device="cuda")
    offsets, table = (torch.zeros(shape, dtype=torch.int32, device="cuda") for shape in (REQUESTS + 1, (REQUESTS, WIDTH)))

    def launch():
        leanattn.decode(q, k, v, lengths, table, out=out, q_offsets=offsets, max_q_len=131072, typical_batch=REQUESTS, longest_context=WIDTH * PAGE,
                        **features)

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for query_tokens, contexts in MIXES:
        starts = [0, *itertools.accumulate(query_tokens)]
        q.normal_()
        out.fill_(float("nan"))
        offsets.copy_(torch.tensor(starts, dtype=torch.int32))
        lengths.copy_(torch.tensor(contexts, dtype=torch.int32))
        table.copy_(torch.randperm(pages)[:table.numel()].view(table.shape))
        graph.replay()
        for request, (begin, end) in enumerate(itertools.pairwise(starts)):
            if end > begin:
                one = slice(request, request + 1)
                expected = reference.decode(q[None, begin:end], k, v, lengths[one], table[one], **features)[0]
                torch.testing.assert_close(out[begin:end].double(), expected.double(), rtol=0, atol=1.6e-2)
