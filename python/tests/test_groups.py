"""Groups on GPUs that are not there: how ranks find each other, what their launches carry, how a group ends, and what is refused by name."""
import ctypes
import gc
import pickle
import sys
import types
import warnings

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")

import leanattn  # noqa: E402
from fake_tensors import FakeTensor  # noqa: E402
from rank_threads import Ranks  # noqa: E402

BATCH, Q_HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 3, 8, 4, 64, 256
RANKS = 2


def problem(**changed):
    return leanattn.Problem(**{"q_heads": Q_HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "context_parallel": RANKS, **changed})


@pytest.fixture
def engines(cache_dir):
    """Two engines of two GPUs that nobody has used."""
    gc.collect()
    fake.reset()
    fake.set_devices(2, True)
    return [leanattn.Engine(device, cache_dir=cache_dir) for device in range(RANKS)]


@pytest.fixture
def groups(engines):
    made = leanattn.Group.of_engines(engines, problem=problem(), max_batch=8)
    yield made
    for group in made:
        group.close()


def inputs(rank=0, **changed):
    def on_gpu(*arguments):
        return FakeTensor(*arguments, device_id=rank)

    made = {"q": on_gpu((BATCH, Q_HEADS, HEAD_DIM)), "k_cache": on_gpu((BATCH, KV_HEADS, CONTEXT, HEAD_DIM)),
            "v_cache": on_gpu((BATCH, KV_HEADS, CONTEXT, HEAD_DIM)), "context_lengths": on_gpu((BATCH,), "int32")}
    return {**made, **changed}


def decoded(**arguments):
    try:
        result = leanattn.decode(**arguments)
    except leanattn.Error as error:
        if error.code == "nvrtc_missing":
            pytest.skip(error.message)
        raise
    return result, fake.launches()[-1]


def test_ranks_of_one_process_launch_on_their_gpus_and_reach_each_other(groups):
    reached = []
    for rank, group in enumerate(groups):
        assert (group.rank, group.size, group.engine.device, group.connected, group.closed) == (rank, RANKS, rank, True, False)
        given = inputs(rank)
        o, launch = decoded(**given, group=group)
        arguments = launch["arguments"]
        assert (launch["device"], launch["cooperative"], arguments["group_rank"]) == (rank, True, rank)
        assert (arguments["q"], arguments["context_lengths"], arguments["o"]) == (given["q"].data, given["context_lengths"].data, o.data)
        assert o.shape == (BATCH, Q_HEADS, HEAD_DIM)
        assert (arguments["full_lengths"], arguments["context_starts"]) == (0, 0)
        reached.append(fake.exchanges(arguments["group"], RANKS))
    assert reached[0] == reached[1] and len(set(reached[0])) == RANKS and all(reached[0])


def test_an_empty_batch_launches_nothing_on_any_rank(groups):
    for rank, group in enumerate(groups):
        none = {name: FakeTensor((0, *tensor.shape[1:]), tensor.dtype, device_id=rank) for name, tensor in inputs(rank).items()}
        assert leanattn.decode(**none, group=group).shape == (0, Q_HEADS, HEAD_DIM)
    assert fake.launches() == []


def test_the_revision_of_the_kernels_is_there_for_records():
    revision = leanattn._leanattn._revision
    assert isinstance(revision, str) and len(revision) >= 16


@pytest.mark.parametrize("unit", [0, 16])
@pytest.mark.parametrize("feature", [
    {"window": 30, "sink_tokens": 2}, {"k_new": FakeTensor((BATCH, KV_HEADS, HEAD_DIM)), "v_new": FakeTensor((BATCH, KV_HEADS, HEAD_DIM))},
])
def test_what_depends_on_positions_says_where_a_ranks_tokens_lie(groups, feature, unit):
    lengths, starts = FakeTensor((BATCH,), "int32"), FakeTensor((BATCH,), "int32")
    where = {"full_context_lengths": lengths, "context_interleave": unit, **({} if unit else {"context_starts": starts})}
    _, launch = decoded(**inputs(), group=groups[0], **where, **feature)
    assert launch["arguments"]["full_lengths"] == lengths.data
    assert launch["arguments"]["context_starts"] == (0 if unit else starts.data)
    assert launch["arguments"]["k_new"] == (feature["k_new"].data if "k_new" in feature else 0)


