#include "control/address.h"
#include "fuzz/fuzz_helpers.h"

using namespace fabric;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto address = control::decode_address(fuzz::input(data, size));
  if (!address) return 0;
  fuzz::expect_same_again(
      *address, [](const control::Address& value) { return control::encode(value); },
      [](const auto& bytes) { return control::decode_address(bytes); });
  return 0;
}
