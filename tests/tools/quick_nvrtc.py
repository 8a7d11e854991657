#!/usr/bin/env python3
"""What quick_nvrtc promises the tests that use it: it refuses what NVRTC refuses, and its empty kernels say that they are empty. Needs NVRTC."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import unittest

LIBRARY = None  # the libnvrtc.so of quick_nvrtc.cpp
MARK = "quick_nvrtc checked the source and compiled empty kernels of the same names"
KERNEL = """
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(128) scale(const float* in, float* out, int count) {
  __shared__ float block[128];
  block[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  for (int i = 0; i < count; ++i) out[i * 128 + threadIdx.x] = block[(threadIdx.x + i) % 128] * FACTOR;
}
extern "C" __global__ void clear(float* out) { out[threadIdx.x] = 0; }
"""

# Compiles its standard input, and prints what came of it as JSON. A process of its own: the library reads its environment once.
COMPILE = r"""
import ctypes, json, sys
nvrtc = ctypes.CDLL(sys.argv[1])
program, size = ctypes.c_void_p(), ctypes.c_size_t()
def call(name, *arguments):
    status = getattr(nvrtc, name)(*arguments)
    assert status == 0, f"{name}: {status}"
def text_of(name):
    call(f"nvrtcGet{name}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    call(f"nvrtcGet{name}", program, buffer)
    return buffer.raw
call("nvrtcCreateProgram", ctypes.byref(program), sys.stdin.read().encode(), b"test.cu", 0, None, None)
options = [b"--gpu-architecture=sm_90a", b"--std=c++17", b"--ptxas-options=-v"]
status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
result = {"status": status, "log": text_of("ProgramLog").rstrip(b"\0").decode(), "cubin": "" if status else text_of("CUBIN").hex()}
call("nvrtcDestroyProgram", ctypes.byref(program))
print(json.dumps(result))
"""


# Exits 0 where an NVRTC is behind the library.
PROBE = r"""
import ctypes, sys
sys.exit(ctypes.CDLL(sys.argv[1]).nvrtcVersion(ctypes.byref(ctypes.c_int()), ctypes.byref(ctypes.c_int())))
"""


def run(script, quick, source=""):
    environment = {name: value for name, value in os.environ.items() if name not in ("QUICK_NVRTC", "LEANATTN_NVRTC_LIB")}
    environment.update({"LEANATTN_NVRTC_DIR": str(LIBRARY.parent)}, **({"QUICK_NVRTC": "1"} if quick else {}))
    return subprocess.run([sys.executable, "-c", script, str(LIBRARY)], input=source, capture_output=True, text=True, env=environment, timeout=120)


class QuickNvrtc(unittest.TestCase):
    def compile(self, source, quick=True):
        result = run(COMPILE, quick, source)
        self.assertEqual(result.returncode, 0, result.stderr)
        compiled = json.loads(result.stdout)
        compiled["cubin"] = bytes.fromhex(compiled["cubin"])
        return compiled

    def test_a_good_source_gives_empty_kernels_of_its_names(self):
        quick, real = (self.compile(KERNEL.replace("FACTOR", "2.0f"), quick) for quick in (True, False))
        for compiled in (quick, real):
            self.assertEqual(compiled["status"], 0, compiled["log"])
            self.assertTrue(compiled["cubin"].startswith(b"\x7fELF"))
            for name in (b"scale", b"clear"):
                self.assertIn(b"\0.text." + name + b"\0", compiled["cubin"])
            self.assertIn("Compiling entry function 'scale' for 'sm_90a'", compiled["log"])
        # `block` is in the shared memory of the kernel, and not of the empty one.
        self.assertIn(" bytes smem", real["log"])
        self.assertNotIn(" bytes smem", quick["log"])

    def test_an_empty_kernel_says_that_it_is_one_and_a_real_one_does_not(self):
        quick, real = (self.compile(KERNEL.replace("FACTOR", "2.0f"), quick) for quick in (True, False))
        self.assertEqual(quick["log"].splitlines()[0], MARK)
        self.assertIn(MARK.encode(), quick["cubin"])
        self.assertNotIn("quick_nvrtc", real["log"])
        self.assertNotIn(b"quick_nvrtc", real["cubin"])

    def test_an_undeclared_name_in_a_kernel_fails_with_the_log_of_nvrtc(self):
        for quick in (True, False):
            with self.subTest(quick=quick):
                compiled = self.compile(KERNEL, quick)
                self.assertEqual(compiled["status"], 6, "NVRTC_ERROR_COMPILATION")
                self.assertRegex(compiled["log"], r'test\.cu\(6\): error: identifier "FACTOR" is undefined')
                self.assertNotIn(MARK, compiled["log"])

    def test_a_wrong_type_in_a_kernel_fails(self):
        compiled = self.compile(KERNEL.replace("FACTOR", '"two"'))
        self.assertEqual(compiled["status"], 6, "NVRTC_ERROR_COMPILATION")
        self.assertIn("error: ", compiled["log"])

    def test_a_source_without_kernels_is_left_to_nvrtc(self):
        compiled = self.compile('extern "C" __device__ int answer = 42;')
        self.assertEqual(compiled["status"], 0, compiled["log"])
        self.assertNotIn(MARK, compiled["log"])
        self.assertIn(b"answer", compiled["cubin"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    LIBRARY = arguments.library.resolve()
    if run(PROBE, quick=True).returncode != 0:
        sys.exit("NVRTC is not installed")  # tests/CMakeLists.txt knows this sentence
    unittest.main(argv=[sys.argv[0], *rest])
