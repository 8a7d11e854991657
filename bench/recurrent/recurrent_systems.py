"""recurrent_systems.py -- what does a step: leanattn, flash-linear-attention, vLLM and FlashInfer, each as candidates, and copies of the same states.

A system is made in a process of its own, because a peer's fault must not end the run. Its `candidates(data, attempt)` are made by attempt(variant, build).
"""
import ctypes
import dataclasses
import importlib
import importlib.metadata
import pathlib
from typing import Callable

import torch

from peers import c_header, cuda_driver, leanattn_c, systems
from recurrent_steps import KEY_DIM, VALUE_DIM

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER, COPY = ROOT / "include/leanattn/recurrent.h", ROOT / "templates/standalone/copy_limit.cuh"
# Entry point, 16-byte loads that a thread has in flight, threads, CTAs an SM (0: one for each run of chunks), as the tuner has them.
COPY_VARIANTS = [("copy_limit_4", 4, 128, 0), ("copy_limit_4", 4, 256, 0), ("copy_limit_8", 8, 128, 0), ("copy_limit_8", 8, 256, 0),
                 ("copy_limit_4", 4, 512, 4), ("copy_limit_8", 8, 512, 2)]


@dataclasses.dataclass
class StepCandidate(systems.Candidate):
    """`states(copy)` are the states that a launch stored, of the sampled requests: [sampled, slots of a request, v_heads, V, K]. `goes_on`: the next
    launch begins with what the last one stored. `first`: the slot of data.initial where each request begins, if not data.first_slots()."""

    states: Callable[[int], torch.Tensor] | None = None
    goes_on: bool = True
    first: torch.Tensor | None = None


def in_place(data, system, variant, run, facts=None):
    """The candidate of run(copy, output), which changes the slots of the pool. It returns its output if it does not write the one that it is given."""
    outputs = [data.output() for _ in range(data.copies)]
    sampled = data.slots.view(data.step.batch, -1)[data.sample()].long()

    def launch(copy):
        made = run(copy, outputs[copy])
        if made is not None:
            outputs[copy] = made

    return StepCandidate(system, variant, launch, lambda copy: outputs[copy].view(-1, data.step.v_heads, VALUE_DIM), facts=facts or {},
                         states=lambda copy: data.pool[copy][sampled])


