"""decode() and merge_partials() on a GPU that is not there: what arrives at the driver, and what is refused by name."""
import ctypes
import dataclasses
import gc
import itertools
import math
import threading

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")

import leanattn  # noqa: E402
from fake_tensors import CPU, FakeTensor, FastTensor, OldTensor  # noqa: E402

np = pytest.importorskip("numpy")
BATCH, Q_HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 3, 8, 2, 64, 256


@pytest.fixture
def engine(cache_dir):
    gc.collect()  # an engine of the test before must be gone, or its end would count in this one
    fake.reset()
    FastTensor.current_stream = 0
    try:
        return leanattn.Engine(cache_dir=cache_dir)
    except leanattn.Error as error:
        pytest.fail(str(error))


def inputs(kind=FakeTensor, **changed):
    """A step's tensors by argument; `changed` replaces some."""
    made = {"q": kind((BATCH, Q_HEADS, HEAD_DIM)), "k_cache": kind((BATCH, KV_HEADS, CONTEXT, HEAD_DIM)),
            "v_cache": kind((BATCH, KV_HEADS, CONTEXT, HEAD_DIM)), "context_lengths": kind((BATCH,), "int32")}
    return {**made, **changed}


def decoded(engine, **arguments):
    """What decode() launched: (result, the launch)."""
    before = len(fake.launches())
    try:
        result = leanattn.decode(**arguments, engine=engine)
    except leanattn.Error as error:
        if error.code == "nvrtc_missing":
            pytest.skip(error.message)
        raise
    launches = fake.launches()
    assert len(launches) == before + 1
    return result, launches[-1]


@pytest.mark.parametrize("kind", [FakeTensor, OldTensor, FastTensor])
def test_a_plain_step_arrives_as_it_is(engine, kind):
    given = inputs(kind)
    o, launch = decoded(engine, **given)
    arguments = launch["arguments"]
    assert (arguments["q"], arguments["k"], arguments["v"]) == (given["q"].data, given["k_cache"].data, given["v_cache"].data)
    assert (arguments["context_lengths"], arguments["o"], arguments["lse"]) == (given["context_lengths"].data, o.data, 0)
    assert (arguments["batch"], arguments["kv_heads"], arguments["context_capacity"]) == (BATCH, KV_HEADS, CONTEXT)
    assert (arguments["k_stride_batch"], arguments["k_stride_head"], arguments["k_stride_token"]) == (KV_HEADS * CONTEXT * HEAD_DIM, CONTEXT * HEAD_DIM, HEAD_DIM)
    assert (arguments["q_stride_batch"], arguments["q_stride_head"]) == (Q_HEADS * HEAD_DIM, HEAD_DIM)
    assert math.isclose(arguments["scale_log2"], HEAD_DIM**-0.5 * math.log2(math.e), rel_tol=1e-6)
    assert o.shape == given["q"].shape and o.dtype == "bf16"
    assert "bf16_d64_g4_contig" in launch["kernel"] or launch["kernel"]
    assert all(tensor.borrowed == 0 for tensor in given.values())  # every capsule was given back


def test_it_runs_on_the_current_stream_and_nothing_waits(engine):
    stream = fake.make_stream()
    FastTensor.current_stream = stream
    _, launch = decoded(engine, **inputs(FastTensor))
    assert launch["stream"] == stream
    waits = fake.calls("cuStreamSynchronize") + fake.calls("cuCtxSynchronize")
    decoded(engine, **inputs(FastTensor))
    assert fake.calls("cuStreamSynchronize") + fake.calls("cuCtxSynchronize") == waits


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: type("S", (), {"cuda_stream": s})(), lambda s: type("S", (), {"ptr": s})(),
                                  lambda s: type("S", (), {"__cuda_stream__": lambda self: (0, s)})()], ids=["handle", "torch", "cupy", "protocol"])
def test_a_stream_may_be_given(engine, wrap):
    stream = fake.make_stream()
    given = inputs()
    _, launch = decoded(engine, **given, stream=wrap(stream))
    assert launch["stream"] == stream
    assert given["k_cache"].streams == [stream]  # so that the producer can make it wait


def test_the_legacy_stream_is_1_to_dlpack(engine):
    given = inputs()
    _, launch = decoded(engine, **given)
    assert launch["stream"] == 0 and given["q"].streams == [1]
    assert decoded(engine, **inputs(), stream=1)[1]["stream"] == 0


def test_outputs_that_are_given_are_returned(engine):
    out, out_lse = FakeTensor((BATCH, Q_HEADS, HEAD_DIM)), FakeTensor((BATCH, Q_HEADS), "fp32")
    result, launch = decoded(engine, **inputs(), out=out, out_lse=out_lse)
    assert result[0] is out and result[1] is out_lse
    assert (launch["arguments"]["o"], launch["arguments"]["lse"]) == (out.data, out_lse.data)
    (o, lse), launch = decoded(engine, **inputs(), return_lse=True)
    assert lse.shape == (BATCH, Q_HEADS) and lse.dtype == "fp32" and launch["arguments"]["lse"] == lse.data


def test_several_query_tokens_keep_their_strides(engine):
    q = FakeTensor((BATCH, 5, Q_HEADS, HEAD_DIM), strides=(5 * Q_HEADS * HEAD_DIM, HEAD_DIM, 5 * HEAD_DIM, 1))  # a transposed view
    _, launch = decoded(engine, **inputs(q=q))
    arguments = launch["arguments"]
    assert (arguments["q_stride_batch"], arguments["q_stride_token"], arguments["q_stride_head"]) == (5 * Q_HEADS * HEAD_DIM, HEAD_DIM, 5 * HEAD_DIM)


def test_ragged_query_tokens(engine):
    offsets = FakeTensor((BATCH + 1,), "int32")
    _, launch = decoded(engine, **inputs(q=FakeTensor((7, Q_HEADS, HEAD_DIM))), q_offsets=offsets, max_q_len=4)
    assert launch["arguments"]["q_offsets"] == offsets.data and launch["arguments"]["batch"] == BATCH


def test_packed_keys_and_values(engine):
    tokens = 70
    k, v = FakeTensor((tokens, KV_HEADS, HEAD_DIM)), FakeTensor((tokens, KV_HEADS, 64))
    offsets, q = FakeTensor((BATCH + 1,), "int32"), FakeTensor((7, Q_HEADS, HEAD_DIM))
    packed = {"k_cache": k, "v_cache": v, "context_lengths": None, "kv_offsets": offsets}
    o, launch = decoded(engine, q=q, **packed, q_offsets=offsets, max_q_len=4)
    arguments = launch["arguments"]
    assert o.shape == (7, Q_HEADS, 64) and arguments["batch"] == BATCH
    assert (arguments["context_lengths"], arguments["q_offsets"], arguments["context_capacity"]) == (offsets.data, offsets.data, tokens)
    # A stride of the batch is that of rows, by which the kernel goes to where a request begins.
    assert (arguments["k_stride_batch"], arguments["k_stride_head"], arguments["k_stride_token"]) == (KV_HEADS * HEAD_DIM, HEAD_DIM, KV_HEADS * HEAD_DIM)
    assert (arguments["v_stride_batch"], arguments["v_stride_head"], arguments["v_stride_token"]) == (KV_HEADS * 64, 64, KV_HEADS * 64)
    # Cross attention of as many query tokens in each request.
    _, launch = decoded(engine, q=FakeTensor((BATCH, 5, Q_HEADS, HEAD_DIM)), **packed, mask="full")
    assert launch["arguments"]["context_lengths"] == offsets.data
    with pytest.raises(ValueError, match="context_lengths is given, but kv_offsets"):
        leanattn.decode(**inputs(k_cache=k, v_cache=v), kv_offsets=offsets, engine=engine)
    with pytest.raises(ValueError, match="k_cache has shape"):
        leanattn.decode(**inputs(context_lengths=None), kv_offsets=offsets, engine=engine)
    with pytest.raises(ValueError, match="kv_offsets has shape"):
        leanattn.decode(**inputs(**packed | {"kv_offsets": FakeTensor((BATCH,), "int32")}), engine=engine)
    with pytest.raises(ValueError, match="kv_offsets is given with page_table"):
        leanattn.decode(**inputs(**packed), page_table=FakeTensor((BATCH, 2), "int32"), engine=engine)
    with pytest.raises(leanattn.Unsupported, match="batch_invariant with packed_kv"):
        leanattn.decode(**inputs(**packed), batch_invariant=True, engine=engine)


def test_spans_of_prompts(engine):
    offsets, spans = FakeTensor((BATCH + 1,), "int32"), FakeTensor((7, 2), "int32")
    _, launch = decoded(engine, **inputs(q=FakeTensor((7, Q_HEADS, HEAD_DIM))), q_offsets=offsets, max_q_len=4, spans=spans)
    assert launch["arguments"]["spans"] == spans.data


def test_the_query_tokens_of_prefill_bound_a_launch(engine):
    offsets = FakeTensor((BATCH + 1,), "int32")
    caches = {name: FakeTensor((BATCH, KV_HEADS, 1 << 22, HEAD_DIM)) for name in ("k_cache", "v_cache")}
    for most in (17, 2048, 131072):  # one problem, with one kernel
        q = FakeTensor((70, Q_HEADS, HEAD_DIM))
        _, launch = decoded(engine, **inputs(q=q, **caches), q_offsets=offsets, max_q_len=most)
        assert launch["arguments"]["q_offsets"] == offsets.data
    with pytest.raises(leanattn.Error, match="may need 2.30 LeanTiles"):
        leanattn.decode(**inputs(q=FakeTensor((1 << 20, Q_HEADS, HEAD_DIM)), **caches), q_offsets=offsets, max_q_len=2048, engine=engine)
    with pytest.raises(leanattn.Error, match="q_len is 131073"):
        leanattn.decode(**inputs(q=FakeTensor((70, Q_HEADS, HEAD_DIM))), q_offsets=offsets, max_q_len=131073, engine=engine)


