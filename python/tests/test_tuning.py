"""tune() and autotune() on a GPU that is not there, with the sessions of the real program on a simulated one."""
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")

import leanattn  # noqa: E402
import simulated_program  # noqa: E402
from fake_tensors import FakeTensor  # noqa: E402

pytestmark = pytest.mark.skipif(simulated_program.find() is None, reason="no tree has the simulated program")

PROBLEM = leanattn.Problem(q_heads=8, kv_heads=2, head_dim=64)


@pytest.fixture
def notes(tmp_path, monkeypatch):
    for name, value in simulated_program.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LEANATTN_SIMULATED", raising=False)
    monkeypatch.setenv("LEANATTN_SIMULATED_NOTE", str(tmp_path / "orders"))
    return tmp_path / "orders"


@pytest.fixture
def cache_dir():
    with simulated_program.cache_directory() as folder:
        yield folder


@pytest.fixture
def engine(cache_dir, notes):
    gc.collect()
    fake.reset()
    return leanattn.Engine(cache_dir=cache_dir)


def orders(notes):
    return [json.loads(line) for line in notes.read_text().splitlines() if line.startswith("{")] if notes.exists() else []


def planned(engine, batch=1, context=1024, **options):
    try:
        return engine.plan(PROBLEM, batch, longest_context=context, **options)
    except leanattn.Error as error:
        if error.code == "nvrtc_missing":
            pytest.skip(error.message)
        raise


def test_plans_are_exact_afterwards(engine, notes):
    before = planned(engine)
    assert before.provenance == "fallback"
    results = leanattn.tune(PROBLEM, [(1, 1024), leanattn.Shape(batch=4, longest_context=2048)], budget=600, engine=engine)
    assert [result.shape for result in results] == [leanattn.Shape(1, 1024), leanattn.Shape(4, 2048)]
    for result in results:
        assert (result.status, result.provenance, result.measured, result.finished) == ("ok", "exact", True, True)
        assert 0 < result.read_limit_us <= result.median_us and 0 < result.read_limit_share <= 1
        assert result.default_us > 0 and result.candidates > 1
    after = planned(engine)
    assert (before.layer, after.layer) == ("", "user")
    assert (after.provenance, after.tuned_us, before.provenance) == ("exact", results[0].median_us, "fallback")
    order, = orders(notes)
    assert (order["problem"]["q_heads"], order["parent"], order["budget_ms"], order["sm_count"]) == (8, os.getpid(), 600000, 132)
    assert order["uuid"].startswith("GPU-")
    again, = leanattn.tune(PROBLEM, [(1, 1024)], engine=engine)
    assert (again.status, again.measured, again.median_us, again.read_limit_share) == ("ok", False, results[0].median_us, None)
    assert len(orders(notes)) == 1


def test_steps_with_prefill_are_tuned_by_their_mix(engine, notes):
    problem = leanattn.Problem(q_heads=8, kv_heads=2, head_dim=64, page_size=16, q_len=2048, ragged_q=True)
    step = leanattn.shape_of([4096] * 4 + [2000], [1] * 4 + [700])
    result, = leanattn.tune(problem, [step], budget=600, engine=engine)
    assert (result.status, result.provenance, result.shape) == ("ok", "exact", step)
    order, = orders(notes)
    assert order["shapes"][0]["mix"] == {"query_tokens": 704, "chunks": 1, "chunk_context": 2000, "chunk_pairs": step.chunk_pairs}
    provenances = [engine.plan(problem, shape).provenance for shape in (step, leanattn.Shape(5, 4096, step.total_context, query_tokens=4000))]
    assert provenances[0] == "exact" != provenances[1]
    assert engine.plan(problem, 5, longest_context=4096, total_context=step.total_context).provenance == "fallback"  # the mix is not known


def test_progress_comes_and_an_exception_of_it_stops_the_tuning(engine, monkeypatch):
    seen = []
    leanattn.tune(PROBLEM, [(1, 512)], budget=600, engine=engine, progress=seen.append)
    assert seen and all(isinstance(step, leanattn.TuneProgress) and step.shape_count == 1 for step in seen)
    monkeypatch.setenv("LEANATTN_SIMULATED", "hang")

    class Enough(Exception):
        pass

    def stop(step):
        raise Enough(step.phase)

    with pytest.raises(Enough):
        leanattn.tune(PROBLEM, [(2, 512)], budget=1, engine=engine, progress=stop)


