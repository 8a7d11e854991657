"""sglang_recurrent_steps.py -- leanattn.sglang's hooks around SGLang's own classes for layers with a recurrent state, beside its own Triton kernels.

    python3 python/tests/sglang_recurrent_steps.py [FOLDER]     # FOLDER has SGLang's files, such as an unpacked wheel; default: the installed one

SGLang's registry of hooks, its kernel classes and its Triton kernels of decode steps are the real ones; the kernels run in Triton's interpreter, so there
is no GPU. In the place of leanattn.recurrent there is a reference in fp64. The same steps go through a class as it was and as the hooks made it, on pools of
their own. The last line says how many steps agree.
"""
import os

os.environ["TRITON_INTERPRET"] = "1"

import functools  # noqa: E402
import importlib  # noqa: E402
import importlib.metadata  # noqa: E402
import importlib.util  # noqa: E402
import inspect  # noqa: E402
import itertools  # noqa: E402
import pathlib  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402

import reference  # noqa: E402
import sglang_steps  # noqa: E402

QK_HEADS, V_HEADS, KEY_DIM, VALUE_DIM, SLOTS = 2, 4, 32, 64, 9
KERNELS = "sglang.srt.layers.attention.linear.kernels"
FOLDERS = ("sglang.kernels.ops.attention", "sglang.srt.layers.attention.fla")  # of kernels, by version
REAL = ("sglang.srt.plugins.hook_registry", f"{KERNELS}.gdn_triton", f"{KERNELS}.kda_triton", f"{KERNELS}.kernel_backend")
USED = ("fused_recurrent", "fused_sigmoid_gating_recurrent", "op", "utils")


def load(folder):
    """SGLang's modules that are used, with stand-ins for all others. Returns its version."""
    import triton.language as tl

    found = [f"{base}{part}.{name}" for base in FOLDERS for part in ("", ".fla", ".linear") for name in USED]
    sglang_steps.REAL = REAL + tuple(name for name in found if (folder / f"{name.replace('.', '/')}.py").exists())
    sys.meta_path.insert(0, sglang_steps.Finder(folder))
    utils = importlib.import_module("sglang.srt.utils")
    for name in ("is_cpu", "is_npu", "is_xpu", "is_hip", "is_musa", "is_cuda"):
        setattr(utils, name, lambda *_: False)
    importlib.import_module("sglang.srt.utils.common").torch_release = (2, 9)
    for name in REAL[1:3]:
        importlib.import_module(name)
    for name, module in list(sys.modules.items()):
        for function in ("exp", "exp2", "log", "log2") if name.startswith(FOLDERS) else ():
            if hasattr(module, function):
                setattr(module, function, lambda x, function=function: getattr(tl, function)(x))
        if name.startswith(FOLDERS) and hasattr(module, "is_arch_support_pdl"):
            module.is_arch_support_pdl = lambda: False
    return next(distribution.version for distribution in importlib.metadata.distributions(path=[str(folder)]) if distribution.metadata["Name"] == "sglang")