@pytest.mark.parametrize("view", [False, True], ids=["NHD", "transposed view"])
def test_token_major_caches(engine, view):
    rows = (CONTEXT * KV_HEADS * HEAD_DIM, HEAD_DIM, KV_HEADS * HEAD_DIM, 1)
    caches = [FakeTensor((BATCH, KV_HEADS, CONTEXT, HEAD_DIM), strides=rows) if view else FakeTensor((BATCH, CONTEXT, KV_HEADS, HEAD_DIM)) for _ in range(2)]
    _, launch = decoded(engine, **inputs(k_cache=caches[0], v_cache=caches[1]), kv_layout="HND" if view else "NHD")
    arguments = launch["arguments"]
    assert (arguments["k_stride_head"], arguments["k_stride_token"], arguments["context_capacity"]) == (HEAD_DIM, KV_HEADS * HEAD_DIM, CONTEXT)


def test_pages(engine):
    pools = [FakeTensor((40, KV_HEADS, 16, HEAD_DIM), strides=(2 * KV_HEADS * 16 * HEAD_DIM, 16 * HEAD_DIM, HEAD_DIM, 1)) for _ in range(2)]
    table = FakeTensor((BATCH, 9), "int32", strides=(12, 1))
    _, launch = decoded(engine, **inputs(k_cache=pools[0], v_cache=pools[1]), page_table=table)
    arguments = launch["arguments"]
    assert (arguments["page_table"], arguments["page_table_stride"], arguments["pool_pages"]) == (table.data, 12, 40)
    assert (arguments["context_capacity"], arguments["k_stride_batch"]) == (9 * 16, 2 * KV_HEADS * 16 * HEAD_DIM)


def test_views_that_frameworks_expand_are_read_as_they_are(engine):
    arguments = decoded(engine, **inputs(q=FakeTensor((BATCH, Q_HEADS, HEAD_DIM), strides=(0, HEAD_DIM, 1)),
                                         k_cache=FakeTensor((BATCH, KV_HEADS, CONTEXT, HEAD_DIM), strides=(CONTEXT * HEAD_DIM, 0, HEAD_DIM, 1)),
                                         v_cache=FakeTensor((BATCH, KV_HEADS, CONTEXT, HEAD_DIM), strides=(0, CONTEXT * HEAD_DIM, HEAD_DIM, 1))))[1]["arguments"]
    assert (arguments["q_stride_batch"], arguments["q_stride_head"]) == (0, HEAD_DIM)
    assert (arguments["k_stride_batch"], arguments["k_stride_head"]) == (CONTEXT * HEAD_DIM, 0)
    assert (arguments["v_stride_batch"], arguments["v_stride_head"]) == (0, CONTEXT * HEAD_DIM)
    pools = {name: FakeTensor((40, KV_HEADS, 16, HEAD_DIM)) for name in ("k_cache", "v_cache")}
    assert decoded(engine, **inputs(**pools), page_table=FakeTensor((BATCH, 9), "int32", strides=(0, 1)))[1]["arguments"]["page_table_stride"] == 0
    new = {name: FakeTensor((BATCH, KV_HEADS, HEAD_DIM), strides=(HEAD_DIM, 0, 1)) for name in ("k_new", "v_new")}
    assert decoded(engine, **inputs(), **new)[1]["arguments"]["k_new_stride_head"] == 0


def test_scales_of_tokens_may_be_any_view(engine):
    caches = {name: FakeTensor((BATCH, KV_HEADS, CONTEXT, HEAD_DIM), "int8") for name in ("k_cache", "v_cache")}
    for strides in ((KV_HEADS, 1, 0), (CONTEXT * KV_HEADS, 1, KV_HEADS)):  # a scale a head, expanded; and [batch, context, kv_heads], transposed
        scale = FakeTensor((BATCH, KV_HEADS, CONTEXT), "fp32", strides=strides)
        arguments = decoded(engine, **inputs(**caches), k_scale=scale, v_scale=scale)[1]["arguments"]
        assert tuple(arguments[f"kv_scale_stride_{name}"] for name in ("batch", "head", "token")) == strides


@pytest.mark.parametrize("argument, value, beside", [
    ("page_table", FakeTensor((BATCH, 4), "int32", strides=(1, BATCH)), {}),
    ("selection", FakeTensor((BATCH, KV_HEADS, 20), "int32", strides=(1, BATCH, BATCH * KV_HEADS)), {"selected_counts": FakeTensor((BATCH,), "int32")}),
])
def test_what_is_said_of_a_stride_names_its_dimension_and_speaks_of_no_heads(engine, argument, value, beside):
    pools = {name: FakeTensor((40, KV_HEADS, 16, HEAD_DIM)) for name in ("k_cache", "v_cache")}
    given = {**inputs(**pools), "page_table": FakeTensor((BATCH, 4), "int32"), **beside, argument: value}
    last = len(value.shape) - 1
    with pytest.raises(leanattn.ArgumentError, match=f"^{argument} has stride {value.strides[last]} in dimension {last}, its last, not 1") as caught:
        leanattn.decode(**given, engine=engine)
    assert "head" not in str(caught.value)


def empty_batch(**changed):
    """Of an idle rank: no request, but the tensors that do not depend on them are there."""
    made = {"q": FakeTensor((0, Q_HEADS, HEAD_DIM)), "k_cache": FakeTensor((40, KV_HEADS, 16, HEAD_DIM)), "v_cache": FakeTensor((40, KV_HEADS, 16, HEAD_DIM)),
            "context_lengths": FakeTensor((0,), "int32"), "page_table": FakeTensor((0, 9), "int32")}
    return {**made, **changed}


LATENT_EMPTY = {"k_cache": FakeTensor((40, 1, 64, 576)), "v_cache": None, "v_head_dim": 512, "scale": 0.13}


@pytest.mark.parametrize("changed, shape", [
    ({}, (0, Q_HEADS, HEAD_DIM)),
    ({"page_table": FakeTensor((0, 0), "int32")}, (0, Q_HEADS, HEAD_DIM)),
    ({"q": FakeTensor((0, 3, Q_HEADS, HEAD_DIM))}, (0, 3, Q_HEADS, HEAD_DIM)),
    ({"page_table": None, "k_cache": FakeTensor((0, *(KV_HEADS, CONTEXT, HEAD_DIM))), "v_cache": FakeTensor((0, KV_HEADS, CONTEXT, 32))}, (0, Q_HEADS, 32)),
    ({"k_new": FakeTensor((0, KV_HEADS, HEAD_DIM)), "v_new": FakeTensor((0, KV_HEADS, HEAD_DIM))}, (0, Q_HEADS, HEAD_DIM)),
    ({"q": FakeTensor((0, 16, 576)), **LATENT_EMPTY}, (0, 16, 512)),
    ({"q": FakeTensor((0, 16, 576)), **LATENT_EMPTY, "page_table": None, "context_lengths": None, "selection": FakeTensor((0, 1, 2048), "int32"),
      "selected_counts": FakeTensor((0,), "int32")}, (0, 16, 512)),
    ({"selection": FakeTensor((0, KV_HEADS, 20), "int32"), "selected_counts": FakeTensor((0,), "int32"), "selection_block": 16}, (0, Q_HEADS, HEAD_DIM)),
    ({"q_offsets": FakeTensor((1,), "int32"), "max_q_len": 4}, (0, Q_HEADS, HEAD_DIM)),
    ({"q_offsets": FakeTensor((BATCH + 1,), "int32"), "max_q_len": 4, "context_lengths": FakeTensor((BATCH,), "int32"),
      "page_table": FakeTensor((BATCH, 9), "int32")}, (0, Q_HEADS, HEAD_DIM)),  # requests without query tokens
    ({"context_lengths": None, "page_table": (FakeTensor((1,), "int32"), FakeTensor((0,), "int32"), FakeTensor((0,), "int32"))}, (0, Q_HEADS, HEAD_DIM)),
], ids=["pages", "a table without columns", "query tokens", "dense", "append", "latent", "places", "blocks", "ragged", "no query tokens", "rows"])
@pytest.mark.parametrize("opened", [True, False], ids=["an engine", "no engine"])
def test_an_empty_batch_has_an_empty_result_and_launches_nothing(engine, changed, shape, opened):
    calls = fake.calls("cuDevicePrimaryCtxRetain")
    given = {"engine": engine} if opened else {}
    o, lse = leanattn.decode(**empty_batch(**changed), return_lse=True, **given)
    assert (o.shape, o.dtype, lse.shape, lse.dtype) == (shape, "bf16", shape[:-1], "fp32")
    assert fake.launches() == [] and fake.calls("cuDevicePrimaryCtxRetain") == calls


def test_outputs_of_an_empty_batch_are_checked_and_returned(engine):
    out, out_lse = FakeTensor((0, Q_HEADS, HEAD_DIM)), FakeTensor((0, Q_HEADS), "fp32")
    assert leanattn.decode(**empty_batch(), out=out, out_lse=out_lse, engine=engine) == (out, out_lse)
    for wrong in ({"out": FakeTensor((0, Q_HEADS, 32))}, {"window": "all"}, {"k_cache": FakeTensor((40, KV_HEADS, 16, 32))}, {"typical_batch": 0}):
        (name,) = wrong
        with pytest.raises((ValueError, TypeError), match=name):
            leanattn.decode(**{**empty_batch(), **wrong}, engine=engine)


def test_a_graph_of_an_empty_batch_has_no_launch_and_needs_no_kernel(engine):
    stream = fake.make_stream()
    fake.begin_capture(stream)
    o = leanattn.decode(**empty_batch(), stream=stream, engine=engine)
    graph = fake.end_capture(stream)
    fake.replay(graph, stream)
    fake.destroy_graph(graph)
    assert o.shape == (0, Q_HEADS, HEAD_DIM) and fake.launches() == [] and fake.live_buffers() == 0


SCALES = {"tensor": (1,), "head": (KV_HEADS,), "token": (BATCH, KV_HEADS, CONTEXT)}