@pytest.mark.parametrize("unit", [0, 16])
def test_a_rotation_needs_a_row_for_every_position_of_the_whole_contexts(groups, unit):
    where = {"full_context_lengths": FakeTensor((BATCH,), "int32"), "context_interleave": unit,
             **({} if unit else {"context_starts": FakeTensor((BATCH,), "int32")})}
    for rows in (CONTEXT, RANKS * CONTEXT - 1):
        with pytest.raises(leanattn.ArgumentError, match=f"rope_table has shape .{rows}, 64., but contexts may have {RANKS * CONTEXT} tokens") as caught:
            leanattn.decode(**inputs(), group=groups[0], **where, rope_table=FakeTensor((rows, HEAD_DIM), "fp32"))
        assert "all ranks" in caught.value.hint
    assert fake.launches() == []
    table = FakeTensor((RANKS * CONTEXT, HEAD_DIM), "fp32")
    _, launch = decoded(**inputs(), group=groups[0], **where, rope_table=table)
    assert launch["arguments"]["rope_table"] == table.data


def test_the_sms_of_a_stream_are_asked_for_in_the_context_of_the_engine(groups):
    """No context is current here, as in a thread that has not used CUDA."""
    stream = fake.make_stream()
    _, everywhere = decoded(**inputs(1), group=groups[1], longest_context=2**20)
    fake.set_stream_sms(stream, 16)
    _, narrow = decoded(**inputs(1), group=groups[1], longest_context=2**20, stream=stream)
    assert everywhere["grid"] > 16 * 2 >= narrow["grid"]


def test_each_rank_writes_its_share_of_the_heads(groups):
    assert [group.heads(Q_HEADS) for group in groups] == [slice(0, 4, 1), slice(4, 8, 1)]
    with pytest.raises(leanattn.ArgumentError, match="q_heads is 9, which 2 ranks do not divide"):
        groups[0].heads(9)


@pytest.mark.parametrize("unit", [0, 16])
def test_several_query_tokens_say_where_a_ranks_tokens_lie(engines, unit):
    with leanattn.Group.of_engines(engines, problem=problem(q_len=4), max_batch=BATCH)[0] as group:
        given = inputs(q=FakeTensor((BATCH, 4, Q_HEADS, HEAD_DIM)))
        lengths, starts = FakeTensor((BATCH,), "int32"), FakeTensor((BATCH,), "int32")
        where = {"full_context_lengths": lengths, "context_interleave": unit, **({} if unit else {"context_starts": starts})}
        _, launch = decoded(**given, group=group, **where)
        assert launch["arguments"]["full_lengths"] == lengths.data
        assert launch["arguments"]["context_starts"] == (0 if unit else starts.data)
        for name in where:
            if name != "context_interleave":
                with pytest.raises(leanattn.ArgumentError, match=name):
                    leanattn.decode(**given, group=group, **{key: value for key, value in where.items() if key != name})


def test_a_replicated_output_is_another_kernel_and_needs_more_memory(engines):
    assert leanattn.Group.bytes_for(problem(replicate_output=True), 8) > leanattn.Group.bytes_for(problem(), 8)
    groups = leanattn.Group.of_engines(engines, problem=problem(replicate_output=True), max_batch=8)
    _, shared = decoded(**inputs(), group=groups[0])
    _, everywhere = decoded(**inputs(), group=groups[0], replicate_output=True)
    assert shared["kernel"] != everywhere["kernel"] or shared["arguments"]["group"] == everywhere["arguments"]["group"]
    names = {leanattn.plan(problem(replicate_output=flag), BATCH, group=groups[0]).kernel_name for flag in (False, True)}
    assert len(names) == 2
    for group in groups:
        group.close()


