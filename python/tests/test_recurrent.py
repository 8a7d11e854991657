"""recurrent() on a GPU that is not there: what arrives at the kernel, and what is refused by name."""
import gc

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")

import leanattn  # noqa: E402
from fake_tensors import FakeTensor, FastTensor  # noqa: E402

REQUESTS, QK_HEADS, V_HEADS, KEY_DIM, VALUE_DIM, SLOTS = 3, 2, 4, 64, 128, 7


@pytest.fixture
def engine(cache_dir):
    gc.collect()
    fake.reset()
    fake.keep_recurrent()
    FastTensor.current_stream = 0
    return leanattn.Engine(cache_dir=cache_dir)


def inputs(made_of=FakeTensor, tokens=1, **changed):
    """A step of the gated delta rule; `changed` replaces some of its tensors."""
    rows = REQUESTS * tokens
    made = {"q": made_of((rows, QK_HEADS, KEY_DIM)), "k": made_of((rows, QK_HEADS, KEY_DIM)), "v": made_of((rows, V_HEADS, VALUE_DIM)),
            "state": made_of((SLOTS, V_HEADS, VALUE_DIM, KEY_DIM), "fp32"), "slots": made_of((REQUESTS,), "int32"),
            "a": made_of((rows, V_HEADS)), "b": made_of((rows, V_HEADS)), "a_log": made_of((V_HEADS,), "fp32"), "dt_bias": made_of((V_HEADS,), "fp32")}
    return {**made, **changed}


def stepped(engine, **arguments):
    """(result, what arrived at the kernel, the kernel's name)"""
    try:
        result = leanattn.recurrent(**arguments, engine=engine)
    except leanattn.Error as error:
        if error.code == "nvrtc_missing":
            pytest.skip(error.message)
        raise
    return result, fake.recurrent_arguments(), fake.launches()[-1]["kernel"]


@pytest.mark.parametrize("kind", [FakeTensor, FastTensor])
def test_a_step_arrives_as_it_is(engine, kind):
    given = inputs(kind)
    o, arrived, kernel = stepped(engine, **given)
    assert o.shape == (REQUESTS, V_HEADS, VALUE_DIM) and o.dtype == "bf16"
    assert arrived["o"] == o.data
    for name, tensor in given.items():
        assert arrived[name] == tensor.data, name
    assert (arrived["q_stride"], arrived["v_stride"], arrived["a_stride"]) == (QK_HEADS * KEY_DIM, V_HEADS * VALUE_DIM, V_HEADS)
    assert (arrived["slot_count"], arrived["first_slot"], arrived["slots_stride"]) == (SLOTS, 0, 1)
    assert arrived["scale"] == KEY_DIM ** -0.5
    assert "gated_delta_softplus_bf16_fp32_norm_h2x4_k64_v128_t1" in kernel


def test_parts_of_one_tensor_are_read_where_they_lie(engine):
    row = 2 * QK_HEADS * KEY_DIM + V_HEADS * VALUE_DIM
    q = FakeTensor((REQUESTS, QK_HEADS, KEY_DIM), strides=(row, KEY_DIM, 1))
    v = FakeTensor((REQUESTS, V_HEADS, VALUE_DIM), strides=(row, VALUE_DIM, 1))
    _, arrived, _ = stepped(engine, **inputs(q=q, k=q, v=v))
    assert (arrived["q_stride"], arrived["k_stride"], arrived["v_stride"]) == (row, row, row)


def test_drafts_with_snapshots(engine):
    accepted = FakeTensor((REQUESTS,), "int32")
    slots = FakeTensor((REQUESTS, 4), "int32", strides=(6, 1))
    _, arrived, kernel = stepped(engine, **inputs(tokens=4, slots=slots, accepted=accepted, snapshots=True, first_slot=1))
    assert (arrived["slots_stride"], arrived["accepted"], arrived["first_slot"]) == (6, accepted.data, 1)
    assert "_t4_snap_" in kernel


def test_ragged_tokens_and_other_slots(engine):
    given = inputs(tokens=2, token_offsets=FakeTensor((REQUESTS + 1,), "int32"), max_tokens=3, out_slots=FakeTensor((REQUESTS,), "int32"))
    _, arrived, kernel = stepped(engine, **given)
    assert arrived["token_offsets"] == given["token_offsets"].data and arrived["out_slots"] == given["out_slots"].data
    assert "_t3_ragged_" in kernel


