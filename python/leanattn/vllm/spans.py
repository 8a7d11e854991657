"""spans.py -- the images of prompts, whose tokens see each other both ways, as leanattn.decode takes them: the span that each query token is in.

vLLM tells a step's builder where a request's images lie, on the host. A builder writes the spans of a step to memory that it keeps, because a graph
reads them there whatever step is replayed.
"""
import numpy as np
from vllm.utils.torch_utils import np_to_pinned_tensor


class Spans:
    """Those of the steps of a builder. `clamped`: layers with a window see no more of an image behind them than of other tokens (Gemma 4)."""

    def __init__(self, most_tokens, device, clamped):
        import torch  # here, so that this module can be held against vLLM's interface without it

        self._kept, self._clamped = torch.zeros((most_tokens, 2), dtype=torch.int32, device=device), clamped
        self._used = 0  # tokens of which some may be in a span there

    def of(self, common, requests, tokens, for_graph):
        """[tokens, 2] int32 on the GPU, of the first requests of a step; None where nobody sees more by them, unless it is for a graph, which
        also serves other steps."""
        found = self._found(common, requests, tokens) if common.max_query_len > 1 else None
        if found is not None:
            self._kept[:tokens].copy_(np_to_pinned_tensor(found), non_blocking=True)
            self._used = max(self._used, tokens)
        elif self._used > 0:
            self._kept[:self._used].zero_()
            self._used = 0
        return None if found is None and not for_graph else self._kept[:tokens]

    def _found(self, common, requests, tokens):
        """The same on the host. An image of which a step has one query token shows it nothing: what follows is not there yet, and vLLM leaves out
        images that are longer than a window."""
        made, starts, lengths = None, np.asarray(common.query_start_loc_cpu), common.seq_lens_cpu_upper_bound
        for request, images in (common.mm_req_doc_ranges or {}).items():
            if request >= requests or not images:
                continue
            end, length = int(starts[request + 1]), int(lengths[request])
            to_row, before = end - length, length - (end - int(starts[request]))  # from an index in the context; tokens before the query tokens
            for first, last in images:
                begin, behind = max(first, before), min(last + 1, length)
                if behind - begin < 2:
                    continue
                if made is None:
                    made = np.zeros((tokens, 2), np.int32)
                rows = made[begin + to_row:behind + to_row]
                rows[:, 0] = np.arange(begin, behind) if self._clamped else first
                rows[:, 1] = last + 1
        return made
