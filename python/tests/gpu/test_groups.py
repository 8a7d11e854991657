"""Groups on GPUs: two where there are two, otherwise two ranks on one. Against attention in FP64 over the whole contexts, while lengths of captured graphs
change, and when a rank is killed.

LEANATTN_GROUP_REPLAYS and LEANATTN_GROUP_KILLS say how often. For the record:

    LEANATTN_GROUP_REPLAYS=100000 LEANATTN_GROUP_KILLS=100 python3 -m pytest -s python/tests/gpu/test_groups.py
"""
import collections
import concurrent.futures
import os
import queue
import random
import signal
import tempfile
import time

import pytest
import torch

import group_processes
import leanattn
import reference

DEVICES = [0, 1] if torch.cuda.device_count() > 1 else [0, 0]
REPLAYS = max(int(os.environ.get("LEANATTN_GROUP_REPLAYS", "2000")), 1)
KILLS = max(int(os.environ.get("LEANATTN_GROUP_KILLS", "3")), 1)
BOUND_MS = 200  # for which the survivor of a killed rank waits
DEADLINE_S = 120  # after which a process counts as hanging
WAITING_VICTIMS = 4  # processes that have started CUDA and wait for their turn
TOLERANCE = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


class Ranks:
    """Both ranks in this process, each with an engine, a stream and a workspace of its own."""

    def __init__(self, problem, batch, longest, transport="auto"):
        self.engines = [leanattn.Engine(device) for device in DEVICES]
        self.groups = leanattn.Group.of_engines(self.engines, problem=problem, max_batch=batch, transport=transport)
        self.streams = [torch.cuda.Stream(device) for device in DEVICES]
        # Nothing is compiled, loaded or allocated once a rank's kernel may wait for the other one's.
        plans = [engine.plan(problem, batch, longest_context=longest, group=group) for engine, group in zip(self.engines, self.groups)]
        self.workspaces = [leanattn.Workspace(engine, plan.workspace_bytes) for engine, plan in zip(self.engines, plans)]

    def decode(self, rank, **arguments):
        with torch.cuda.device(DEVICES[rank]), torch.cuda.stream(self.streams[rank]):
            leanattn.decode(**arguments, group=self.groups[rank], workspace=self.workspaces[rank])

    def wait(self):
        for stream in self.streams:
            stream.synchronize()
        for engine in self.engines:
            engine.check()

    def close(self):
        for stream in self.streams:
            stream.synchronize()
        for group in self.groups:
            group.close()