def test_kinds_have_gates_of_their_own(engine):
    channels = FakeTensor((REQUESTS, V_HEADS, KEY_DIM))
    _, arrived, kernel = stepped(engine, **inputs(kind="kda", gates="bounded", a=channels, dt_bias=FakeTensor((V_HEADS, KEY_DIM), "fp32"), lower_bound=-4.0))
    assert (arrived["a_stride"], arrived["lower_bound"]) == (V_HEADS * KEY_DIM, -4.0) and "kda_bounded" in kernel
    _, arrived, _ = stepped(engine, **inputs(kind="mamba2", b=None, skip=FakeTensor((V_HEADS,), "fp32")))
    assert arrived["scale"] == 1
    _, _, kernel = stepped(engine, **inputs(kind="lightning", a=None, b=None, dt_bias=None))
    assert "lightning_constant" in kernel and "norm" not in kernel
    _, _, kernel = stepped(engine, **inputs(kind="gla", a=FakeTensor((REQUESTS, V_HEADS, KEY_DIM), "fp32"), b=None, a_log=None, dt_bias=None, normalise=True))
    assert "gla_given_bf16_fp32_norm" in kernel


def test_erasures_of_their_own(engine):
    channels = FakeTensor((REQUESTS, V_HEADS, KEY_DIM))
    erase = FakeTensor((REQUESTS, V_HEADS, KEY_DIM), strides=(1024, KEY_DIM, 1))
    given = {"a": channels, "b": None, "dt_bias": FakeTensor((V_HEADS, KEY_DIM), "fp32"), "erase": erase}
    write = FakeTensor((REQUESTS, V_HEADS, VALUE_DIM))
    _, arrived, kernel = stepped(engine, **inputs(kind="gdn2", write=write, **given))
    assert (arrived["erase"], arrived["erase_stride"], arrived["write"], arrived["write_stride"]) == (erase.data, 1024, write.data, V_HEADS * VALUE_DIM)
    assert "gdn2_softplus_bf16_fp32_norm" in kernel
    _, arrived, kernel = stepped(engine, **inputs(kind="rwkv7", write=FakeTensor((REQUESTS, V_HEADS, KEY_DIM)), **given))
    assert arrived["write_stride"] == V_HEADS * KEY_DIM and arrived["scale"] == 1 and "rwkv7_bounded_bf16_fp32_h" in kernel
    with pytest.raises(leanattn.Error, match="write"):
        leanattn.recurrent(**inputs(kind="rwkv7", write=write, **given), engine=engine)
    with pytest.raises(leanattn.Error, match="erase is null"):
        leanattn.recurrent(**inputs(kind="gdn2", write=write, **{**given, "erase": None}), engine=engine)


def test_a_given_result_and_a_bf16_state(engine):
    out = FakeTensor((REQUESTS, V_HEADS, VALUE_DIM))
    pool = FakeTensor((SLOTS, V_HEADS, VALUE_DIM, KEY_DIM), "bf16", strides=(V_HEADS * VALUE_DIM * KEY_DIM + 64, VALUE_DIM * KEY_DIM, KEY_DIM, 1))
    o, arrived, kernel = stepped(engine, **inputs(out=out, state=pool))
    assert o is out and arrived["o"] == out.data
    assert arrived["state_stride"] == V_HEADS * VALUE_DIM * KEY_DIM + 64 and "_bf16_bf16_" in kernel


def test_states_with_keys_first(engine):
    pool = FakeTensor((SLOTS, V_HEADS, KEY_DIM, VALUE_DIM), "fp32")
    _, _, kernel = stepped(engine, **inputs(state=pool, keys_first=True))
    assert "_v128_kv_t1" in kernel
    with pytest.raises(leanattn.Error, match="state"):
        leanattn.recurrent(**inputs(keys_first=True), engine=engine)


