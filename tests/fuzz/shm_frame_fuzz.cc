#include <algorithm>

#include "fuzz/fuzz_helpers.h"
#include "providers/shm/wire.h"

using namespace fabric;

namespace {

/// The first byte is the number of attached descriptors.
void try_frame(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto descriptors = std::to_integer<uint32_t>(input[0]) % (shm::kDescriptorsMax + 2);
  const auto frame = shm::decode_frame(input.subspan(1), descriptors);
  if (!frame) return;
  const auto encoded = shm::encode(*frame);
  FABRIC_CHECK(encoded.size() <= shm::kFrameHeadBytesMax);
  if (std::holds_alternative<shm::Datagram>(*frame)) return;  // its bytes are not encoded
  const auto again = shm::decode_frame(encoded, descriptors);
  FABRIC_CHECK(again.has_value(), "an encoded frame does not decode");
  FABRIC_CHECK(shm::encode(*again) == encoded, "a frame does not survive a round trip");
}

template <class Decode>
void try_other(std::span<const std::byte> input, Decode decode) {
  const auto value = decode(input);
  if (!value) return;
  // Encodings are unique: rkeys and addresses are compared as bytes.
  FABRIC_CHECK(std::ranges::equal(shm::encode(*value), input), "a second encoding was accepted");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = fuzz::input(data, size);
  try_frame(input);
  try_other(input, shm::decode_address);
  try_other(input, shm::decode_hello);
  try_other(input, shm::decode_rkey);
  return 0;
}
