# The fabric command, from outside: what it prints, that a run can be repeated, and that it says no.

if(NOT TARGET fabric_tool)
  return()
endif()

add_test(NAME tool.version COMMAND fabric_tool version)
set_tests_properties(
  tool.version PROPERTIES LABELS unit TIMEOUT 30 PASS_REGULAR_EXPRESSION
                          "^fabric-lib ${PROJECT_VERSION}\n")

# From one node that writes to itself to more rails on more nodes than any test has by hand.
foreach(arguments "--nodes 1 --rails 1" "--nodes 2 --rails 8" "--nodes 3 --rails 3 --json"
                  "--nodes 16 --rails 2" "--writes 0")
  foreach(model connectx7 efa_200g)
    string(REGEX REPLACE "[^a-z0-9]+" "_" name "${arguments}_${model}")
    separate_arguments(list UNIX_COMMAND "${arguments}")
    add_test(NAME tool.sim${name}
             COMMAND ${CMAKE_COMMAND} -DTOOL=$<TARGET_FILE:fabric_tool>
                     "-DARGUMENTS=${list};--model;${model}"
                     -P ${CMAKE_CURRENT_LIST_DIR}/repeats.cmake)
    set_tests_properties(tool.sim${name} PROPERTIES LABELS scenario TIMEOUT 120)
  endforeach()
endforeach()

foreach(arguments "sim --rails 9" "sim --nodes 0" "sim --model tin_can" "nonsense" "")
  string(REGEX REPLACE "[^a-z0-9]+" "_" name "${arguments}")
  separate_arguments(list UNIX_COMMAND "${arguments}")
  add_test(NAME tool.refuses_${name} COMMAND fabric_tool ${list})
  set_tests_properties(tool.refuses_${name} PROPERTIES LABELS unit TIMEOUT 30 WILL_FAIL TRUE)
endforeach()
