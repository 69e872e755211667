#include "fuzz/fuzz_helpers.h"
#include "fuzz/sequence.h"

// Nobody knows the hostile peers yet: what they can do to hellos, welcomes and rejects, to sessions
// that both sides open, and to those of an earlier life.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fabric::fuzz;
  play(decode_script(input(data, size)), InitialState::kUnknownPeers);
  return 0;
}
