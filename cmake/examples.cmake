# Every file in examples/ is a program of its own, against the public headers. The demo has a folder,
# and a test that looks at what it says (tests/tool/tests.cmake).

file(GLOB FABRIC_EXAMPLE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.cc)
foreach(source IN LISTS FABRIC_EXAMPLE_SOURCES)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE fabric::fabric fabric_warnings)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  if(NOT FABRIC_TESTS STREQUAL "none")
    add_test(NAME example.${name} COMMAND ${name})
    set_tests_properties(example.${name} PROPERTIES LABELS unit TIMEOUT 120)
  endif()
endforeach()

file(GLOB FABRIC_DEMO_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/demo/*.cc)
find_package(Threads REQUIRED)
add_executable(demo ${FABRIC_DEMO_SOURCES})
target_link_libraries(demo PRIVATE fabric::fabric fabric_warnings Threads::Threads)
set_target_properties(demo PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
