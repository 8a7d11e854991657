"""Images in prompts in the backend of vLLM, on a GPU that is not there: which query tokens get which spans, and where graphs find them."""
import sys
import types

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")
np = pytest.importorskip("numpy")

import vllm_stand_in as stand_in  # noqa: E402
from test_vllm_backend import Model, batch_invariant, on_another_gpu, step  # noqa: E402
from vllm_stand_in import Tensor  # noqa: E402

LAST = (7, 30)  # an image that ends before the query tokens of all steps here


class Kept(Tensor):
    """With its elements, which slices share."""

    def __init__(self, shape, dtype, device):
        super().__init__(shape, dtype)
        self.elements = np.zeros(shape, np.int32)

    def __getitem__(self, where):
        made = super().__getitem__(where)
        made.elements = self.elements[where]
        return made

    def copy_(self, other, non_blocking=False):
        assert non_blocking, "the host does not wait"
        self.elements[...] = other
        return super().copy_(other)

    def zero_(self):
        self.elements[...] = 0
        return super().zero_()


@pytest.fixture(params=stand_in.VERSIONS)
def adapter(request, engines, monkeypatch):
    torch = types.SimpleNamespace(tensor=lambda values, dtype: Tensor((len(values),), dtype), float32="fp32", int32="int32", zeros=Kept)
    with stand_in.installed(request.param) as module:
        monkeypatch.setitem(sys.modules, "torch", torch)
        yield module


def with_images(query_tokens, contexts, images, **more):
    """A step of a model that sees images both ways: {request: first and last token of each image}, as vLLM has it for all requests."""
    return step(query_tokens, seq_lens_cpu_upper_bound=np.array(contexts), mm_req_doc_ranges=images, **more)


def spans_of(model, metadata, tokens):
    """What a launch finds there, and that no other one follows; None: it reads no spans."""
    _, _, (launch,) = model.forward(metadata, tokens)
    spans = metadata.mm_prefix_range_tensor
    assert launch["arguments"]["spans"] == (0 if spans is None else spans.data) and ("_span" in launch["kernel"]) == (spans is not None)
    return None if spans is None else spans.elements.tolist()


def test_query_tokens_get_the_spans_that_they_are_in(adapter):
    """Of several images of several requests, also of those that a chunk begins or ends within; tokens of nobody are in none."""
    model = Model(adapter, images=True)
    common = with_images([1, 40, 9], [100, 60, 9], {0: [LAST], 1: [LAST, (35, 45), (50, 70), (90, 95)], 2: [(2, 4)]}, padded=3)
    metadata = model.builder.build(0, common)
    expected = [[0, 0]] * 53
    expected[1:12] = [[7, 31]] * 11  # tokens 20 to 30 of the context
    expected[16:27] = [[35, 46]] * 11
    expected[31:41] = [[50, 71]] * 10
    expected[43:46] = [[2, 5]] * 3
    assert spans_of(model, metadata, 53) == expected
    assert metadata.rest is None and metadata.rows.offsets is common.query_start_loc


@pytest.mark.parametrize("tokens, contexts, images", [
    ([1, 1], [100, 60], {0: [LAST], 1: [(59, 80)]}), ([40], [80], {0: [LAST]}), ([40], [40], {0: []}), ([40], [40], {}),
    ([40, 3], [80, 34], {0: [(90, 99)], 1: [LAST]}), ([40], [40], {0: [(39, 50)]}), ([12], [42], {0: [LAST]}), ([8], [38], {0: [(5, 30)]}),
], ids=["single tokens", "an image before them", "text", "nobody has any", "one behind them", "the first token of one", "the token after one",
        "the last token of one"])
def test_a_step_in_which_nobody_sees_more_is_as_one_without_images(adapter, tokens, contexts, images):
    model = Model(adapter, images=True)
    Tensor.operations = 0
    metadata = model.builder.build(0, with_images(tokens, contexts, images))
    assert Tensor.operations == 0 and spans_of(model, metadata, sum(tokens)) is None


def test_a_layer_that_clamps_images_sees_none_behind_its_window(adapter):
    """What a query token sees begins with itself then, beside what the window shows; its end is that of the image."""
    model = Model(adapter, images=True, clamped=True, sliding_window=8)
    assert spans_of(model, model.builder.build(0, with_images([6], [6], {0: [(1, 4)]})), 6) == [[0, 0], [1, 5], [2, 5], [3, 5], [4, 5], [0, 0]]


def test_layers_whose_images_vllm_takes_away_see_text(adapter):
    """As Gemma 4 does with the metadata of layers without a window, whose plans are there as well."""
    model = Model(adapter, images=True)
    metadata = model.builder.build(0, with_images([20], [20], {0: [(1, 9)]}))
    assert metadata.mm_prefix_range_tensor is not None
    metadata.mm_prefix_range_tensor = None
    assert spans_of(model, metadata, 20) is None


def test_another_groups_block_table_leaves_the_images(adapter):
    model = Model(adapter, images=True)
    metadata = model.builder.build(0, with_images([20], [20], {0: [(1, 9)]}))
    moved = model.builder.update_block_table(metadata, Tensor((1, 8), "int32"), Tensor((20,), "int64"))
    moved.mm_prefix_range_tensor = None
    assert metadata.mm_prefix_range_tensor is not None


