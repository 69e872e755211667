# cmake -DCOMPILER=... -DSOURCE=... -DINCLUDES=... -P refuse.cmake
#
# Compiles SOURCE twice, to the syntax only. Plain, it must compile. With -DFABRIC_MISUSE it must
# not, and the first error must match the file's line "// refused: <regex>": a mistake that is
# refused for a wrong reason, a typing error say, proves nothing.

cmake_minimum_required(VERSION 3.25)

set(flags -std=c++20 -fsyntax-only -Wall -Werror)
foreach(folder IN LISTS INCLUDES)
  list(APPEND flags -I${folder})
endforeach()

file(STRINGS ${SOURCE} refused REGEX "^// refused: ")
string(REPLACE "// refused: " "" refused "${refused}")
if(refused STREQUAL "")
  message(FATAL_ERROR "${SOURCE} has no line '// refused: <regex>'")
endif()

execute_process(COMMAND ${COMPILER} ${flags} ${SOURCE} RESULT_VARIABLE code ERROR_VARIABLE output)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "the correct twin does not compile:\n${output}")
endif()

execute_process(COMMAND ${COMPILER} ${flags} -DFABRIC_MISUSE ${SOURCE}
                RESULT_VARIABLE code ERROR_VARIABLE output)
if(code EQUAL 0)
  message(FATAL_ERROR "the mistake compiles")
endif()
string(REGEX MATCH "[^\n]*error: [^\n]*" first "${output}")
if(NOT first MATCHES "${refused}")
  message(FATAL_ERROR "refused, but not for '${refused}':\n${output}")
endif()
message(STATUS "refused: ${first}")
