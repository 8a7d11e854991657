# The library that others link, leanattn::leanattn: one shared or static (BUILD_SHARED_LIBS) library of all components below the
# tuner, exporting the C ABI; and what an installed one needs to be found.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# The components' objects, not their archives: an installed static library then has no archives of ours beside it.
add_library(leanattn $<TARGET_OBJECTS:leanattn_generator> $<TARGET_OBJECTS:leanattn_cache> $<TARGET_OBJECTS:leanattn_cuda>
  $<TARGET_OBJECTS:leanattn_lookup> $<TARGET_OBJECTS:leanattn_runtime>)
add_library(leanattn::leanattn ALIAS leanattn)
target_include_directories(leanattn PUBLIC
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_link_libraries(leanattn
  PUBLIC $<BUILD_INTERFACE:tl::expected>
  PRIVATE leanattn::dep_fmt SQLiteCpp SQLite::SQLite3 leanattn::dep_zstd leanattn::dep_xxhash OpenSSL::Crypto Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(leanattn PROPERTIES
  LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} EXPORT_NAME leanattn)
leanattn_link_settings(leanattn)
if(BUILD_SHARED_LIBS)
  # Hidden visibility covers our own symbols; the map also covers the C++ library's templates and static third-party archives.
  target_link_options(leanattn PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/leanattn.map")
  set_target_properties(leanattn PROPERTIES LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/leanattn.map")
  if(NOT LEANATTN_SANITIZE)
    target_link_options(leanattn PRIVATE -Wl,-z,defs)
  endif()
endif()

# The tuning database that is installed with library and wheel, which look for it beside themselves (cache/layers.hpp). scripts/shipped-winners
# makes the default one; a tree without it installs none.
set(LEANATTN_SHIPPED_WINNERS "${PROJECT_SOURCE_DIR}/data/tuning.db" CACHE FILEPATH "A tuning database to install; empty: none")
set(LEANATTN_SHIPPED_WINNERS_OPTIONAL "")
if(LEANATTN_SHIPPED_WINNERS STREQUAL "${PROJECT_SOURCE_DIR}/data/tuning.db")
  set(LEANATTN_SHIPPED_WINNERS_OPTIONAL OPTIONAL)
endif()
# Installs it below a folder: the installation's, or the Python package's.
function(leanattn_install_winners folder component)
  if(LEANATTN_SHIPPED_WINNERS)
    install(FILES "${LEANATTN_SHIPPED_WINNERS}" DESTINATION "${folder}share/leanattn" RENAME tuning.db COMPONENT ${component}
      ${LEANATTN_SHIPPED_WINNERS_OPTIONAL})
  endif()
endfunction()

if(NOT LEANATTN_INSTALL)
  return()
endif()
leanattn_install_winners("" leanattn_library)

# A static library's dependencies are its users' too, and only packages, not fetched sources, can be named to them.
set(LEANATTN_STATIC_PACKAGE FALSE)
if(NOT BUILD_SHARED_LIBS)
  set(LEANATTN_STATIC_PACKAGE TRUE)
  foreach(dependency IN ITEMS leanattn::dep_fmt SQLiteCpp SQLite::SQLite3 OpenSSL::Crypto)
    get_target_property(imported ${dependency} IMPORTED)
    if(NOT imported)
      message(STATUS "leanattn: ${dependency} was fetched, so a static libleanattn cannot be installed; BUILD_SHARED_LIBS=ON can")
      return()
    endif()
  endforeach()
endif()
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/leanattn")
# One component, so that the library can be installed without the program: cmake --install build --component leanattn_library
install(TARGETS leanattn EXPORT leanattn-targets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT leanattn_library NAMELINK_COMPONENT leanattn_library
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT leanattn_library)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/leanattn" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT leanattn_library
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT leanattn-targets NAMESPACE leanattn:: DESTINATION "${package_dir}" COMPONENT leanattn_library)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/leanattn-config.cmake.in" "${PROJECT_BINARY_DIR}/leanattn-config.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/leanattn-config-version.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/leanattn-config.cmake" "${PROJECT_BINARY_DIR}/leanattn-config-version.cmake" DESTINATION "${package_dir}"
  COMPONENT leanattn_library)

# Who links the static library links what it needs, too, and need not know to ask pkg-config for --static.
set(LEANATTN_PC_REQUIRES "")
set(LEANATTN_PC_LIBS "")
if(LEANATTN_STATIC_PACKAGE)
  set(LEANATTN_PC_REQUIRES "fmt sqlite3 libzstd libxxhash libcrypto")
  set(LEANATTN_PC_LIBS "-lSQLiteCpp -lstdc++ -ldl -pthread -lm")
endif()
# Relative to the file's own place, so that an install tree may be moved.
file(RELATIVE_PATH LEANATTN_PC_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file("${PROJECT_SOURCE_DIR}/cmake/leanattn.pc.in" "${PROJECT_BINARY_DIR}/leanattn.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/leanattn.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT leanattn_library)
