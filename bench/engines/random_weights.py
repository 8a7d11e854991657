"""random_weights.py -- random weights with which attention matters, for tokens that are compared between attention backends.

Weights as engines draw them by themselves are tiny: attention is flat then, and all logits are alike.
"""
_PROJECTIONS = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "qkv", "o"))
_EMBEDDINGS = ("embed_tokens.weight", "lm_head.weight")


def fill(model, seed=4711):
    """Gives scores and logits of a Llama the size of 1, and makes its feed-forward parts small. The same weights for the same seed, model and GPU."""
    import torch

    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(seed)
    with torch.inference_mode():  # some engines have weights that may be written in no other
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.fill_(1)
                continue
            size = 2 / weight.shape[-1] ** 0.5 if name.endswith(_PROJECTIONS) else 4 / weight.shape[-1] ** 0.5 if name.endswith(_EMBEDDINGS) else 1e-3
            weight.uniform_(-size, size, generator=generator)
