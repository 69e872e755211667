#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fabric/kv_directory.h>

namespace fabric::test {

/// A member of a directory that no engine belongs to.
inline kv::Member listed_member(uint64_t engine_id, uint32_t capacity = 8) {
  kv::Member member;
  member.engine_id = engine_id;
  member.incarnation = 100 + engine_id;
  member.address = {std::byte{1}, std::byte{2}, static_cast<std::byte>(engine_id)};
  member.capacity = capacity;
  member.label = "host-" + std::to_string(engine_id);
  return member;
}

inline kv::View view_of(std::vector<kv::Member> members) {
  return {.revision = 1, .stale = false, .members = std::move(members)};
}

/// The engine ids of a view, in its order.
inline std::vector<uint64_t> ids_of(const kv::View& view) {
  std::vector<uint64_t> ids;
  for (const kv::Member& member : view.members) ids.push_back(member.engine_id);
  return ids;
}

}  // namespace fabric::test
