# The verbs network on SoftRoCE devices, in a guest with a kernel of its own: boot.py. One boot runs
# the whole suite, by `make test-verbs`. It is no part of `make test` until it has been seen to pass
# again and again within five minutes.

add_test(NAME guest.logic
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/boot_test.py)
set_tests_properties(guest.logic PROPERTIES LABELS unit TIMEOUT 60)

file(GLOB guest_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cc)
add_executable(guest_tests EXCLUDE_FROM_ALL ${guest_sources})
target_link_libraries(guest_tests PRIVATE test_support)
target_precompile_headers(guest_tests REUSE_FROM test_support)
