#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fabric::kv {

/// Base64 of RFC 4648, section 4, with padding: how etcd's gateway writes keys and values. The
/// library's own text (base/base64.h) is base64url, and is not exported.
std::string base64_encode(std::span<const std::byte> bytes);
inline std::string base64_encode(std::string_view text) {
  return base64_encode(std::as_bytes(std::span(text.data(), text.size())));
}
/// Empty when the text is not what base64_encode() writes.
std::optional<std::vector<std::byte>> base64_decode(std::string_view text);

}  // namespace fabric::kv
