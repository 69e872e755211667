# Every file in examples/ is a program of its own, against the public headers. The demo has a
# folder, and a test that looks at what it says.

file(GLOB FABRIC_EXAMPLE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.cc)
foreach(source IN LISTS FABRIC_EXAMPLE_SOURCES)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE fabric-lib::fabric-lib fabric_warnings)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  if(NOT FABRIC_TESTS STREQUAL "none")
    add_test(NAME example.${name} COMMAND ${name})
    set_tests_properties(example.${name} PROPERTIES LABELS unit TIMEOUT 120)
  endif()
endforeach()

file(GLOB FABRIC_DEMO_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/demo/*.cc)
find_package(Threads REQUIRED)
add_executable(demo ${FABRIC_DEMO_SOURCES})
target_link_libraries(demo PRIVATE example_transformer fabric-lib::fabric-lib fabric_warnings
                                   Threads::Threads)
set_target_properties(demo PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
if(NOT FABRIC_TESTS STREQUAL "none")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(FABRIC_DEMO_REPORT ${PROJECT_BINARY_DIR}/demo/report.html)
  add_test(NAME demo COMMAND ${CMAKE_COMMAND} -DDEMO=$<TARGET_FILE:demo>
                             -DREPORT=${FABRIC_DEMO_REPORT}
                             -P ${PROJECT_SOURCE_DIR}/tests/tool/demo.cmake)
  add_test(NAME demo.mla COMMAND demo --seconds 5 --attention mla
                                 --report ${PROJECT_BINARY_DIR}/demo/mla.html)
  add_test(NAME demo.chaos COMMAND demo --requests 40)
  add_test(NAME demo.report COMMAND Python3::Interpreter -B
                                    ${PROJECT_SOURCE_DIR}/tests/tool/demo_report_test.py
                                    ${FABRIC_DEMO_REPORT})
  add_test(NAME demo.report_in_a_browser
           COMMAND Python3::Interpreter -B ${PROJECT_SOURCE_DIR}/tests/tool/demo_report_test.py
                   --browser ${FABRIC_DEMO_REPORT})
  add_test(NAME demo.refuses_no_time COMMAND demo --seconds 0)
  set_tests_properties(demo demo.mla demo.chaos demo.report demo.report_in_a_browser
                       demo.refuses_no_time PROPERTIES LABELS "process;kv" TIMEOUT 120)
  set_tests_properties(demo demo.mla demo.chaos PROPERTIES RUN_SERIAL TRUE)
  set_tests_properties(demo PROPERTIES FIXTURES_SETUP demo_report)
  set_tests_properties(demo.report demo.report_in_a_browser PROPERTIES FIXTURES_REQUIRED
                                                                       demo_report)
  set_tests_properties(demo.report_in_a_browser PROPERTIES SKIP_RETURN_CODE 77)
  set_tests_properties(demo.refuses_no_time PROPERTIES WILL_FAIL TRUE)
endif()
