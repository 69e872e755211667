# Warnings for our own code; link a target to fabric_warnings to get them.

add_library(fabric_warnings INTERFACE)
target_compile_options(
  fabric_warnings
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wnon-virtual-dtor
            -Woverloaded-virtual
            -Wold-style-cast
            -Wcast-qual
            -Wimplicit-fallthrough
            -Wunused-result
            # Every request has a default for every field: leaving some out is how the API is used.
            -Wno-missing-field-initializers
            # Locks that are not held where src/base/thread_safety.h says so: always an error.
            $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
            $<$<CXX_COMPILER_ID:Clang>:-Werror=thread-safety>
            $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-cond>
            $<$<CXX_COMPILER_ID:GNU>:-Wlogical-op>
            # GCC 12 takes an atomic behind a pointer that might be null for an array of size 0.
            $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
            $<$<BOOL:${FABRIC_WERROR}>:-Werror>)
