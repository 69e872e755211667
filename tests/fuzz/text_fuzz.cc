#include <string_view>

#include "base/base64.h"
#include "control/address.h"
#include "control/descriptor.h"
#include "fuzz/fuzz_helpers.h"

using namespace fabric;

// Everything that takes text from outside. A text that decodes is the only one for its bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto bytes = base64url_decode(text)) {
    FABRIC_CHECK(base64url_encode(*bytes) == text);
  }
  if (const auto address = control::address_from_text(text)) {
    FABRIC_CHECK(control::address_to_text(*address) == text);
  }
  if (const auto offer = control::decode_offer(text)) {
    FABRIC_CHECK(control::decode_offer(control::encode_offer(*offer)).has_value());
  }
  return 0;
}
