"""NVRTC of several versions, which the scripts of this folder install into folders named after the version, below the first argument."""
import ctypes
import glob
import sys


def compile(version, source, *options):
    """The status and the log, as bytes, of compiling CUDA source for sm_90a unless options name another architecture."""
    nvrtc = ctypes.CDLL(glob.glob(f"{sys.argv[1]}/{version}/nvidia/*/lib/libnvrtc.so.1?")[0])
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"k.cu", 0, None, None) == 0
    if not any(option.startswith("--gpu-architecture") for option in options):
        options = ("--gpu-architecture=sm_90a", *options)
    arguments = [option.encode() for option in ("--no-cache", *options)]
    status = nvrtc.nvrtcCompileProgram(program, len(arguments), (ctypes.c_char_p * len(arguments))(*arguments))
    assert nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
    log = ctypes.create_string_buffer(b"?" * size.value, size.value)
    assert nvrtc.nvrtcGetProgramLog(program, log) == 0
    return status, log.raw
