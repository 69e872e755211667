#include <string>

#include "base/base64.h"
#include "control/descriptor.h"
#include "fuzz/fuzz_helpers.h"

using namespace fabric;

// The input is the decoded text: a fuzzer that had to produce valid base64 would get nowhere.
// text_fuzz covers the text itself.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = "fabric-offer1:" + base64url_encode(fuzz::input(data, size));
  const auto offer = control::decode_offer(text);
  if (!offer) return 0;
  const auto again = control::decode_offer(control::encode_offer(*offer));
  FABRIC_CHECK(again.has_value());
  FABRIC_CHECK(again->address == offer->address && again->desc == offer->desc &&
               again->key == offer->key);
  return 0;
}