def test_plans_of_a_group(engines, groups):
    plan = engines[0].plan(problem(), BATCH, longest_context=CONTEXT, group=groups[0])
    assert "cp2" in plan.kernel_name and plan.engine is engines[0]
    assert leanattn.plan(problem(), BATCH, longest_context=CONTEXT, group=groups[1]).engine is engines[1]
    compiled = len(fake.launches())
    decoded(**inputs(), group=groups[0])
    assert len(fake.launches()) == compiled + 1
    for wrong, said in [((engines[1], problem(), groups[0]), "another engine"), ((engines[0], leanattn.Problem(), groups[0]), "context_parallel")]:
        with pytest.raises(leanattn.ArgumentError, match=said):
            wrong[0].plan(wrong[1], BATCH, group=wrong[2])
    with pytest.raises(leanattn.ArgumentError, match="launches of 9 requests need a group with"):
        engines[0].plan(problem(), 9, group=groups[0])


def test_launches_are_captured_with_their_group(groups):
    stream = fake.make_stream()
    decoded(**inputs(), group=groups[0], stream=stream)
    fake.begin_capture(stream)
    leanattn.decode(**inputs(), group=groups[0], stream=stream)
    graph = fake.end_capture(stream)
    before = len(fake.launches())
    fake.replay(graph, stream)
    launch = fake.launches()[-1]
    assert len(fake.launches()) == before + 1 and launch["arguments"]["group_rank"] == 0 and launch["arguments"]["group"] != 0
    fake.destroy_graph(graph)


@pytest.mark.parametrize("named, changed", [
    ("group is missing, and full_context_lengths", {"full_context_lengths": FakeTensor((BATCH,), "int32")}),
    ("group is missing, and context_starts", {"context_starts": FakeTensor((BATCH,), "int32")}),
    ("group is missing, and context_interleave", {"context_interleave": 16}), ("group is missing, and replicate_output", {"replicate_output": True}),
    ("group is not a leanattn.Group", {"group": 1}), ("replicate_output", {"replicate_output": 1}), ("context_interleave", {"context_interleave": 1.5}),
])
def test_what_is_for_a_group_needs_one(engines, named, changed):
    with pytest.raises((ValueError, TypeError), match=named):
        leanattn.decode(**inputs(), engine=engines[0], **changed)
    assert fake.launches() == []


@pytest.mark.parametrize("named, changed", [
    ("full_context_lengths", {"full_context_lengths": FakeTensor((BATCH,), "int64")}),
    ("full_context_lengths", {"full_context_lengths": FakeTensor((BATCH + 1,), "int32")}),
    ("full_context_lengths", {"full_context_lengths": FakeTensor((BATCH,), "int32", device_id=1)}),
    ("context_starts", {"context_starts": FakeTensor((BATCH,), "int32", strides=(2,))}), ("context_starts is given", {"context_starts": FakeTensor((BATCH,), "int32")}),
    ("context_interleave is 24", {"context_interleave": 24}), ("context_interleave is 512", {"context_interleave": 512}), ("full_context_lengths", {"window": 30}),
    ("full_context_lengths", {"k_new": FakeTensor((BATCH, KV_HEADS, HEAD_DIM)), "v_new": FakeTensor((BATCH, KV_HEADS, HEAD_DIM))}),
])
def test_what_a_group_cannot_do_is_refused_by_name(groups, named, changed):
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as caught:
        leanattn.decode(**inputs(), group=groups[0], **changed)
    assert named in str(caught.value)
    assert fake.launches() == []


def test_tensors_of_another_gpu_or_engine_are_refused(engines, groups):
    with pytest.raises(leanattn.ArgumentError, match="group is of CUDA device 0, but q is on device 1"):
        leanattn.decode(**inputs(1), group=groups[0])
    with pytest.raises(leanattn.ArgumentError, match="engine is not that of the group"):
        leanattn.decode(**inputs(), group=groups[0], engine=engines[1])
    decoded(**inputs(), group=groups[0], engine=engines[0])


