"""vllm_recurrent_steps.py -- leanattn.vllm's layers with a recurrent state in vLLM's own Python, beside vLLM's own layers, kernels included.

    python3 python/tests/vllm_recurrent_steps.py [FOLDER]     # FOLDER has vLLM's files, such as an unpacked wheel; default: the installed one
    python3 python/tests/vllm_recurrent_steps.py --gpu [FOLDER]

Layers, builders of metadata and vLLM's Triton kernels for decode rows are the real ones. A layer is made without its projections, and stubs stand for the
kernels of prompts. With --gpu kernels run on CUDA device 0, leanattn's and vLLM's. Else those of vLLM run in Triton's interpreter, which does not run
convolutions and Mamba-2's kernel, so that these have stubs as well, and in the place of leanattn.recurrent there is a reference in fp64. The same steps go
through vLLM's layer and through leanattn's, on caches of their own, and outputs and caches are compared. The last line says how many steps agree.
"""
import os
import sys

GPU = "--gpu" in sys.argv
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # says that Triton may be there without a driver

import importlib  # noqa: E402
import importlib.util  # noqa: E402
import itertools  # noqa: E402
import pathlib  # noqa: E402
import types  # noqa: E402

import torch  # noqa: E402

import leanattn  # noqa: E402
import reference  # noqa: E402
import vllm_steps  # noqa: E402

DEVICE = torch.device("cuda" if GPU else "cpu")
QK_HEADS, V_HEADS, KEY_DIM, VALUE_DIM, SLOTS, WIDTH, DRAFTS = 2, 4, 32, 64, 24, 4, 2
NULL_SLOT_ROWS = 3  # that only pad a graph
# Whether drafts are used, new tokens of each request, drafts of each (-1: none, as for prompts), and accepted tokens of the step before.
STEPS = [(False, [1, 1, 1], None, None), (False, [1], None, None), (False, [1, 1, 7], None, None), (False, [1, 1, 5, 9], None, None),
         (True, [3, 3], [2, 2], [1, 3]), (True, [3, 1, 2], [2, 0, 1], [2, 1, 3]), (True, [3, 2, 6], [2, 1, -1], [3, 1, 1])]


class Ops:
    """vLLM's compiled operators, which are not there: no kernel that vLLM asks for is supported."""

    def __getattr__(self, name):
        if "support" not in name:
            raise AttributeError(name)
        return lambda *_: False


def load(folder):
    """vLLM with Triton's interpreter, without mixtures of experts. Returns its version."""
    import triton.backends  # noqa: F401  (vLLM looks for its drivers)
    import triton.language as tl

    vllm_steps.LEFT_OUT |= {"triton_kernels", "mori", "cutlass", "tvm_ffi"}
    for name in ("_C", "_moe_C", "_C_cache_ops"):
        setattr(torch.ops, name, Ops())
    version = vllm_steps.load(folder)
    for name in ("layers.fused_moe", "layers.quantization.utils.humming"):
        sys.modules[f"vllm.model_executor.{name}"] = vllm_steps.Missing(f"vllm.model_executor.{name}")
    for name in ("models", "models.kimi_k3", "models.kimi_k3.nvidia", "models.kimi_k3.nvidia.ops"):  # packages that import whole models
        package = sys.modules[f"vllm.{name}"] = types.ModuleType(f"vllm.{name}")
        package.__path__ = [str(folder / "vllm" / name.replace(".", "/"))]
    if (folder / "vllm/models/kimi_k3/nvidia/ops/third_party").exists():
        importlib.import_module("vllm.models.kimi_k3.nvidia.ops.third_party.kda")
    importlib.import_module("leanattn.vllm.recurrent")
    # Kernels have Triton's functions under names of their own, which the interpreter does not replace.
    for name, module in list(sys.modules.items()):
        for function in ("exp", "exp2", "log", "log2") if not GPU and name.startswith("vllm.") and ("linear_attention" in name or ".kda" in name) else ():
            if hasattr(module, function):
                setattr(module, function, lambda x, function=function: getattr(tl, function)(x))
    of_interpreter = {} if GPU else {"causal_conv1d_update": convolution, "fused_kda_gate": gates}
    stubs = {"get_forward_context": lambda: CONTEXT, "causal_conv1d_fn": convolution_of_prompts, **of_interpreter,
             "mamba_chunk_scan_combined_varlen": lambda x, *_, out, state_dtype, **more: (out.copy_(x), out.new_zeros(1, dtype=state_dtype))[1]}
    for name, module in list(sys.modules.items()):
        for function in stubs if name.startswith(("vllm.model_executor.layers.mamba.", "leanattn.vllm.recurrent")) else ():
            if hasattr(module, function):
                setattr(module, function, stubs[function])
    dispatch = importlib.import_module("vllm.model_executor.layers.mamba.ops.ssu_dispatch")
    rounding = types.SimpleNamespace(enable_stochastic_rounding=False, stochastic_rounding_philox_rounds=0)
    dispatch._mamba_ssu_backend = dispatch.TritonSSUBackend(rounding) if GPU else state_space
    return version


