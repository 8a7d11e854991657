"""system_leanattn.py -- leanattn through its C interface: the plan that its look-up answers for the shape, on the dense cache."""
import torch

from . import leanattn_c, systems


class LeanattnSystem:
    name = "leanattn"

    def __init__(self, library_path, cache_dir=None):
        self.library = leanattn_c.Library(library_path)
        self.engine = leanattn_c.Engine(self.library, torch.cuda.current_device(), cache_dir)
        self.workspaces = {}

    def versions(self):
        return {"leanattn": self.library.version().decode(), "leanattn_warnings": self.engine.warnings()}

    def query(self, case, pdl, max_batch=0, **features):
        """What a decode loop asks at a step: a leanattn_c.Query for the case's problem, with further fields of it, and lengths."""
        return self.engine.query(case.q_heads, case.kv_heads, case.head_dim, case.batch, case.longest, case.tokens, max_batch, pdl, systems.stream(), **features)

    def workspace(self, plan):
        """The workspace of a plan: one for all plans of a size, since launches follow each other on one stream."""
        size = plan.workspace_bytes()
        if size not in self.workspaces:
            self.workspaces[size] = torch.empty(max(size, 256), dtype=torch.uint8, device="cuda")
            plan.init_workspace(self.workspaces[size].data_ptr(), size, systems.stream())
        return self.workspaces[size].data_ptr()

    def pdl_choices(self):
        return [False, True] if self.library.has_field("problem", "pdl") else [False]

    def candidates(self, data, attempt):
        return [attempt("tuned", pdl, lambda: self.candidate(data, pdl)) for pdl in self.pdl_choices()]

    def candidate(self, data, pdl):
        case = data.case
        plan = self.query(case, pdl).plan()
        workspace = self.workspace(plan)
        outputs = [data.output() for _ in range(data.copies)]
        arguments = [plan.arguments(data.q.data_ptr(), data.k[copy].data_ptr(), data.v[copy].data_ptr(), outputs[copy].data_ptr(),
                                    data.lengths.data_ptr(), case.batch, case.capacity) for copy in range(data.copies)]

        def launch(copy):
            plan.launch(arguments[copy], workspace, systems.stream())

        return systems.Candidate(self.name, "tuned", launch, lambda copy: outputs[copy], pdl, facts=plan.info())
