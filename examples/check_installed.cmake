# Installs the library of BUILD into a fresh prefix and uses it as a stranger would.
# cmake -DBUILD=<build folder> -DSOURCE=<this folder> -DWORK=<scratch folder> -DCC=<C compiler> -DCXX=<C++ compiler> -DLIBDIR=<lib>
#   -DGENERATOR=<generator> [-DSHARED=ON: BUILD makes a shared library] -P check_installed.cmake
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")
if(SHARED)
  check_shared_library("${BUILD}")
endif()
file(REMOVE_RECURSE "${WORK}")
step("${CMAKE_COMMAND}" --install "${BUILD}" --component leanattn_library --prefix "${WORK}/prefix")
check_install_tree("${WORK}/prefix")
