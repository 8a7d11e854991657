#!/usr/bin/env python3
"""What `tune`, engines' tunings and `bench` promise on a machine with a GPU: that of a fake driver, which executes nothing."""

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


class Bench(contract.OnMachine):
    def test_an_error_keeps_the_shapes_before_it(self):
        # The read limit can be timed here, because its kernel has no result to check.
        bench = ["bench", "--heads", "1", "--head-dim", "64", "--mode", "read", "--l2", "warm", "--rounds", "3", "--json"]
        # The GPU has too little memory for the larger batch.
        file = self.root / "times.json"
        result = self.on_machine(*bench, "--batch", "1,65536", "--context", "64k", "-o", str(file))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, "leanattn: error: cuMemAlloc: ")
        document = json.loads(result.stdout)
        self.assertEqual([report["shape"]["batch"] for report in document["reports"]], [1])
        self.assertEqual(json.loads(file.read_text()), document)
        # Without a result, the document is that of the error.
        file.unlink()
        result = self.on_machine(*bench, "--batch", "65536", "--context", "64k", "-o", str(file))
        self.assertEqual((result.returncode, json.loads(result.stdout)["error"]["code"]), (1, "out_of_memory"), result.stderr)
        self.assertFalse(file.exists())


if __name__ == "__main__":
    contract.main()