def held_by(rank, length, cut, unit):
    """The tokens of a context that a rank holds: of contiguous parts rank 0 has the first `cut`."""
    if unit:
        return [token for token in range(length) if token // unit % 2 == rank]
    return list(range(min(cut, length)) if rank == 0 else range(min(cut, length), length))


class Contexts:
    """Whole contexts, and the ranks' parts of them with the arguments of their launches. `cuts`: of contiguous parts the tokens of rank 0."""

    def __init__(self, lengths, cuts, unit=0, tokens=1, page_size=0, q_heads=16, kv_heads=4, head_dim=128, dtype=torch.bfloat16):
        torch.manual_seed(7)
        batch, capacity = len(lengths), max(lengths) + 5
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.q = torch.randn(batch, tokens, q_heads, head_dim, dtype=dtype, device="cuda:0")
        self.q = self.q if tokens > 1 else self.q[:, 0]
        self.k, self.v = (torch.randn(batch, kv_heads, capacity, head_dim, dtype=dtype, device="cuda:0") for _ in range(2))
        self.ranks = []
        for rank, device in enumerate(DEVICES):
            held = [held_by(rank, length, cut, unit) for length, cut in zip(lengths, cuts)]
            longest = max(max(map(len, held)), 1)
            parts = []
            for cache in (self.k, self.v):
                part = torch.full((batch, kv_heads, longest, head_dim), float("nan"), dtype=dtype, device="cuda:0")
                for request, of_request in enumerate(held):
                    part[request, :, :len(of_request)] = cache[request, :, of_request]
                parts.append(part)
            arguments = {"q": self.q, "context_lengths": torch.tensor([len(of_request) for of_request in held], dtype=torch.int32),
                         "out": torch.empty_like(self.q), "out_lse": torch.empty(self.q.shape[:-1], dtype=torch.float32, device="cuda:0"),
                         "full_context_lengths": self.lengths}
            if tokens > 1 and not unit:
                arguments["context_starts"] = torch.tensor([0 if rank == 0 else min(cut, length) for length, cut in zip(lengths, cuts)], dtype=torch.int32)
            if page_size:
                parts, arguments["page_table"] = in_pages(parts, page_size)
            arguments |= dict(zip(("k_cache", "v_cache"), parts))
            self.ranks.append({name: tensor.to(f"cuda:{device}", copy=True) for name, tensor in arguments.items()} | {"context_interleave": unit})
        self.longest = capacity
        torch.cuda.synchronize()

    def run(self, ranks, replicate=False):
        for rank, arguments in enumerate(self.ranks):
            arguments["out"].fill_(float("nan"))
            arguments["out_lse"].fill_(float("nan"))
        for device in set(DEVICES):
            torch.cuda.synchronize(device)
        for rank, arguments in enumerate(self.ranks):
            ranks.decode(rank, **arguments, replicate_output=replicate, longest_context=self.longest)
        ranks.wait()

    def expect(self, ranks, replicate=False):
        expected, expected_lse = reference.decode(self.q, self.k, self.v, self.lengths, return_lse=True)
        heads = self.q.shape[-2]
        for rank, arguments in enumerate(self.ranks):
            mine = slice(0, heads) if replicate else ranks.groups[rank].heads(heads)
            o, lse = arguments["out"].to("cuda:0"), arguments["out_lse"].to("cuda:0")
            torch.testing.assert_close(o[..., mine, :].double(), expected[..., mine, :].double(), rtol=0, atol=TOLERANCE[o.dtype], msg=lambda text: f"rank {rank}: {text}")
            torch.testing.assert_close(lse[..., mine], expected_lse[..., mine], rtol=0, atol=2e-3, msg=lambda text: f"rank {rank}: {text}")
            others = [head for head in range(heads) if not mine.start <= head < mine.stop]
            assert o[..., others, :].isnan().all(), f"rank {rank} has written heads of others"


def in_pages(parts, page_size):
    """Pools of the parts in another order, and their page table."""
    batch, heads, longest, head_dim = parts[0].shape
    pages_each = -(-longest // page_size)
    order = torch.randperm(batch * pages_each, generator=torch.Generator().manual_seed(5)).to(parts[0].device)
    pools = []
    for part in parts:
        padded = torch.nn.functional.pad(part, (0, 0, 0, pages_each * page_size - longest))
        pages = padded.reshape(batch, heads, pages_each, page_size, head_dim).transpose(1, 2).reshape(-1, heads, page_size, head_dim)
        pool = torch.empty_like(pages)
        pool[order] = pages
        pools.append(pool)
    return pools, order.reshape(batch, pages_each).int()


LENGTHS, CUTS = [1500, 4, 0, 700, 9], [600, 4, 0, 0, 3]
CASES = {
    "dense": {}, "fp16": {"dtype": torch.float16}, "paged": {"page_size": 16}, "units of 16": {"unit": 16}, "units of 1": {"unit": 1},
    "paged units of 256": {"unit": 256, "page_size": 64}, "4 tokens": {"tokens": 4}, "4 tokens in units of 16": {"tokens": 4, "unit": 16},
    "4 tokens in pages": {"tokens": 4, "page_size": 16}, "shared KV head": {"q_heads": 8, "kv_heads": 1},
}


def nccl_or_skip():
    """Skips where groups over NCCL cannot be tried."""
    if DEVICES[0] == DEVICES[1]:
        pytest.skip("NCCL needs two GPUs")
    try:
        leanattn.Group.nccl_id()
    except leanattn.Unsupported as missing:
        pytest.skip(missing.message)


@pytest.mark.parametrize("transport", ["peers", "nccl"])
@pytest.mark.parametrize("replicate", [False, True], ids=["scattered", "replicated"])
@pytest.mark.parametrize("case", CASES)
def test_ranks_agree_with_attention_over_the_whole_contexts(case, replicate, transport):
    if transport == "nccl":
        nccl_or_skip()
    contexts = Contexts(LENGTHS, CUTS, **CASES[case])
    q, k = contexts.q, contexts.k
    options = CASES[case]
    problem = leanattn.Problem(q_heads=q.shape[-2], kv_heads=k.shape[1], head_dim=128, dtype="fp16" if q.dtype == torch.float16 else "bf16", lse=True,
                               page_size=options.get("page_size", 0), q_len=options.get("tokens", 1), context_parallel=2,
                               context_interleave=options.get("unit", 0), replicate_output=replicate)
    ranks = Ranks(problem, len(LENGTHS), contexts.longest, transport)
    try:
        for _ in range(3):
            contexts.run(ranks, replicate)
            contexts.expect(ranks, replicate)
    finally:
        ranks.close()


@pytest.mark.parametrize("transport", ["peers", "nccl"])
def test_captured_graphs_follow_lengths_that_change_between_replays(transport):
    """Ranks run ahead of each other by a random number of replays, and every replay has other lengths."""
    if transport == "nccl":
        nccl_or_skip()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}, {REPLAYS} replays")
    generator = random.Random(seed)
    batch, heads, kv_heads, capacity, sets = 4, 16, 4, 900, 16
    q = torch.randn(batch, heads, 128, device="cuda:0").bfloat16()
    parts = [[torch.randn(batch, kv_heads, capacity, 128, device="cuda:0").bfloat16() for _ in range(2)] for _ in range(2)]
    table = torch.tensor([[[generator.choice((0, 1, capacity, generator.randrange(capacity))) for _ in range(batch)] for _ in range(2)] for _ in range(sets)], dtype=torch.int32)
    expected = []
    for of_ranks in table.tolist():
        made = torch.empty_like(q)
        for request in range(batch):
            whole = [torch.cat([part[i][request, :, :count[request]] for part, count in zip(parts, of_ranks)], 1)[None] for i in range(2)]
            made[request] = reference.decode(q[request:request + 1], *whole, [sum(count[request] for count in of_ranks)])[0]
        expected.append(made)
    ranks = Ranks(leanattn.Problem(q_heads=heads, kv_heads=kv_heads, context_parallel=2), batch, capacity, transport)
    graphs, outs, lengths, tables = [], [], [], []
    try:
        for rank, device in enumerate(DEVICES):
            on_gpu = {name: tensor.to(f"cuda:{device}", copy=True) for name, tensor in zip(("q", "k_cache", "v_cache"), (q, *parts[rank]))}
            outs.append(torch.full_like(on_gpu["q"], float("nan")))
            tables.append(table[:, rank].contiguous().to(f"cuda:{device}"))
            lengths.append(tables[rank][0].clone())
            with torch.cuda.device(device):
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=ranks.streams[rank], capture_error_mode="thread_local"):
                    ranks.decode(rank, **on_gpu, context_lengths=lengths[rank], out=outs[rank], longest_context=capacity)
                graphs.append((graph, on_gpu))
        def replay(rank, burst):
            with torch.cuda.device(DEVICES[rank]), torch.cuda.stream(ranks.streams[rank]):
                for which in burst:
                    lengths[rank].copy_(tables[rank][which])
                    graphs[rank][0].replay()

        def replay_on_both(order, burst):
            if transport == "peers":
                for rank in order:
                    replay(rank, burst)
                return
            # The launch of a graph with NCCL in it may block until the other rank's is launched (NCCL's guide, Using NCCL with CUDA Graphs).
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                for future in [pool.submit(replay, rank, burst) for rank in order]:
                    future.result()

        done, compared = 0, 0
        while done < REPLAYS:
            burst = [generator.randrange(sets) for _ in range(min(generator.randint(1, 40), REPLAYS - done))]
            replay_on_both(generator.sample((0, 1), 2), burst)
            done += len(burst)
            if generator.random() < 0.2 or done >= REPLAYS:
                ranks.wait()
                compared += 1
                for rank in range(2):
                    mine = ranks.groups[rank].heads(heads)
                    torch.testing.assert_close(outs[rank].to("cuda:0")[:, mine].double(), expected[burst[-1]][:, mine].double(), rtol=0, atol=1.6e-2,
                                               msg=lambda text: f"seed {seed}, replay {done}, rank {rank}: {text}")
        assert compared > 0
    finally:
        ranks.close()