class Copies:
    """The yardstick of every process: the states of a step, read once and written `writes` times, by the fastest of some kernels."""

    def __init__(self):
        properties = torch.cuda.get_device_properties(0)
        self.sms = properties.multi_processor_count
        self.module = cuda_driver.Module(cuda_driver.compile_source(COPY.read_text(), cuda_driver.architecture(properties.major, properties.minor)))
        self.kernels = {name: self.module.kernel(name) for name, *_ in COPY_VARIANTS}

    def launches(self, data, writes):
        """One launch(copy) for each kernel. It copies the slots behind the null slot, which are as many as the step reads, times `writes`."""
        def of(name, loads, threads, ctas_per_sm):
            chunks = data.step.state_bytes // 16
            runs = -(-chunks // (threads * loads))
            ctas = min(runs, self.sms * ctas_per_sm) if ctas_per_sm else runs

            def launch(copy):
                cuda_driver.launch(self.kernels[name], ctas, threads, 0, systems.stream(), ctypes.c_void_p(data.pool[copy][1:].data_ptr()),
                                   ctypes.c_longlong(chunks), ctypes.c_int(writes))

            return launch

        return [of(*variant) for variant in COPY_VARIANTS]


class Leanattn:
    """One launch of the plan that an engine answers, through the C interface, straight from the packed rows."""

    name = "leanattn"

    def __init__(self, options):
        self.library = leanattn_c.Library(options["library"], headers=(leanattn_c.HEADER, HEADER))
        self.engine = leanattn_c.Engine(self.library, torch.cuda.current_device(), options.get("db"))
        self.constants = c_header.constants(HEADER.read_text())
        pointer, status = ctypes.c_void_p, ctypes.c_int
        self.library.bind("engine_recurrent_plan", status, [pointer, pointer, ctypes.c_int32, pointer, pointer])
        self.library.bind("recurrent_plan_launch", status, [pointer, pointer, pointer])
        self.library.bind("recurrent_plan_kernel", ctypes.c_char_p, [pointer])

    def versions(self):
        return {"leanattn": self.library.version().decode(), "leanattn_warnings": self.engine.warnings()}

    def candidates(self, data, attempt):
        return [attempt("rule", lambda: self.candidate(data))]

    def candidate(self, data):
        step, of, library = data.step, self.constants, self.library
        flags = of["LEANATTN_RECURRENT_NORMALISE"] | (of["LEANATTN_RECURRENT_SNAPSHOTS"] if step.snapshots else 0)
        layer = library.make("recurrent_layer", recurrence=of[f"LEANATTN_{step.kind.upper()}"], qk_heads=step.qk_heads, v_heads=step.v_heads, key_dim=KEY_DIM,
                             value_dim=VALUE_DIM, state=of[f"LEANATTN_STATE_{step.state.upper()}"], tokens=step.tokens, flags=flags)
        plan = ctypes.c_void_p()
        library.check(library.engine_recurrent_plan(self.engine.handle, ctypes.byref(layer), step.batch, systems.stream(), ctypes.byref(plan)))
        row, element = data.rows.shape[-1], data.rows.element_size()
        common = {"a_log": data.a_log.data_ptr(), "dt_bias": data.dt_bias.data_ptr(), "slots": data.slots.data_ptr(), "q_stride": row, "k_stride": row,
                  "v_stride": row, "slot_count": data.pool.shape[1], "first_slot": 1, "slots_stride": step.slots_of_request, "batch": step.batch}
        arguments = []
        for copy in range(data.copies):
            q = data.rows[copy].data_ptr()
            arguments.append(library.make("recurrent_args", q=q, k=q + data.keys * element, v=q + 2 * data.keys * element, a=data.a[copy].data_ptr(),
                                          b=data.b[copy].data_ptr(), state=data.pool[copy].data_ptr(), **common))

        def run(copy, output):
            arguments[copy].o = output.data_ptr()
            library.check(library.recurrent_plan_launch(plan, ctypes.byref(arguments[copy]), systems.stream()))

        return in_place(data, self.name, "rule", run, {"kernel": library.recurrent_plan_kernel(plan).decode()})


def dense_parts(data):
    """q, k and v of each copy without gaps, as kernels want them that do not read packed rows."""
    return [tuple(part.contiguous() for part in data.parts(copy)) for copy in range(data.copies)]


class FlashLinearAttention:
    """Its Triton kernels, as models call them. A launch writes its states to new memory, of which each copy has its own."""

    name = "flash-linear-attention"

    def __init__(self, options):
        self.delta = importlib.import_module("fla.ops.gated_delta_rule.fused_recurrent").fused_recurrent_gated_delta_rule
        self.kda = importlib.import_module("fla.ops.kda.fused_recurrent")

    def versions(self):
        return {"fla": importlib.import_module("fla").__version__, "triton": importlib.import_module("triton").__version__}

    def candidates(self, data, attempt):
        step = data.step
        in_fp32 = step.state == "fp32" and not step.snapshots  # it returns states in fp32
        made = [attempt("fused_recurrent", lambda: self.candidate(data))] if in_fp32 else []
        if step.kind == "kda" and (step.snapshots or step.tokens == 1):
            made.append(attempt("fused_recurrent_kda_fwd with slots", lambda: self.with_slots(data)))
        return made

    def gates(self, data, copy):
        """What both of its functions take, in their shapes: [batch, tokens, ...]."""
        step = data.step
        g, beta = (gate[copy].view(step.batch, step.tokens, *gate.shape[2:]) for gate in (data.a, data.b))
        return {"g": g, "beta": beta, "A_log": data.a_log, "dt_bias": data.dt_bias.view(-1), "use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True,
                "use_qk_l2norm_in_kernel": True, "state_v_first": True}

    def candidate(self, data):
        step, inputs = data.step, dense_parts(data)
        function = self.kda.fused_recurrent_kda if step.kind == "kda" else self.delta
        outputs, finals = [None] * data.copies, [None] * data.copies
        sample = data.sample()

        def launch(copy):
            q, k, v = (part.view(step.batch, step.tokens, *part.shape[1:]) for part in inputs[copy])
            outputs[copy], finals[copy] = function(q, k, v, initial_state=data.pool[copy][1:], output_final_state=True, **self.gates(data, copy))

        return StepCandidate(self.name, "fused_recurrent", launch, lambda copy: outputs[copy].view(-1, step.v_heads, VALUE_DIM),
                             states=lambda copy: finals[copy][sample].unsqueeze(1), goes_on=False,
                             first=torch.arange(1, step.batch + 1, device=data.device))

    def with_slots(self, data):
        step, inputs = data.step, dense_parts(data)
        offsets = torch.arange(0, step.batch * step.tokens + 1, step.tokens, dtype=torch.int32, device=data.device)
        accepted = torch.ones(step.batch, dtype=torch.int32, device=data.device) if step.snapshots else None

        def run(copy, output):
            gates = {name: value.flatten(0, 1).unsqueeze(0) if name in ("g", "beta") else value for name, value in self.gates(data, copy).items()}
            self.kda.fused_recurrent_kda_fwd(*(part.unsqueeze(0) for part in inputs[copy]), initial_state=data.pool[copy], cu_seqlens=offsets,
                                             ssm_state_indices=data.slots, num_accepted_tokens=accepted, out=output.unsqueeze(0), **gates)

        return in_place(data, self.name, "fused_recurrent_kda_fwd with slots", run)


class Vllm:
    """vLLM's Triton kernels, which began as copies of flash-linear-attention's."""

    name = "vLLM"
    DELTA, KDA = "vllm.third_party.flash_linear_attention.ops.", "vllm.models.kimi_k3.nvidia.ops.third_party.kda.fused_recurrent"

    def __init__(self, options):
        self.recurrent, self.gating = (importlib.import_module(self.DELTA + name) for name in ("fused_recurrent", "fused_sigmoid_gating"))
        self.kda = importlib.import_module(self.KDA)

    def versions(self):
        return {"vllm": importlib.metadata.version("vllm"), "triton": importlib.import_module("triton").__version__}

    def candidates(self, data, attempt):
        step = data.step
        if step.tokens > 1 and not step.snapshots:
            return []  # it stores a state for each token
        if step.kind == "kda":
            made = [attempt("fused_recurrent_kda", lambda: self.unpacked(data, "fused_recurrent_kda", self.run_kda))]
            return made if step.tokens > 1 else made + [attempt("packed_decode kda", lambda: self.packed_kda(data))]
        made = [attempt("fused_sigmoid_gating", lambda: self.unpacked(data, "fused_sigmoid_gating", self.run_gating))]
        return made if step.tokens > 1 else made + [attempt("packed_decode", lambda: self.packed(data))]

    def unpacked(self, data, variant, run_with):
        step, inputs = data.step, dense_parts(data)
        common = {"cu_seqlens": torch.arange(0, step.batch * step.tokens + 1, step.tokens, dtype=torch.int32, device=data.device),
                  "ssm_state_indices": data.slots,
                  "num_accepted_tokens": torch.ones(step.batch, dtype=torch.int32, device=data.device) if step.snapshots else None}

        def run(copy, output):
            return run_with(data, copy, output, [part.unsqueeze(0) for part in inputs[copy]], common)

        return in_place(data, self.name, variant, run)

    def run_gating(self, data, copy, output, inputs, common):
        return self.gating.fused_sigmoid_gating_delta_rule_update(data.a_log, data.a[copy], data.b[copy], data.dt_bias, *inputs, initial_state=data.pool[copy],
                                                                  use_qk_l2norm_in_kernel=True, **common)[0]

    def run_kda(self, data, copy, output, inputs, common):
        self.kda.fused_recurrent_kda(*inputs, data.a[copy].unsqueeze(0), data.b[copy].unsqueeze(0), data.a_log, data.dt_bias, None, data.pool[copy],
                                     out=output.unsqueeze(0), **common)

    def packed(self, data):
        def run(copy, output):
            self.recurrent.fused_recurrent_gated_delta_rule_packed_decode(data.rows[copy], data.a[copy], data.b[copy], data.a_log, data.dt_bias,
                                                                          KEY_DIM ** -0.5, data.pool[copy], output.unsqueeze(1), data.slots, True)

        return in_place(data, self.name, "packed_decode", run)

    def packed_kda(self, data):
        def run(copy, output):
            self.kda.fused_recurrent_kda_packed_decode(data.rows[copy], data.a[copy].unsqueeze(0), data.b[copy].unsqueeze(0), data.a_log, data.dt_bias, None,
                                                       data.pool[copy], data.slots, out=output.unsqueeze(0))

        return in_place(data, self.name, "packed_decode kda", run)


class FlashInfer:
    """Its kernels of the gated delta rule for Hopper, which CUTLASS's DSL compiles."""

    name = "FlashInfer"

    def __init__(self, options):
        self.module = importlib.import_module("flashinfer.gdn_decode")

    def versions(self):
        return {"flashinfer": importlib.metadata.version("flashinfer-python")}

    def candidates(self, data, attempt):
        if data.step.kind != "gated_delta":
            return []
        return [attempt("gdn_decode", lambda: self.candidate(data))]

    def candidate(self, data):
        step, inputs = data.step, dense_parts(data)
        per_token = data.slots if step.snapshots else None
        first = data.first_slots().contiguous()

        def run(copy, output):
            q, k, v = (part.view(step.batch, step.tokens, *part.shape[1:]) for part in inputs[copy])
            a, b = (gate[copy].view(step.batch, step.tokens, -1) for gate in (data.a, data.b))
            common = {"output": output.view(step.batch, step.tokens, step.v_heads, VALUE_DIM), "initial_state": data.pool[copy], "initial_state_indices": first}
            if step.tokens == 1:
                self.module.gated_delta_rule_decode_pretranspose(q, k, v, None, data.a_log, a, data.dt_bias, b, backend="flashinfer", **common)
            else:
                self.module.gated_delta_rule_mtp(q, k, v, A_log=data.a_log, a=a, dt_bias=data.dt_bias, b=b, ssm_state_indices=per_token,
                                                 disable_state_update=False, **common)

        return in_place(data, self.name, "gdn_decode", run)


SYSTEMS = {system.name: system for system in (Leanattn, FlashLinearAttention, Vllm, FlashInfer)}
