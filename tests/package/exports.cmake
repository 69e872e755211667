# cmake -DNM=... -DLIBRARY=... -P exports.cmake: the shared library exports fabric:: and no more.

cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${NM} -D -C --defined-only --format=posix ${LIBRARY}
                OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE ";" "," symbols "${symbols}")
string(REPLACE "\n" ";" symbols "${symbols}")

set(seen_open FALSE)
set(foreign "")
foreach(symbol IN LISTS symbols)
  if(symbol MATCHES "^fabric::Engine::open\\(")
    set(seen_open TRUE)
  elseif(symbol MATCHES "^fabric::(core|control|runtime|topology|base)::")
    string(APPEND foreign "\n  internal: ${symbol}")
  elseif(NOT symbol STREQUAL ""
         AND NOT symbol MATCHES "^((typeinfo|typeinfo name|vtable|guard variable) for )?fabric::")
    string(APPEND foreign "\n  ${symbol}")
  endif()
endforeach()
if(NOT seen_open)
  message(FATAL_ERROR "fabric::Engine::open is not exported: is this the right library?")
endif()
if(NOT foreign STREQUAL "")
  message(FATAL_ERROR "exported, and should not be:${foreign}")
endif()
