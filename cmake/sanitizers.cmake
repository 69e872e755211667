# Sanitizers apply to everything that is built here, so they are global flags and not a target: a
# single file without them would make the report of the others wrong.

if(FABRIC_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(FABRIC_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT FABRIC_SANITIZE STREQUAL "")
  message(FATAL_ERROR "FABRIC_SANITIZE is '${FABRIC_SANITIZE}': use address, thread or nothing")
endif()

if(FABRIC_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "FABRIC_FUZZERS needs clang: libFuzzer is part of it")
  endif()
  # The library gets the coverage marks; only the fuzz targets get libFuzzer's main.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
