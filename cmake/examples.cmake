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
target_link_libraries(demo PRIVATE fabric-lib::fabric-lib fabric_warnings Threads::Threads)
set_target_properties(demo PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
if(NOT FABRIC_TESTS STREQUAL "none")
  add_test(NAME demo COMMAND ${CMAKE_COMMAND} -DDEMO=$<TARGET_FILE:demo>
                             -P ${PROJECT_SOURCE_DIR}/tests/tool/demo.cmake)
  add_test(NAME demo.refuses_no_time COMMAND demo --seconds 0)
  set_tests_properties(demo demo.refuses_no_time PROPERTIES LABELS process TIMEOUT 120)
  set_tests_properties(demo PROPERTIES RUN_SERIAL TRUE)
  set_tests_properties(demo.refuses_no_time PROPERTIES WILL_FAIL TRUE)
endif()
