# One test for every model, and one for every bug (mutant) that it must find: check.py reads them
# from the headers of the models.

set(checker ${CMAKE_CURRENT_LIST_DIR}/check.py)
file(GLOB models CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.pml)
# Reconfigure when a mutant is added to a model.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${models} ${checker})
execute_process(COMMAND ${Python3_EXECUTABLE} ${checker} --list OUTPUT_VARIABLE listed
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REPLACE "\n" ";" listed "${listed}")

foreach(test IN LISTS listed)
  string(REGEX REPLACE "\\..*" "" model ${test})
  set(arguments ${model} --build ${CMAKE_CURRENT_BINARY_DIR}/models)
  if(NOT test STREQUAL model)
    string(REGEX REPLACE ".*\\." "" mutant ${test})
    list(APPEND arguments --mutant ${mutant})
  endif()
  add_test(NAME model.${test} COMMAND Python3::Interpreter ${checker} ${arguments})
  set_tests_properties(model.${test} PROPERTIES LABELS model TIMEOUT 120)
endforeach()

# Tests the checker itself.
add_test(NAME model.checker
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/check_test.py)
set_tests_properties(model.checker PROPERTIES LABELS model TIMEOUT 120)
