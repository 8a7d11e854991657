"""system_limit.py -- the kernels that only read as a system: they read the same bytes and compute nothing."""
import torch

from . import read_limit, systems


class ReadLimitSystem:
    name = "read limit"

    def __init__(self):
        properties = torch.cuda.get_device_properties(0)
        self.sink = torch.zeros(64, dtype=torch.int32, device="cuda")
        self.kernels = read_limit.ReadLimit((properties.major, properties.minor), properties.multi_processor_count,
                                            properties.shared_memory_per_multiprocessor, self.sink.data_ptr())

    def versions(self):
        return {}

    def candidates(self, data, attempt):
        # They read as many bytes as the step. Those of a ragged batch are read as one block, which is faster than the step can be.
        bytes_each = data.case.kv_bytes // 2

        def of(variant):
            def launch(copy):
                self.kernels.launch(variant, data.k[copy].data_ptr(), data.v[copy].data_ptr(), bytes_each, systems.stream())

            return systems.Candidate(self.name, variant.name, launch, lambda copy: None)

        return [attempt(variant.name, False, lambda: of(variant)) for variant in self.kernels.variants]
