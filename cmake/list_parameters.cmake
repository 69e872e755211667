# Run after BINARY was linked: asks it for its tests, and writes a ctest entry for each parameter to
# ENTRIES.

execute_process(COMMAND ${BINARY} --gtest_list_tests OUTPUT_VARIABLE listed TIMEOUT 60
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "# GetParam\\(\\) = [^\n]+" parameters "${listed}")
list(TRANSFORM parameters REPLACE "# GetParam\\(\\) = " "")
list(REMOVE_DUPLICATES parameters)
string(REGEX MATCHALL "\n  [^\n]+" tests "${listed}")
list(FILTER tests EXCLUDE REGEX "GetParam")
if(tests OR NOT parameters)
  message(FATAL_ERROR "${BINARY}: tests without a parameter would not run: ${tests}")
endif()

set(script "")
foreach(parameter IN LISTS parameters)
  set(test "${PREFIX}${LABEL}.${parameter}")
  string(APPEND script "add_test(${test} \"${BINARY}\" \"--gtest_filter=*/${parameter}\")\n"
         "set_tests_properties(${test} PROPERTIES LABELS ${LABEL} TIMEOUT 600)\n")
endforeach()
file(WRITE ${ENTRIES} "${script}")
