# Random worlds: a fixed set of them that reaches everything, and fresh ones with every commit.

file(GLOB swarm_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cc)
fabric_add_tests(swarm_tests swarm ${swarm_sources})
target_link_libraries(swarm_tests PRIVATE fabric_swarm)

if(TARGET fabric_tool AND FABRIC_TEST_PREFIX STREQUAL "")
  add_test(NAME swarm.fresh_with_the_commit COMMAND ${PROJECT_SOURCE_DIR}/scripts/fresh-worlds
                                                    $<TARGET_FILE:fabric_tool> --worlds 100)
  set_tests_properties(swarm.fresh_with_the_commit PROPERTIES LABELS swarm TIMEOUT 600)
endif()
