# The fabric command as a user sees it: its output, repeatable runs, and errors.

if(NOT TARGET fabric_tool)
  return()
endif()

add_test(NAME tool.version COMMAND fabric_tool version)
set_tests_properties(
  tool.version PROPERTIES LABELS unit TIMEOUT 30 PASS_REGULAR_EXPRESSION
                          "^fabric-lib ${PROJECT_VERSION}\n")

add_test(NAME tool.info COMMAND ${CMAKE_COMMAND} -DTOOL=$<TARGET_FILE:fabric_tool>
                                -DVERSION=${PROJECT_VERSION}
                                -P ${CMAKE_CURRENT_LIST_DIR}/info.cmake)
set_tests_properties(tool.info PROPERTIES LABELS unit TIMEOUT 30)

# Processes that poll want a core each, hence PROCESSORS.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
foreach(name command bench connect kv)
  add_test(NAME tool.${name} COMMAND Python3::Interpreter -B
                                     ${CMAKE_CURRENT_LIST_DIR}/${name}_test.py
                                     $<TARGET_FILE:fabric_tool>)
  set_tests_properties(tool.${name} PROPERTIES LABELS unit TIMEOUT 180)
endforeach()
set_tests_properties(tool.bench tool.connect PROPERTIES PROCESSORS 2)
set_tests_properties(tool.kv PROPERTIES LABELS kv)

# fabric_add_sim(<argument>...)
function(fabric_add_sim)
  string(REGEX REPLACE "[^a-z0-9]+" "_" name "${ARGN}")
  add_test(NAME tool.sim${name}
           COMMAND ${CMAKE_COMMAND} -DTOOL=$<TARGET_FILE:fabric_tool> "-DARGUMENTS=${ARGN}"
                   -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/repeats.cmake)
  set_tests_properties(tool.sim${name} PROPERTIES LABELS swarm TIMEOUT 120)
endfunction()

fabric_add_sim(--worlds 1)
fabric_add_sim(--worlds 5 --json)
fabric_add_sim(--worlds 2 --plan)
