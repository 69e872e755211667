#pragma once

#include <cstdint>
#include <string_view>

namespace fabric {

/// Enough for every variable and option that a process can name wrongly; a loop that names ever
/// new ones gets the same answer for all that come later.
inline constexpr uint32_t kInternedMax = 256;
inline constexpr uint32_t kInternedBytesMax = 64;

/// A copy of `text` that lives as long as the process, so that Error::what can name an environment
/// variable. Equal texts share one copy. Longer ones are cut at kInternedBytesMax; when
/// kInternedMax are held, new ones become "(unnamed)".
///
/// Threads: any.
const char* intern(std::string_view text);

}  // namespace fabric
