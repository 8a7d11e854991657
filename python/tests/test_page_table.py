"""page_table(), and decode() with (indptr, indices, last_page_len): the kernel's own definition of a row runs on the host, on memory that is."""
import ctypes
import random
import sys
import threading

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")

import leanattn  # noqa: E402
from fake_tensors import CPU, FakeTensor, FastTensor  # noqa: E402

PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM = 50, 16, 2, 64
UNTOUCHED = -7


class Integers(FakeTensor):
    """An int32 tensor whose contents are real."""

    def __init__(self, shape, dtype="int32", strides=None, values=(), **more):
        super().__init__(shape, dtype, strides, **more)
        count = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides)) + 1
        self.numbers = (ctypes.c_int32 * count)(*(values or [UNTOUCHED] * count))
        self.data = ctypes.addressof(self.numbers)

    def rows(self):
        return [[self.numbers[r * self.strides[0] + c] for c in range(self.shape[1])] for r in range(self.shape[0])]


class FastIntegers(Integers, FastTensor):
    pass


@pytest.fixture
def engine(tmp_path):
    fake.reset()
    fake.run_page_rows()
    FastTensor.current_stream = 0
    tmp_path.chmod(0o700)
    return leanattn.Engine(cache_dir=tmp_path)


def called(function, *arguments, **more):
    try:
        return function(*arguments, **more)
    except leanattn.Error as error:
        if error.code == "nvrtc_missing":
            pytest.skip(error.message)
        raise


def arrays(requests, kind=Integers, spare=0):
    """The three arrays of requests, each (its pages, tokens in the last of them); `spare` entries of indices belong to none."""
    starts = [0]
    for pages, _ in requests:
        starts.append(starts[-1] + len(pages))
    indices = [page for pages, _ in requests for page in pages] + [999] * spare
    return (kind((len(starts),), values=starts), kind((len(indices),), values=indices), kind((len(requests),), values=[last for _, last in requests]))


@pytest.mark.parametrize("kind", [Integers, FastIntegers])
def test_each_request_gets_its_pages_and_its_length(engine, kind):
    generator = random.Random(7)
    for _ in range(5):
        requests = [(generator.sample(range(PAGES), generator.randint(0, 9)), generator.randint(1, PAGE_SIZE)) for _ in range(generator.randint(1, 40))]
        requests.append(([3], PAGE_SIZE))  # so that there is a page
        table, lengths = called(leanattn.page_table, *arrays(requests, kind, spare=3), PAGE_SIZE, max_pages=9, engine=engine)
        assert table.shape == (len(requests), 9) and (table.dtype, lengths.dtype) == ("int32", "int32")
        for (pages, last), row, length in zip(requests, table.rows(), lengths.numbers):
            assert row == pages + [UNTOUCHED] * (9 - len(pages))
            assert length == (0 if not pages else (len(pages) - 1) * PAGE_SIZE + last)


def test_without_max_pages_every_request_has_room_for_all_pages(engine):
    table, _ = called(leanattn.page_table, *arrays([([1, 2, 3], 1), ([4], 16)]), PAGE_SIZE, engine=engine)
    assert table.shape == (2, 4)


def test_an_empty_batch_has_an_empty_table(engine):
    three = [FakeTensor((1,), "int32"), FakeTensor((0,), "int32"), FakeTensor((0,), "int32")]
    for pages, given in ((0, {}), (5, {"max_pages": 5}), (5, {"out": FakeTensor((0, 5), "int32")})):
        table, lengths = leanattn.page_table(*three, PAGE_SIZE, **given, engine=engine)
        assert (table.shape, lengths.shape, fake.launches()) == ((0, pages), (0,), [])


@pytest.mark.parametrize("strides", [(0, 1), (3, 0)])
def test_what_is_written_may_not_be_expanded(engine, strides):
    with pytest.raises(leanattn.ArgumentError, match="^out has stride 0 in dimension"):
        leanattn.page_table(*arrays([([1, 2, 3], 5), ([4], 16)]), PAGE_SIZE, out=FakeTensor((2, 3), "int32", strides=strides), engine=engine)