CONTEXT = types.SimpleNamespace(attn_metadata=None)


def convolution(x, conv_state, weight, bias=None, activation=None, conv_state_indices=None, num_accepted_tokens=None, query_start_loc=None, out=None, **_):
    """Of decode rows, x [tokens, dim]: no convolution, but it depends on all of its arguments, and changes the state."""
    assert activation == "silu" and len(conv_state_indices) <= len(x)
    slots = conv_state_indices.flatten(0, 0)[:, 0] if conv_state_indices.ndim == 2 else conv_state_indices
    conv_state[slots.long()] += 1 if num_accepted_tokens is None else num_accepted_tokens.view(-1, 1, 1).to(conv_state.dtype)
    made = torch.nn.functional.silu(x * weight[:, -1] + (0 if bias is None else bias))
    return made if out is None else out.copy_(made)


def convolution_of_prompts(x, weight, bias=None, activation=None, conv_states=None, cache_indices=None, **_):
    """x [dim, tokens]."""
    conv_states[cache_indices.long()] += 2
    return torch.nn.functional.silu(x * weight[:, :1])


def gates(g, a_log, head_dim, g_bias):
    """vLLM's fused_kda_gate, a kernel that Triton tunes, which its interpreter cannot."""
    x = g.float().view(len(g), -1, head_dim) + g_bias.view(-1, head_dim)
    return -a_log.view(-1, 1).exp() * torch.nn.functional.softplus(x)


def config(drafts):
    """What builders read of vLLM's configuration."""
    mode = types.SimpleNamespace(has_full_cudagraphs=lambda: True)
    speculative = types.SimpleNamespace(num_speculative_tokens=DRAFTS, parallel_drafting=False, use_eagle_block_drop=lambda: False) if drafts else None
    return types.SimpleNamespace(
        compilation_config=types.SimpleNamespace(cudagraph_mode=mode, max_cudagraph_capture_size=None), speculative_config=speculative,
        scheduler_config=types.SimpleNamespace(max_num_seqs=16, max_num_batched_tokens=64), num_speculative_tokens=DRAFTS if drafts else 0,
        cache_config=types.SimpleNamespace(mamba_cache_mode="none", use_replayssm=False, replayssm_buffer_len=None, mamba_block_size=16,
                                           enable_prefix_caching=False, block_size=16),
        mamba_config=types.SimpleNamespace(backend=None, gdn_prefill_backend="triton"), use_v2_model_runner=False,
        model_config=types.SimpleNamespace(dtype=torch.bfloat16, get_mamba_chunk_size=lambda: 16, hf_text_config=types.SimpleNamespace()),
        parallel_config=types.SimpleNamespace(decode_context_parallel_size=1), additional_config={"gdn_prefill_backend": "triton"})


def state_space(state, x, dt, A, B, C, D, dt_bias, *, dt_softplus, state_batch_indices, dst_state_batch_indices, null_block_id, out, num_accepted_tokens,
                cu_seqlens, **_):
    """vLLM's selective_state_update in a loop."""
    assert dt_softplus and state_batch_indices.ndim == 2
    starts = range(len(state_batch_indices) + 1) if cu_seqlens is None else cu_seqlens.tolist()
    repeat = x.shape[1] // B.shape[1]
    for request, (begin, end) in enumerate(itertools.pairwise(starts)):
        slot = int(state_batch_indices[request, 0 if num_accepted_tokens is None else int(num_accepted_tokens[request]) - 1])
        if slot == null_block_id or begin == end:
            continue
        s = state[slot].float()
        for token in range(begin, end):
            step = torch.nn.functional.softplus(dt[token].float() + dt_bias)
            b, c = (rows[token].float().repeat_interleave(repeat, 0) for rows in (B, C))
            s = s * torch.exp(step[..., None] * A) + step[..., None] * x[token].float()[..., None] * b[:, None]
            out[token] = torch.einsum("hpn,hn->hp", s, c) + D * x[token].float()
            target = int(dst_state_batch_indices[request, token - begin if num_accepted_tokens is not None else 0])
            if num_accepted_tokens is not None or token == end - 1:
                state[target] = s.to(state.dtype)


