#include <algorithm>

#include "fuzz/sequence.h"

namespace fabric::fuzz {

namespace {

uint8_t at(std::span<const std::byte> record, size_t i) { return static_cast<uint8_t>(record[i]); }

FuzzAction decode_action(std::span<const std::byte> record) {
  return {.verb = static_cast<Verb>(at(record, 0) % kVerbs),
          .who = at(record, 1),
          .what = at(record, 2),
          .twist = at(record, 3),
          .a = at(record, 4),
          .b = at(record, 5),
          .n = static_cast<uint16_t>(at(record, 6) | at(record, 7) << 8)};
}

}  // namespace

Script decode_script(std::span<const std::byte> bytes) {
  Script script;
  if (bytes.size() < kActionBytes) return script;
  script.setting = {.flags = at(bytes, 0), .seed = at(bytes, 1)};
  const size_t count = std::min(bytes.size() / kActionBytes - 1, kActionsMax);
  for (size_t i = 1; i <= count; ++i) {
    script.actions.push_back(decode_action(bytes.subspan(i * kActionBytes, kActionBytes)));
  }
  return script;
}

}  // namespace fabric::fuzz
