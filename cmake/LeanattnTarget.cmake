# leanattn_component(name SOURCES ... PUBLIC ... PRIVATE ... [PRECOMPILED set]): one static component with the project's warnings and
#   sanitizers.
# leanattn_settings(target): the same settings for any other target of ours.
# leanattn_link_settings(target): those of them that are the linker's.
# leanattn_prefer_library_code(target [component...]): a program's inline functions are the library's, which may be optimised more.
# leanattn_precompile(target set): with LEANATTN_PCH, `target` takes the headers of `set` (library or tests) from a precompiled header, and
#   those of its files that are in one folder are compiled as one. The sets "computing" and "waiting" are that of the library for components
#   with an optimisation of their own: where sanitized tests spend their time, it is more in sanitized builds, and where nothing does, it is
#   less in releases.
function(leanattn_settings target)
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
    $<$<BOOL:${LEANATTN_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # With optimisation, GCC 12 takes sums of a text and a std::string for copies without end (GCC bugs 105329 and 105651).
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-stringop-overflow>")
  endif()
  if(LEANATTN_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LEANATTN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND LEANATTN_SANITIZE MATCHES "undefined")
      target_compile_options(${target} PRIVATE "-fsanitize-ignorelist=${PROJECT_SOURCE_DIR}/cmake/sanitizers.txt")
    endif()
    # Before Clang 15 the runtime does not look for uses of a stack frame after its return unless it is asked to, but every function is ready
    # for it, which costs time.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13 AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15
       AND LEANATTN_SANITIZE MATCHES "address")
      target_compile_options(${target} PRIVATE -fsanitize-address-use-after-return=never)
    endif()
  endif()
  leanattn_link_settings(${target})
endfunction()

function(leanattn_link_settings target)
  if(LEANATTN_SANITIZE)
    target_link_options(${target} PUBLIC -fsanitize=${LEANATTN_SANITIZE})
  endif()
  if(LEANATTN_STATIC_DEPENDENCIES)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

function(leanattn_component name)
  cmake_parse_arguments(arg "" "PRECOMPILED" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(NOT arg_PRECOMPILED)
    set(arg_PRECOMPILED library)
  endif()
  add_library(${name} STATIC ${arg_SOURCES})
  leanattn_settings(${name})
  target_link_libraries(${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  leanattn_precompile(${name} ${arg_PRECOMPILED})
endfunction()

# The headers that take the compiler longest, and what most files include. A precompiled header is shared by everything of its set, so it
# is made once; a file still includes what it uses, and compiles without LEANATTN_PCH. CLI11 is not among them: its namespace-scope
# constants would be initialized, and their code emitted, in every file.
set(LEANATTN_PCH_LIBRARY <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstdio> <filesystem> <fstream> <functional> <limits> <map>
    <memory> <mutex> <optional> <random> <set> <span> <sstream> <string> <string_view> <thread> <tuple> <unordered_map> <utility> <variant>
    <vector> <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp> <tl/expected.hpp>)
set(LEANATTN_PCH_LIBRARY_LINK leanattn::dep_fmt nlohmann_json::nlohmann_json tl::expected)
foreach(set IN ITEMS COMPUTING WAITING)
  set(LEANATTN_PCH_${set} ${LEANATTN_PCH_LIBRARY})
  set(LEANATTN_PCH_${set}_LINK ${LEANATTN_PCH_LIBRARY_LINK})
endforeach()
set(LEANATTN_PCH_TESTS ${LEANATTN_PCH_LIBRARY} <gtest/gtest.h> <rapidcheck.h> <rapidcheck/gtest.h>)
set(LEANATTN_PCH_TESTS_LINK ${LEANATTN_PCH_LIBRARY_LINK} GTest::gtest rapidcheck)

# An inline function that both a program and the library use has code in both, and the linker keeps what it meets first. This lets it meet
# first the components that are optimised most (leanattn_precompile). Without a list of components the program links all of the tuner.
function(leanattn_prefer_library_code target)
  set(components ${ARGN})
  if(NOT components)
    set(components model generator lookup runtime cache tuner)
  endif()
  foreach(component IN LISTS components)
    target_link_options(${target} PRIVATE "SHELL:-Wl,--whole-archive $<TARGET_FILE:leanattn_${component}> -Wl,--no-whole-archive")
  endforeach()
endfunction()

function(leanattn_precompile target set)
  # Optimising sanitized code takes the compiler two to three times as long, so that only what computes is worth it. What waits for a GPU, a
  # compiler or a disk all the same is not worth half of the time of a build. (A precompiled header holds for one level of optimisation.)
  set(optimisation "")
  if(set STREQUAL "computing" AND LEANATTN_SANITIZE)
    set(optimisation "$<$<CONFIG:Debug>:-O1>")
  elseif(set STREQUAL "waiting" AND CMAKE_BUILD_TYPE STREQUAL "Release")
    set(optimisation -O1)
  elseif(NOT set STREQUAL "tests")
    set(set library)
  endif()
  target_compile_options(${target} PRIVATE ${optimisation})
  if(NOT LEANATTN_PCH)
    return()
  endif()
  string(TOUPPER ${set} upper)
  set(owner leanattn_precompiled_${set})
  if(NOT TARGET ${owner})
    set(source "${PROJECT_BINARY_DIR}/precompiled/${set}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "// Nothing: CMake makes a precompiled header for a target with a source.\n")
    add_library(${owner} OBJECT "${source}")
    leanattn_settings(${owner})
    target_compile_options(${owner} PRIVATE ${optimisation})
    target_link_libraries(${owner} PRIVATE ${LEANATTN_PCH_${upper}_LINK})
    target_precompile_headers(${owner} PRIVATE ${LEANATTN_PCH_${upper}})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      target_compile_options(${owner} PRIVATE -fpch-instantiate-templates)  # once in the header rather than in every unit
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
  get_target_property(sources ${target} SOURCES)
  set(c_sources ${sources})
  list(FILTER c_sources INCLUDE REGEX "\\.c$")
  set_source_files_properties(${c_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  # The files of a folder are one unit, so names in their unnamed namespaces differ. A file elsewhere cannot clash with them. GCC compiles
  # programs and tests file by file, so that what each of them includes is tried, too.
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "STATIC_LIBRARY" OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    foreach(source IN LISTS sources)
      get_filename_component(folder "${source}" ABSOLUTE)
      get_filename_component(folder "${folder}" DIRECTORY)
      file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${folder}")
      string(MAKE_C_IDENTIFIER "${folder}" folder)
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${folder}")
    endforeach()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    target_compile_options(${target} PRIVATE -Wno-shadow)  # a local variable may have the name of something of another file
  endif()
  # A precompiled header is refused where a macro that it saw has another definition.
  foreach(library IN LISTS LEANATTN_PCH_${upper}_LINK)
    target_compile_definitions(${target} PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_COMPILE_DEFINITIONS>)
  endforeach()
endfunction()
if(LEANATTN_PCH)
  set(CMAKE_CXX_COMPILE_OPTIONS_PIE "${CMAKE_CXX_COMPILE_OPTIONS_PIC}")  # one kind of code for programs and libraries, so that both take it
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>")  # KiB; collecting garbage later saves 7 % of the time
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")  # a compiler cache knows it by what is in it
  endif()
endif()
