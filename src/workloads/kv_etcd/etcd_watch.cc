#include "workloads/kv_etcd/etcd_watch.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "workloads/kv_etcd/base64_text.h"

namespace fabric::kv {

namespace {

// Of an entry without its value: key, revisions, version and lease, with their names.
constexpr size_t kEntryBytes = 512;
// Room for foreign values under the prefix: by default etcd accepts up to 1.5 MiB.
constexpr size_t kAnswerBytes = 4u << 20;

}  // namespace

EtcdWatch::EtcdWatch(EtcdContext& context)
    : context_(context),
      members_(context.options.job, context.options.role, context.options.members_max),
      prefix_(etcd_prefix(context.options.job, context.options.role)),
      // One more than fits, to detect that there are more.
      limits_{.entries_max = context.options.members_max + 1, .value_bytes_max = kMemberBytesMax},
      bytes_max_(kAnswerBytes +
                 limits_.entries_max * (kEntryBytes + (kMemberBytesMax + 2) / 3 * 4)) {}

Nanos EtcdWatch::step() {
  const Nanos now = EtcdContext::now();
  if (watching_ != 0 && !created_ && now >= created_due_) {
    context_.failed(context_.endpoint(), "no answer to a watch");
    back_off();
  }
  if (listing_ == 0 && now >= list_due_) start_list();
  const Nanos created = watching_ != 0 && !created_ ? created_due_ : Nanos::max();
  return std::min(created, listing_ != 0 ? Nanos::max() : list_due_);
}

void EtcdWatch::check_now() {
  if (fresh_) list_due_ = Nanos{};
}

void EtcdWatch::start_list() {
  const nlohmann::json body = {{"key", base64_encode(prefix_)},
                               {"range_end", base64_encode(etcd_range_end(prefix_))},
                               {"limit", std::to_string(limits_.entries_max)}};
  HttpRequest request{.url = context_.url("/v3/kv/range"),
                      .body = body.dump(),
                      .timeout = context_.options.request_timeout,
                      .bytes_max = bytes_max_};
  listing_ = context_.http.post(std::move(request),
                                [this, used = context_.endpoint()](const HttpAnswer& answer) {
                                  listing_ = 0;
                                  take_list(used, answer);
                                });
  if (listing_ == 0) list_due_ = EtcdContext::now() + delay_.next(context_);
}

void EtcdWatch::take_list(const std::string& used, const HttpAnswer& answer) {
  if (!answer.complete || answer.status != 200) {
    context_.failed(used, answer);
    return back_off();
  }
  const auto list = parse_list(answer.body, limits_);
  if (!list) {
    ++context_.stats.bad_answers;
    context_.failed(used, "a malformed list");
    return back_off();
  }
  ++context_.stats.lists;
  members_.list(*list, /*restart=*/watching_ == 0);
  fresh_ = true;
  list_due_ = EtcdContext::now() + context_.options.relist;
  if (watching_ == 0) start_watch();
  update_stats();
}

void EtcdWatch::start_watch() {
  const nlohmann::json body = {{"create_request",
                                {{"key", base64_encode(prefix_)},
                                 {"range_end", base64_encode(etcd_range_end(prefix_))},
                                 {"start_revision", std::to_string(members_.revision() + 1)}}}};
  splitter_.emplace(bytes_max_);
  created_ = false;
  created_due_ = EtcdContext::now() + context_.options.request_timeout;
  const auto number = std::make_shared<uint64_t>(0);
  HttpRequest request{
      .url = context_.url("/v3/watch"), .body = body.dump(), .bytes_max = bytes_max_};
  const std::string used = context_.endpoint();
  request.arrived = [this, used, number](std::string_view bytes) {
    const auto take = [&](std::string_view text) { take_text(*number, used, text); };
    if (splitter_->add(bytes, take) || watching_ != *number) return;
    ++context_.stats.bad_answers;
    context_.failed(used, "a text without end");
    back_off();
  };
  *number = context_.http.post(std::move(request), [this, used](const HttpAnswer& answer) {
    watching_ = 0;
    context_.failed(used, answer);
    back_off();
  });
  watching_ = *number;
  if (watching_ == 0) back_off();
}

void EtcdWatch::take_text(uint64_t number, const std::string& used, std::string_view text) {
  if (watching_ != number) return;  // ended by an earlier text of this batch
  const auto answer = parse_watch(text, limits_);
  if (!answer) {
    ++context_.stats.bad_answers;
    context_.failed(used, "a malformed watch answer");
    return back_off();
  }
  if (!answer->failure.empty() || answer->cancelled) {
    // etcd leaves the stream of a cancelled watch open: it has to be closed here.
    if (answer->compact_revision != 0) ++context_.stats.compactions;
    context_.failed(used, answer->failure.empty() ? "watch cancelled" : answer->failure);
    return back_off();
  }
  if (answer->created && !created_) {
    created_ = true;
    ++context_.stats.watches;
    delay_.reset();
  }
  members_.watch(*answer);
  update_stats();
}

void EtcdWatch::back_off() {
  context_.http.cancel(std::exchange(listing_, 0));
  context_.http.cancel(std::exchange(watching_, 0));
  created_ = false;
  fresh_ = false;
  list_due_ = EtcdContext::now() + delay_.next(context_);
  update_stats();
}

void EtcdWatch::update_stats() {
  changed_ = true;
  context_.stats.watching = fresh_ && created_;
  context_.stats.revision = members_.revision();
  context_.stats.bad_members = members_.bad_members();
  context_.stats.members_dropped = members_.dropped();
}

}  // namespace fabric::kv
