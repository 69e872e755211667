# The cost of an operation. Instructions repeat, so they are checked; times are not, so they never
# are. One compiler and one set of flags, because both decide how many there are.

add_test(NAME instructions.finds_what_is_planted
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/instructions_test.py)
set_tests_properties(instructions.finds_what_is_planted PROPERTIES LABELS unit TIMEOUT 60)

if(TARGET instruction_cases
   AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU"
   AND CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  add_test(NAME instructions.stay_within_their_budgets
           COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/bench/instructions --check --program
                   $<TARGET_FILE:instruction_cases>)
  set_tests_properties(instructions.stay_within_their_budgets
                       PROPERTIES LABELS unit TIMEOUT 300 SKIP_RETURN_CODE 77)
endif()

# A program of its own: its malloc() and its locks count.
file(GLOB cost_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cc)
fabric_add_tests(cost_tests unit ${cost_sources})
target_include_directories(cost_tests PRIVATE ${PROJECT_SOURCE_DIR})
