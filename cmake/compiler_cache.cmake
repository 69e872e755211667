# ccache when it is there. A precompiled header holds time stamps and macros that ccache would
# take for a difference; these are the settings its manual asks for. Comments count: a header that
# differs by one has another size, and g++ no longer knows it for the one that it has precompiled.

find_program(FABRIC_CCACHE ccache)
mark_as_advanced(FABRIC_CCACHE)
if(FABRIC_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_COMMENTS=1
      ${FABRIC_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  endif()
endif()