def test_a_graph_finds_the_spans_of_every_step_in_the_same_place(adapter):
    """It is captured without images. Later steps write theirs, and none finds those of another."""
    model, size = Model(adapter, images=True), 40
    captured = model.builder.build_for_cudagraph_capture(with_images([10] * 4, [10] * 4, {}))
    whole = captured.mm_prefix_range_tensor
    assert spans_of(model, captured, size) == [[0, 0]] * size

    def replayed(tokens, images):
        model.builder.build(0, with_images(tokens, tokens, images, padded=size - sum(tokens)))
        return {row: span for row, span in enumerate(whole.elements.tolist()) if span != [0, 0]}

    assert replayed([30, 1], {0: [(20, 28)]}) == {row: [20, 29] for row in range(20, 29)}
    assert replayed([1, 6, 2], {1: [(2, 3)]}) == {3: [2, 4], 4: [2, 4]}
    assert replayed([1, 1, 1], {0: [LAST]}) == {}
    assert replayed([4, 9], {0: [(0, 1)], 1: [(0, 1)]}) == {0: [0, 2], 1: [0, 2], 4: [0, 2], 5: [0, 2]}
    assert replayed([40], {0: []}) == {}
    single = model.builder.build_for_cudagraph_capture(with_images([1, 1], [9, 9], {}))
    assert spans_of(model, single, 2) is None, "graphs of single tokens"
    alone = Model(adapter, images=True, decode_graphs=False).builder.build_for_cudagraph_capture(with_images([1, 1], [9, 9], {}))
    assert spans_of(model, alone, 2) == [[0, 0]] * 2, "unless they hold prompts as well"


def test_a_smaller_step_leaves_no_spans_behind_it(adapter):
    model = Model(adapter, images=True)
    kept = model.builder.build_for_cudagraph_capture(with_images([60], [60], {})).mm_prefix_range_tensor
    model.builder.build(0, with_images([60], [60], {0: [(40, 58)]}))
    model.builder.build(0, with_images([10], [10], {0: [(0, 3)]}))
    model.builder.build(0, with_images([60], [60], {0: []}))
    assert not kept.elements.any()


@pytest.mark.parametrize("model", [{}, {"speculative": 2}, {"kv_cache_dtype": "int8_per_token_head"}, {"sliding_window": 24, "clamped": True}])
def test_graphs_of_models_with_images_hold_any_batch(adapter, model):
    from vllm.v1.attention.backend import AttentionCGSupport

    made = Model(adapter, images=True, **model)
    assert made.builder.get_cudagraph_support(made.config, None) is AttentionCGSupport.ALWAYS
    captured = made.builder.build_for_cudagraph_capture(with_images([3, 3], [9, 9], {}))
    assert spans_of(made, captured, 6) == [[0, 0]] * 6


@pytest.mark.parametrize("given, setting", [({"kv_cache_dtype": "fp8"}, None), ({}, on_another_gpu), ({}, batch_invariant)],
                         ids=["one-byte cache", "another GPU", "batch invariance"])
def test_where_a_step_is_split_each_part_has_its_own_images(adapter, monkeypatch, given, setting):
    if setting is not None:
        setting(monkeypatch)
    model, parts = Model(adapter, speculative=2, images=True, **given), []
    monkeypatch.setattr(type(model.builder.other), "build", lambda self, prefix, common, *more: parts.append(common))
    metadata = model.builder.build(0, with_images([3, 1, 40], [9, 9, 40], {0: [(5, 7)], 1: [LAST], 2: [(2, 9)]}))
    assert parts[0].mm_req_doc_ranges == {0: [(2, 9)]} and metadata.rows.tokens == 4
    # A chunk that is as short as drafts are: tokens 6 to 8 of a prompt.
    assert metadata.mm_prefix_range_tensor.elements.tolist() == [[5, 8], [5, 8], [0, 0], [0, 0]]
    assert spans_of(model, model.builder.build(0, with_images([3, 1], [9, 9], {0: [(5, 7)]})), 4) == [[5, 8], [5, 8], [0, 0], [0, 0]]


def test_the_backend_takes_models_with_images_where_their_prefill_is_its_own(adapter, monkeypatch):
    backend, theirs = adapter.Backend, "of FlashAttention"

    def taken(head_size=128, kv_cache_dtype="auto"):
        return backend.supports_combination(head_size, "torch.bfloat16", kv_cache_dtype, 16, False, False, False, True, None)

    assert backend.supports_mm_prefix() is True and taken() is taken(kv_cache_dtype="int8_per_token_head") is None
    assert taken(head_size=272) == taken(kv_cache_dtype="fp8") == theirs
    assert "not supported" in taken(head_size=528, kv_cache_dtype="int8_per_token_head")
    config = types.SimpleNamespace(parallel_config=types.SimpleNamespace(decode_context_parallel_size=2))
    module = sys.modules["leanattn.vllm.backend"]
    monkeypatch.setattr(module, "get_current_vllm_config_or_none", lambda: config)
    assert taken() == theirs
    config.parallel_config.decode_context_parallel_size = 1
    assert taken() is None
    batch_invariant(monkeypatch)
    assert taken() == theirs