def test_it_writes_where_it_is_told_also_into_a_slice(engine):
    out, lengths = Integers((2, 3), strides=(8, 1)), Integers((2,))
    result = called(leanattn.page_table, *arrays([([1, 2, 3], 5), ([4], 16)]), PAGE_SIZE, out=out, out_lengths=lengths, engine=engine)
    assert result == (out, lengths)
    assert out.rows() == [[1, 2, 3], [4, UNTOUCHED, UNTOUCHED]] and list(lengths.numbers) == [37, 16]
    assert list(out.numbers)[3:8] == [UNTOUCHED] * 5  # what is between the rows is not the table's


def test_what_contradicts_itself_never_leaves_what_exists(engine):
    indptr = Integers((5,), values=[-3, 2, 1, 9, 400])
    last = Integers((4,), values=[99, 5, -2, 3])
    table, lengths = called(leanattn.page_table, indptr, Integers((6,), values=[10, 11, 12, 13, 14, 15]), last, PAGE_SIZE, max_pages=4, engine=engine)
    assert list(lengths.numbers) == [2 * PAGE_SIZE, 0, 4 * PAGE_SIZE, 0]
    assert table.rows() == [[10, 11, UNTOUCHED, UNTOUCHED], [UNTOUCHED] * 4, [11, 12, 13, 14], [UNTOUCHED] * 4]


def pools(kind=FakeTensor, head_major=False):
    shape = (PAGES, KV_HEADS, PAGE_SIZE, HEAD_DIM) if head_major else (PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM)
    return [kind(shape) for _ in range(2)]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_decode_makes_the_table_before_it_launches(engine, layout):
    k, v = pools(head_major=layout == "HND")
    stream, three = fake.make_stream(), arrays([([7, 8], 2), ([1], 16), ([5, 6, 9], 4)])
    called(leanattn.decode, FakeTensor((3, 8, HEAD_DIM)), k, v, None, three, kv_layout=layout, stream=stream, engine=engine)
    rows, decode = fake.launches()
    assert rows["kernel"] == "page_rows" and rows["stream"] == decode["stream"] == stream
    given = decode["arguments"]
    read = lambda name, count: list((ctypes.c_int32 * count).from_address(given[name]))
    assert read("context_lengths", 3) == [18, 16, 36]
    assert (given["page_table_stride"], given["pool_pages"], given["context_capacity"]) == (6, PAGES, 6 * PAGE_SIZE)
    assert [read("page_table", 18)[i] for i in (0, 1, 6, 12, 13, 14)] == [7, 8, 1, 5, 6, 9]


def test_the_results_of_page_table_serve_many_layers(engine):
    three = arrays([([7, 8], 2), ([1], 16)])
    table, lengths = called(leanattn.page_table, *three, PAGE_SIZE, max_pages=5, engine=engine)
    for _ in range(2):
        called(leanattn.decode, FakeTensor((2, 8, HEAD_DIM)), *pools(), lengths, table, kv_layout="NHD", engine=engine)
    assert [launch["kernel"] == "page_rows" for launch in fake.launches()] == [True, False, False]
    assert fake.launches()[-1]["arguments"]["page_table"] == table.data


def test_a_graph_records_both_and_a_cold_kernel_says_so(engine):
    three, q = arrays([([7, 8], 2), ([1], 16)]), FakeTensor((2, 8, HEAD_DIM))
    stream = fake.make_stream()
    fake.begin_capture(stream)
    try:
        with pytest.raises(leanattn.NotPrepared, match="page_table"):
            leanattn.page_table(*three, PAGE_SIZE, stream=stream, engine=engine)
    finally:
        fake.destroy_graph(fake.end_capture(stream))
    called(leanattn.decode, q, *pools(), None, three, kv_layout="NHD", engine=engine)
    before = len(fake.launches())
    fake.begin_capture(stream)
    leanattn.decode(q, *pools(), None, three, kv_layout="NHD", stream=stream, engine=engine)
    graph = fake.end_capture(stream)
    assert len(fake.launches()) == before
    fake.replay(graph, stream)
    assert [launch["kernel"] == "page_rows" for launch in fake.launches()[before:]] == [True, False]
    fake.destroy_graph(graph)


class Lender:
    """Its framework has memory for inputs only."""

    def new_empty(self, *_, **__):
        raise AssertionError("no memory of the framework is needed")