def on_device(tensor):
    """With the strides that it has."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE).copy_(tensor)


class Layer:
    """One kind of layer: vLLM's class, leanattn's, its builder, what both classes read, and its inputs."""

    def __init__(self, ours, builder, metadata_module, dims):
        self.ours, self.own, (self.qk_heads, self.v_heads, self.key_dim, self.value_dim) = ours, ours.__mro__[1], dims
        self.builder = getattr(importlib.import_module(metadata_module), builder)

    def build(self, drafts, query_tokens, draft_tokens, accepted, generator, padding):
        """Metadata of a step by vLLM's own builder, and the slots of its requests."""
        from vllm.v1.attention.backend import CommonAttentionMetadata
        from vllm.v1.kv_cache_interface import MambaSpec

        made = config(drafts)
        spec = MambaSpec(block_size=16, shapes=((3, 8), (self.v_heads, self.value_dim, self.key_dim)), dtypes=(torch.bfloat16, torch.float32))
        builder = self.builder(spec, ["layer"], made, DEVICE)
        starts = torch.tensor([0, *itertools.accumulate(query_tokens), *[sum(query_tokens)] * padding], dtype=torch.int32)
        rows, columns = len(query_tokens) + padding, 1 + DRAFTS
        table = torch.zeros(rows, 5, dtype=torch.int32)
        table[:len(query_tokens), :columns] = (torch.randperm(SLOTS - 1, generator=generator)[:len(query_tokens) * columns] + 1).view(-1, columns).int()
        lengths = torch.tensor([20 + tokens for tokens in query_tokens] + [0] * padding, dtype=torch.int32)
        prompts = [tokens > 1 for tokens in query_tokens] if draft_tokens is None else [count < 0 for count in draft_tokens]
        common = CommonAttentionMetadata(
            is_prefilling=torch.tensor(prompts + [False] * padding),
            query_start_loc=starts.to(DEVICE), query_start_loc_cpu=starts, seq_lens=lengths.to(DEVICE), seq_lens_cpu_upper_bound=lengths, num_reqs=rows,
            num_actual_tokens=sum(query_tokens) + padding, max_query_len=max(query_tokens), max_seq_len=int(lengths.max()), block_table_tensor=table.to(DEVICE),
            slot_mapping=torch.zeros(sum(query_tokens), dtype=torch.int64, device=DEVICE))
        given = {}
        if drafts:
            ends = [0] * padding
            given = {"num_accepted_tokens": torch.tensor(accepted + ends, dtype=torch.int32, device=DEVICE),
                     "num_decode_draft_tokens_cpu": torch.tensor(draft_tokens + [-1] * padding, dtype=torch.int32)}
        return builder.build(0, common, **given)

    def make(self, cls, parameters, caches):
        layer = torch.nn.Module.__new__(cls)
        torch.nn.Module.__init__(layer)
        for name, value in {**self.fields(), **parameters}.items():
            setattr(layer, name, torch.nn.Parameter(value.to(DEVICE, copy=True), requires_grad=False) if isinstance(value, torch.Tensor) else value)
        layer.prefix, layer.tp_size, layer.kv_cache = "layer", 1, caches
        if cls is self.ours:
            self.finish(layer)
        return layer

    def finish(self, layer):
        layer._use_leanattn()

    def run(self, drafts, query_tokens, draft_tokens, accepted, generator, padding, state_type):
        """(largest difference of outputs over their root mean square, the same of states, rows that leanattn computed)"""
        metadata = self.build(drafts, query_tokens, draft_tokens, accepted, generator, padding)
        tokens = sum(query_tokens) + padding
        inputs, parameters = self.inputs(tokens, generator), self.parameters(generator)
        conv = torch.randn(SLOTS, WIDTH - 1 + DRAFTS, self.conv_dim, generator=generator).bfloat16()
        state = torch.randn(SLOTS, self.v_heads, self.value_dim, self.key_dim, generator=generator).mul(0.3).to(state_type)
        made = []
        for cls in (self.own, self.ours):
            caches = conv.to(DEVICE, copy=True), state.to(DEVICE, copy=True)
            layer, calls = self.make(cls, parameters, caches), []
            out = self.call(layer, [on_device(tensor) for tensor in inputs], {"layer": metadata}, calls)
            made.append((out[:sum(query_tokens)], caches, calls))
        (expected, (conv_expected, expected_state), none), (found, (conv_found, found_state), calls) = made
        assert not none and torch.equal(conv_expected, conv_found)
        return [((a.double() - b.double()).abs().max() / b.double().square().mean().sqrt()).item() for a, b in
                ((found, expected), (found_state[1:], expected_state[1:]))] + [sum(calls)]

    def call(self, layer, inputs, metadata, calls):
        recurrent = importlib.import_module("leanattn.vllm.recurrent")

        def launched(q, k, v, state, slots, **options):
            assert slots.dtype == torch.int32 and slots.ndim == 2 and slots.stride(1) == 1 and options["first_slot"] == 1
            for name in ("a_log", "dt_bias", "skip", "norm_weight"):
                assert options.get(name) is None or options[name].dtype == torch.float32, name
            for name in ("accepted", "token_offsets"):
                assert options.get(name) is None or options[name].dtype == torch.int32 and options[name].is_contiguous(), name
            for name in ("a", "b"):
                assert options.get(name) is None or options[name].dtype == (torch.float32 if options.get("gates") == "given" else q.dtype), name
            calls.append(len(slots))
            return (leanattn.recurrent if GPU else reference.recurrent)(q, k, v, state, slots, **options)

        recurrent._recurrent = launched
        CONTEXT.attn_metadata = metadata
        with torch.no_grad():
            return self.step(layer, *inputs)