@pytest.mark.parametrize("dtype, said", [("int8", None), ("fp8_e4m3", None), ("fp8_e5m2", None), ("uint8", "fp8_e4m3"), ("uint8", "int8")])
@pytest.mark.parametrize("scale", SCALES)
def test_one_byte_caches_and_their_scales(engine, dtype, said, scale):
    caches = {name: FakeTensor((BATCH, KV_HEADS, CONTEXT, HEAD_DIM), dtype) for name in ("k_cache", "v_cache")}
    k_scale, v_scale = (FakeTensor(SCALES[scale], "fp32") for _ in range(2))
    _, launch = decoded(engine, **inputs(**caches), k_scale=k_scale, v_scale=v_scale, kv_dtype=said)
    arguments = launch["arguments"]
    assert (arguments["k_scale"], arguments["v_scale"]) == (k_scale.data, v_scale.data)
    if scale == "token":
        assert (arguments["kv_scale_stride_batch"], arguments["kv_scale_stride_head"], arguments["kv_scale_stride_token"]) == (KV_HEADS * CONTEXT, CONTEXT, 1)


def rows_of_vllm(data_bytes, dtype="uint8"):
    """decode()'s arguments for a pool as vLLM keeps it: a row of K, its scale, a row of V, and its scale, of each head."""
    row = 2 * (data_bytes + 4)
    pool = (40, 16, KV_HEADS, data_bytes)
    strides, words = (16 * KV_HEADS * row, KV_HEADS * row, row, 1), (16 * KV_HEADS * row // 4, row // 4, KV_HEADS * row // 4)
    made = {name: FakeTensor(pool, dtype, strides=strides, offset=at) for name, at in (("k_cache", 0), ("v_cache", data_bytes + 4))}
    made |= {name: FakeTensor((40, KV_HEADS, 16), "fp32", strides=words, offset=at) for name, at in (("k_scale", data_bytes // 4), ("v_scale", row // 4 - 1))}
    for tensor in made.values():  # views of one tensor, which begins where k_cache does
        tensor.memory, tensor.data = made["k_cache"].memory, made["k_cache"].data + tensor.data % 256
    return {**inputs(), **made, "page_table": FakeTensor((BATCH, 9), "int32"), "kv_layout": "NHD"}


@pytest.mark.parametrize("data_bytes, options", [(HEAD_DIM // 2, {"kv_dtype": "int4"}), (HEAD_DIM, {"kv_dtype": "fp8_e4m3"}), (HEAD_DIM, {"kv_dtype": "int8"})])
def test_scales_may_lie_among_the_rows(engine, data_bytes, options):
    given = rows_of_vllm(data_bytes)
    row = 2 * (data_bytes + 4)
    o, launch = decoded(engine, **given, **options)
    arguments = launch["arguments"]
    assert o.shape == (BATCH, Q_HEADS, HEAD_DIM)
    for name in ("k", "v"):
        assert arguments[name] == given[f"{name}_cache"].data and arguments[f"{name}_scale"] == given[f"{name}_scale"].data
        assert [arguments[f"{name}_stride_{of}"] for of in ("batch", "token", "head")] == [16 * KV_HEADS * row, KV_HEADS * row, row]
    assert [4 * arguments[f"kv_scale_stride_{of}"] for of in ("batch", "token", "head")] == [16 * KV_HEADS * row, KV_HEADS * row, row]
    assert "r_tensor" in launch["kernel"]  # the copy engine brings rows with their scales


@pytest.mark.parametrize("data_bytes, options, name", [(HEAD_DIM // 2, {"kv_dtype": "int4"}, "_i4r_app_"), (HEAD_DIM, {"kv_dtype": "fp8_e4m3"}, "_e4m3r_app_"),
                                                       (HEAD_DIM, {"kv_dtype": "int8"}, "_i8r_app_")])
def test_new_rows_are_quantised_into_rows_with_their_scales(engine, data_bytes, options, name):
    new = {name: FakeTensor((BATCH, KV_HEADS, HEAD_DIM)) for name in ("k_new", "v_new")}
    given = rows_of_vllm(data_bytes)
    _, launch = decoded(engine, **given, **new, **options)
    arguments = launch["arguments"]
    assert name in launch["kernel"] and (arguments["k_new"], arguments["v_new"]) == (new["k_new"].data, new["v_new"].data)
    assert (arguments["k"], arguments["k_scale"], arguments["v_scale"]) == tuple(given[of].data for of in ("k_cache", "k_scale", "v_scale"))
    for of in ("k_cache", "v_cache"):  # tokens that share their memory cannot be written
        shared = FakeTensor(given[of].shape, "uint8", strides=(given[of].strides[0], 0, *given[of].strides[2:]))
        with pytest.raises((ValueError, leanattn.Error), match="stride"):
            leanattn.decode(**{**given, of: shared}, **new, **options, engine=engine)


def test_four_bit_rows_of_their_own_are_aligned_as_others(engine):
    caches = {name: FakeTensor((BATCH, KV_HEADS, CONTEXT, HEAD_DIM // 2), "uint8") for name in ("k_cache", "v_cache")}
    scale = FakeTensor((BATCH, KV_HEADS, CONTEXT), "fp32")
    _, launch = decoded(engine, **inputs(**caches), k_scale=scale, v_scale=scale, kv_dtype="int4")
    assert launch["arguments"]["k_stride_token"] == HEAD_DIM // 2 and "_i4t_cp_async" in launch["kernel"]


@pytest.mark.parametrize("changed, named", [
    ({"k_scale": None, "v_scale": None}, "stride"), ({"k_scale": FakeTensor((1,), "fp32"), "v_scale": FakeTensor((1,), "fp32")}, "stride"),
    ({"v_scale": None}, "v_scale"), ({"k_cache": FakeTensor((40, 16, KV_HEADS, HEAD_DIM), "uint8")}, "bytes of a row"),
    ({"v_cache": FakeTensor((40, 16, KV_HEADS, HEAD_DIM // 2), "uint8", offset=2)}, "multiple of 4 bytes"),
    ({"v_cache": FakeTensor((40, 16, KV_HEADS, HEAD_DIM // 2), "uint8", strides=(4096, 256, 64, 2), offset=4)}, "stride 2 in dimension 3")])
def test_what_four_bit_rows_need_is_named(engine, changed, named):
    with pytest.raises((ValueError, leanattn.Error), match=named):
        leanattn.decode(**{**rows_of_vllm(HEAD_DIM // 2), **changed}, kv_dtype="int4", engine=engine)
    assert fake.launches() == []


def pages_of_nvfp4(layout="HND"):
    """decode()'s arguments for pages as vLLM and FlashInfer lay them: K, the scales of its blocks, V, and its scales."""
    data, scales, slots = HEAD_DIM // 2, HEAD_DIM // 16, KV_HEADS * 16
    side = slots * (data + scales)

    def view(columns, at, dtype):
        shape, strides = ((KV_HEADS, 16), (16 * columns, columns)) if layout == "HND" else ((16, KV_HEADS), (KV_HEADS * columns, columns))
        return FakeTensor((40, *shape, columns), dtype, strides=(2 * side, *strides, 1), offset=at)

    made = {name: view(data, at, "uint8") for name, at in (("k_cache", 0), ("v_cache", side))}
    made |= {name: view(scales, at + slots * data, "fp8_e4m3") for name, at in (("k_block_scales", 0), ("v_block_scales", side))}
    return {**inputs(), **made, "page_table": FakeTensor((BATCH, 9), "int32"), "kv_layout": layout, "kv_dtype": "nvfp4"}


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("scale", [None, (1,), (KV_HEADS,)])
def test_pages_of_nvfp4_are_taken_as_vllm_lays_them(engine, layout, scale):
    given = pages_of_nvfp4(layout) | ({} if scale is None else {name: FakeTensor(scale, "fp32") for name in ("k_scale", "v_scale")})
    o, launch = decoded(engine, **given)
    arguments, page = launch["arguments"], 2 * KV_HEADS * 16 * (HEAD_DIM // 2 + HEAD_DIM // 16)
    assert o.shape == (BATCH, Q_HEADS, HEAD_DIM)
    for name in ("k", "v"):
        assert [arguments[name], arguments[f"{name}_block_scales"]] == [given[f"{name}_cache"].data, given[f"{name}_block_scales"].data]
        assert arguments[f"{name}_scale"] == (given[f"{name}_scale"].data if scale else 0)
    for prefix, columns in (("k", HEAD_DIM // 2), ("v", HEAD_DIM // 2), ("kv_scale", HEAD_DIM // 16)):
        token, head = (columns, 16 * columns) if layout == "HND" else (KV_HEADS * columns, columns)
        assert [arguments[f"{prefix}_stride_{of}"] for of in ("batch", "token", "head")] == [page, token, head]
    assert ("_nv4h_" if scale == (KV_HEADS,) and KV_HEADS > 1 else "_nv4_") in launch["kernel"]


def test_new_rows_are_quantised_into_blocks(engine):
    new = {name: FakeTensor((BATCH, KV_HEADS, HEAD_DIM)) for name in ("k_new", "v_new")}
    given = pages_of_nvfp4()
    _, launch = decoded(engine, **given, **new)
    arguments = launch["arguments"]
    assert "_nv4_app_" in launch["kernel"] and (arguments["k_new"], arguments["v_block_scales"]) == (new["k_new"].data, given["v_block_scales"].data)


BLOCKS = (40, KV_HEADS, 16, HEAD_DIM // 16)


@pytest.mark.parametrize("changed, error, named", [
    ({"k_block_scales": None}, ValueError, "k_block_scales is missing"), ({"v_block_scales": None}, ValueError, "v_block_scales is missing"),
    ({"k_block_scales": FakeTensor(BLOCKS, "fp32")}, TypeError, "k_block_scales"), ({"k_block_scales": FakeTensor(BLOCKS[1:], "uint8")}, ValueError, "k_block_scales"),
    ({"v_block_scales": FakeTensor((*BLOCKS[:3], 3), "uint8")}, ValueError, "head_dim / 16"), ({"v_block_scales": FakeTensor((39, *BLOCKS[1:]), "uint8")}, ValueError, "of k_cache"),
    ({"v_block_scales": FakeTensor(BLOCKS, "uint8")}, ValueError, "v_block_scales has stride"),
    ({"k_block_scales": FakeTensor(BLOCKS, "uint8", offset=2)}, ValueError, "multiple of"),
    ({"kv_dtype": "int4"}, ValueError, "k_block_scales is given"), ({"k_cache": FakeTensor((*BLOCKS[:3], HEAD_DIM), "uint8")}, ValueError, "bytes of a row"),
    ({name: FakeTensor((40, KV_HEADS, 16), "fp32") for name in ("k_scale", "v_scale")}, leanattn.Unsupported, "a cache of nvfp4 with a scale per token")])
def test_what_blocks_with_scales_need_is_named(engine, changed, error, named):
    with pytest.raises(error, match=named):
        leanattn.decode(**(pages_of_nvfp4() | changed), engine=engine)
    assert fake.launches() == []


def test_append_and_rotation(engine):
    new = {name: FakeTensor((BATCH, KV_HEADS, HEAD_DIM), strides=(12 * HEAD_DIM, HEAD_DIM, 1)) for name in ("k_new", "v_new")}
    table = FakeTensor((CONTEXT, HEAD_DIM), "fp32")
    _, launch = decoded(engine, **inputs(), **new, rope_table=table)
    arguments = launch["arguments"]
    assert (arguments["k_new"], arguments["v_new"], arguments["rope_table"]) == (new["k_new"].data, new["v_new"].data, table.data)
    assert (arguments["k_new_stride_batch"], arguments["v_new_stride_batch"]) == (12 * HEAD_DIM, 12 * HEAD_DIM)


@pytest.mark.parametrize("options, field", [
    ({"alibi_slopes": FakeTensor((Q_HEADS,), "fp32")}, "alibi_slopes"), ({"sink_logits": FakeTensor((Q_HEADS,), "fp32")}, "sink_logits"),
    ({"q": FakeTensor((BATCH, 2, Q_HEADS, HEAD_DIM)), "tree_mask": FakeTensor((BATCH, 2), "uint32")}, "tree_mask")], ids=["alibi", "sinks", "tree"])
def test_arrays_of_features(engine, options, field):
    _, launch = decoded(engine, **inputs(**options))
    assert launch["arguments"][field] == options[field].data


def test_options_reach_the_kernel(engine):
    names = {decoded(engine, **inputs(), **options)[1]["kernel"]
             for options in ({}, {"window": 100}, {"window": 100, "sink_tokens": 4}, {"soft_cap": 30.0}, {"score": "score * 2.0f"}, {"batch_invariant": True})}
    kernels = {engine.plan(leanattn.Problem(q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, **fields), batch=BATCH, longest_context=CONTEXT).kernel_name
               for fields in ({}, {"window": 100}, {"window": 100, "sink_tokens": 4}, {"soft_cap": 30.0}, {"score": "score * 2.0f"}, {"batch_invariant": True})}
    assert len(kernels) == 6 and len(names) >= 1
    _, launch = decoded(engine, **inputs(), scale=0.5)
    assert math.isclose(launch["arguments"]["scale_log2"], 0.5 * math.log2(math.e), rel_tol=1e-6)
    assert decoded(engine, **inputs(), pdl=True)[1]["programmatic"] and not decoded(engine, **inputs())[1]["programmatic"]


def test_v_may_be_narrower(engine):
    o, _ = decoded(engine, **inputs(v_cache=FakeTensor((BATCH, KV_HEADS, CONTEXT, 32))))
    assert o.shape == (BATCH, Q_HEADS, 32)


LATENT = {"q": (BATCH, 16, 576), "k_cache": (40, 1, 64, 576)}


def latent_inputs(**changed):
    """A step of latent attention over pages of 64 tokens."""
    made = {name: FakeTensor(shape) for name, shape in LATENT.items()}
    table = FakeTensor((BATCH, 9), "int32")
    return {**made, "v_cache": None, "context_lengths": FakeTensor((BATCH,), "int32"), "page_table": table, "v_head_dim": 512, "scale": 0.13, **changed}


def test_latent_attention_has_one_cache(engine):
    given = latent_inputs()
    o, launch = decoded(engine, **given)
    arguments = launch["arguments"]
    assert o.shape == (BATCH, 16, 512)
    assert arguments["k"] == arguments["v"] == given["k_cache"].data
    assert arguments["k_stride_token"] == arguments["v_stride_token"] == 576
    assert arguments["k_stride_batch"] == arguments["v_stride_batch"] == 64 * 576
    new = FakeTensor((BATCH, 1, 576))
    _, launch = decoded(engine, **latent_inputs(k_new=new, rope_table=FakeTensor((9 * 64, 64), "fp32"), rope="interleaved"))
    assert (launch["arguments"]["k_new"], launch["arguments"]["v_new"]) == (new.data, 0)


@pytest.mark.parametrize("named, changed", [
    ("v_head_dim", {"v_head_dim": None}), ("v_head_dim", {"v_head_dim": 600}), ("v_head_dim", {"v_head_dim": 0}),
    ("v_head_dim", {"v_cache": FakeTensor((40, 1, 64, 576))}), ("scale", {"scale": None}),
    ("v_new", {"k_new": FakeTensor((BATCH, 1, 576)), "v_new": FakeTensor((BATCH, 1, 512))}),
    ("out", {"out": FakeTensor((BATCH, 16, 576))}), ("v_scale", {"k_cache": FakeTensor((40, 1, 64, 576), "int8"), "v_scale": FakeTensor((1,), "fp32")}),
])
def test_what_latent_attention_has_not_is_refused_by_name(engine, named, changed):
    with pytest.raises(ValueError) as caught:
        leanattn.decode(**latent_inputs(**changed), engine=engine)
    assert named in str(caught.value) and fake.launches() == []


@pytest.mark.parametrize("shape, layout", [((40, 1, 64, 656), "HND"), ((40, 64, 1, 656), "NHD"), ((40, 64, 656), "HND"), ((40, 64, 656), "NHD")])
def test_rows_with_a_format_of_their_own_are_bytes(engine, shape, layout):
    given = latent_inputs(k_cache=FakeTensor(shape, "uint8"), kv_dtype="fp8_ds_mla", kv_layout=layout)
    o, launch = decoded(engine, **given)
    arguments = launch["arguments"]
    assert o.shape == (BATCH, 16, 512) and "dsmla" in launch["kernel"]
    assert arguments["k"] == arguments["v"] == given["k_cache"].data
    assert (arguments["k_stride_token"], arguments["k_stride_batch"], arguments["pool_pages"]) == (656, 64 * 656, 40)
    assert (arguments["k_scale"], arguments["v_scale"]) == (0, 0)


@pytest.mark.parametrize("shape", [(40, 64, 584), (40, 64, 1, 584)])
def test_rows_whose_scales_lie_behind_those_of_a_page_are_counted_with_them(engine, shape):
    """As FlashMLA's callers have them: a token's stride includes its scales, and pages may be padded."""
    padded = 65 * 576
    strides = {3: (padded, 584, 1), 4: (padded, 584, 584, 1)}[len(shape)]
    given = latent_inputs(q=FakeTensor((BATCH, 64, 512)), k_cache=FakeTensor(shape, "uint8", strides=strides), kv_dtype="fp8_ds_v4", kv_layout="NHD")
    o, launch = decoded(engine, **given)
    assert o.shape == (BATCH, 64, 512) and "dsv4" in launch["kernel"]
    assert (launch["arguments"]["k_stride_token"], launch["arguments"]["k_stride_batch"]) == (576, padded)
    window = FakeTensor((9, *shape[1:]), "uint8", strides=strides)
    _, launch = decoded(engine, **second_cache(**{**given, "page_table": None, "context_lengths": None}, second_k_cache=window))
    assert "_two" in launch["kernel"] and (launch["arguments"]["k_stride_token"], launch["arguments"]["k_stride_batch"]) == (576, padded)
    _, launch = decoded(engine, **given, k_new=FakeTensor((BATCH, 1, 512)))
    assert "_app" in launch["kernel"]


@pytest.mark.parametrize("error, said, changed", [
    (ValueError, "592 bytes apart, not 584", {"k_cache": FakeTensor((40, 64, 584), "uint8", strides=(64 * 592, 592, 1))}),
    (ValueError, "k_cache has stride 37448 in dimension 0, which is not a multiple of 16", {"k_cache": FakeTensor((40, 64, 584), "uint8", strides=(65 * 576 + 8, 584, 1))}),
    (ValueError, "with pages of 37376 bytes", {"k_cache": FakeTensor((40, 64, 584), "uint8", strides=(64 * 576, 584, 1))}),
    (leanattn.Unsupported, "even page_size", {"k_cache": FakeTensor((40, 3, 584), "uint8", strides=(1760, 584, 1))}),
    (leanattn.Unsupported, "without pages", {"k_cache": FakeTensor((BATCH, 64, 584), "uint8"), "page_table": None}),
    (ValueError, "give k_new with its columns turned", {"k_new": FakeTensor((BATCH, 1, 512)), "rope_table": FakeTensor((9 * 64, 64), "fp32"), "rope": "interleaved"}),
])
def test_what_rows_whose_scales_lie_behind_those_of_a_page_have_not_is_refused_by_name(engine, error, said, changed):
    given = latent_inputs(q=FakeTensor((BATCH, 64, 512)), k_cache=FakeTensor((40, 64, 584), "uint8"), kv_dtype="fp8_ds_v4")
    with pytest.raises(error, match=said):
        leanattn.decode(**{**given, **changed}, engine=engine)
    assert fake.launches() == []


def second_cache(**changed):
    return {**latent_inputs(k_cache=FakeTensor((40, 64, 656), "uint8"), kv_dtype="fp8_ds_mla", page_table=None, context_lengths=None,
                            selection=FakeTensor((BATCH, 1, 2048), "int32"), selected_counts=FakeTensor((BATCH,), "int32")),
            "second_k_cache": FakeTensor((9, 64, 656), "uint8"), "second_page_table": FakeTensor((BATCH, 2), "int32"),
            "second_lengths": FakeTensor((BATCH,), "int32"), **changed}


def test_a_second_cache_is_read_beside_selected_rows(engine):
    given = second_cache()
    _, launch = decoded(engine, **given)
    arguments = launch["arguments"]
    assert "_two" in launch["kernel"]
    assert (arguments["second_k"], arguments["second_v"]) == (given["second_k_cache"].data,) * 2
    assert (arguments["second_page_table"], arguments["second_lengths"]) == (given["second_page_table"].data, given["second_lengths"].data)
    assert (arguments["second_page_table_stride"], arguments["second_pool_pages"], arguments["second_capacity"]) == (2, 9, 128)


def test_a_second_cache_beside_selected_blocks_has_values_of_its_own(engine):
    given = inputs(page_table=FakeTensor((BATCH, 9), "int32"), k_cache=FakeTensor((40, KV_HEADS, 64, HEAD_DIM)), v_cache=FakeTensor((40, KV_HEADS, 64, HEAD_DIM)),
                   selection=FakeTensor((BATCH, KV_HEADS, 20), "int32"), selected_counts=FakeTensor((BATCH,), "int32"), selection_block=64,
                   second_k_cache=FakeTensor((9, KV_HEADS, 64, HEAD_DIM)), second_v_cache=FakeTensor((9, KV_HEADS, 64, HEAD_DIM)),
                   second_page_table=FakeTensor((BATCH, 2), "int32"), second_lengths=FakeTensor((BATCH,), "int32"))
    _, launch = decoded(engine, **given)
    arguments = launch["arguments"]
    assert (arguments["second_k"], arguments["second_v"]) == (given["second_k_cache"].data, given["second_v_cache"].data)


def test_pages_of_a_second_cache_beside_a_pool_of_one_page_are_found_by_its_own_stride(engine):
    pages = {"second_k_cache": FakeTensor((9, 64, 656), "uint8", strides=(80 * 656, 656, 1))}
    _, launch = decoded(engine, **second_cache(k_cache=FakeTensor((1, 64, 656), "uint8"), **pages))
    assert launch["arguments"]["k_stride_batch"] == 80 * 656
    given = inputs(page_table=FakeTensor((BATCH, 9), "int32"), k_cache=FakeTensor((1, KV_HEADS, 64, HEAD_DIM)), v_cache=FakeTensor((1, KV_HEADS, 64, HEAD_DIM)),
                   selection=FakeTensor((BATCH, KV_HEADS, 20), "int32"), selected_counts=FakeTensor((BATCH,), "int32"), selection_block=64,
                   second_page_table=FakeTensor((BATCH, 2), "int32"), second_lengths=FakeTensor((BATCH,), "int32"))
    page = KV_HEADS * 64 * HEAD_DIM
    pool = {"strides": (2 * page, 64 * HEAD_DIM, HEAD_DIM, 1)}
    _, launch = decoded(engine, **given, second_k_cache=FakeTensor((9, KV_HEADS, 64, HEAD_DIM), **pool),
                        second_v_cache=FakeTensor((9, KV_HEADS, 64, HEAD_DIM), **pool))
    assert (launch["arguments"]["k_stride_batch"], launch["arguments"]["v_stride_batch"]) == (2 * page, 2 * page)


@pytest.mark.parametrize("named, changed", [
    ("second_k_cache", {"second_k_cache": None}), ("second_k_cache", {"selection": None, "selected_counts": None, "context_lengths": FakeTensor((BATCH,), "int32"),
                                                              "page_table": FakeTensor((BATCH, 9), "int32")}),
    ("second_page_table", {"second_page_table": None}), ("second_lengths", {"second_lengths": None}),
    ("second_v_cache", {"second_v_cache": FakeTensor((9, 64, 656), "uint8")}),
    ("second_k_cache", {"second_k_cache": FakeTensor((9, 32, 656), "uint8")}),
    ("second_k_cache", {"second_k_cache": FakeTensor((9, 64, 656), "uint8", strides=(64 * 672, 672, 1))}),
    ("second_page_table", {"second_page_table": FakeTensor((BATCH + 1, 2), "int32")}),
    ("second_lengths", {"second_lengths": FakeTensor((BATCH, 2), "int32")}),
])
def test_a_second_cache_that_does_not_fit_is_refused_by_name(engine, named, changed):
    with pytest.raises(ValueError) as caught:
        leanattn.decode(**second_cache(**changed), engine=engine)
    assert named in str(caught.value) and fake.launches() == []


def test_new_rows_of_a_format_of_their_own_are_given_in_the_type_of_q(engine):
    new = FakeTensor((BATCH, 1, 576))
    _, launch = decoded(engine, **latent_inputs(k_cache=FakeTensor((40, 64, 656), "uint8"), kv_dtype="fp8_ds_mla", k_new=new,
                                                rope_table=FakeTensor((9 * 64, 64), "fp32"), rope="interleaved"))
    arguments = launch["arguments"]
    assert (arguments["k_new"], arguments["v_new"], arguments["k_new_stride_batch"]) == (new.data, 0, 576)
    assert "dsmla" in launch["kernel"] and "_app" in launch["kernel"]


def test_selected_rows_with_a_format_of_their_own(engine):
    given = latent_inputs(k_cache=FakeTensor((40, 64, 656), "uint8"), kv_dtype="fp8_ds_mla", page_table=None, context_lengths=None,
                          selection=FakeTensor((BATCH, 1, 2048), "int32"), selected_counts=FakeTensor((BATCH,), "int32"))
    _, launch = decoded(engine, **given)
    assert (launch["arguments"]["k_stride_token"], launch["arguments"]["pool_pages"]) == (656, 40)


@pytest.mark.parametrize("error, said, changed", [
    (TypeError, "fp8_ds_mla", {"kv_dtype": None}), (ValueError, "bytes of a row", {"k_cache": FakeTensor((40, 64, 576), "uint8")}),
    (ValueError, "kv_dtype", {"k_cache": FakeTensor((40, 64, 656))}), (ValueError, "k_scale", {"k_scale": FakeTensor((1,), "fp32")}),
    (leanattn.Unsupported, "512 are V", {"v_head_dim": 256}),
    (leanattn.Unsupported, "rotated columns are bf16", {"q": FakeTensor((BATCH, 16, 576), "fp16")}),
    (ValueError, "v_new", {"k_new": FakeTensor((BATCH, 1, 576)), "v_new": FakeTensor((BATCH, 1, 512))}),
    (TypeError, "k_new", {"k_new": FakeTensor((BATCH, 1, 656), "uint8")}), (ValueError, "k_new", {"k_new": FakeTensor((BATCH, 1, 656))}),
])
def test_what_rows_with_a_format_of_their_own_have_not_is_refused_by_name(engine, error, said, changed):
    with pytest.raises(error) as caught:
        leanattn.decode(**{**latent_inputs(k_cache=FakeTensor((40, 64, 656), "uint8"), kv_dtype="fp8_ds_mla"), **changed}, engine=engine)
    assert said in str(caught.value) and fake.launches() == []


def test_a_latent_cache_needs_no_dimension_for_its_one_head(engine):
    _, launch = decoded(engine, **latent_inputs(k_cache=FakeTensor((40, 64, 576))))
    assert (launch["arguments"]["k_stride_token"], launch["arguments"]["k_stride_batch"]) == (576, 64 * 576)


def selected_inputs(**changed):
    """A step in which each query token sees up to 20 blocks of 16 tokens of its request."""
    return {**inputs(k_cache=FakeTensor((50, KV_HEADS, 64, HEAD_DIM)), v_cache=FakeTensor((50, KV_HEADS, 64, HEAD_DIM)), page_table=FakeTensor((BATCH, 9), "int32")),
            "selection": FakeTensor((BATCH, KV_HEADS, 20), "int32"), "selected_counts": FakeTensor((BATCH,), "int32"), "selection_block": 16, **changed}


def test_a_selection_of_blocks_of_a_request(engine):
    given = selected_inputs()
    _, launch = decoded(engine, **given)
    arguments = launch["arguments"]
    assert (arguments["selection"], arguments["context_lengths"]) == (given["selection"].data, given["selected_counts"].data)
    assert (arguments["request_lengths"], arguments["request_capacity"]) == (given["context_lengths"].data, 9 * 64)
    assert (arguments["context_capacity"], arguments["selection_stride_head"], arguments["selection_stride_batch"]) == (20, 20, KV_HEADS * 20)
    shared = FakeTensor((BATCH, 1, 20), "int32")
    _, launch = decoded(engine, **selected_inputs(selection=shared))
    assert (launch["arguments"]["selection_stride_head"], launch["arguments"]["selection_stride_batch"]) == (0, 20)


def test_a_selection_of_tokens_of_the_pool_for_several_query_tokens(engine):
    given = latent_inputs(q=FakeTensor((BATCH, 2, 16, 576)), page_table=None, context_lengths=None,
                          selection=FakeTensor((BATCH, 2, 1, 2048), "int32"), selected_counts=FakeTensor((BATCH, 2), "int32"))
    o, launch = decoded(engine, **given)
    arguments = launch["arguments"]
    assert o.shape == (BATCH, 2, 16, 512)
    assert (arguments["batch"], arguments["pool_pages"], arguments["page_table"], arguments["request_lengths"]) == (2 * BATCH, 40, 0, 0)
    assert (arguments["selection_stride_token"], arguments["selection_stride_batch"]) == (2048, 4096)


@pytest.mark.parametrize("named, changed", [
    ("selected_counts", {"selected_counts": None}), ("selection", {"selection": None}), ("selection", {"selection": FakeTensor((BATCH, 3, 20), "int32")}),
    ("selection", {"selection": FakeTensor((BATCH, KV_HEADS, 20), "int64")}), ("selected_counts", {"selected_counts": FakeTensor((BATCH + 1,), "int32")}),
    ("selection_block", {"selection_block": 24}), ("selection_block", {"selection_block": 0}), ("a window", {"window": 30}),
    ("selection", {"selection": None, "selected_counts": None}),
])
def test_what_a_selection_cannot_be_is_refused_by_name(engine, named, changed):
    with pytest.raises((ValueError, TypeError, leanattn.Error)) as caught:
        leanattn.decode(**selected_inputs(**changed), engine=engine)
    assert named in str(caught.value) and fake.launches() == []


def test_a_workspace_is_a_streams_own_and_stays(engine):
    used = {}
    streams = [0, fake.make_stream(), fake.make_stream()]
    for _, stream in itertools.product(range(3), streams):
        _, launch = decoded(engine, **inputs(), stream=stream)
        used.setdefault(stream, set()).add(launch["arguments"]["partials"])
    assert all(len(places) == 1 for places in used.values())
    assert len(set.union(*used.values())) == len(streams)
    held = engine.workspace_bytes
    assert held > 0 and fake.live_buffers() == len(streams)


def test_a_graph_has_a_workspace_of_its_own_until_it_is_gone(engine):
    stream = fake.make_stream()
    _, eager = decoded(engine, **inputs(), stream=stream)
    places = []
    for _ in range(3):
        fake.begin_capture(stream)
        for _ in range(2):
            leanattn.decode(**inputs(), stream=stream, engine=engine)
        graph = fake.end_capture(stream)
        fake.replay(graph, stream)
        launches = fake.launches()[-2:]
        places.append({launch["arguments"]["partials"] for launch in launches})
        assert len(places[-1]) == 1 and eager["arguments"]["partials"] not in places[-1]
        buffers = fake.live_buffers()
        fake.destroy_graph(graph)
    assert places[0] == places[1] == places[2]  # given back, and taken again
    assert fake.live_buffers() == buffers == 2


def test_two_graphs_that_live_share_no_workspace(engine):
    stream = fake.make_stream()
    decoded(engine, **inputs(), stream=stream)
    places, graphs = set(), []
    for _ in range(2):
        fake.begin_capture(stream)
        leanattn.decode(**inputs(), stream=stream, engine=engine)
        graphs.append(fake.end_capture(stream))
        fake.replay(graphs[-1], stream)
        places.add(fake.launches()[-1]["arguments"]["partials"])
    assert len(places) == 2
    for graph in graphs:
        fake.destroy_graph(graph)


def test_a_workspace_of_the_users_serves_streams_and_graphs(engine):
    plan = engine.plan(leanattn.Problem(q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM), batch=BATCH, longest_context=CONTEXT)
    workspace = leanattn.Workspace(engine, plan.workspace_bytes)
    assert workspace.bytes >= plan.workspace_bytes and str(workspace.bytes) in repr(workspace)
    assert fake.live_buffers() == 1
    _, eager = decoded(engine, **inputs(), workspace=workspace)
    stream = fake.make_stream()
    fake.begin_capture(stream)
    leanattn.decode(**inputs(), stream=stream, engine=engine, workspace=workspace)
    graph = fake.end_capture(stream)
    fake.replay(graph, stream)
    assert fake.launches()[-1]["arguments"]["partials"] == eager["arguments"]["partials"]
    assert fake.live_buffers() == 1 and engine.workspace_bytes == 0  # the engine made none
    fake.destroy_graph(graph)
    del workspace
    gc.collect()
    assert fake.live_buffers() == 0


def test_a_workspace_may_be_made_while_a_stream_is_captured(engine):
    stream = fake.make_stream()
    fake.begin_capture(stream)
    workspace = leanattn.Workspace(engine, 1)
    fake.destroy_graph(fake.end_capture(stream))
    assert workspace.bytes >= 1


def test_a_workspace_keeps_its_engine(engine, cache_dir):
    workspace = leanattn.Workspace(leanattn.Engine(cache_dir=cache_dir), 1)
    gc.collect()
    assert fake.live_buffers() == 1
    del workspace
    gc.collect()
    assert fake.live_buffers() == 0


def test_a_four_bit_cache_has_its_usual_scale_where_none_is_named(engine):
    heads = {"q_heads": Q_HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "kv_dtype": "int4"}
    names = [engine.plan(leanattn.Problem(**heads, **scale), batch=BATCH, longest_context=CONTEXT).kernel_name
             for scale in ({}, {"kv_scale": "in_row"}, {"kv_scale": "token"})]
    assert "_i4r_" in names[0] and names[0] == names[1] and "_i4t_" in names[2]


def test_a_typical_batch_is_what_is_looked_up(engine):
    """Steps of many batches then have one plan."""
    given = inputs()
    grids = {batch: decoded(engine, **given, typical_batch=batch)[1]["grid"] for batch in (BATCH, 64)}
    alone = engine.plan(leanattn.Problem(q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM), batch=64, max_batch=64, longest_context=CONTEXT)
    assert grids[64] == alone.grid and grids[BATCH] < grids[64]
    _, launch = decoded(engine, **given, typical_batch=1)  # a smaller one is no limit
    assert launch["arguments"]["batch"] == BATCH


def test_the_shape_of_a_mixed_step_is_what_is_looked_up(engine):
    """By its own mix, and where that is not known by the query tokens of q."""
    step = leanattn.shape_of([256, 256, 512], [1, 1, 128])
    assert step == leanattn.Shape(3, 512, 1024, 130, 1, 512, 128 * 384 + 128 * 129 // 2)
    assert leanattn.shape_of(iter([5, 7])) == leanattn.Shape(2, 7, 12)
    problem = leanattn.Problem(q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, q_len=17, ragged_q=True)
    with pytest.raises(ValueError, match="chunks is 4"):
        engine.plan(problem, dataclasses.replace(step, chunks=4))
    assert engine.plan(problem, step, max_batch=8).max_batch == 8
    offsets = {"q_offsets": FakeTensor((BATCH + 1,), dtype="int32"), "max_q_len": 1000}
    given = inputs(q=FakeTensor((40, Q_HEADS, HEAD_DIM)), **offsets)
    for options in ({}, {"shape": leanattn.Shape(BATCH, CONTEXT, query_tokens=40)}, {"shape": leanattn.Shape(BATCH + 1, CONTEXT), "max_batch": BATCH + 3}):
        _, launch = decoded(engine, **given, **options)
        assert launch["arguments"]["batch"] == BATCH
    for wrong in ("typical_batch", "longest_context", "total_context"):
        with pytest.raises(ValueError, match="shape"):
            leanattn.decode(**given, shape=step, **{wrong: 4}, engine=engine)


def test_a_capture_before_the_first_call_says_what_to_do(engine):
    stream = fake.make_stream()
    fake.begin_capture(stream)
    with pytest.raises(leanattn.NotPrepared, match="before the capture") as caught:
        leanattn.decode(**inputs(q=FakeTensor((BATCH, Q_HEADS, 48)), k_cache=FakeTensor((BATCH, KV_HEADS, CONTEXT, 48)),
                                 v_cache=FakeTensor((BATCH, KV_HEADS, CONTEXT, 48))), stream=stream, engine=engine)
    fake.destroy_graph(fake.end_capture(stream))
    assert caught.value.code == "not_prepared" and "decode()" in caught.value.hint


def test_an_error_of_the_driver_carries_its_code(engine):
    decoded(engine, **inputs())
    fake.fail_once("cuLaunchKernelEx", 1)
    with pytest.raises(leanattn.Error) as caught:
        leanattn.decode(**inputs(), engine=engine)
    assert caught.value.code == "launch_failed"
    fake.fail_once("cuMemAlloc", 2)
    with pytest.raises(MemoryError) as caught:
        leanattn.decode(**inputs(), stream=fake.make_stream(), engine=engine)
    assert caught.value.code == "out_of_memory"


def test_after_a_fault_nothing_is_launched_until_workspaces_are_reset(engine):
    mine = leanattn.Workspace(engine, 1 << 20)
    streams = [fake.make_stream() for _ in range(2)]
    for stream in streams:
        decoded(engine, **inputs(), stream=stream)
    captured = fake.make_stream()
    fake.begin_capture(captured)
    leanattn.decode(**inputs(), stream=captured, engine=engine)
    graph = fake.end_capture(captured)
    fake.replay(graph, captured)
    in_graph = fake.launches()[-1]["arguments"]["partials"]
    partials = [decoded(engine, **inputs(), **where)[1]["arguments"]["partials"]
                for where in ({"stream": streams[0]}, {"stream": streams[1]}, {"workspace": mine})]
    engine.check()
    for address in [*partials, in_graph]:
        ctypes.memset(address, 0x55, 64)
    fake.report_fault()
    launched = len(fake.launches())
    for call in (engine.check, lambda: leanattn.decode(**inputs(), engine=engine),
                 lambda: leanattn.decode(**inputs(), stream=fake.make_stream(), engine=engine)):
        with pytest.raises(leanattn.Error, match="ended with a fault") as caught:
            call()
        assert caught.value.code == "workspace_corrupt" and "reset_workspaces" in caught.value.hint
    assert len(fake.launches()) == launched
    engine.reset_workspaces()
    engine.check()
    for address in [*partials, in_graph]:
        assert ctypes.string_at(address, 64) == bytes(64)
    decoded(engine, **inputs(), stream=streams[0])
    fake.destroy_graph(graph)


def test_workspaces_are_not_reset_while_a_stream_is_captured(engine):
    decoded(engine, **inputs())
    fake.report_fault()
    stream = fake.make_stream()
    fake.begin_capture(stream)
    with pytest.raises(leanattn.Error):
        engine.reset_workspaces()
    fake.destroy_graph(fake.end_capture(stream))
    with pytest.raises(leanattn.Error, match="ended with a fault"):
        engine.check()
    engine.reset_workspaces()
    engine.check()


def test_a_growing_cache_asks_for_few_plans(engine):
    """Lengths within a sixteenth of an octave are looked up alike, so that a new one does not mean a new plan."""
    grids = {decoded(engine, **inputs(k_cache=FakeTensor((BATCH, KV_HEADS, n, HEAD_DIM)), v_cache=FakeTensor((BATCH, KV_HEADS, n, HEAD_DIM))))[1]["grid"]
             for n in range(4097, 4352, 20)}
    assert len(grids) == 1


def test_plans_say_what_they_are(engine):
    plan = engine.plan(leanattn.Problem(q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM), batch=2, max_batch=16, longest_context=8192)
    assert (plan.max_batch, plan.provenance, plan.layer, plan.engine) == (16, "fallback", "", engine)
    assert plan.kernel_name in repr(plan) and plan.grid > 0 and plan.workspace_bytes > 0
    with pytest.raises(ValueError, match="head_dim"):
        engine.plan(leanattn.Problem(head_dim=0))
    with pytest.raises(NotImplementedError, match="head_dim"):
        engine.plan(leanattn.Problem(head_dim=24))


def test_merge_takes_parts_of_one_shape(engine):
    parts = [FakeTensor((BATCH, Q_HEADS, HEAD_DIM)) for _ in range(3)]
    lses = [FakeTensor((BATCH, Q_HEADS), "fp32") for _ in range(3)]
    try:
        o, lse = leanattn.merge_partials(parts, lses, return_lse=True, engine=engine)
    except leanattn.Error as error:
        if error.code == "nvrtc_missing":
            pytest.skip(error.message)
        raise
    assert o.shape == (BATCH, Q_HEADS, HEAD_DIM) and lse.shape == (BATCH, Q_HEADS) and len(fake.launches()) == 1
    assert leanattn.merge_partials(parts, lses, out=parts[0], engine=engine) is parts[0]
    for bad, match in [((parts, lses[:2]), "lse_parts"), ((parts[0], lses), "o_parts"), (([], []), "o_parts"), ((parts * 3, lses * 3), "o_parts"),
                       ((parts, [FakeTensor((BATCH, Q_HEADS))] * 3), "lse_parts"), (([*parts[:2], FakeTensor((BATCH, Q_HEADS, 32))], lses), "o_parts"),
                       ((lses, lses), "o_parts"), ((parts, [1, 2, 3]), "lse_parts"), ((None, None), "o_parts")]:
        with pytest.raises((TypeError, ValueError), match=match):
            leanattn.merge_partials(*bad, engine=engine)
    assert len(fake.launches()) == 2


def test_merging_no_rows_launches_nothing(engine):
    parts, lses = [FakeTensor((0, Q_HEADS, HEAD_DIM)) for _ in range(2)], [FakeTensor((0, Q_HEADS), "fp32") for _ in range(2)]
    o, lse = leanattn.merge_partials(parts, lses, return_lse=True, engine=engine)
    assert (o.shape, lse.shape, fake.launches()) == ((0, Q_HEADS, HEAD_DIM), (0, Q_HEADS), [])


Q, KV = (BATCH, Q_HEADS, HEAD_DIM), (BATCH, KV_HEADS, CONTEXT, HEAD_DIM)
REFUSED = [
    # argument, what it becomes, beside what, error
    ("q", np.zeros(Q, np.float16), {}, ValueError),
    ("q", np.zeros(Q, np.float32), {}, ValueError),
    ("q", None, {}, TypeError),
    ("q", [[1.0]], {}, TypeError),
    ("q", FakeTensor(Q, "fp32"), {}, TypeError),
    ("q", FakeTensor(Q, "int64"), {}, TypeError),
    ("q", FakeTensor(Q[:2]), {}, ValueError),
    ("q", FakeTensor((1, 2, 3, 4, 5)), {}, ValueError),
    ("q", FakeTensor(Q, device=CPU), {}, ValueError),
    ("q", FakeTensor(Q, device=7), {}, ValueError),
    ("q", FakeTensor(Q, strides=(Q_HEADS * HEAD_DIM * 2, HEAD_DIM * 2, 2)), {}, ValueError),
    ("q", FakeTensor(Q, strides=(Q_HEADS * 70, 70, 1)), {}, ValueError),
    ("q", FakeTensor(Q, strides=(Q_HEADS * HEAD_DIM, -HEAD_DIM, 1)), {}, ValueError),
    ("q", FakeTensor(Q, offset=1), {}, ValueError),
    ("q", FakeTensor((0, 0, HEAD_DIM)), {}, ValueError),
    ("q", FakeTensor((BATCH, 0, Q_HEADS, HEAD_DIM)), {}, ValueError),
    ("context_lengths", FakeTensor((BATCH,), "int32"), {"q": FakeTensor((0, Q_HEADS, HEAD_DIM))}, ValueError),
    ("q", FakeTensor((BATCH, 7, HEAD_DIM)), {}, ValueError),  # no multiple of the KV heads
    ("k_cache", np.zeros(KV, np.float16), {}, ValueError),
    ("k_cache", "cache", {}, TypeError),
    ("k_cache", FakeTensor(KV, "fp16"), {"v_cache": FakeTensor(KV, "fp16")}, TypeError),
    ("k_cache", FakeTensor(KV, "uint8"), {"v_cache": FakeTensor(KV, "uint8")}, TypeError),
    ("k_cache", FakeTensor(KV, device_id=1), {}, ValueError),
    ("k_cache", FakeTensor((BATCH + 1, *KV[1:])), {"v_cache": FakeTensor((BATCH + 1, *KV[1:]))}, ValueError),
    ("k_cache", FakeTensor(KV[:3]), {}, ValueError),
    ("k_cache", FakeTensor(KV, strides=(CONTEXT * KV_HEADS * HEAD_DIM, 0, HEAD_DIM, 1)),
     {"k_new": FakeTensor((BATCH, KV_HEADS, HEAD_DIM)), "v_new": FakeTensor((BATCH, KV_HEADS, HEAD_DIM))}, ValueError),
    ("k_cache", FakeTensor(KV, strides=(CONTEXT * KV_HEADS * HEAD_DIM, -CONTEXT * HEAD_DIM, HEAD_DIM, 1)), {}, ValueError),
    ("k_cache", FakeTensor(KV, strides=(CONTEXT * KV_HEADS * HEAD_DIM, CONTEXT * HEAD_DIM, 1, CONTEXT)), {}, ValueError),
    ("k_cache", FakeTensor((*KV[:3], 32)), {}, ValueError),
    ("v_cache", FakeTensor(KV, "fp16"), {}, TypeError),
    ("v_cache", FakeTensor((BATCH, KV_HEADS, CONTEXT - 1, HEAD_DIM)), {}, ValueError),
    ("v_cache", FakeTensor((BATCH, KV_HEADS + 1, CONTEXT, HEAD_DIM)), {}, ValueError),
    ("v_cache", FakeTensor(KV, device=CPU), {}, ValueError),
    ("context_lengths", np.zeros(BATCH, np.int32), {}, ValueError),
    ("context_lengths", [1, 2, 3], {}, TypeError),
    ("context_lengths", FakeTensor((BATCH,), "int64"), {}, TypeError),
    ("context_lengths", FakeTensor((BATCH,), "fp32"), {}, TypeError),
    ("context_lengths", FakeTensor((BATCH + 1,), "int32"), {}, ValueError),
    ("context_lengths", FakeTensor((BATCH, 1), "int32"), {}, ValueError),
    ("context_lengths", FakeTensor((BATCH,), "int32", strides=(2,)), {}, ValueError),
    ("context_lengths", FakeTensor((BATCH,), "int32", device_id=1), {}, ValueError),
    ("page_table", FakeTensor((BATCH, 4), "int64"), {}, TypeError),
    ("page_table", FakeTensor((BATCH - 1, 4), "int32"), {}, ValueError),
    ("page_table", FakeTensor((BATCH, 4), "int32", device=CPU), {}, ValueError),
    ("page_table", FakeTensor((BATCH, 4), "int32", strides=(1, BATCH)), {}, ValueError),
    ("out", FakeTensor((BATCH, Q_HEADS, 32)), {}, ValueError),
    ("out", FakeTensor(Q, "fp16"), {}, TypeError),
    ("out", FakeTensor(Q, strides=(0, HEAD_DIM, 1)), {}, ValueError),
    ("out", FakeTensor(Q, strides=(Q_HEADS * HEAD_DIM, 0, 1)), {}, ValueError),
    ("out_lse", FakeTensor((BATCH, Q_HEADS), "fp32", strides=(0, 1)), {}, ValueError),
    ("out", np.zeros(Q, np.float16), {}, ValueError),
    ("out_lse", FakeTensor((BATCH, Q_HEADS)), {}, TypeError),
    ("out_lse", FakeTensor((BATCH, KV_HEADS), "fp32"), {}, ValueError),
    ("scale", "big", {}, TypeError),
    ("scale", -1.0, {}, ValueError),
    ("scale", float("nan"), {}, ValueError),
    ("kv_layout", "DNH", {}, ValueError),
    ("kv_layout", 3, {}, TypeError),
    ("kv_layout", None, {}, TypeError),
    ("kv_dtype", "fp8_e4m3", {}, ValueError),
    ("kv_dtype", "int4", {}, ValueError),
    ("k_scale", FakeTensor((1,), "fp32"), {}, ValueError),  # of a bf16 cache
    ("k_scale", FakeTensor((5,), "fp32"), {"k_cache": FakeTensor(KV, "int8"), "v_cache": FakeTensor(KV, "int8")}, ValueError),
    ("k_scale", FakeTensor((1,), "bf16"), {"k_cache": FakeTensor(KV, "int8"), "v_cache": FakeTensor(KV, "int8")}, TypeError),
    ("v_scale", FakeTensor((KV_HEADS,), "fp32"), {"k_cache": FakeTensor(KV, "int8"), "v_cache": FakeTensor(KV, "int8"), "k_scale": FakeTensor((1,), "fp32")}, ValueError),
    ("max_q_len", None, {"q_offsets": FakeTensor((BATCH + 1,), "int32")}, ValueError),
    ("max_q_len", 4, {}, ValueError),
    ("q_offsets", FakeTensor((BATCH,), "int32"), {"max_q_len": 2}, ValueError),
    ("mask", "diagonal", {}, ValueError),
    ("tree_mask", None, {"mask": "tree"}, ValueError),
    ("tree_mask", FakeTensor((1,), "int32"), {}, ValueError),
    ("tree_mask", FakeTensor((BATCH,), "fp32"), {}, TypeError),
    ("spans", FakeTensor((BATCH, 2), "int32"), {}, ValueError),  # without q_offsets
    ("spans", FakeTensor((BATCH,), "int32"), {}, ValueError),
    ("spans", FakeTensor((BATCH, 3), "int32"), {}, ValueError),
    ("spans", FakeTensor((BATCH + 1, 2), "int32"), {}, ValueError),
    ("spans", FakeTensor((BATCH, 2), "int64"), {}, TypeError),
    ("window", "all", {}, TypeError),
    ("window", -1, {}, ValueError),
    ("window", 2**40, {}, ValueError),
    ("window", None, {}, TypeError),
    ("sink_tokens", 4, {}, ValueError),  # without a window
    ("sink_logits", FakeTensor((KV_HEADS,), "fp32"), {}, ValueError),
    ("soft_cap", -2.0, {}, ValueError),
    ("alibi_slopes", FakeTensor((Q_HEADS,), "bf16"), {}, TypeError),
    ("score", "system(1)", {}, ValueError),
    ("score", "", {}, ValueError),
    ("score", 3, {}, TypeError),
    ("k_new", FakeTensor((BATCH, KV_HEADS, HEAD_DIM), "fp16"), {"v_new": FakeTensor((BATCH, KV_HEADS, HEAD_DIM))}, TypeError),
    ("v_new", None, {"k_new": FakeTensor((BATCH, KV_HEADS, HEAD_DIM))}, ValueError),
    ("rope_table", FakeTensor((CONTEXT - 1, HEAD_DIM), "fp32"), {}, ValueError),
    ("rope_table", None, {"rope": "half_split"}, ValueError),
    ("rope", "spiral", {"rope_table": FakeTensor((CONTEXT, HEAD_DIM), "fp32")}, ValueError),
    ("pdl", 1, {}, TypeError),
    ("return_lse", "yes", {}, TypeError),
    ("max_batch", 1, {}, ValueError),  # below the batch
    ("longest_context", -5, {}, ValueError),
    ("longest_context", 1.5, {}, TypeError),
    ("stream", object(), {}, TypeError),
    ("stream", True, {}, TypeError),
    ("stream", -1, {}, ValueError),
    ("stream", 2**64, {}, ValueError),
    ("stream", type("S", (), {"cuda_stream": -1})(), {}, ValueError),
    ("longest_context", 2**64, {}, ValueError),
    ("scale", 10**400, {}, ValueError),
    ("engine", "mine", {}, TypeError),
    ("workspace", "mine", {}, TypeError),
    ("typical_batch", 0, {}, ValueError),
    ("typical_batch", 1.5, {}, TypeError),
]


@pytest.mark.parametrize("argument, value, beside, error", REFUSED, ids=lambda value: value if isinstance(value, str) else None)
def test_what_cannot_be_is_refused_by_name(engine, argument, value, beside, error):
    given = {**inputs(), "engine": engine, **beside, argument: value}
    with pytest.raises(error) as caught:
        leanattn.decode(**given)
    assert isinstance(caught.value, leanattn.Error) and caught.value.code in ("invalid_argument", "unsupported")
    assert argument in str(caught.value), str(caught.value)
    assert fake.launches() == []
    assert all(tensor.borrowed == 0 for tensor in given.values() if isinstance(tensor, FakeTensor))


WIDE = {"q": FakeTensor((BATCH, 64, 512)), "k_cache": FakeTensor((BATCH, 1, CONTEXT, 512)), "v_cache": FakeTensor((BATCH, 1, CONTEXT, 512))}


def test_the_engines_own_workspace_serves_where_that_of_the_users_is_too_small(engine):
    """A plan may need more after a tuning than when the workspace was made."""
    small, stream = leanattn.Workspace(engine, 1), fake.make_stream()
    _, launch = decoded(engine, **inputs(**WIDE), workspace=small, longest_context=2**20, stream=stream)
    held = engine.workspace_bytes
    assert held > small.bytes
    _, own = decoded(engine, **inputs(**WIDE), longest_context=2**20, stream=stream)
    assert launch["arguments"]["partials"] == own["arguments"]["partials"] and engine.workspace_bytes == held


def test_a_workspace_that_is_too_small_is_refused_in_a_capture_with_both_sizes(engine):
    small, stream = leanattn.Workspace(engine, 1), fake.make_stream()
    decoded(engine, **inputs(**WIDE), workspace=small, longest_context=2**20)
    launched = len(fake.launches())
    fake.begin_capture(stream)
    with pytest.raises(ValueError, match=f"workspace has {small.bytes} bytes, but this launch needs") as caught:
        leanattn.decode(**inputs(**WIDE), engine=engine, workspace=small, longest_context=2**20, stream=stream)
    graph = fake.end_capture(stream)
    fake.replay(graph, stream)
    fake.destroy_graph(graph)
    assert "Plan.workspace_bytes" in caught.value.hint and len(fake.launches()) == launched


def test_a_workspace_has_bytes_and_an_engine(engine):
    for bad in (0, -1):
        with pytest.raises(ValueError, match="bytes"):
            leanattn.Workspace(engine, bad)
    with pytest.raises(TypeError, match="engine"):
        leanattn.Workspace("an engine", 1)


def test_q_may_not_be_the_output(engine):
    given = inputs()
    with pytest.raises(ValueError, match="out is q"):
        leanattn.decode(**given, out=given["q"], engine=engine)


SEVERAL = 2**64


@pytest.mark.parametrize("named, call", [
    ("batch", lambda engine: engine.plan(leanattn.Problem(), SEVERAL)),
    ("batch", lambda engine: engine.plan(leanattn.Problem(), -(2**31) - 1)),
    ("max_batch", lambda engine: engine.plan(leanattn.Problem(), max_batch=2**31)),
    ("longest_context", lambda engine: engine.plan(leanattn.Problem(), longest_context=SEVERAL)),
    ("total_context", lambda engine: engine.plan(leanattn.Problem(), total_context=SEVERAL)),
    ("stream", lambda engine: engine.plan(leanattn.Problem(), stream=SEVERAL)),
    ("batch", lambda engine: leanattn.plan(leanattn.Problem(), SEVERAL)),
    ("device", lambda engine: leanattn.plan(leanattn.Problem(), device=SEVERAL)),
    ("device", lambda engine: leanattn.engine(SEVERAL)),
    ("device", lambda engine: leanattn.Engine(SEVERAL)),
    ("device", lambda engine: leanattn.tune(leanattn.Problem(), [(1, 64)], device=SEVERAL)),
    ("batch", lambda engine: leanattn.tune(leanattn.Problem(), [(SEVERAL, 64)], engine=engine)),
    ("memory", lambda engine: leanattn.tune(leanattn.Problem(), [(1, 64)], memory=SEVERAL, engine=engine)),
    ("bytes", lambda engine: leanattn.Workspace(engine, SEVERAL)),
    ("window", lambda engine: leanattn.Problem(window=SEVERAL)),
    ("memory", lambda engine: leanattn.Group(engine, 0, 2, 1 << 20, memory=-256)),
    ("memory_bytes", lambda engine: leanattn.Group(engine, 0, 2, SEVERAL)),
    ("max_batch", lambda engine: leanattn.Group.bytes_for(leanattn.Problem(context_parallel=2), SEVERAL)),
    ("page_size", lambda engine: leanattn.page_table(*[FakeTensor((2,), "int32")] * 3, SEVERAL, engine=engine)),
    ("q.__dlpack_device__", lambda engine: leanattn.decode(**inputs(q=FakeTensor(Q, device=SEVERAL)), engine=engine)),
])
def test_an_integer_out_of_range_is_an_argument_error_that_names_it(engine, named, call):
    with pytest.raises(leanattn.ArgumentError) as caught:
        call(engine)
    assert str(caught.value).startswith(named), str(caught.value)


@pytest.mark.parametrize("version", [(0, 8), (2, 1)])
def test_another_dlpack_is_refused_with_both_versions(engine, version):
    with pytest.raises(leanattn.ArgumentTypeError, match=rf"q speaks DLPack {version[0]}\.{version[1]}, not 1\."):
        leanattn.decode(**inputs(q=FakeTensor(Q, version=version)), engine=engine)


def test_a_workspace_larger_than_any_gpu_is_no_argument_of_the_driver(engine):
    with pytest.raises(leanattn.OutOfMemory, match=str(2**63 - 1)):
        leanattn.Workspace(engine, 2**63 - 1)


def test_an_engine_of_another_gpu_is_refused(engine):
    given = {name: FakeTensor(tensor.shape, tensor.dtype, device_id=1) for name, tensor in inputs().items()}
    with pytest.raises(ValueError, match="engine is of CUDA device 0"):
        leanattn.decode(**given, engine=engine)


def test_a_broken_producers_own_error_comes_through(engine):
    class Broken(FakeTensor):
        def __dlpack__(self, **_):
            raise BufferError("exported twice")

    with pytest.raises(BufferError, match="exported twice"):
        leanattn.decode(**inputs(k_cache=Broken(KV)), engine=engine)

    class Empty(FakeTensor):
        def __dlpack__(self, **_):
            return None

    with pytest.raises(TypeError, match="k_cache"):
        leanattn.decode(**inputs(k_cache=Empty(KV)), engine=engine)


NOT_READY = 600  # CUDA_ERROR_NOT_READY
PER_THREAD = 2  # CU_STREAM_PER_THREAD


def in_another_thread(function):
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def test_the_per_thread_stream_is_another_one_in_each_thread(engine):
    def place():
        return decoded(engine, **inputs(), stream=PER_THREAD)[1]["arguments"]["partials"]

    mine = place()
    assert place() == mine and fake.live_buffers() == 1
    fake.fail_once("cuEventQuery", NOT_READY)
    others = in_another_thread(lambda: {place(), place()})
    assert len(others) == 1 and mine not in others, "both launches may be running"
    assert place() == mine
    for _ in range(20):
        assert in_another_thread(place) in {mine, *others}
    assert fake.live_buffers() == 2, "threads that have come and gone leave no memory behind"


def test_a_fault_of_a_per_thread_stream_is_reset(engine):
    partials = decoded(engine, **inputs(), stream=PER_THREAD)[1]["arguments"]["partials"]
    ctypes.memset(partials, 0x55, 64)
    fake.report_fault()
    engine.reset_workspaces()
    assert ctypes.string_at(partials, 64) == bytes(64)


def test_graphs_of_per_thread_streams_have_their_own_workspaces(engine):
    eager = decoded(engine, **inputs(), stream=PER_THREAD)[1]["arguments"]["partials"]

    def captured():
        fake.begin_capture(PER_THREAD)
        leanattn.decode(**inputs(), stream=PER_THREAD, engine=engine)
        return fake.end_capture(PER_THREAD)

    graphs = [captured(), in_another_thread(captured)]
    for graph in graphs:
        fake.replay(graph, 0)
    assert len({eager, *(launch["arguments"]["partials"] for launch in fake.launches()[-2:])}) == 3
    for graph in graphs:
        fake.destroy_graph(graph)
    assert decoded(engine, **inputs(), stream=PER_THREAD)[1]["arguments"]["partials"] == eager
