# One translation unit per folder of sources: a build from nothing takes a third of the CPU time,
# because headers are parsed once. Off in the dev preset, where single files change.

# fabric_unity(<target>)
function(fabric_unity target)
  if(NOT FABRIC_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    if(source MATCHES "\\.cc$")
      cmake_path(GET source PARENT_PATH folder)
      cmake_path(GET folder FILENAME group)
      set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${group})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # g++ takes every file that it includes for a header, and warns of anonymous namespaces there.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()