@pytest.mark.parametrize("differs, said", [(False, "did not send its results within 10000 ms"), (True, "launched another kernel, batch or scale")])
def test_a_broken_group_names_the_rank_until_it_is_reset(groups, differs, said):
    decoded(**inputs(), group=groups[0])
    fake.report_rank(1, differs)
    for ask in (groups[0].engine.check, lambda: leanattn.decode(**inputs(), group=groups[0])):
        with pytest.raises(leanattn.GroupBroken, match=said) as caught:
            ask()
        assert caught.value.rank == 1 and caught.value.code == "group_broken"
        assert "Group.reset()" in caught.value.hint and isinstance(caught.value, RuntimeError)
        assert pickle.loads(pickle.dumps(caught.value)).rank == 1
    groups[1].engine.check()
    groups[0].reset()
    groups[0].engine.check()
    decoded(**inputs(), group=groups[0])


def test_closing_a_broken_group_lets_the_engine_go_on(engines, groups):
    decoded(**inputs(), group=groups[0])
    fake.report_rank(1, False)
    with pytest.raises(leanattn.GroupBroken):
        leanattn.decode(**inputs(), engine=engines[0])
    groups[0].close()
    decoded(**inputs(), engine=engines[0])


def test_a_closed_group_frees_its_memory_and_says_that_it_is_closed(engines):
    before = fake.live_buffers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups = leanattn.Group.of_engines(engines, problem=problem(), max_batch=8)
        assert fake.live_buffers() == before + RANKS
        for group in groups:
            group.close()
            group.close()
            assert group.closed and "closed" in repr(group)
        del group, groups
        gc.collect()
    assert fake.live_buffers() == before
    closed = leanattn.Group(engines[0], 0, 2, leanattn.Group.bytes_for(problem(), 8))
    closed.close()
    for use in (lambda: leanattn.decode(**inputs(), group=closed), lambda: engines[0].plan(problem(), group=closed), closed.export, closed.reset,
                lambda: closed.connect([])):
        with pytest.raises(leanattn.ArgumentError, match="group is closed"):
            use()


def test_a_group_that_may_still_be_written_to_keeps_its_memory(engines):
    memory_bytes = leanattn.Group.bytes_for(problem(), 8)
    before = fake.live_buffers()
    with pytest.warns(ResourceWarning, match="was not closed"):
        leanattn.Group(engines[0], 0, 2, memory_bytes)
        gc.collect()
    assert fake.live_buffers() == before + 1
    with pytest.raises(KeyError), leanattn.Group(engines[0], 0, 2, memory_bytes) as group:
        raise KeyError
    assert group.closed and fake.live_buffers() == before + 2
    with leanattn.Group(engines[0], 0, 2, memory_bytes) as group:
        assert not group.closed
    assert group.closed and fake.live_buffers() == before + 2


def test_a_group_keeps_its_engine_alive(cache_dir):
    gc.collect()
    fake.reset()
    group = leanattn.Group(leanattn.Engine(cache_dir=cache_dir), 0, 2, leanattn.Group.bytes_for(problem(), 8))
    gc.collect()
    group.engine.check()
    assert len(group.export()) == 256
    group.close()


@pytest.mark.parametrize("said, arguments", [
    ("a group of 1 ranks", (0, 1)), ("a group of 9 ranks", (0, 9)), ("rank 2 of a group of 2", (2, 2)), ("rank -1", (-1, 2)),
    ("rank is of type str", ("0", 2)), ("size is of type NoneType", (0, None)),
])
def test_ranks_that_cannot_be_are_refused(engines, said, arguments):
    with pytest.raises((ValueError, TypeError), match=said):
        leanattn.Group(engines[0], *arguments, 1 << 20)


