#include "control/descriptor.h"
#include "fuzz/fuzz_helpers.h"

using namespace fabric;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto desc = control::decode_desc(fuzz::input(data, size));
  if (!desc) return 0;
  // Never kTooLarge: what was decoded fitted.
  fuzz::expect_same_again(
      *desc, [](const control::RegionDesc& value) { return *control::encode(value); },
      [](const auto& bytes) { return control::decode_desc(bytes); });
  return 0;
}
