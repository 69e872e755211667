#pragma once

#include <cstdint>
#include <string_view>

namespace fabric {

/// Bounds the memory: enough for every misspelt variable or option of a process; later texts are
/// all replaced by "(unnamed)".
inline constexpr uint32_t kInternedMax = 256;
inline constexpr uint32_t kInternedBytesMax = 64;

/// Returns a copy of `text` that lives as long as the process, so that Error::what can name an
/// environment variable. Equal texts share one copy. Texts are truncated to kInternedBytesMax.
///
/// Threads: any.
const char* intern(std::string_view text);

}  // namespace fabric
