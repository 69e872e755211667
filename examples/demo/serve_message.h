#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fabric/types.h>

namespace demo {

/// Between the router and the decoders.
struct ServeMessage {
  enum class Kind : uint32_t {
    kServe = 1,  ///< router: generate for `tokens`; the cache comes from `prefiller` at `address`
    kNoMore,     ///< router: the answer to kLeaving; no kServe comes after it
    kDone,       ///< decoder: the request is answered
    kFailed,     ///< decoder: the attempt failed; code 1: because of the prefiller
    kLeaving,    ///< decoder
  };
  Kind kind = Kind::kServe;
  uint32_t attempt = 0;
  uint64_t request = 0;
  uint32_t code = 0;
  std::string prefiller{};           ///< its name
  std::vector<std::byte> address{};  ///< of its engine
  std::vector<uint32_t> tokens{};
  fabric::PeerId from{};  ///< set when it arrives
};

constexpr uint16_t kServeChannel = 1;

std::vector<std::byte> encode(const ServeMessage& message);
/// Nothing when the bytes are not a message.
std::optional<ServeMessage> decode_message(std::span<const std::byte> bytes);

/// Tokens as DecodeRequest::info carries them.
std::vector<std::byte> encode_tokens(std::span<const uint32_t> tokens);
std::vector<uint32_t> decode_tokens(std::span<const std::byte> bytes);

}  // namespace demo