def test_memory_that_is_too_small_is_refused(engines):
    with pytest.raises(leanattn.ArgumentError, match="memory_bytes of a group is 100"):
        leanattn.Group(engines[0], 0, 2, 100)
    with pytest.raises(leanattn.ArgumentTypeError, match="engine is not a leanattn.Engine"):
        leanattn.Group(None, 0, 2, 1 << 20)


def test_blobs_are_checked_one_by_one(engines):
    memory_bytes = leanattn.Group.bytes_for(problem(), 8)
    ranks = [leanattn.Group(engines[rank], rank, 2, memory_bytes) for rank in range(2)]
    blobs = [group.export() for group in ranks]
    for wrong, said in [(blobs[:1], "1 blobs for a group of 2"), (blobs[::-1], "blob 0 is that of rank 1"), ([blobs[0], blobs[1][:-1]], "an entry 1 of 255 bytes"),
                        ([blobs[0], bytes(256)], "blob 1 is none that"), ([blobs[0], None], "an entry 1 that is not bytes"), (blobs[0], "not a sequence of bytes")]:
        with pytest.raises((ValueError, TypeError), match=said):
            ranks[0].connect(wrong)
    assert not ranks[0].connected and "not connected" in repr(ranks[0])
    with pytest.raises(leanattn.ArgumentError, match="not connected"):
        leanattn.decode(**inputs(), group=ranks[0])
    for group in ranks:
        group.connect(blobs)
        assert group.connected
    with pytest.raises(leanattn.ArgumentError, match="connected already"):
        ranks[0].connect(blobs)
    for group in ranks:
        group.close()


def test_gpus_that_do_not_reach_each_other_are_named(engines):
    fake.set_devices(2, False)
    before = fake.live_buffers()
    with pytest.raises(leanattn.Unsupported, match="GPU 0 of rank 0 cannot reach the memory of GPU 1 of rank 1"):
        leanattn.Group.of_engines(engines, problem=problem(), max_batch=8, transport="peers")
    gc.collect()
    assert fake.live_buffers() == before


def test_the_problem_must_be_of_as_many_ranks(engines):
    with pytest.raises(leanattn.ArgumentError, match=r"context_parallel 4, and there are 2 engines. Make it with Problem\(..., context_parallel=2\)"):
        leanattn.Group.of_engines(engines, problem=problem(context_parallel=4), max_batch=8)
    with pytest.raises(leanattn.ArgumentError, match="context_parallel is 1"):
        leanattn.Group.bytes_for(leanattn.Problem(), 8)
    with pytest.raises(leanattn.ArgumentError, match="context_interleave"):
        leanattn.Problem(context_interleave=16)
    with pytest.raises(leanattn.ArgumentError, match="context_parallel"):
        leanattn.Problem(context_parallel=9)


@pytest.fixture
def ranks(monkeypatch):
    made = Ranks(RANKS)
    torch = types.ModuleType("torch")
    torch.distributed = made
    torch.cuda = types.SimpleNamespace(current_device=lambda: made.mine.rank)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", made)
    return made


def test_processes_of_torch_distributed_make_a_group_and_end_it_together(engines, ranks):
    def work(rank):
        with leanattn.Group.from_process_group(problem=problem(), max_batch=8, engine=engines[rank]) as group:
            assert (group.rank, group.size, group.connected, group.engine) == (rank, RANKS, True, engines[rank])
            exchanges = ranks.exchanges
            leanattn.decode(**inputs(rank), group=group)
            assert ranks.exchanges == exchanges, "a step needs no exchange"
        assert group.closed
        return "done"

    made = ranks.run(work)
    if any(getattr(result, "code", "") == "nvrtc_missing" for result in made):
        pytest.skip("NVRTC is not installed")
    assert made == ["done"] * RANKS
    assert ranks.exchanges == 4  # machines, blobs, whether all have connected, and the barrier of close()
    assert sorted(launch["device"] for launch in fake.launches()) == [0, 1]