def test_a_ring_of_each_slot(engine):
    u = FakeTensor((SLOTS, 9, V_HEADS, VALUE_DIM), "fp32", strides=(9 * V_HEADS * VALUE_DIM + 64, V_HEADS * VALUE_DIM, VALUE_DIM, 1))
    k, w, spans = FakeTensor((SLOTS, 9, QK_HEADS, KEY_DIM), "fp32"), FakeTensor((SLOTS, 9, V_HEADS), "fp32"), FakeTensor((REQUESTS, 2), "int32")
    _, arrived, kernel = stepped(engine, **inputs(ring=(u, k, w), ring_spans=spans))
    assert [arrived[f"ring_{name}"] for name in ("u", "k", "w", "spans")] == [tensor.data for tensor in (u, k, w, spans)]
    assert [arrived[f"ring_{name}_stride"] for name in "ukw"] == [9 * V_HEADS * VALUE_DIM + 64, 9 * QK_HEADS * KEY_DIM, 9 * V_HEADS] and "_t1_r9_" in kernel
    channels = FakeTensor((SLOTS, 9, V_HEADS, KEY_DIM), "fp32")
    of_kda = {"kind": "kda", "a": FakeTensor((REQUESTS, V_HEADS, KEY_DIM)), "dt_bias": FakeTensor((V_HEADS, KEY_DIM), "fp32")}
    _, arrived, _ = stepped(engine, **inputs(ring=(u, k, channels), ring_spans=spans, **of_kda))
    assert arrived["ring_w_stride"] == 9 * V_HEADS * KEY_DIM
    for wrong, given in [("ring_spans is None", {"ring": (u, k, w)}), ("ring is None", {"ring_spans": spans}), ("ring", {"ring": u, "ring_spans": spans}),
                         (r"ring\[2\]", {"ring": (u, k, channels), "ring_spans": spans}),
                         (r"ring\[1\]", {"ring": (u, FakeTensor((SLOTS, 8, QK_HEADS, KEY_DIM), "fp32"), w), "ring_spans": spans}),
                         ("ring_spans", {"ring": (u, k, w), "ring_spans": FakeTensor((REQUESTS, 3), "int32")}),
                         ("out_slots", {"ring": (u, k, w), "ring_spans": spans, "out_slots": FakeTensor((REQUESTS,), "int32")})]:
        with pytest.raises(leanattn.Error, match=wrong):
            leanattn.recurrent(**inputs(**given), engine=engine)


def test_a_gated_output(engine):
    z = FakeTensor((REQUESTS, V_HEADS, VALUE_DIM), strides=(1024, VALUE_DIM, 1))
    weight = FakeTensor((VALUE_DIM,), "fp32")
    _, arrived, kernel = stepped(engine, **inputs(z=z, norm_weight=weight, output_gate="sigmoid", output_eps=1e-5))
    assert (arrived["z"], arrived["z_stride"], arrived["norm_weight"]) == (z.data, 1024, weight.data) and "_sigmoid_" in kernel
    assert abs(arrived["output_eps"] / 1e-5 - 1) < 1e-6
    with pytest.raises(leanattn.Error, match="norm_weight is null"):
        leanattn.recurrent(**inputs(z=z), engine=engine)


CHANNELS = 2 * QK_HEADS * KEY_DIM + V_HEADS * VALUE_DIM


def convolution(width=4, slots=SLOTS, tokens=None, **changed):
    """As vLLM has it: one weight, and a state [slots, tokens, channels] seen as [slots, channels, tokens]."""
    tokens = tokens or width - 1
    made = {"conv_weight": FakeTensor((CHANNELS, width)), "conv_readers": FakeTensor((REQUESTS * QK_HEADS,), "int32"),
            "conv_state": FakeTensor((slots, CHANNELS, tokens), strides=(tokens * CHANNELS, 1, CHANNELS))}
    return {**made, **changed}


def test_a_short_convolution_of_one_tensor(engine):
    given = convolution(conv_bias=FakeTensor((CHANNELS,)))
    _, arrived, kernel = stepped(engine, **inputs(**given))
    weight, bias, state = (given[name].data for name in ("conv_weight", "conv_bias", "conv_state"))
    keys = QK_HEADS * KEY_DIM
    assert arrived["conv"] == [(weight + 2 * 4 * first, bias + 2 * first, state + 2 * first, 3 * CHANNELS, 1, CHANNELS) for first in (0, keys, 2 * keys)]
    assert arrived["readers"] == given["conv_readers"].data and "_c4_" in kernel
    # The channels of Mamba-2 are those of x, B and C, which are v, k and q.
    _, arrived, _ = stepped(engine, **inputs(kind="mamba2", b=None, skip=FakeTensor((V_HEADS,), "fp32"), **convolution(conv_weight=given["conv_weight"])))
    values = V_HEADS * VALUE_DIM
    assert [part[0] - weight for part in arrived["conv"]] == [2 * 4 * (values + keys), 2 * 4 * values, 0]


def test_a_short_convolution_of_three_tensors_with_drafts(engine):
    sizes = (QK_HEADS * KEY_DIM, QK_HEADS * KEY_DIM, V_HEADS * VALUE_DIM)
    given = convolution(conv_weight=[FakeTensor((size, 3)) for size in sizes], conv_state=tuple(FakeTensor((SLOTS, size, 5)) for size in sizes))
    slots = FakeTensor((REQUESTS, 4), "int32")
    _, arrived, kernel = stepped(engine, **inputs(tokens=4, slots=slots, snapshots=True, **given))
    assert arrived["conv"] == [(weight.data, 0, state.data, 5 * size, 5, 1) for weight, state, size in zip(given["conv_weight"], given["conv_state"], sizes)]
    assert "_c3_" in kernel


