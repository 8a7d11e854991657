# Uses leanattn from its sources, as examples/add_subdirectory and examples/fetch_content do.
# The variables of check_installed.cmake; SETTINGS: -D options for both; GENERATOR; SHARED: whether BUILD makes a shared library.
#
# Where BUILD has made that library already (SHARED), add_subdirectory would make it again by the same commands. It is configured, its
# commands are compared with those of BUILD (same_commands.py), and example_installed tries the library. With LEANATTN_TEST_THOROUGH=1,
# and in other trees, all of it is built, looked at, installed and used.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")
file(REMOVE_RECURSE "${WORK}")
set(how -G "${GENERATOR}" "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}" ${SETTINGS})
set(project "${WORK}/build")
step("${CMAKE_COMMAND}" -S "${SOURCE}/fetch_content" -B "${WORK}/fetched" ${how})
step("${CMAKE_COMMAND}" -S "${SOURCE}/add_subdirectory" -B "${project}" ${how} -DBUILD_SHARED_LIBS=ON -DLEANATTN_INSTALL=ON)
if(SHARED AND NOT "$ENV{LEANATTN_TEST_THOROUGH}" STREQUAL "1")
  step("${PYTHON}" "${CMAKE_CURRENT_LIST_DIR}/same_commands.py" --build "${BUILD}" --as-part "${project}" --part leanattn --source "${SOURCE}/..")
  return()
endif()
step("${CMAKE_COMMAND}" --build "${project}" --parallel 2 --target plan)
step("${project}/plan")
check_shared_library("${project}/leanattn")
step("${CMAKE_COMMAND}" --install "${project}" --component leanattn_library --prefix "${WORK}/prefix")
check_install_tree("${WORK}/prefix")
