# One ctest entry for each parameter of a binary of parametrised tests: a network runs all its
# bodies in one process. A process for each body took five times as long, nearly all of it to start.

# fabric_tests_by_parameter(<binary> <label>)
function(fabric_tests_by_parameter name label)
  set(entries ${CMAKE_CURRENT_BINARY_DIR}/${name}_entries.cmake)
  set(include ${CMAKE_CURRENT_BINARY_DIR}/${name}_include.cmake)
  add_custom_command(
    TARGET ${name} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -DBINARY=$<TARGET_FILE:${name}> -DENTRIES=${entries}
            -DPREFIX=${FABRIC_TEST_PREFIX} -DLABEL=${label}
            -P ${PROJECT_SOURCE_DIR}/cmake/list_parameters.cmake
    BYPRODUCTS ${entries} VERBATIM)
  file(WRITE ${include} "if(EXISTS \"${entries}\")
  include(\"${entries}\")
else()
  add_test(${name}_NOT_BUILT ${name}_NOT_BUILT)
endif()
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include})
endfunction()
