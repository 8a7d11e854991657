"""cuda_driver.py -- CUDA source to a launchable kernel through NVRTC and the driver API, with ctypes alone.

Everything runs in the context that is current on the calling thread (torch's, once torch.cuda is initialised).
"""
import ctypes
import ctypes.util
import functools
import importlib.util
import os
import pathlib

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CU_FUNC_ATTRIBUTE_*


class CudaError(RuntimeError):
    pass


@functools.cache
def driver():
    return ctypes.CDLL("libcuda.so.1")


def nvrtc_candidates():
    """Where NVRTC may be, best first: the file that LEANATTN_NVRTC_LIB names, the one torch came with, the system's."""
    if os.environ.get("LEANATTN_NVRTC_LIB"):
        yield os.environ["LEANATTN_NVRTC_LIB"]
    package = importlib.util.find_spec("nvidia")
    for folder in package.submodule_search_locations if package else []:
        yield from sorted(str(path) for path in pathlib.Path(folder).glob("**/libnvrtc.so.*"))
    system = ctypes.util.find_library("nvrtc")
    if system:
        yield system


@functools.cache
def nvrtc():
    """The NVRTC of this process. Libraries that are loaded later and go by LEANATTN_NVRTC_LIB take the same one."""
    for candidate in nvrtc_candidates():
        try:
            library = ctypes.CDLL(candidate)
        except OSError:
            continue
        os.environ["LEANATTN_NVRTC_LIB"] = candidate
        return library
    raise CudaError("no libnvrtc was found: set LEANATTN_NVRTC_LIB to one")


def check_driver(result, what):
    if result != 0:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(result, ctypes.byref(text))
        raise CudaError(f"{what}: {(text.value or b'unknown error').decode()}")


def architecture(major, minor):
    """NVRTC's name for the real architecture, with its own instructions where it has some: (9, 0) is "sm_90a"."""
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def compile_source(source, arch):
    """Cubin of a flat CUDA source for an architecture such as "sm_90a"."""
    library, program = nvrtc(), ctypes.c_void_p()

    def check(result, what):
        if result == 0:
            return
        size = ctypes.c_size_t()
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(max(size.value, 1))
        library.nvrtcGetProgramLog(program, log)
        raise CudaError(f"{what} failed with {result}: {log.value.decode()}")

    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"source.cu", 0, None, None), "nvrtcCreateProgram")
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
        check(library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)), "compilation")
        size = ctypes.c_size_t()
        check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
        cubin = ctypes.create_string_buffer(size.value)
        check(library.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
        return cubin.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


class Module:
    """A loaded cubin. Stays loaded for the life of the process."""

    def __init__(self, cubin):
        self.handle = ctypes.c_void_p()
        check_driver(driver().cuModuleLoadData(ctypes.byref(self.handle), cubin), "cuModuleLoadData")

    def kernel(self, name, shared_bytes=0):
        """The entry point, allowed `shared_bytes` of dynamic shared memory."""
        function = ctypes.c_void_p()
        check_driver(driver().cuModuleGetFunction(ctypes.byref(function), self.handle, name.encode()), f"kernel {name}")
        if shared_bytes:
            check_driver(driver().cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes), f"{shared_bytes} bytes of shared memory")
        return function


def launch(kernel, grid, threads, shared_bytes, stream, *arguments):
    """Enqueues a one-dimensional grid; `arguments` are ctypes values in the kernel's order."""
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.cast(ctypes.byref(a), ctypes.c_void_p) for a in arguments))
    check_driver(driver().cuLaunchKernel(kernel, grid, 1, 1, threads, 1, 1, shared_bytes, ctypes.c_void_p(stream), pointers, None), "cuLaunchKernel")
