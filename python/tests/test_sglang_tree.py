"""What leanattn.sglang makes of SGLang's masks and slots for a tree of drafts, on the CPU."""
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def tensors():
    import leanattn.sglang.tensors

    return leanattn.sglang.tensors


def masks_of(lengths, draft_tokens, seed):
    """SGLang's flat mask for random trees, and the ancestors of each draft token as words."""
    drawn, cells, words = random.Random(seed), [], []
    for length in lengths:
        seen = [0] * draft_tokens
        for token in range(draft_tokens):
            parent = drawn.randrange(token) if token else None
            seen[token] = (seen[parent] if token else 0) | 1 << token
            words.append(seen[token])
            cells += [True] * length + [bool(seen[token] >> other & 1) for other in range(draft_tokens)]
    return torch.tensor(cells), words


@pytest.mark.parametrize("draft_tokens", [2, 5, 16])
@pytest.mark.parametrize("lengths", [(7,), (1, 40, 3), (0, 9)])
def test_words_have_the_ancestors_of_a_token(tensors, lengths, draft_tokens):
    for seed in range(3):
        mask, words = masks_of(lengths, draft_tokens, seed)
        made = tensors.tree_words(mask, torch.tensor(lengths), draft_tokens)
        assert made.dtype == torch.int32 and made.tolist() == words


def test_requests_beyond_the_mask_do_not_read_beyond_it(tensors):
    """A CUDA graph has room for more requests than there are."""
    mask, words = masks_of((7, 3), 4, 0)
    made = tensors.tree_words(mask, torch.tensor([7, 3, 1, 1]), 4)
    assert made.shape == (16,) and made[:8].tolist() == words


def test_a_mask_may_have_room_for_more(tensors):
    mask, words = masks_of((7, 3), 4, 0)
    assert tensors.tree_words(torch.cat((mask, mask)), torch.tensor([7, 3]), 4).tolist() == words


def test_a_page_table_has_the_slots_of_the_requests(tensors):
    slots = torch.arange(60, dtype=torch.int32).reshape(6, 10)
    made = tensors.page_table(slots, torch.tensor([4, 0, 4]), 7)
    assert made.dtype == torch.int32 and torch.equal(made, slots[[4, 0, 4], :7])
