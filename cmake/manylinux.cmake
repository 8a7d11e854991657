# manylinux.cmake -- the toolchain of scripts/wheels, which sets LEANATTN_WHEELS: a compiler for an old C library, and libraries that were
# built with it. What the system has was built for its own C library, and is not looked for.
set(CMAKE_C_COMPILER "$ENV{LEANATTN_WHEELS}/bin/cc")
set(CMAKE_CXX_COMPILER "$ENV{LEANATTN_WHEELS}/bin/c++")
set(CMAKE_AR "$ENV{LEANATTN_WHEELS}/bin/ar")
set(CMAKE_RANLIB "$ENV{LEANATTN_WHEELS}/bin/ranlib")
set(CMAKE_PREFIX_PATH "$ENV{LEANATTN_WHEELS}/prefix")
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
set(CMAKE_FIND_USE_PACKAGE_REGISTRY OFF)
set(OPENSSL_ROOT_DIR "${CMAKE_PREFIX_PATH}")
# Zig makes no precompiled headers. LEANATTN_PCH then still compiles the files of a folder as one.
set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-s")
