# Installs the library of BUILD into a fresh prefix, builds examples/consumer against it as a stranger would, and runs it.
# cmake -DBUILD=<build folder> -DSOURCE=<this folder> -DWORK=<scratch folder> -DCC=<C compiler> -DCXX=<C++ compiler> -P check_consumer.cmake
file(REMOVE_RECURSE "${WORK}")
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${status}:\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()
step("${CMAKE_COMMAND}" --install "${BUILD}" --component leanattn_library --prefix "${WORK}/prefix")
step("${CMAKE_COMMAND}" -S "${SOURCE}/consumer" -B "${WORK}/build" "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DCMAKE_C_COMPILER=${CC}"
  "-DCMAKE_CXX_COMPILER=${CXX}")
step("${CMAKE_COMMAND}" --build "${WORK}/build")
step("${WORK}/build/consumer")
