# step(<command> ...): runs it, shows what it said, and ends the script when it fails. For the check_*.cmake scripts beside it.
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    string(REPLACE ";" " " command "${ARGN}")
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()

# check_install_tree(<prefix>): builds examples/find_package and, with what pkg-config says, examples/choose.c against it, and runs both.
# SOURCE, WORK, CC, CXX and LIBDIR as in the scripts.
function(check_install_tree prefix)
  step("${CMAKE_COMMAND}" -S "${SOURCE}/find_package" -B "${WORK}/installed" "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX}")
  step("${CMAKE_COMMAND}" --build "${WORK}/installed")
  step("${WORK}/installed/plan")
  find_program(pkg_config NAMES pkg-config pkgconf)
  if(NOT pkg_config)
    message(STATUS "no pkg-config: leanattn.pc was not tried")
    return()
  endif()
  set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig:$ENV{PKG_CONFIG_PATH}")
  set(ENV{LD_LIBRARY_PATH} "${prefix}/${LIBDIR}:$ENV{LD_LIBRARY_PATH}")
  step(sh -ec "\"$0\" -std=c11 -Wall -Werror '${SOURCE}/choose.c' -o '${WORK}/choose' $('${pkg_config}' --cflags --libs leanattn)" "${CC}")
  step(sh -c "\"$0\" || test $? = 3" "${WORK}/choose")  # 3: there is no GPU
endfunction()
