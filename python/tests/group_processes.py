"""group_processes.py -- what the other processes of tests/gpu/test_groups.py do. They are forked from a server that has imported PyTorch, so that they
start within a second."""
import multiprocessing
import os

import leanattn
import torch

HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 8, 2, 128, 512
LENGTHS = ([500, 3, 129, 256], [77, 400, 0, 1])  # of the two ranks
BATCH = len(LENGTHS[0])


def server():
    """The context of processes that start fast."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "leanattn"])
    return context


def problem():
    return leanattn.Problem(q_heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, context_parallel=2)


def whole():
    """q, and K and V of both ranks: the same in every process, because they are made on the CPU."""
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(BATCH, HEADS, HEAD_DIM, generator=generator).bfloat16()
    parts = [[torch.randn(BATCH, KV_HEADS, CONTEXT, HEAD_DIM, generator=generator).bfloat16() for _ in range(2)] for _ in range(2)]
    return q, parts


class Step:
    """A rank's step: launch() enqueues it on the current stream, where `o` is written."""

    def __init__(self, rank, engine, group):
        self.group = group
        plan = engine.plan(problem(), BATCH, longest_context=CONTEXT, group=group)
        self.workspace = leanattn.Workspace(engine, plan.workspace_bytes)
        q, parts = whole()
        self.q, self.k, self.v = (tensor.cuda() for tensor in (q, *parts[rank]))
        self.lengths = torch.tensor(LENGTHS[rank], dtype=torch.int32).cuda()
        self.o = torch.full_like(self.q, float("nan"))

    def launch(self):
        leanattn.decode(self.q, self.k, self.v, self.lengths, out=self.o, group=self.group, workspace=self.workspace, longest_context=CONTEXT)


def member(rank, device, folder, results, transport):
    """A process of torch.distributed: puts (rank, its o, or what went wrong) into `results`."""
    try:
        torch.cuda.set_device(device)
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
        with leanattn.Group.from_process_group(problem=problem(), max_batch=BATCH, transport=transport) as group:
            step = Step(rank, group.engine, group)
            torch.distributed.barrier()
            for _ in range(3):
                step.launch()
            torch.cuda.synchronize()
            group.engine.check()
            o = step.o[:, group.heads(HEADS)].float().cpu().numpy()
        assert group.closed
        results.put((rank, o, None))
    except Exception as error:  # the test reports it
        results.put((rank, None, f"{type(error).__name__}: {error}"))


def victim(connection, device, cache_dir, wait_bound_ms):
    """Rank 1 of a group whose rank 0 is at the other end of the connection: launches without end, until it is killed."""
    os.environ["LEANATTN_WAIT_BOUND_MS"] = str(wait_bound_ms)
    torch.cuda.set_device(device)
    engine = leanattn.Engine(device, cache_dir=cache_dir)
    group = leanattn.Group(engine, 1, 2, leanattn.Group.bytes_for(problem(), BATCH))
    connection.send(group.export())
    group.connect(connection.recv())
    with torch.cuda.stream(torch.cuda.Stream()):
        step = Step(1, engine, group)
        torch.cuda.synchronize()
        connection.send("ready")
        connection.recv()
        while True:
            for _ in range(8):
                step.launch()
            torch.cuda.synchronize()
