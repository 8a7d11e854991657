#!/usr/bin/env python3
"""What `tune` and engines' tunings promise on a machine with a GPU: that of a fake driver, which executes nothing."""

import json
import os
import re

import contract
from contract import SHAPE


class Layers(contract.OnMachine):
    """What look-ups answer before a tuning is what all layers say, so one that cannot be read is warned of."""

    SKIPPED = "the site database was skipped"

    def damaged_site(self):
        file = self.root / "site.db"
        file.write_text("no database")
        return file

    def test_tune_reads_those_of_a_site(self):
        for mode in ([], ["--in-process"]):
            result = self.on_machine("tune", *SHAPE, "--batch", "1", "--budget", "1ms", *mode, LEANATTN_SITE_DB=self.damaged_site())
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stderr.count(self.SKIPPED), 1, result.stderr)

    def test_an_engines_tuning_reads_them_too(self):
        self.expect(0, "db", "rebuild")
        problem = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *contract.OFFLINE).stdout)["problem"]
        # An order is taken from a library of the program's own version only, which the refusal of another one names.
        refused = self.on_machine("tune-order", sent=json.dumps({"library": "another"})).stderr
        library = re.search("this program is leanattn (.*), and the library that asks is another", refused)[1]
        order = {"library": library, "problem": problem, "shapes": [{"batch": 1, "max_batch": 0, "longest_context": 4096, "total_context": 0}],
                 "budget_ms": 1, "memory_bytes": 0, "uuid": "", "ordinal": 0, "sm_count": 132, "cache_directory": str(self.cache), "parent": os.getpid()}
        result = self.on_machine("tune-order", sent=json.dumps(order), LEANATTN_SITE_DB=self.damaged_site())
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        said = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(len([one for one in said if one["is"] == "warning" and self.SKIPPED in one["text"]]), 1, result.stdout)


if __name__ == "__main__":
    contract.main()
