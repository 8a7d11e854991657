# leanattn_component(name SOURCES ... PUBLIC ... PRIVATE ...): one static component with the project's warnings and sanitizers.
# leanattn_settings(target): the same settings for any other target of ours.
function(leanattn_settings target)
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
    $<$<BOOL:${LEANATTN_WERROR}>:-Werror>)
  if(LEANATTN_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LEANATTN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${LEANATTN_SANITIZE})
  endif()
  if(LEANATTN_STATIC_DEPENDENCIES)
    target_link_options(${target} PUBLIC -static-libstdc++ -static-libgcc)
  endif()
endfunction()

function(leanattn_component name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  leanattn_settings(${name})
  target_link_libraries(${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
endfunction()
