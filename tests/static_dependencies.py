#!/usr/bin/env python3
"""With LEANATTN_STATIC_DEPENDENCIES the program, the shared library and the Python module take nothing but the C library from the machine that
they run on. The tree is only configured: what its linker would be given says so. Argument: an interpreter that has nanobind."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PYTHON = None
OF_THE_C_LIBRARY = {"-lc", "-ldl", "-lm", "-lpthread", "-lrt"}


class StaticDependencies(unittest.TestCase):
    def test_nothing_that_travels_links_a_shared_library(self):
        with tempfile.TemporaryDirectory(prefix="leanattn-static-") as build:
            settings = {"LEANATTN_STATIC_DEPENDENCIES": "ON", "BUILD_SHARED_LIBS": "ON", "LEANATTN_BUILD_CLI": "ON", "LEANATTN_BUILD_PYTHON": "ON",
                        "LEANATTN_BUILD_TESTS": "OFF", "LEANATTN_BUILD_BENCH": "OFF", "Python_EXECUTABLE": PYTHON}
            subprocess.run(["cmake", "-S", SOURCE, "-B", build, "-G", "Ninja", *(f"-D{name}={value}" for name, value in settings.items())],
                           check=True, stdout=subprocess.DEVNULL)
            for target in ("leanattn_cli", "leanattn", "leanattn_python"):
                with self.subTest(target=target):
                    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", target], check=True, capture_output=True, text=True).stdout
                    link = [line for line in commands.splitlines() if " -o " in line][-1].split(" && ")[1].split()
                    inputs = link[link.index("-o") + 2:]
                    self.assertEqual([word for word in inputs if re.search(r"\.so(\.|$)", word)], [])
                    self.assertLessEqual({word for word in link if word.startswith("-l")}, OF_THE_C_LIBRARY)
                    self.assertIn("-static-libstdc++", link)
                    self.assertTrue([word for word in link if word.endswith("/libcrypto.a")], link)


if __name__ == "__main__":
    PYTHON = sys.argv.pop(1)
    unittest.main()
