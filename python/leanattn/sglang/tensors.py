"""tensors.py -- the operations on tensors that the verification of a tree of drafts needs. None of them waits for the GPU."""
import torch


def tree_words(custom_mask, seq_lens, draft_tokens):
    """The tree_mask of leanattn.decode, int32 [requests * draft_tokens], from SGLang's mask.

    custom_mask  bool, flat: each request has `draft_tokens` rows of seq_lens[request] + draft_tokens cells, and requests follow each other. What
                 lies beyond its end is read as its last cell, because a CUDA graph has requests that are nobody's
    seq_lens     [requests], without the draft tokens
    """
    own = torch.arange(draft_tokens, device=seq_lens.device)
    before = seq_lens.to(torch.int64)
    row = before + draft_tokens  # cells
    request = (row * draft_tokens).cumsum(0) - row * draft_tokens  # its first cell
    first = request[:, None] + own * row[:, None] + before[:, None]  # [requests, draft_tokens], the cell of draft token 0
    cells = (first[:, :, None] + own).clamp_(max=custom_mask.numel() - 1)
    return (custom_mask[cells].to(torch.int32) << own.to(torch.int32)).sum(-1, dtype=torch.int32).reshape(-1)


def page_table(req_to_token, req_pool_indices, width):
    """The slots of requests as pages of one token, int32 [requests, width]. req_to_token has the slots, int32 [request pool, tokens]."""
    return req_to_token[:, :width].index_select(0, req_pool_indices)
