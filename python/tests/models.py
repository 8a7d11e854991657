"""models.py -- small models with random weights, of the kinds whose attention differs."""
import torch
import transformers

VOCABULARY = 512


def llama(**more):
    return transformers.LlamaConfig(**_common(num_attention_heads=8, num_key_value_heads=2, **more))


def qwen2(**more):  # seven query heads a KV head
    return transformers.Qwen2Config(**_common(num_attention_heads=14, num_key_value_heads=2, **more))


def gemma2(**more):  # soft cap, and a window in every other layer
    return transformers.Gemma2Config(**_common(num_attention_heads=4, num_key_value_heads=2, head_dim=64, sliding_window=24, query_pre_attn_scalar=64,
                                               attn_logit_softcapping=2.0, **more))


def opt(**more):
    return transformers.OPTConfig(vocab_size=VOCABULARY, hidden_size=512, ffn_dim=512, num_hidden_layers=2, num_attention_heads=8,
                                  max_position_embeddings=512, word_embed_proj_dim=512, bos_token_id=1, eos_token_id=None, pad_token_id=0, **more)


CONFIGS = {"llama": llama, "qwen2": qwen2, "gemma2": gemma2, "opt": opt}


def _common(num_attention_heads, head_dim=64, **more):
    return {"vocab_size": VOCABULARY, "hidden_size": num_attention_heads * head_dim, "intermediate_size": 512, "num_hidden_layers": 2,
            "num_attention_heads": num_attention_heads, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, **more}

_DELTA_RULE = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 64}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
# Models with a recurrent state: configuration, its fields, and the kind of updates.
RECURRENT = {
    "qwen3_next": ("Qwen3NextConfig", {**_DELTA_RULE, **_EXPERTS, "shared_expert_intermediate_size": 64, "num_key_value_heads": 2}, "gated_delta"),
    "qwen3_5": ("Qwen3_5TextConfig", {**_DELTA_RULE, "num_key_value_heads": 2}, "gated_delta"),
    "olmo_hybrid": ("OlmoHybridConfig", {**_DELTA_RULE, "num_key_value_heads": 2}, "gated_delta"),
    "kimi_linear": ("KimiLinearConfig", {**_EXPERTS, "linear_num_heads": 4, "linear_head_dim": 64, "num_key_value_heads": 4, "n_shared_experts": 1,
                                         "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}, "kda"),
}


def make_recurrent(name, device, dtype, seed=1):
    """A small model with layers of a recurrent state and one of attention."""
    config_name, fields, _ = RECURRENT[name]
    common = {**_common(num_attention_heads=4, head_dim=32, **fields), "num_hidden_layers": 3}
    config = getattr(transformers, config_name)(**common, layer_types=["linear_attention", "full_attention", "linear_attention"])
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.copy_(torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5)
    model.made_of = name
    return model.to(device).eval()


def make(name, implementation, device, dtype, seed=1):
    """A model of this kind; the same weights for the same seed, whatever the implementation."""
    config = CONFIGS[name]()
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # the same in every type, and wide enough that heads attend to something in particular
            if parameter.ndim == 2:
                parameter.copy_(torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5)
    return model.to(device).eval()


def prompt(batch, tokens, device, padding=()):
    """Token ids and the 2D mask; request i has padding[i] tokens of padding in front."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(3, VOCABULARY, (batch, tokens), generator=generator)
    mask = torch.ones_like(ids)
    for request, count in enumerate(padding):
        ids[request, :count], mask[request, :count] = 0, 0
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def logits_of(model, inputs, tokens, cache):
    """Logits of every step when the new tokens are given, in fp32: [batch, new tokens, vocabulary]. `cache`: "dynamic" or "static"."""
    ids = torch.cat((inputs["input_ids"], tokens), 1)
    mask = torch.cat((inputs["attention_mask"], torch.ones_like(tokens)), 1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    first, last = inputs["input_ids"].shape[1], ids.shape[1]
    past = (transformers.StaticCache(config=model.config, max_cache_len=last) if cache == "static" else transformers.DynamicCache(config=model.config))
    logits = []
    with torch.no_grad():
        for begin, end in [(0, first), *((i, i + 1) for i in range(first, last - 1))]:
            made = model(ids[:, begin:end], attention_mask=mask[:, :end], position_ids=positions[:, begin:end], past_key_values=past)
            logits.append(made.logits[:, -1:].float())
    return torch.cat(logits, 1)


def generate(model, inputs, new_tokens, **more):
    """The new tokens [batch, new_tokens] and their logits [batch, new_tokens, vocabulary], greedily."""
    made = model.generate(**inputs, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, return_dict_in_generate=True,
                          output_logits=True, **more)
    return made.sequences[:, inputs["input_ids"].shape[1]:], torch.stack(made.logits, 1)