def expected_of_processes():
    q, parts = group_processes.whole()
    made = torch.empty_like(q, dtype=torch.float64)
    for request in range(group_processes.BATCH):
        counts = [lengths[request] for lengths in group_processes.LENGTHS]
        whole = [torch.cat([part[i][request, :, :count] for part, count in zip(parts, counts)], 1)[None] for i in range(2)]
        made[request] = reference.decode(q[request:request + 1], *whole, [sum(counts)])[0]
    return made


@pytest.mark.parametrize("transport", ["auto", "nccl"])
def test_processes_of_torch_distributed(transport):
    if transport == "nccl":
        nccl_or_skip()
    context = group_processes.server()
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=group_processes.member, args=(rank, device, folder, results, transport), daemon=True) for rank, device in enumerate(DEVICES)]
        for process in processes:
            process.start()
        expected = expected_of_processes()
        try:
            for _ in processes:
                rank, o, failure = results.get(timeout=DEADLINE_S)
                assert failure is None, f"rank {rank}: {failure}"
                mine = slice(rank * 4, rank * 4 + 4)
                torch.testing.assert_close(torch.from_numpy(o).double(), expected[:, mine], rtol=0, atol=1.6e-2)
        except queue.Empty:
            pytest.fail("a process hangs")
        finally:
            for process in processes:
                process.join(DEADLINE_S)
                process.kill()


