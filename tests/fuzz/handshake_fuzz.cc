#include "fuzz/fuzz_helpers.h"
#include "fuzz/sequence.h"

// The hostile peers have no session yet. They attack hellos, welcomes and rejects, sessions that
// both sides open at once, and sessions of an earlier incarnation.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fabric::fuzz;
  play(decode_script(input(data, size)), InitialState::kUnknownPeers);
  return 0;
}
