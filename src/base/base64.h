#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/result.h>

namespace fabric {

/// base64url (RFC 4648, section 5) without padding: survives shells, JSON and URLs.
std::string base64url_encode(std::span<const std::byte> bytes);

/// Accepts only the canonical text that base64url_encode() produces. Fails with kBadFormat at
/// foreign characters, padding, an impossible length or non-zero trailing bits.
Result<std::vector<std::byte>> base64url_decode(std::string_view text);

}  // namespace fabric