def step(kind, packed, requests, state_type, lower_bound, generator):
    """Arguments of a decode step, of which the pool is changed: (positional, by name)."""
    value_dim, qk_heads = (KEY_DIM, V_HEADS) if kind == "kda" else (VALUE_DIM, QK_HEADS)
    random = functools.partial(torch.randn, generator=generator)
    keys, values = qk_heads * KEY_DIM, V_HEADS * value_dim
    mixed = random(requests, 2 * keys + values).bfloat16()
    gates = (requests, V_HEADS, KEY_DIM) if kind == "kda" else (requests, V_HEADS)
    slots = torch.randperm(SLOTS, generator=generator)[:requests].int()
    named = {"A_log": torch.rand(V_HEADS, generator=generator), "dt_bias": random(gates[1:]).flatten(), "cache_indices": slots,
             "ssm_states": random(SLOTS, V_HEADS, value_dim, KEY_DIM).mul(0.3).to(state_type)}
    if lower_bound is not None:
        named["lower_bound"] = lower_bound
    a, b = random(gates).bfloat16(), random(requests, V_HEADS).bfloat16()
    if packed:
        return [mixed, a.view(requests, -1), b], {**named, "scale": KEY_DIM**-0.5, "num_v_heads": V_HEADS, "head_v_dim": value_dim}
    if kind == "kda":
        a, b = a.flatten(1), b.unsqueeze(0)
    q, k, v = mixed.split((keys, keys, values), -1)
    rows = [q.unflatten(1, (-1, KEY_DIM)), k.unflatten(1, (-1, KEY_DIM)), v.unflatten(1, (V_HEADS, value_dim))]
    return [*(part.contiguous().unsqueeze(0) for part in rows), a, b], {**named, "query_start_loc": torch.arange(requests + 1, dtype=torch.int32)}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(importlib.util.find_spec("sglang").origin).parents[1])
    version = load(folder)
    classes = {"gated_delta": sys.modules[f"{KERNELS}.gdn_triton"].TritonGDNKernel, "kda": sys.modules[f"{KERNELS}.kda_triton"].TritonKDAKernel}
    own = {(kind, name): cls.__dict__[name] for kind, cls in classes.items() for name in ("packed_decode", "decode") if name in cls.__dict__}
    from sglang.srt.plugins.hook_registry import HookRegistry

    recurrent = importlib.import_module("leanattn.sglang.recurrent")
    recurrent.register()
    HookRegistry.apply_hooks()
    calls = []

    def launched(q, k, v, state, slots, **options):
        calls.append(len(slots))
        for name in ("a_log", "dt_bias"):
            assert options[name].dtype == torch.float32 and not options[name].requires_grad
        return reference.recurrent(q, k, v, state, slots, **options)

    recurrent._recurrent = launched
    generator, agreed, wrong = torch.Generator().manual_seed(5), 0, []
    for (kind, name), requests, state_type in itertools.product(own, (1, 5), (torch.float32, torch.bfloat16)):
        # Before 0.5.23, decode steps of SGLang have no bounded gates.
        for bound in [None, -4.0] if "lower_bound" in inspect.signature(own[kind, name]).parameters else [None]:
            given, named = step(kind, name == "packed_decode", requests, state_type, bound, generator)
            named["dt_bias"] = torch.nn.Parameter(named["dt_bias"].bfloat16(), requires_grad=False)
            made = []
            for hooked in (False, True):
                pool = named["ssm_states"].clone()
                function = getattr(classes[kind], name) if hooked else own[kind, name]
                made.append((function(classes[kind](), *(tensor.clone() for tensor in given), **{**named, "ssm_states": pool}), pool))
                assert bool(calls) == hooked
            calls.clear()
            assert named["dt_bias"].dtype == torch.float32  # from its first use on
            (expected, of_own), (found, of_ours) = made
            assert found.shape == expected.shape
            errors = [((x.double() - y.double()).abs().max() / y.double().square().mean().sqrt()).item() for x, y in ((found, expected), (of_ours, of_own))]
            # The interpreter cuts bf16 off, and SGLang has packed rows' beta of the gated delta rule in bf16.
            rounds = state_type == torch.bfloat16 or (kind, name) == ("gated_delta", "packed_decode")
            if errors[0] < 0.1 and errors[1] < (0.1 if rounds else 2e-4):
                agreed += 1
            else:
                wrong.append(f"{kind}.{name}, {requests} requests, {state_type}, bound {bound}: {errors}")
    # Null slots are those below 0, and recent tokens that are replayed stay SGLang's.
    given, named = step("gated_delta", False, 3, torch.float32, None, generator)
    named["cache_indices"][1] = -1
    before = named["ssm_states"].clone()
    out = classes["gated_delta"]().decode(*given, **named)
    assert not out[0, 1].any() and len({*range(SLOTS)} - set(named["cache_indices"].tolist())) == SLOTS - 2
    untouched = [slot for slot in range(SLOTS) if slot not in named["cache_indices"].tolist()]
    assert torch.equal(before[untouched], named["ssm_states"][untouched]) and calls == [3]
    print("\n".join(wrong))
    print(f"SGLang {version}: {agreed} steps agree" + (f", {len(wrong)} do not" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
