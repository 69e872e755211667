# The verbs network on SoftRoCE devices, in a guest with a kernel of its own: boot.py. One boot runs
# the whole suite, so for ctest it is one test; without QEMU or a kernel it is skipped.

set(boot ${CMAKE_CURRENT_LIST_DIR}/boot.py)
add_test(NAME guest.logic
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/boot_test.py)
set_tests_properties(guest.logic PROPERTIES LABELS unit TIMEOUT 60)

file(GLOB guest_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cc)
add_executable(guest_tests ${guest_sources})
target_link_libraries(guest_tests PRIVATE test_support)
target_precompile_headers(guest_tests REUSE_FROM test_support)

add_test(NAME guest.verbs COMMAND Python3::Interpreter ${boot} --limit 300 --bin
                                  ${CMAKE_CURRENT_BINARY_DIR} ${CMAKE_CURRENT_LIST_DIR}/suite)
set_tests_properties(guest.verbs PROPERTIES LABELS verbs TIMEOUT 480 PROCESSORS 2
                                            SKIP_RETURN_CODE 77)
