# cmake -DTOOL=... -DARGUMENTS=... -P repeats.cmake
# Runs `fabric sim` twice with one seed: both succeed and print the same. Another seed must leave
# another trace, else the trace would say nothing.

cmake_minimum_required(VERSION 3.25)

function(run seed result)
  execute_process(COMMAND ${TOOL} sim --seed ${seed} ${ARGUMENTS} OUTPUT_VARIABLE output
                  COMMAND_ERROR_IS_FATAL ANY)
  message(STATUS "${output}")
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

run(7 first)
run(7 second)
if(NOT first MATCHES "[0-9a-f]+\"?}?\n$")
  message(FATAL_ERROR "the trace hash is not the last thing printed")
endif()
if(NOT first STREQUAL second)
  message(FATAL_ERROR "one seed, two runs, two outcomes")
endif()
run(8 other)
string(REGEX MATCH "trace[^0-9a-f]+[0-9a-f]+" first_trace "${first}")
string(REGEX MATCH "trace[^0-9a-f]+[0-9a-f]+" other_trace "${other}")
if(first_trace STREQUAL other_trace)
  message(FATAL_ERROR "two seeds, one trace: ${first_trace}")
endif()
