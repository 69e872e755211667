# The tests of the Python package, on the module of this build. Without one they are skipped, and
# say why.

if(NOT FABRIC_HAS_PYTHON)
  if(FABRIC_SANITIZE STREQUAL "" AND FABRIC_PYTHON)
    set(reason "run scripts/python-venv")
    if(EXISTS ${FABRIC_PYTHON_VENV}.reason)
      file(STRINGS ${FABRIC_PYTHON_VENV}.reason reason LIMIT_COUNT 1)
    endif()
    add_test(NAME python COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${reason}")
    set_tests_properties(python PROPERTIES LABELS python SKIP_REGULAR_EXPRESSION "skipped")
  endif()
  return()
endif()

set(python_environment
    "PYTHONPATH=${PROJECT_BINARY_DIR}/python;PYTHONDONTWRITEBYTECODE=1;PYTHONNOUSERSITE=1")

file(GLOB python_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/tests/test_*.py)
foreach(file IN LISTS python_tests)
  cmake_path(GET file STEM name)
  string(REPLACE "test_" "python." name ${name})
  add_test(NAME ${name} COMMAND ${Python_EXECUTABLE} -m pytest -q -p no:cacheprovider ${file})
  set_tests_properties(${name} PROPERTIES LABELS python TIMEOUT 180 ENVIRONMENT
                                          "${python_environment}")
endforeach()

add_test(
  NAME python.types
  COMMAND ${Python_EXECUTABLE} -m mypy --strict --cache-dir ${PROJECT_BINARY_DIR}/python/mypy
          ${PROJECT_BINARY_DIR}/python/fabric_lib ${PROJECT_SOURCE_DIR}/examples/python)
set_tests_properties(python.types PROPERTIES LABELS python TIMEOUT 180 ENVIRONMENT
                                             "MYPYPATH=${PROJECT_BINARY_DIR}/python")
