# The verbs network on SoftRoCE devices, in a guest with a kernel of its own: boot.py. One boot runs
# the whole suite, in `make test` and alone by `make test-verbs`.

add_test(NAME guest.logic
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/boot_test.py)
set_tests_properties(guest.logic PROPERTIES LABELS unit TIMEOUT 60)

if(NOT FABRIC_HAS_VERBS)
  return()
endif()

file(GLOB guest_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cc)
# The interposer between the network and its devices is shared with the conformance suite.
add_executable(guest_tests ${guest_sources} ${CMAKE_CURRENT_LIST_DIR}/conformance/interposer.cc)
fabric_unity(guest_tests)
target_link_libraries(guest_tests PRIVATE test_support)
# Emulated, so its speed matters; the precompiled header of the other tests is not optimised.
target_compile_options(guest_tests PRIVATE -O2)

# The same tests for the bugs that are planted in the library (tests/planted).
add_executable(planted_guest $<TARGET_OBJECTS:guest_tests> $<TARGET_OBJECTS:planted_objects>)
target_link_libraries(planted_guest PRIVATE test_support)
set_target_properties(planted_guest PROPERTIES LINKER_LANGUAGE CXX)

# A program to examine a suspected device. Not part of the suite.
add_executable(rc_alone ${CMAKE_CURRENT_LIST_DIR}/alone/rc_alone.cc)
target_link_libraries(rc_alone PRIVATE fabric_warnings ibverbs Threads::Threads)

# An emulated machine of two cores needs both cores of the host: beside other tests the suite took
# ten minutes instead of four, and bodies that wait for load on the wire never saw it. Its limits
# allow for a host that is three times as slow. 77: no guest can run here. The time limit is above
# the sum of those in the suite, times three, and of two boots: boot.py, not ctest, ends a slow run.
add_test(NAME guest.suite
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/boot.py --stretch 3
                 --bin ${CMAKE_CURRENT_BINARY_DIR} --bin ${CMAKE_CURRENT_LIST_DIR}
                 ${CMAKE_CURRENT_LIST_DIR}/suite)
set_tests_properties(guest.suite PROPERTIES LABELS verbs RUN_SERIAL TRUE SKIP_RETURN_CODE 77
                                            TIMEOUT 2400)