def test_ctrl_c_stops_it(engine, notes, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    started = threading.Event()

    def press():
        started.wait()
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    monkeypatch.setenv("LEANATTN_SIMULATED", "hang")
    try:
        with pytest.raises(KeyboardInterrupt):
            leanattn.tune(PROBLEM, [(3, 512)], budget=600, engine=engine, progress=lambda _: started.set())
    finally:
        started.set()
        presser.join()
        signal.signal(signal.SIGINT, before)


def test_others_run_while_it_waits(engine):
    ran = []
    threads = []

    def progress(_):
        if not threads:
            threads.append(threading.Thread(target=lambda: ran.append(planned(engine, 7, 99).provenance)))
            threads[0].start()

    leanattn.tune(PROBLEM, [(1, 640)], budget=600, engine=engine, progress=progress)
    threads[0].join()
    assert ran


def test_within_autotune_first_uses_are_tuned_and_outside_nothing_is(engine, notes):
    assert planned(engine).provenance == "fallback"
    with leanattn.autotune(600, engine=engine):
        assert planned(engine).provenance == "exact"
        leanattn.decode(FakeTensor((3, 8, 64)), FakeTensor((3, 2, 256, 64)), FakeTensor((3, 2, 256, 64)), FakeTensor((3,), "int32"), engine=engine)
        assert len(orders(notes)) == 2
        with pytest.raises(leanattn.ArgumentError, match="active already"):
            with leanattn.autotune(600, engine=engine):
                pass
    assert planned(engine, 5, 700).provenance != "exact"
    assert len(orders(notes)) == 2 and engine.warnings == ""
    with leanattn.autotune(600, engine=engine):
        assert planned(engine, 5, 700).provenance == "exact"


def test_autotune_tunes_nothing_during_a_capture(engine, notes):
    plan = planned(engine)
    stream = fake.make_stream()
    fake.begin_capture(stream)
    try:
        with leanattn.autotune(600, engine=engine):
            assert planned(engine, stream=stream).kernel_name == plan.kernel_name
        assert orders(notes) == []
    finally:
        fake.destroy_graph(fake.end_capture(stream))


def test_autotune_without_an_engine_is_about_those_of_decode(cache_dir, notes):
    """In a process of its own, whose engine is opened within the context."""
    code = ("import os, _fake_gpu, leanattn\n_fake_gpu.reset()\n"
            "problem = leanattn.Problem(q_heads=8, kv_heads=2, head_dim=64)\n"
            "with leanattn.autotune(600):\n inside = leanattn.plan(problem, 1).provenance\n"
            "print(inside, leanattn.plan(problem, 2, longest_context=5000).provenance, leanattn.tune(problem, [(1, 1024)])[0].status)")
    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, "LEANATTN_CACHE_DIR": cache_dir}, capture_output=True, text=True)
    if "nvrtc_missing" in ran.stderr:
        pytest.skip("NVRTC is not installed")
    first, second, third = ran.stdout.split()
    assert (first, third) == ("exact", "ok") and second != "exact", ran.stderr


def test_what_is_wrong_is_named(engine):
    for arguments, error, match in (
            ({"shapes": []}, ValueError, "shape_count"), ({"shapes": [5]}, TypeError, r"shapes\[0\] is 5"), ({"shapes": [("a", 1)]}, TypeError, "batch"),
            ({"shapes": [(0, 1)]}, ValueError, "batch"), ({"budget": 0}, ValueError, "budget is 0"), ({"budget": float("nan")}, ValueError, "budget"),
            ({"budget": "5s"}, TypeError, "budget"), ({"shape_budget": -1}, ValueError, "shape_budget"), ({"memory": 0}, ValueError, "memory"),
            ({"program": 3}, TypeError, "program"), ({"program": "/nonexistent"}, ValueError, "program is /nonexistent"),
            ({"engine": "engine"}, TypeError, "engine")):
        with pytest.raises(error, match=match):
            leanattn.tune(PROBLEM, **{"shapes": [(1, 64)], "engine": engine, **arguments})
    with pytest.raises(ValueError, match="budget_s is 0"):
        with leanattn.autotune(None, engine=engine):
            pass
    with pytest.raises(leanattn.Error) as raised:
        leanattn.tune(PROBLEM, [(1, 64)], engine=leanattn.Engine(disk_cache=False), program="/bin/true")
    assert raised.value.code == "cache_unavailable"


def test_engines_of_other_users_read_a_cache_that_root_made():
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = ("import os, sys, _fake_gpu, leanattn\n"
               "problem = leanattn.Problem(q_heads=8, kv_heads=2, head_dim=64)\n"
               "leanattn.Engine(disk_cache=False).plan(problem)\n"  # imports and loads what another user might not be able to
               "if sys.argv[2] == 'other': os.setgroups([]), os.setgid(65534), os.setuid(65534)\n"
               "engine = leanattn.Engine(cache_dir=sys.argv[1])\n"
               "plan = engine.plan(problem)\n"
               "print(plan.compile_ms > 0, engine.warnings)")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        said = [subprocess.run([sys.executable, "-c", program, folder, who], capture_output=True, text=True, check=True).stdout for who in ("root", "other")]
    assert said[0] == "True \n"
    assert said[1].startswith("False nothing is added to the cache on disk: ") and "belongs to another user (uid 0" in said[1]


def test_a_path_with_a_zero_byte_is_refused(engine):
    with pytest.raises(leanattn.ArgumentError, match="cache_dir has a zero byte in it"):
        leanattn.Engine(cache_dir="/tmp/a\0b")
    with pytest.raises(leanattn.ArgumentError, match="program has a zero byte in it"):
        leanattn.tune(PROBLEM, [(1, 64)], engine=engine, program="/bin/true\0b")


def test_a_program_that_fails_is_named_with_its_last_words(engine, tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'tune-order: unknown command' >&2; exit 2\n")
    program.chmod(0o700)
    with pytest.raises(leanattn.Error, match="exited with code 2; it said: tune-order: unknown command"):
        leanattn.tune(PROBLEM, [(1, 64)], engine=engine, program=program)
    with leanattn.autotune(60, engine=engine, program=program):
        assert planned(engine).provenance == "fallback"
    assert "tuning on first use" in engine.warnings and "unknown command" in engine.warnings
