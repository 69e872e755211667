#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

namespace fabric::control {

inline constexpr size_t kMacBytes = 16;
using Mac = std::array<std::byte, kMacBytes>;

/// BLAKE2b over the concatenated parts, with a job key of any length. All zero without a job key:
/// such a job trusts its networks (Config::job_key).
Mac keyed_hash(std::string_view job_key, std::initializer_list<std::span<const std::byte>> parts);

/// Compares in constant time, so that a hash cannot be guessed byte by byte.
bool equal(const Mac& a, const Mac& b) noexcept;

}  // namespace fabric::control
