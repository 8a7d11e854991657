# Third-party libraries. A distribution's packages win (FIND_PACKAGE_ARGS); otherwise they are fetched.
include(FetchContent)

if(LEANATTN_STATIC_DEPENDENCIES)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(OPENSSL_USE_STATIC_LIBS TRUE)
endif()

set(FMT_INSTALL OFF)
FetchContent_Declare(fmt URL https://github.com/fmtlib/fmt/archive/refs/tags/10.2.1.tar.gz
                     URL_HASH SHA256=1250e4cc58bf06ee631567523f48848dc4596133e163f02615c97f78bab6c811
                     FIND_PACKAGE_ARGS)
set(EXPECTED_BUILD_TESTS OFF)
FetchContent_Declare(tl-expected URL https://github.com/TartanLlama/expected/archive/refs/tags/v1.1.0.tar.gz
                     URL_HASH SHA256=1db357f46dd2b24447156aaf970c4c40a793ef12a8a9c2ad9e096d9801368df6
                     FIND_PACKAGE_ARGS)
set(JSON_BuildTests OFF)
FetchContent_Declare(nlohmann_json URL https://github.com/nlohmann/json/archive/refs/tags/v3.11.3.tar.gz
                     URL_HASH SHA256=0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406
                     FIND_PACKAGE_ARGS)
set(SQLITECPP_RUN_CPPLINT OFF)
set(SQLITECPP_INTERNAL_SQLITE OFF)
FetchContent_Declare(SQLiteCpp URL https://github.com/SRombauts/SQLiteCpp/archive/refs/tags/3.3.2.tar.gz
                     URL_HASH SHA256=5aa8eda130d0689bd5ed9b2074714c2dbc610f710483c61ba6cf944cebfe03af
                     FIND_PACKAGE_ARGS)
FetchContent_MakeAvailable(fmt tl-expected nlohmann_json)
# Debian's package of fmt has a shared library and no static one. What must have it inside takes all of it from the headers then.
get_target_property(fmt_type fmt::fmt TYPE)
if(LEANATTN_STATIC_DEPENDENCIES AND fmt_type STREQUAL "SHARED_LIBRARY")
  add_library(leanattn::dep_fmt ALIAS fmt::fmt-header-only)
else()
  add_library(leanattn::dep_fmt ALIAS fmt::fmt)
endif()

find_package(SQLite3 REQUIRED)
FetchContent_MakeAvailable(SQLiteCpp)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(Threads REQUIRED)

# zstd and xxHash ship pkg-config files everywhere, CMake packages only in places.
find_path(ZSTD_INCLUDE_DIR zstd.h REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
foreach(name IN ITEMS ZSTD XXHASH)
  string(TOLOWER ${name} lower)
  if(NOT TARGET leanattn::dep_${lower})
    add_library(leanattn::dep_${lower} UNKNOWN IMPORTED)
    set_target_properties(leanattn::dep_${lower} PROPERTIES
      IMPORTED_LOCATION "${${name}_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${${name}_INCLUDE_DIR}")
  endif()
endforeach()

# A package decides by itself what it links, so that only what it has decided can be looked at.
if(LEANATTN_STATIC_DEPENDENCIES)
  foreach(dependency IN ITEMS leanattn::dep_fmt SQLiteCpp SQLite::SQLite3 leanattn::dep_zstd leanattn::dep_xxhash OpenSSL::Crypto)
    get_target_property(type ${dependency} TYPE)
    get_target_property(imported ${dependency} IMPORTED)
    set(location "")
    if(imported)
      get_target_property(location ${dependency} LOCATION)
    endif()
    if(type STREQUAL "SHARED_LIBRARY" OR location MATCHES "\\.so")
      message(FATAL_ERROR "LEANATTN_STATIC_DEPENDENCIES: ${dependency} is there as a shared library only (${location})")
    endif()
  endforeach()
endif()

# cuda.h and nvrtc.h are needed to build, the libraries only at run time (dlopen). LEANATTN_CUDA_INCLUDE_DIR may point at
# the headers of NVIDIA's Python wheels (scripts/setup puts them into .cuda/).
find_path(LEANATTN_CUDA_INCLUDE_DIR cuda.h
  HINTS "${PROJECT_SOURCE_DIR}/.cuda/include" ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES include REQUIRED)
add_library(leanattn_cuda_headers INTERFACE)
target_include_directories(leanattn_cuda_headers SYSTEM INTERFACE "$<BUILD_INTERFACE:${LEANATTN_CUDA_INCLUDE_DIR}>")

if(LEANATTN_BUILD_CLI OR LEANATTN_BUILD_BENCH)
  set(CLI11_BUILD_TESTS OFF)
  FetchContent_Declare(CLI11 URL https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.2.tar.gz
                     URL_HASH SHA256=f2d893a65c3b1324c50d4e682c0cdc021dd0477ae2c048544f39eed6654b699a
                     FIND_PACKAGE_ARGS)
  FetchContent_MakeAvailable(CLI11)
  find_package(ZLIB REQUIRED)
endif()
if(LEANATTN_BUILD_TESTS)
  FetchContent_Declare(googletest URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
                     URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7
                     FIND_PACKAGE_ARGS NAMES GTest)
  FetchContent_MakeAvailable(googletest)
  find_package(rapidcheck REQUIRED)
endif()
if(LEANATTN_BUILD_BENCH)
  find_package(benchmark REQUIRED)
endif()