class Victim:
    """Rank 1 in a process of its own."""

    def __init__(self, context, cache_dir):
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=group_processes.victim, args=(theirs, DEVICES[1], str(cache_dir), BOUND_MS), daemon=True)
        self.process.start()
        theirs.close()

    def receive(self):
        assert self.connection.poll(DEADLINE_S), "rank 1 does not answer"
        return self.connection.recv()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)


def test_a_rank_that_is_killed_is_named_and_the_survivor_goes_on(tmp_path, monkeypatch):
    """This process is rank 0. Each turn has a new rank 1 and a new group, is right, and ends when rank 1 is killed at a random moment."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}, {KILLS} kills")
    generator = random.Random(seed)
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LEANATTN_WAIT_BOUND_MS", str(BOUND_MS))
    context = group_processes.server()
    torch.cuda.set_device(DEVICES[0])
    engine = leanattn.Engine(DEVICES[0], cache_dir=tmp_path)
    expected = expected_of_processes().cuda()
    waits, waiting, dying = [], collections.deque(), collections.deque()
    for turn in range(KILLS):
        while len(waiting) < min(WAITING_VICTIMS, KILLS - turn):
            waiting.append(Victim(context, tmp_path))
        victim = waiting.popleft()
        group = leanattn.Group(engine, 0, 2, leanattn.Group.bytes_for(group_processes.problem(), group_processes.BATCH))
        blobs = [group.export(), victim.receive()]
        victim.connection.send(blobs)
        group.connect(blobs)
        with torch.cuda.stream(torch.cuda.Stream()):
            step = group_processes.Step(0, engine, group)
            torch.cuda.synchronize()
            assert victim.receive() == "ready"
            victim.connection.send("go")
            for _ in range(4):
                step.launch()
            torch.cuda.synchronize()
            engine.check()
            mine = group.heads(group_processes.HEADS)
            torch.testing.assert_close(step.o[:, mine].double(), expected[:, mine], rtol=0, atol=1.6e-2, msg=lambda text: f"turn {turn}: {text}")
            die_at = time.monotonic() + generator.uniform(0, 0.1)
            killed = None
            with pytest.raises(leanattn.GroupBroken) as caught:
                while killed is None or time.monotonic() - killed < DEADLINE_S:
                    for _ in range(generator.randint(1, 8)):
                        step.launch()
                        if killed is None and time.monotonic() >= die_at:
                            victim.kill()
                            killed = time.monotonic()
                    torch.cuda.synchronize()
                    if generator.random() < 0.5:
                        engine.check()
            assert killed is not None, f"seed {seed}, turn {turn}: broken before rank 1 was killed: {caught.value}"
            waits.append(time.monotonic() - killed)
            assert caught.value.rank == 1, caught.value
            dying.append(victim)
            group.close(barrier=False)
            # The context and the engine go on.
            assert torch.ones(1000, device="cuda").sum().item() == 1000
            alone = leanattn.decode(step.q, step.k, step.v, step.lengths, engine=engine)
            torch.cuda.synchronize()
            engine.check()
            torch.testing.assert_close(alone.double(), reference.decode(step.q, step.k, step.v, step.lengths).double(), rtol=0, atol=1.6e-2)
        while len(dying) > (WAITING_VICTIMS if turn + 1 < KILLS else 0):
            dead = dying.popleft()
            dead.process.join(DEADLINE_S)
            assert dead.process.exitcode == -signal.SIGKILL
            dead.connection.close()
    print(f"seconds from the kill to the error: {min(waits):.3f} to {max(waits):.3f}")
