# The fabric command, from outside: what it prints, that a run can be repeated, and that it says no.

if(NOT TARGET fabric_tool)
  return()
endif()

add_test(NAME tool.version COMMAND fabric_tool version)
set_tests_properties(
  tool.version PROPERTIES LABELS unit TIMEOUT 30 PASS_REGULAR_EXPRESSION
                          "^fabric-lib ${PROJECT_VERSION}\n")

# fabric_add_sim(<DIFFERS> <argument>...)
function(fabric_add_sim differs)
  foreach(model connectx7 efa_200g)
    string(REGEX REPLACE "[^a-z0-9]+" "_" name "${ARGN}_${model}")
    add_test(NAME tool.sim${name}
             COMMAND ${CMAKE_COMMAND} -DTOOL=$<TARGET_FILE:fabric_tool> -DDIFFERS=${differs}
                     "-DARGUMENTS=${ARGN};--model;${model}"
                     -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/repeats.cmake)
    set_tests_properties(tool.sim${name} PROPERTIES LABELS scenario TIMEOUT 120)
  endforeach()
endfunction()

fabric_add_sim(ON --nodes 2 --rails 8)
fabric_add_sim(ON --nodes 3 --rails 3 --json)
fabric_add_sim(ON --nodes 16 --rails 2 --writes 200)
# Nothing crosses the network here: a node that writes to itself, and nobody who writes at all.
fabric_add_sim(OFF --nodes 1 --rails 1)
fabric_add_sim(OFF --writes 0)

foreach(arguments "sim --rails 9" "sim --nodes 0" "sim --model tin_can" "nonsense" "")
  string(REGEX REPLACE "[^a-z0-9]+" "_" name "${arguments}")
  separate_arguments(list UNIX_COMMAND "${arguments}")
  add_test(NAME tool.refuses_${name} COMMAND fabric_tool ${list})
  set_tests_properties(tool.refuses_${name} PROPERTIES LABELS unit TIMEOUT 30 WILL_FAIL TRUE)
endforeach()