def test_the_engine_of_torchs_current_device_is_the_default(ranks, monkeypatch, engines):
    import leanattn._groups

    monkeypatch.setattr(leanattn._groups, "default_engine", lambda device: engines[device])
    made = ranks.run(lambda rank: leanattn.Group.from_process_group(problem=problem(), max_batch=1))
    assert [group.engine.device for group in made] == [0, 1]
    for group in made:
        group.close(barrier=False)
    assert ranks.exchanges == 3


def test_a_rank_that_fails_makes_all_ranks_raise(engines, ranks):
    before = fake.live_buffers()

    def one_has_another_problem(rank):
        return leanattn.Group.from_process_group(problem=problem(context_parallel=2 + 2 * rank), max_batch=8, engine=engines[rank])

    first, second = ranks.run(one_has_another_problem)
    assert isinstance(second, leanattn.ArgumentError) and "the process group has 2 ranks" in str(second)
    assert isinstance(first, leanattn.GroupBroken) and first.rank == 1 and "the process group has 2 ranks" in str(first)

    first, second = ranks.run(lambda rank: leanattn.Group.from_process_group(problem=problem(), max_batch=8 * (rank + 1), engine=engines[rank]))
    for error in (first, second):
        assert isinstance(error, leanattn.ArgumentError) and "memory_bytes on all ranks" in str(error)
    gc.collect()
    assert fake.live_buffers() == before


def test_without_torch_distributed_the_call_says_what_to_do(ranks, engines):
    ranks.is_initialized = lambda: False
    with pytest.raises(leanattn.ArgumentError, match="init_process_group"):
        leanattn.Group.from_process_group(problem=problem(), max_batch=8, engine=engines[0])
    ranks.is_available = lambda: False
    with pytest.raises(leanattn.ArgumentError, match=r"connect\(\)"):
        leanattn.Group.from_process_group(problem=problem(), max_batch=8, engine=engines[0])


def step_of_all(ranks, groups, **changed):
    """A step of every rank, each on a thread, because the simulated NCCL waits for what it receives. The kernels of each rank in their order."""
    before = len(fake.launches())
    results = ranks.run(lambda rank: leanattn.decode(**inputs(rank, **changed), group=groups[rank]))
    for result in results:
        if getattr(result, "code", "") == "nvrtc_missing":
            pytest.skip("NVRTC is not installed")
        if isinstance(result, Exception):
            raise result
    launches = fake.launches()[before:]
    return [[launch["kernel"] for launch in launches if launch["device"] == rank] for rank in range(len(groups))]


def warmed_up(groups, engines):
    for group, engine in zip(groups, engines):
        engine.plan(problem(context_parallel=group.size), BATCH, longest_context=CONTEXT, group=group)


@pytest.mark.parametrize("transport, reach", [("nccl", True), ("auto", False)])
def test_ranks_without_peers_exchange_over_nccl(engines, ranks, transport, reach):
    fake.set_devices(2, reach)
    groups = leanattn.Group.of_engines(engines, problem=problem(), max_batch=8, transport=transport)
    warmed_up(groups, engines)
    for rank, kernels in enumerate(step_of_all(ranks, groups)):
        assert [kernels[0], kernels[2], kernels[3]] == ["begin_exchange", "nccl", "merge_partials_bf16"] and "_cp" not in kernels[1] and len(kernels) == 4
        assert (groups[rank].transport, groups[rank].peers, groups[rank].connected) == ("nccl", 1, True)
    assert "over NCCL" in repr(groups[0]) and groups[1].heads(Q_HEADS) == slice(4, 8, 1)
    assert fake.nccl_moved() > 0 and fake.live_nccl_comms() == 2
    for group in groups:
        group.close()
    assert fake.live_nccl_comms() == 0


