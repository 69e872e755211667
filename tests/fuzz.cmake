# tests/fuzz/<name>_fuzz.cc with its corpus in tests/fuzz/corpus/<name>/. With libFuzzer each one
# reads its corpus and then searches for a few seconds; without it, a small main replays the corpus.
# The fuzzers of whole sequences search the same way in every run, so that a failure shows where the
# change was made, not on another machine a day later. `make soak` searches at random.
find_program(SETARCH setarch)

# The two fuzzers of sequences share a FuzzSession, and a mutator of whole actions.
set(sequence_fuzzers handshake session)
set(handshake_runs 1000)  # some 12 seconds each
set(session_runs 600)
add_library(fuzz_sequence OBJECT fuzz/hostile.cc fuzz/script.cc fuzz/fuzz_session.cc
                                 fuzz/fuzz_session_local.cc)
target_include_directories(fuzz_sequence PUBLIC ${PROJECT_SOURCE_DIR}/src
                                                ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(fuzz_sequence PUBLIC fabric-lib::fabric-lib fabric_warnings)
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/*_fuzz.cc)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM target)
  string(REGEX REPLACE "_fuzz$" "" name ${target})
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${name})
  if(NOT IS_DIRECTORY ${corpus})
    message(FATAL_ERROR "${source} has no corpus: put at least one valid input into ${corpus}")
  endif()

  add_executable(${target} ${source})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src
                                               ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${target} PRIVATE fabric-lib::fabric-lib fabric_warnings)
  set(seconds 5)
  if(name IN_LIST sequence_fuzzers)
    target_link_libraries(${target} PRIVATE fuzz_sequence)
    if(FABRIC_FUZZERS)
      target_sources(${target} PRIVATE fuzz/sequence_mutator.cc)
    endif()
  endif()
  if(name STREQUAL "shm_connection")
    set(seconds 8)
    target_sources(${target} PRIVATE fuzz/shm_fixture.cc)
  endif()
  set(run ${target})
  set(arguments ${corpus})
  if(NOT FABRIC_FUZZERS)
    target_sources(${target} PRIVATE support/fuzz_replay.cc)
  else()
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    set(found ${CMAKE_CURRENT_BINARY_DIR}/fuzz/${name})
    file(MAKE_DIRECTORY ${found})
    if(name IN_LIST sequence_fuzzers)
      # The same inputs in the same request, and nothing that depends on an address.
      file(GLOB seeds CONFIGURE_DEPENDS ${corpus}/*)
      list(JOIN seeds "," seeds)
      set(arguments -runs=${${name}_runs} -use_cmp=0 -seed_inputs=${seeds})
      if(SETARCH)
        set(run ${SETARCH} -R $<TARGET_FILE:${target}>)
      endif()
    else()
      # libFuzzer writes what it finds into the first folder and only reads the second.
      set(arguments -max_total_time=${seconds} ${found} ${corpus})
    endif()
    list(APPEND arguments -seed=1 -timeout=10 -print_final_stats=1 -artifact_prefix=${found}-)
  endif()
  add_test(NAME ${FABRIC_TEST_PREFIX}fuzz.${name} COMMAND ${run} ${arguments})
  set_tests_properties(${FABRIC_TEST_PREFIX}fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT 120)
endforeach()