@pytest.mark.parametrize("changed, named", [
    ({"conv_weight": None}, "conv_weight"),
    ({"conv_state": None}, "conv_state"),
    ({"conv_readers": None}, "conv_readers"),
    ({"conv_weight": FakeTensor((CHANNELS + 1, 4))}, "conv_weight"),
    ({"conv_weight": FakeTensor((CHANNELS, 1))}, "conv_width is 1"),
    ({"conv_weight": [FakeTensor((CHANNELS, 4))]}, "three parts"),
    ({"conv_state": FakeTensor((SLOTS, CHANNELS, 2))}, "has 2 tokens of each channel, and a step needs 3"),
    ({"conv_state": FakeTensor((SLOTS + 1, CHANNELS, 3))}, "conv_state"),
    ({"conv_readers": FakeTensor((5,), "int32")}, "conv_readers has 5 elements"),
])
def test_a_convolution_that_cannot_be_launched_is_refused_by_name(engine, changed, named):
    with pytest.raises(leanattn.Error, match=named):
        leanattn.recurrent(**inputs(**convolution(**changed)), engine=engine)
    assert fake.recurrent_arguments() is None


def test_heads_that_are_normalised_together(engine):
    z, weight = FakeTensor((REQUESTS, V_HEADS, VALUE_DIM)), FakeTensor((V_HEADS, VALUE_DIM), "fp32")
    gate = {"z": z, "output_gate": "silu_first", "norm_heads": 2}
    _, arrived, kernel = stepped(engine, **inputs(norm_weight=weight, **gate))
    assert arrived["norm_weight"] == weight.data and "_silu_first2_" in kernel
    with pytest.raises(leanattn.Error, match="norm_weight has 128 elements, not 512"):
        leanattn.recurrent(**inputs(norm_weight=FakeTensor((VALUE_DIM,), "fp32"), **gate), engine=engine)
    with pytest.raises(leanattn.Error, match="3 heads of 4"):
        leanattn.recurrent(**inputs(norm_weight=weight, **{**gate, "norm_heads": 3}), engine=engine)


def test_no_request_enqueues_nothing(engine):
    empty = inputs(tokens=0, slots=FakeTensor((0,), "int32"))
    result = leanattn.recurrent(**empty, engine=engine)
    assert result.shape == (0, V_HEADS, VALUE_DIM) and fake.recurrent_arguments() is None


@pytest.mark.parametrize("changed, named", [
    ({"kind": "delta"}, "kind"),
    ({"gates": "constant"}, "constant gates"),
    ({"q": FakeTensor((REQUESTS, QK_HEADS, KEY_DIM), "fp32")}, "q"),
    ({"k": FakeTensor((REQUESTS, QK_HEADS, KEY_DIM + 32))}, "k"),
    ({"v": FakeTensor((REQUESTS + 1, V_HEADS, VALUE_DIM))}, "v"),
    ({"v": FakeTensor((REQUESTS, V_HEADS, VALUE_DIM), strides=(V_HEADS * 256, 256, 1))}, "gaps between heads"),
    ({"state": FakeTensor((SLOTS, V_HEADS, KEY_DIM, VALUE_DIM), "fp32")}, "state"),
    ({"state": FakeTensor((SLOTS, V_HEADS, VALUE_DIM, KEY_DIM), "fp16")}, "state"),
    ({"slots": FakeTensor((REQUESTS,), "int64")}, "slots"),
    ({"slots": None}, "slots"),
    ({"slots": FakeTensor((2,), "int32")}, "3 tokens for 2 requests"),
    ({"a": FakeTensor((REQUESTS, V_HEADS, KEY_DIM))}, "a has 256 gates a token, not 4"),
    ({"a": None}, "a is null"),
    ({"a_log": FakeTensor((V_HEADS + 1,), "fp32")}, "a_log"),
    ({"skip": FakeTensor((V_HEADS,), "fp32")}, "skip is given"),
    ({"accepted": FakeTensor((REQUESTS,), "int32")}, "accepted is given"),
    ({"token_offsets": FakeTensor((REQUESTS + 1,), "int32")}, "max_tokens"),
    ({"max_tokens": 2}, "max_tokens"),
    ({"out": FakeTensor((REQUESTS, V_HEADS, KEY_DIM))}, "out"),
])
def test_what_cannot_be_launched_is_refused_by_name(engine, changed, named):
    with pytest.raises(leanattn.Error, match=named.replace("(", r"\(")):
        leanattn.recurrent(**inputs(**changed), engine=engine)
    assert fake.recurrent_arguments() is None
