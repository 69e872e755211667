#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "workloads/kv_etcd/etcd_context.h"
#include "workloads/kv_etcd/etcd_members.h"

namespace fabric::kv {

/// Keeps a view of the members: lists, watches from the next revision on, lists again from time to
/// time. Whatever goes wrong (no connection, an end or a cancellation of the stream, an answer that
/// does not parse) leads to the same: the view is stale, and after a delay the next endpoint is
/// asked for a list.
///
/// Threads: confined to the directory's thread.
class EtcdWatch {
 public:
  explicit EtcdWatch(EtcdContext& context);

  /// Does what is due, and returns when the next thing is.
  Nanos step();
  /// Lists as soon as possible: another request has failed, so the watch may be dead as well.
  void check_now();

  bool fresh() const noexcept { return fresh_; }
  const EtcdMembers& members() const noexcept { return members_; }
  /// Whether view or freshness have changed since the last call.
  bool take_changed() noexcept { return std::exchange(changed_, false); }

 private:
  void start_list();
  void take_list(const std::string& used, const HttpAnswer& answer);
  void start_watch();
  void take_text(uint64_t number, const std::string& used, std::string_view text);
  /// After context_.failed().
  void back_off();
  void update_stats();

  EtcdContext& context_;
  EtcdMembers members_;
  const std::string prefix_;
  const AnswerLimits limits_;
  const size_t bytes_max_;
  EtcdDelay delay_;
  Nanos list_due_{};
  uint64_t listing_ = 0;   ///< the outstanding request; 0: none
  uint64_t watching_ = 0;  ///< the stream; 0: none
  Nanos created_due_{};    ///< by when it has to be created
  bool created_ = false;
  std::optional<TextSplitter> splitter_;
  bool fresh_ = false;
  bool changed_ = false;
};

}  // namespace fabric::kv
