# Bugs that are planted on purpose, in a second build of the library, and the tests that find each.
#
# Only the folders that a bug touches are compiled again, whole: an object of the library is a
# folder (cmake/unity.cmake). The planted objects come first on the linker's command line, so that
# it takes no object of the same folder from the static library. The objects of the tests are
# shared.

set(planted_build ${CMAKE_CURRENT_BINARY_DIR}/planted)
set(planter ${CMAKE_CURRENT_LIST_DIR}/plant.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/bugs.py
                                                               ${planter})

# fabric_ask_planter(<variable> <option>)
function(fabric_ask_planter variable option)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${planter} ${option} OUTPUT_VARIABLE said
                  COMMAND_ERROR_IS_FATAL ANY OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REPLACE "\n" ";" said "${said}")
  set(${variable} ${said} PARENT_SCOPE)
endfunction()

fabric_ask_planter(planted_files --files)
if(FABRIC_HAS_VERBS)
  fabric_ask_planter(planted_bugs --list)
else()
  fabric_ask_planter(planted_bugs --list-plain)
  list(FILTER planted_files EXCLUDE REGEX "^providers/verbs/")
endif()
list(TRANSFORM planted_files PREPEND ${PROJECT_SOURCE_DIR}/src/ OUTPUT_VARIABLE planted_originals)
list(TRANSFORM planted_files PREPEND ${planted_build}/ OUTPUT_VARIABLE planted_copies)
set(planted_sources ${planted_copies})
foreach(source IN LISTS FABRIC_SOURCES)
  cmake_path(GET source PARENT_PATH folder)
  foreach(original IN LISTS planted_originals)
    cmake_path(GET original PARENT_PATH touched)
    if(folder STREQUAL touched AND NOT source IN_LIST planted_originals)
      list(APPEND planted_sources ${source})
      break()
    endif()
  endforeach()
endforeach()
add_custom_command(
  OUTPUT ${planted_copies} ${planted_build}/planted_names.inc
  COMMAND Python3::Interpreter ${planter} --to ${planted_build}
  DEPENDS ${planter} ${CMAKE_CURRENT_LIST_DIR}/bugs.py ${planted_originals}
  COMMENT "Planting bugs")

add_library(planted_objects OBJECT ${planted_sources} ${CMAKE_CURRENT_LIST_DIR}/planted.cc
                                   ${planted_build}/planted_names.inc)
fabric_unity(planted_objects)
target_compile_options(planted_objects PRIVATE -O1)  # the swarm runs many worlds on it
target_include_directories(
  planted_objects PRIVATE ${planted_build} ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(
  planted_objects PRIVATE fabric_static fabric_warnings fmt::fmt-header-only
                          nlohmann_json::nlohmann_json PkgConfig::FABRIC_SODIUM)

add_executable(planted_swarm ${CMAKE_CURRENT_LIST_DIR}/swarm_main.cc
                             $<TARGET_OBJECTS:planted_objects>)
target_link_libraries(planted_swarm PRIVATE fabric_swarm fabric_static fabric_warnings)

set(planted_layers unit scenario kv)
if(FABRIC_HAS_VERBS)
  list(APPEND planted_layers fake_verbs)
endif()
foreach(layer IN LISTS planted_layers)
  add_executable(planted_${layer} $<TARGET_OBJECTS:${layer}_tests>
                                  $<TARGET_OBJECTS:planted_objects>)
  target_link_libraries(planted_${layer} PRIVATE test_support)
  set_target_properties(planted_${layer} PROPERTIES LINKER_LANGUAGE CXX)
endforeach()

# The explorer runs its own build of the counters, on its own model of memory.
add_executable(
  planted_explore
  ${planted_build}/core/counter_table.cc ${CMAKE_CURRENT_LIST_DIR}/planted.cc
  $<FILTER:$<TARGET_OBJECTS:explore_tests>,EXCLUDE,counter_table\\.cc>)
target_include_directories(
  planted_explore PRIVATE explore/shadow ${planted_build} ${CMAKE_CURRENT_SOURCE_DIR}
                          ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(planted_explore PRIVATE fabric_warnings GTest::gtest_main)
add_dependencies(planted_explore planted_objects)  # which write the copies

foreach(bug IN LISTS planted_bugs ITEMS none)
  add_test(NAME planted.${bug} COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/run.py ${bug}
                                       --build ${CMAKE_CURRENT_BINARY_DIR})
  set_tests_properties(planted.${bug} PROPERTIES LABELS planted TIMEOUT 600)
endforeach()

# Tests that a bug which is not found makes its test fail.
add_test(NAME planted.runner
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/run_test.py)
set_tests_properties(planted.runner PROPERTIES LABELS planted TIMEOUT 60)