class Qwen(Layer):
    def __init__(self, recurrent):
        super().__init__(recurrent.Qwen, "GDNAttentionMetadataBuilder", "vllm.v1.attention.backends.gdn_attn", (QK_HEADS, V_HEADS, KEY_DIM, VALUE_DIM))
        self.conv_dim = 2 * QK_HEADS * KEY_DIM + V_HEADS * VALUE_DIM
        self.packed = True

    def fields(self):
        def chunks(q, k, v, g, beta, initial_state, **_):
            return v.clone(), initial_state + 1

        return {"num_k_heads": QK_HEADS, "num_v_heads": V_HEADS, "head_k_dim": KEY_DIM, "head_v_dim": VALUE_DIM, "key_dim": QK_HEADS * KEY_DIM,
                "value_dim": V_HEADS * VALUE_DIM, "activation": "silu", "enable_packed_recurrent_decode": self.packed, "chunk_gated_delta_rule": chunks,
                "gdn_decode_kernel": "triton", "enable_fused_gdn_spec_decode": False, "_checkpoint_alignment": None, "gdn_prefill_backend": "triton"}

    def parameters(self, generator):
        weight = torch.randn(self.conv_dim, 1, WIDTH, generator=generator).bfloat16()
        return {"conv1d": types.SimpleNamespace(weight=weight.to(DEVICE), bias=None), "A_log": torch.rand(V_HEADS, generator=generator),
                "dt_bias": torch.randn(V_HEADS, generator=generator)}

    def inputs(self, tokens, generator):
        return [torch.randn(tokens, columns, generator=generator).bfloat16() for columns in (self.conv_dim, V_HEADS, V_HEADS)]

    def step(self, layer, mixed, b, a):
        out = torch.zeros(len(mixed), V_HEADS, VALUE_DIM, dtype=torch.bfloat16, device=DEVICE)
        layer._forward_core(mixed, b, a, out)
        return out


class QwenUnpacked(Qwen):
    def __init__(self, recurrent):
        super().__init__(recurrent)
        self.packed = False


