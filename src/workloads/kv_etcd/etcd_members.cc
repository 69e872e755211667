#include "workloads/kv_etcd/etcd_members.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace fabric::kv {

namespace {

constexpr size_t kDigits = 16;

/// The engine_id of a key; 0 when it is not one that etcd_key() makes.
uint64_t id_of(std::string_view key, std::string_view prefix) {
  if (key.size() != prefix.size() + kDigits || !key.starts_with(prefix)) return 0;
  const std::string_view digits = key.substr(prefix.size());
  const bool lower = std::ranges::none_of(digits, [](char c) { return c >= 'A' && c <= 'F'; });
  uint64_t id = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + kDigits, id, 16);
  return lower && read.ptr == digits.data() + kDigits ? id : 0;
}

}  // namespace

std::string etcd_prefix(std::string_view job, Role role) {
  return "fabric/" + std::string(job) + "/kv/" + to_string(role) + "/";
}

std::string etcd_key(std::string_view job, const Member& member) {
  std::string key = etcd_prefix(job, member.role);
  for (int shift = 60; shift >= 0; shift -= 4) {
    key += "0123456789abcdef"[member.engine_id >> shift & 15];
  }
  return key;
}

std::string etcd_range_end(std::string_view prefix) {
  std::string end(prefix);
  ++end.back();  // '/' becomes '0'
  return end;
}

void EtcdMembers::put(const EtcdEntry& entry, std::map<uint64_t, Member>& into) {
  const uint64_t id = id_of(entry.key, prefix_);
  auto member = decode_member(entry.value);
  if (id == 0 || !member || member->engine_id != id || member->role != role_) {
    ++bad_;
    into.erase(id);  // replaced by a value that does not parse
    return;
  }
  if (into.size() >= members_max_ && !into.contains(id)) {
    ++dropped_;
    return;
  }
  into[id] = *std::move(member);
}

void EtcdMembers::list(const ListAnswer& answer, bool restart) {
  if (!restart && answer.revision < revision_) return;
  std::map<uint64_t, Member> next;
  for (const EtcdEntry& entry : answer.entries) put(entry, next);
  members_ = std::move(next);
  revision_ = answer.revision;
}

void EtcdMembers::watch(const WatchAnswer& answer) {
  int64_t latest = revision_;
  for (const EtcdEntry& entry : answer.events) {
    if (entry.mod_revision <= revision_) continue;
    latest = std::max(latest, entry.mod_revision);
    if (entry.deleted) {
      members_.erase(id_of(entry.key, prefix_));
    } else {
      put(entry, members_);
    }
  }
  revision_ = latest;
}

}  // namespace fabric::kv
