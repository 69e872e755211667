#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "workloads/kv_etcd/etcd_context.h"
#include "workloads/kv_etcd/etcd_members.h"

namespace fabric::kv {

/// Keeps one member in etcd: a lease, the key under it, keep-alives. A lease that etcd has
/// forgotten is replaced, and the key written again. A key is written by a transaction that
/// compares the revision which was read before, so that an earlier incarnation that wakes up late
/// cannot replace a later one.
///
/// Threads: confined to the directory's thread.
class EtcdRegistration {
 public:
  explicit EtcdRegistration(EtcdContext& context) : context_(context) {}

  /// None: leave.
  void want(std::optional<Member> self);
  /// Does what is due, and returns when the next thing is.
  Nanos step();
  /// Looks for this member's key in a fresh view.
  void check(const EtcdMembers& view);
  /// Nothing is registered, and no request is outstanding.
  bool idle() const noexcept { return !self_ && lease_ == 0 && request_ == 0; }
  /// Whether a request has failed since the last call: the server may be away.
  bool take_failed() noexcept { return std::exchange(failed_, false); }

 private:
  using Taker = void (EtcdRegistration::*)(const std::string& used, std::string_view body);

  /// `take` gets the body of an answer with status 200.
  void post(std::string_view path, const nlohmann::json& body, Taker take);
  void take_answer(const std::string& used, const HttpAnswer& answer, Taker take);
  void take_grant(const std::string& used, std::string_view body);
  void take_read(const std::string& used, std::string_view body);
  void take_write(const std::string& used, std::string_view body);
  void take_keep_alive(const std::string& used, std::string_view body);
  void take_revoked(const std::string& used, std::string_view body);

  void grant();
  void read();
  void write(int64_t mod_revision);
  void keep_alive();
  void revoke();
  void lease_lost();
  void replaced();
  void bad_answer(const std::string& used);
  void back_off();

  EtcdContext& context_;
  std::optional<Member> self_;
  std::string key_;
  std::vector<std::byte> value_;
  uint64_t version_ = 0;  ///< of `value_`
  uint64_t writing_ = 0;  ///< the version being written
  bool written_ = false;  ///< the present version
  int64_t written_revision_ = 0;
  int64_t lease_ = 0;
  Nanos ttl_{};
  Nanos keep_due_{};
  Nanos due_{};
  EtcdDelay delay_;
  uint64_t request_ = 0;  ///< outstanding: one at a time
  bool failed_ = false;
};

}  // namespace fabric::kv