class Mamba(Layer):
    def __init__(self, recurrent):
        super().__init__(recurrent.Mamba, "Mamba2AttentionMetadataBuilder", "vllm.v1.attention.backends.mamba2_attn", (QK_HEADS, V_HEADS, KEY_DIM, VALUE_DIM))
        self.conv_dim = 2 * QK_HEADS * KEY_DIM + V_HEADS * VALUE_DIM

    def fields(self):
        def split(rows):
            return rows.split((V_HEADS * VALUE_DIM, QK_HEADS * KEY_DIM, QK_HEADS * KEY_DIM), -1)

        return {"num_heads": V_HEADS, "head_dim": VALUE_DIM, "ssm_state_size": KEY_DIM, "n_groups": QK_HEADS, "activation": "silu", "num_spec": DRAFTS,
                "tped_intermediate_size": 16, "tped_conv_size": self.conv_dim, "tped_dt_size": V_HEADS, "split_hidden_states_B_C_fn": split,
                "cache_config": config(False).cache_config, "is_blackwell": False, "use_replayssm": False, "replayssm_buffer_len": None,
                "mamba_config": config(False).mamba_config, "conv_kernel_size": WIDTH}

    def parameters(self, generator):
        return {"conv1d": types.SimpleNamespace(bias=torch.randn(self.conv_dim, generator=generator).bfloat16().to(DEVICE)),
                "conv_weights": torch.randn(self.conv_dim, WIDTH, generator=generator).bfloat16(), "A": -torch.rand(V_HEADS, generator=generator) - 0.1,
                "D": torch.randn(V_HEADS, generator=generator), "dt_bias": torch.randn(V_HEADS, generator=generator)}

    def inputs(self, tokens, generator):
        return [torch.randn(tokens, 16 + self.conv_dim + V_HEADS, generator=generator).bfloat16()]

    def step(self, layer, projected):
        out = torch.zeros(len(projected), V_HEADS * VALUE_DIM, dtype=torch.bfloat16, device=DEVICE)
        layer.conv_ssm_forward(projected, out)
        return out


class KimiPacked(Layer):
    def __init__(self, recurrent):
        super().__init__(recurrent.KimiPacked, "GDNAttentionMetadataBuilder", "vllm.v1.attention.backends.gdn_attn", (V_HEADS, V_HEADS, KEY_DIM, KEY_DIM))
        self.conv_dim = 3 * V_HEADS * KEY_DIM

    def fields(self):
        class Norm(torch.nn.Module):
            eps = 1e-5

            def forward(self, x, z):
                normal = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
                return (normal * self.weight * torch.sigmoid(z.float())).to(x.dtype)

        norm = Norm()
        norm.weight = torch.nn.Parameter(torch.linspace(0.5, 2, KEY_DIM, device=DEVICE))
        return {"head_dim": KEY_DIM, "local_num_heads": V_HEADS, "local_projection_size": V_HEADS * KEY_DIM, "o_norm": norm, "gate_lower_bound": self.bound}

    bound = None

    def finish(self, layer):
        pass

    def parameters(self, generator):
        weight = torch.randn(self.conv_dim, 1, WIDTH, generator=generator).bfloat16()
        return {"conv1d": types.SimpleNamespace(weight=weight.to(DEVICE), bias=None), "A_log": torch.rand(V_HEADS, generator=generator),
                "dt_bias": torch.randn(V_HEADS * KEY_DIM, generator=generator)}

    def inputs(self, tokens, generator):
        mixed = torch.randn(tokens, self.conv_dim + 16, generator=generator).bfloat16()[:, :self.conv_dim]
        gates = [torch.randn(1, tokens, V_HEADS, KEY_DIM, generator=generator).bfloat16() for _ in range(2)]
        return [mixed, gates[0], gates[1][0], torch.randn(1, tokens, V_HEADS, generator=generator).bfloat16()]

    def step(self, layer, mixed, g1, g2, beta):
        out = torch.zeros(1, len(mixed), V_HEADS, KEY_DIM, dtype=torch.bfloat16, device=DEVICE)
        layer._forward(mixed, g1, g2, beta, out)
        return out[0]


class KimiBounded(KimiPacked):
    bound = -4.0