class LenderIntegers(Lender, Integers):
    pass


class FastLenderIntegers(Lender, FastIntegers):
    pass


def place(launch):
    return launch["arguments"]["page_table"], launch["arguments"]["context_lengths"]


@pytest.mark.parametrize("kind", [LenderIntegers, FastLenderIntegers])
def test_the_table_of_the_three_arrays_is_in_memory_of_the_stream_that_runs_the_launch(engine, kind):
    """Memory of the framework would belong to its current stream, which may use it again before another stream has read it."""
    three, q, kv = arrays([([7, 8], 2), ([1], 16)], kind), FakeTensor((2, 8, HEAD_DIM)), pools()
    streams, places = [0, fake.make_stream(), fake.make_stream()], {}
    for stream in streams * 2:
        called(leanattn.decode, q, *kv, None, three, kv_layout="NHD", stream=stream, engine=engine)
        places.setdefault(stream, set()).add(place(fake.launches()[-1]))
    assert [len(each) for each in places.values()] == [1, 1, 1], "a stream's launches follow one another, and share it"
    assert len(set.union(*places.values())) == 3
    assert not set.union(*({*one} for each in places.values() for one in each)) & {tensor.data for tensor in three}
    assert fake.live_buffers() == 2 * len(streams)  # with the workspaces
    assert engine.workspace_bytes >= 6 << 20


def test_the_table_of_the_three_arrays_grows_and_what_it_was_stays(engine):
    """Launches that read the smaller one may not have run."""
    q, few = FakeTensor((1, 8, HEAD_DIM)), arrays([([3], 1)])
    called(leanattn.decode, q, *pools(), None, few, kv_layout="NHD", engine=engine)
    small, buffers = place(fake.launches()[-1]), fake.live_buffers()
    pages = 1 << 19
    k = FakeTensor((pages, PAGE_SIZE, KV_HEADS, HEAD_DIM))
    many = arrays([([1, 2], 3)], spare=pages - 2)
    called(leanattn.decode, q, k, k, None, many, kv_layout="NHD", longest_context=16, engine=engine)
    assert place(fake.launches()[-1]) != small and fake.live_buffers() == buffers + 1
    called(leanattn.decode, q, *pools(), None, few, kv_layout="NHD", engine=engine)
    assert place(fake.launches()[-1]) != small and fake.live_buffers() == buffers + 1


def test_a_graph_has_a_table_of_its_own_until_it_is_gone(engine):
    three, q, stream = arrays([([7, 8], 2), ([1], 16)], LenderIntegers), FakeTensor((2, 8, HEAD_DIM)), fake.make_stream()
    out = FakeTensor((2, 8, HEAD_DIM))
    step = lambda: called(leanattn.decode, q, *pools(), None, three, out=out, kv_layout="NHD", stream=stream, engine=engine)
    step()
    eager, graphs, places = place(fake.launches()[-1]), [], []
    for _ in range(2):
        fake.begin_capture(stream)
        for _ in range(2):
            step()
        graphs.append(fake.end_capture(stream))
        fake.replay(graphs[-1], stream)
        first, second = [place(launch) for launch in fake.launches()[-4:] if launch["kernel"] != "page_rows"]
        assert first == second
        places.append(first)
    assert len({eager, *places}) == 3
    buffers = fake.live_buffers()
    fake.destroy_graph(graphs.pop(0))
    fake.begin_capture(stream)
    step()
    graphs.append(fake.end_capture(stream))
    fake.replay(graphs[-1], stream)
    assert place(fake.launches()[-1]) not in (eager, places[1]) and fake.live_buffers() == buffers, "memory of the graph that is gone serves again"
    for graph in graphs:
        fake.destroy_graph(graph)


def test_no_other_launch_comes_between_the_table_and_the_launch_that_reads_it(engine):
    """Threads that share a stream share its memory, too."""
    def steps(requests):
        three, q, out = arrays([([1], 16)] * requests), FakeTensor((requests, 8, HEAD_DIM)), FakeTensor((requests, 8, HEAD_DIM))
        k, v = pools()
        call = lambda: called(leanattn.decode, q, k, v, None, three, out=out, kv_layout="NHD", stream=stream, engine=engine)
        call()
        return lambda: [call() for _ in range(300)]

    stream = fake.make_stream()
    threads = [threading.Thread(target=steps(requests)) for requests in range(1, 7)]
    before, interval = len(fake.launches()), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    launched = [launch["kernel"] == "page_rows" for launch in fake.launches()[before:]]
    assert launched == [True, False] * (300 * len(threads))


