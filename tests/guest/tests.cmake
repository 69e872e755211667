# The verbs network on SoftRoCE devices, in a guest with a kernel of its own: boot.py. One boot runs
# the whole suite, in `make test` and alone by `make test-verbs`.

add_test(NAME guest.logic
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/boot_test.py)
set_tests_properties(guest.logic PROPERTIES LABELS unit TIMEOUT 60)

if(NOT FABRIC_HAS_VERBS)
  return()
endif()

file(GLOB guest_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cc)
# What stands between the network and its devices is shared with the conformance suite.
add_executable(guest_tests ${guest_sources} ${CMAKE_CURRENT_LIST_DIR}/conformance/interposer.cc)
target_link_libraries(guest_tests PRIVATE test_support)
target_precompile_headers(guest_tests REUSE_FROM test_support)

# The same tests for the bugs that are planted in the library (tests/planted).
add_executable(planted_guest $<TARGET_OBJECTS:guest_tests> $<TARGET_OBJECTS:planted_objects>)
target_link_libraries(planted_guest PRIVATE test_support)
set_target_properties(planted_guest PROPERTIES LINKER_LANGUAGE CXX)

# A program for whoever suspects a device. No part of the suite.
add_executable(rc_alone ${CMAKE_CURRENT_LIST_DIR}/alone/rc_alone.cc)
target_link_libraries(rc_alone PRIVATE fabric_warnings ibverbs Threads::Threads)

# An emulated machine of two cores leaves none to anybody else. It takes four to five minutes; a
# host that is three times as slow is no failure. 77: there can be no guest here.
add_test(NAME guest.suite
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/boot.py --stretch 3
                 --bin ${CMAKE_CURRENT_BINARY_DIR} --bin ${CMAKE_CURRENT_LIST_DIR}
                 ${CMAKE_CURRENT_LIST_DIR}/suite)
set_tests_properties(guest.suite PROPERTIES LABELS verbs RUN_SERIAL TRUE SKIP_RETURN_CODE 77
                                            TIMEOUT 1500)