class KimiApart(KimiPacked):
    def __init__(self, recurrent):
        super().__init__(recurrent)
        self.ours = recurrent.KimiApart

    def finish(self, layer):
        layer._use_leanattn()

    def parameters(self, generator):
        made = super().parameters(generator)
        weights = made.pop("conv1d").weight.chunk(3)
        return {**made, "A_log": made["A_log"].view(1, 1, -1, 1),
                **{f"{name}_conv1d": types.SimpleNamespace(weight=weight.to(DEVICE), bias=None) for name, weight in zip("qkv", weights)}}

    def step(self, layer, mixed, g1, g2, beta):
        out = torch.zeros(1, len(mixed), V_HEADS, KEY_DIM, dtype=torch.bfloat16, device=DEVICE)
        q, k, v = (part.contiguous() for part in mixed.chunk(3, -1))
        layer._forward(q, k, v, g1, beta.float().sigmoid(), out)
        return out[0]


def kinds(version, recurrent):
    """Kinds of layers, and the steps that they have: Kimi's prompts have kernels that the interpreter does not run, and in 0.26 it takes no drafts."""
    old = version.startswith("0.26")
    of_kimi = [step for step in STEPS if max(step[1]) <= DRAFTS + 1 and not (old and step[0])]
    # In 0.26, vLLM gives a step of drafts and prompts the gates of other tokens.
    of_qwen = [step for step in STEPS if not (old and step[0] and -1 in step[2])]
    found = [(Qwen, of_qwen), (QwenUnpacked, of_qwen), (Mamba, STEPS)]
    return [(kind(recurrent), steps) for kind, steps in found + ([(KimiApart, of_kimi)] if old else [(KimiPacked, of_kimi), (KimiBounded, of_kimi)])]


def check_registration(recurrent):
    """vLLM makes leanattn's layers once its plugin was asked for them."""
    import leanattn.vllm  # noqa: F811
    from vllm.model_executor.custom_op import op_registry_oot

    op_registry_oot.clear()
    leanattn.vllm.register()
    assert not op_registry_oot
    os.environ[leanattn.vllm.RECURRENT] = "1"
    for _ in range(2):
        leanattn.vllm.register()
    made = {name: cls.__name__ for name, cls in op_registry_oot.items()}
    op_registry_oot.clear()
    recurrent.envs.VLLM_BATCH_INVARIANT = True
    leanattn.vllm.register()
    assert not op_registry_oot
    recurrent.envs.VLLM_BATCH_INVARIANT = False
    leanattn.vllm.register()
    kimi = "KimiApart" if hasattr(recurrent.kimi_gdn_linear_attn, "fused_recurrent_kda") else "KimiPacked"
    assert made == {"QwenGatedDeltaNetAttention": "Qwen", "KimiGatedDeltaNetAttention": kimi, "MambaMixer2": "Mamba"}, made
    own = recurrent.Qwen.__mro__[1]
    assert type(own.__new__(own)) is recurrent.Qwen


def main():
    given = [argument for argument in sys.argv[1:] if argument != "--gpu"]
    folder = given[0] if given else pathlib.Path(importlib.util.find_spec("vllm").origin).parents[1]
    version = load(pathlib.Path(folder))
    recurrent = importlib.import_module("leanattn.vllm.recurrent")
    generator, agreed, wrong = torch.Generator().manual_seed(3), 0, []
    for layer, steps in kinds(version, recurrent):
        for (drafts, query_tokens, draft_tokens, accepted), state_type in itertools.product(steps, (torch.float32, torch.bfloat16)):
            only_decodes = max(query_tokens) <= (DRAFTS + 1 if drafts else 1) and not (draft_tokens and -1 in draft_tokens)
            padding = NULL_SLOT_ROWS if only_decodes and not drafts else 0
            of_output, of_state, rows = layer.run(drafts, query_tokens, draft_tokens, accepted, generator, padding, state_type)
            # The interpreter cuts bf16 off, where others round to the nearest. vLLM 0.26 has packed rows' beta in bf16.
            rounds = state_type == torch.bfloat16 or version.startswith("0.26") and type(layer) is Qwen
            tolerance = 0.1 if rounds else 2e-4
            right = of_output < 0.1 and of_state < tolerance and rows > 0
            agreed += right
            if not right:
                wrong.append(f"{type(layer).__name__}, {query_tokens}, drafts {draft_tokens}, {state_type}: {of_output:.3g}, {of_state:.3g}, {rows} rows")
    check_registration(recurrent)
    print("\n".join(wrong))
    print(f"vLLM {version}: {agreed} steps agree" + (f", {len(wrong)} do not" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