@pytest.mark.parametrize("options", [{"q_offsets": FakeTensor((3,), "int32"), "max_q_len": 4, "q": FakeTensor((5, 8, HEAD_DIM))},
                                     {"selection": FakeTensor((2, KV_HEADS, 3), "int32"), "selected_counts": FakeTensor((2,), "int32"), "selection_block": 16}],
                         ids=["ragged query tokens", "selected blocks"])
def test_the_three_arrays_go_with_features(engine, options):
    given = {"q": FakeTensor((2, 8, HEAD_DIM)), **options}
    called(leanattn.decode, given.pop("q"), *pools(), None, arrays([([7, 8], 2), ([1], 16)]), kv_layout="NHD", engine=engine, **given)
    rows, launch = fake.launches()
    arguments = launch["arguments"]
    lengths = arguments["request_lengths"] if "selection" in options else arguments["context_lengths"]
    assert list((ctypes.c_int32 * 2).from_address(lengths)) == [18, 16] and arguments["page_table"] != 0


THREE = arrays([([7, 8], 2), ([1], 16)])
BAD = [
    ({"indptr": Integers((0,))}, "indptr"),
    ({"indptr": Integers((1,))}, "last_page_len"),
    ({"indptr": Integers((3,), "int64")}, "indptr"),
    ({"indptr": Integers((3,), device=CPU)}, "indptr"),
    ({"indptr": [0, 2, 3]}, "indptr"),
    ({"indices": Integers((3,), strides=(2,))}, "indices"),
    ({"indices": Integers((0,))}, "indices"),
    ({"last_page_len": Integers((3,))}, "last_page_len"),
    ({"last_page_len": Integers((2,), device_id=1)}, "last_page_len"),
    ({"page_size": 0}, "page_size"),
    ({"page_size": "16"}, "page_size"),
    ({"max_pages": 0}, "max_pages"),
    ({"out": Integers((3, 5))}, "out"),
    ({"out": Integers((2, 5)), "max_pages": 4}, "out"),
    ({"out": Integers((2, 5), strides=(1, 2))}, "out"),
    ({"out_lengths": Integers((4,))}, "out_lengths"),
]


@pytest.mark.parametrize("changed, named", BAD, ids=[f"{index}-{named}" for index, (_, named) in enumerate(BAD)])
def test_a_bad_argument_is_named_and_nothing_is_launched(engine, changed, named):
    given = {**dict(zip(("indptr", "indices", "last_page_len"), THREE)), "page_size": PAGE_SIZE, **changed}
    with pytest.raises((TypeError, ValueError), match=f"^{named} "):
        leanattn.page_table(**given, engine=engine)
    assert fake.launches() == []


@pytest.mark.parametrize("changed, named", [({"context_lengths": Integers((2,))}, "context_lengths"), ({"page_table": THREE[:2]}, "page_table"),
                                            ({"pdl": True}, "pdl"), ({"q": FakeTensor((3, 8, HEAD_DIM))}, "page_table"),
                                            ({"page_table": arrays([([7, 8], 2), ([1], 16)], lambda *a, **k: Integers(*a, device_id=1, **k))}, "indptr"),
                                            ({"k_cache": FakeTensor((PAGES, HEAD_DIM))}, "k_cache")], ids=lambda value: value if isinstance(value, str) else "")
def test_decode_refuses_what_does_not_go_with_the_three_arrays(engine, changed, named):
    k, v = pools()
    given = {"q": FakeTensor((2, 8, HEAD_DIM)), "k_cache": k, "v_cache": v, "context_lengths": None, "page_table": THREE, "kv_layout": "NHD", **changed}
    with pytest.raises((TypeError, ValueError), match=f"^({named}) "):
        leanattn.decode(**given, engine=engine)
    assert fake.launches() == []
