#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/kv_directory.h>

#include "workloads/kv_etcd/etcd_answers.h"

namespace fabric::kv {

/// fabric/<job>/kv/<role>/
std::string etcd_prefix(std::string_view job, Role role);
/// The prefix and 16 hexadecimal digits.
std::string etcd_key(std::string_view job, const Member& member);
/// The first key after all keys with this prefix.
std::string etcd_range_end(std::string_view prefix);

/// The members as a list and the watch after it report them.
///
/// Pure: no network, no time.
class EtcdMembers {
 public:
  EtcdMembers(std::string_view job, Role role, uint32_t members_max)
      : prefix_(etcd_prefix(job, role)), role_(role), members_max_(members_max) {}

  /// Everything at one revision. An older one than what is known is ignored, unless `restart`: the
  /// server may have lost its data, or be another one.
  void list(const ListAnswer& answer, bool restart);
  /// Events that a list has covered already are ignored.
  void watch(const WatchAnswer& answer);

  int64_t revision() const noexcept { return revision_; }
  const std::map<uint64_t, Member>& members() const noexcept { return members_; }
  uint64_t bad_members() const noexcept { return bad_; }
  uint64_t dropped() const noexcept { return dropped_; }

 private:
  void put(const EtcdEntry& entry, std::map<uint64_t, Member>& into);

  const std::string prefix_;
  const Role role_;
  const uint32_t members_max_;
  int64_t revision_ = 0;
  std::map<uint64_t, Member> members_;
  uint64_t bad_ = 0, dropped_ = 0;
};

}  // namespace fabric::kv
