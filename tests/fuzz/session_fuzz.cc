#include "fuzz/fuzz_helpers.h"
#include "fuzz/sequence.h"

// Both hostile peers have a session and a path, and attack through them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fabric::fuzz;
  play(decode_script(input(data, size)), InitialState::kSessions);
  return 0;
}