def test_what_nccl_finds_is_raised_with_the_cure(engines, ranks):
    groups = leanattn.Group.of_engines(engines, problem=problem(), max_batch=8, transport="nccl")
    warmed_up(groups, engines)
    step_of_all(ranks, groups)
    fake.nccl_finds(6)
    with pytest.raises(leanattn.GroupBroken, match="remote process exited") as caught:
        leanattn.decode(**inputs(), group=groups[0])
    assert caught.value.rank is None and "Group.connect_nccl()" in caught.value.hint
    with pytest.raises(leanattn.GroupBroken, match="no communicator"):
        groups[0].reset()
    fake.nccl_finds(0)  # rank 1 has noticed nothing, and connects again with rank 0
    unique_id = leanattn.Group.nccl_id()
    assert len(unique_id) == 128
    for group in groups:
        group.connect_nccl(unique_id)
    step_of_all(ranks, groups)
    for group in groups:
        group.close()


def test_memory_of_the_caller_is_used_where_it_is_mapped(engines, ranks):
    size = leanattn.Group.bytes_for(problem(), 8)
    memory = [ctypes.create_string_buffer(size + 256) for _ in range(2)]
    own = [(ctypes.addressof(part) + 255) // 256 * 256 for part in memory]
    for wrong, said in [(0, "memory is 0"), ("there", "memory is of type str"), (own[0] + 16, "not a multiple of 256 bytes")]:
        with pytest.raises((ValueError, TypeError), match=said):
            leanattn.Group(engines[0], 0, 2, size, memory=wrong)
    groups = [leanattn.Group(engines[rank], rank, 2, size, memory=own[rank]) for rank in range(2)]
    blobs = [group.export() for group in groups]
    for wrong, said in [(7, "memory is not a sequence"), ([own[0]], "1 addresses for a group of 2 ranks"), ([own[0], 0], r"memory\[1\] is null")]:
        with pytest.raises((ValueError, TypeError), match=said):
            groups[0].connect(blobs, memory=wrong)
    for group in groups:
        group.connect(blobs, memory=own)
    warmed_up(groups, engines)
    step_of_all(ranks, groups)
    assert {launch["arguments"]["group"] for launch in fake.launches()} == set(own)
    for group in groups:
        group.close()


def test_communicators_of_the_caller_stay_the_callers(engines, ranks):
    memory_bytes = leanattn.Group.bytes_for(problem(), 8)
    groups = [leanattn.Group(engines[rank], rank, 2, memory_bytes, peers=1) for rank in range(2)]
    comms = fake.make_nccl_comms(2)
    for wrong, said in [({}, "unique_id is missing"), ({"unique_id": bytes(128), "comm": comms[0]}, "unique_id is given, and so is comm"),
                        ({"unique_id": b"short"}, "unique_id has 5 bytes"), ({"unique_id": 7}, "unique_id is not bytes"), ({"comm": 0}, "comm is 0"),
                        ({"comm": comms[1]}, "rank 1 of 2, and the group needs rank 0 of 2")]:
        with pytest.raises((ValueError, TypeError), match=said):
            groups[0].connect_nccl(**wrong)
    assert not groups[0].connected
    assert ranks.run(lambda rank: groups[rank].connect_nccl(comm=comms[rank])) == [None, None]
    warmed_up(groups, engines)
    step_of_all(ranks, groups)
    for group in groups:
        group.close()
    assert fake.live_nccl_comms() == 2


@pytest.mark.parametrize("transport, reach, machines, expected, exchanges", [
    ("auto", True, "AA", "peers", 3), ("nccl", True, "AA", "nccl", 4), ("auto", False, "AA", "nccl", 6), ("auto", True, "AB", "nccl", 4),
])
def test_processes_choose_the_transport_together(engines, ranks, monkeypatch, transport, reach, machines, expected, exchanges):
    import leanattn._groups

    fake.set_devices(2, reach)
    monkeypatch.setattr(leanattn._groups, "_host", lambda: machines[ranks.mine.rank])
    groups = ranks.run(lambda rank: leanattn.Group.from_process_group(problem=problem(), max_batch=8, engine=engines[rank], transport=transport))
    assert [getattr(group, "transport", group) for group in groups] == [expected] * 2
    assert all(group.connected for group in groups) and ranks.exchanges == exchanges
    warmed_up(groups, engines)
    kernels = step_of_all(ranks, groups)
    assert all((len(of_rank) == 1) == (expected == "peers") for of_rank in kernels)
    for group in groups:
        group.close(barrier=False)


def test_machines_of_two_ranks_each_have_two_levels(cache_dir, monkeypatch):
    import leanattn._groups

    gc.collect()
    fake.reset()
    fake.set_devices(4, True)
    ranks = Ranks(4)
    torch = types.ModuleType("torch")
    torch.distributed = ranks
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", ranks)
    monkeypatch.setattr(leanattn._groups, "_host", lambda: "AABB"[ranks.mine.rank])
    engines = [leanattn.Engine(device, cache_dir=cache_dir) for device in range(4)]
    of_four = problem(context_parallel=4)
    groups = ranks.run(lambda rank: leanattn.Group.from_process_group(problem=of_four, max_batch=8, engine=engines[rank]))
    assert [getattr(group, "transport", group) for group in groups] == ["two_level"] * 4
    assert [(group.peers, group.heads(Q_HEADS)) for group in groups] == [(2, slice(2 * share, 2 * share + 2, 1)) for share in (0, 2, 1, 3)]
    warmed_up(groups, engines)
    for kernels in step_of_all(ranks, groups):
        assert len(kernels) == 4 and "_cp2" in kernels[1]
    for group in groups:
        group.close(barrier=False)
    # Kernels of peers would have to know more of where tokens lie.
    in_turn = problem(context_parallel=4, context_interleave=16, q_len=4)
    groups = ranks.run(lambda rank: leanattn.Group.from_process_group(problem=in_turn, max_batch=8, engine=engines[rank]))
    assert [getattr(group, "transport", group) for group in groups] == ["nccl"] * 4
    for group in groups:
        group.close(barrier=False)


def test_ranks_are_cut_into_machines_that_follow_each_other():
    from leanattn._groups import peers_of

    assert [peers_of(hosts) for hosts in ("AABB", "ABAB", "AAB", "AAAA", "ABCD", "AAABBB")] == [2, 1, 1, 4, 1, 3]


def test_without_nccl_the_reason_why_ranks_are_no_peers_is_kept(engines, ranks, monkeypatch):
    import leanattn._groups

    fake.set_devices(2, False)
    monkeypatch.setattr(leanattn._groups, "Group", WithoutNccl)
    with pytest.raises(leanattn.Unsupported, match="NCCL cannot be loaded") as caught:
        leanattn.Group.of_engines(engines, problem=problem(), max_batch=8)
    assert "cannot reach the memory" in str(caught.value.__context__)
    for failed in ranks.run(lambda rank: leanattn.Group.from_process_group(problem=problem(), max_batch=8, engine=engines[rank])):
        assert "NCCL cannot be loaded" in str(failed) and "not all ranks can be peers: " in str(failed.__cause__)
        assert "cannot reach the memory" in str(failed.__cause__)


class WithoutNccl(leanattn.Group):
    """Groups where there is no NCCL."""

    @staticmethod
    def nccl_id():
        raise leanattn.Unsupported("NCCL cannot be loaded", "unsupported")


@pytest.mark.parametrize("transport, said", [("pigeons", "transport is 'pigeons'"), (None, "transport is None"), ("two_level", "the ranks are on 1 machines")])
def test_transports_that_cannot_be_are_refused(engines, ranks, transport, said):
    results = ranks.run(lambda rank: leanattn.Group.from_process_group(problem=problem(), max_batch=8, engine=engines[rank], transport=transport))
    for result in results:
        assert isinstance(result, leanattn.ArgumentError) and said in str(result)
    if transport != "two_level":
        with pytest.raises(leanattn.ArgumentError, match=said):
            leanattn.Group.of_engines(engines, problem=problem(), max_batch=8, transport=transport)
