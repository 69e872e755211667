# The logic of bench/compare with programs that print given lines, and one real run of a few
# hundredths of a second, whose figures are not judged.

set(compare ${PROJECT_SOURCE_DIR}/bench/compare)
add_test(NAME compare.logic
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/compare_test.py)
set_tests_properties(compare.logic PROPERTIES LABELS unit TIMEOUT 60)
if(TARGET limits)
  add_test(NAME compare.really
           COMMAND Python3::Interpreter ${compare} --no-prepare --build ${PROJECT_BINARY_DIR} --json
                   --rounds 1 --duration 0.02 --only write_imm/65536:memcpy)
  set_tests_properties(
    compare.really PROPERTIES LABELS process TIMEOUT 60 PROCESSORS 2 PASS_REGULAR_EXPRESSION
                              "\"peer\": \"memcpy\", \"peer_value\": [0-9.]+, \"ratio\": [0-9.]+")
endif()
