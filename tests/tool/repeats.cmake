# cmake -DTOOL=... -DARGUMENTS=... -P repeats.cmake
# Runs `fabric sim` twice with one seed and once with another: all succeed, the first two print the
# same and the third prints something else.

function(run seed result)
  execute_process(COMMAND ${TOOL} sim --seed ${seed} ${ARGUMENTS} OUTPUT_VARIABLE output
                  COMMAND_ERROR_IS_FATAL ANY)
  message(STATUS "${output}")
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

run(7 first)
run(7 second)
run(8 other)
if(NOT first MATCHES "[0-9a-f]+\"?}?\n$")
  message(FATAL_ERROR "the trace hash is not the last thing printed")
endif()
if(NOT first STREQUAL second)
  message(FATAL_ERROR "one seed, two runs, two outcomes")
endif()
string(REGEX MATCH "trace\"?:? ?\"?[0-9a-f]+" first_trace "${first}")
string(REGEX MATCH "trace\"?:? ?\"?[0-9a-f]+" other_trace "${other}")
if(first_trace STREQUAL other_trace)
  message(FATAL_ERROR "two seeds, one trace: ${first_trace}")
endif()
