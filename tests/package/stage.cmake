# cmake -DBUILD=... -DSTAGE=... -P stage.cmake: installs a build into an empty STAGE.

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${STAGE})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${STAGE}
                COMMAND_ERROR_IS_FATAL ANY)

# The folders of the installed tree are the user's: nothing internal, and no template.
file(GLOB_RECURSE headers RELATIVE ${STAGE}/include ${STAGE}/include/*)
foreach(header IN LISTS headers)
  if(NOT header MATCHES "^fabric/[a-z_]+\\.h$")
    message(FATAL_ERROR "installed, but not a public header: include/${header}")
  endif()
endforeach()
if("fabric/provider.h" IN_LIST headers)
  message(FATAL_ERROR "provider.h was installed: no program outside this tree can use it")
endif()
if(NOT "fabric/version.h" IN_LIST headers)
  message(FATAL_ERROR "version.h was not installed")
endif()
