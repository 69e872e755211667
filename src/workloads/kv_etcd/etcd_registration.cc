#include "workloads/kv_etcd/etcd_registration.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "workloads/kv_etcd/base64_text.h"

namespace fabric::kv {

namespace {

// One key, with its value, is the largest answer.
constexpr size_t kAnswerBytesMax = 4096 + (kMemberBytesMax + 2) / 3 * 4;
constexpr AnswerLimits kOneEntry{.entries_max = 1, .value_bytes_max = kMemberBytesMax};
constexpr int64_t kGrpcNotFound = 5;
// Longer leases than any that is asked for; a server may grant more than that.
constexpr int64_t kTtlMaxS = 7 * 86400;

}  // namespace

void EtcdRegistration::want(std::optional<Member> self) {
  due_ = {};
  self_ = std::move(self);
  written_ = false;
  ++version_;
  context_.stats.registered = false;
  if (!self_) return;
  context_.stats.replaced = false;
  key_ = etcd_key(context_.options.job, *self_);
  value_ = *encode(*self_);  // announce() has checked it
}

Nanos EtcdRegistration::step() {
  if (request_ != 0) return Nanos::max();
  const Nanos now = EtcdContext::now();
  if (now < due_) return due_;
  if (!self_) {
    if (lease_ == 0) return Nanos::max();
    revoke();
  } else if (lease_ == 0) {
    grant();
  } else if (now >= keep_due_) {
    keep_alive();
  } else if (!written_) {
    read();
  } else {
    return keep_due_;
  }
  return request_ != 0 ? Nanos::max() : due_;
}

void EtcdRegistration::post(std::string_view path, const nlohmann::json& body, Taker take) {
  Nanos timeout = context_.options.request_timeout;
  if (lease_ != 0) timeout = std::min(timeout, ttl_ / 3);
  HttpRequest request{.url = context_.url(path),
                      .body = body.dump(),
                      .timeout = timeout,
                      .bytes_max = kAnswerBytesMax};
  request_ = context_.http.post(std::move(request),
                                [this, take, used = context_.endpoint()](const HttpAnswer& answer) {
                                  request_ = 0;
                                  take_answer(used, answer, take);
                                });
  if (request_ == 0) back_off();
}

void EtcdRegistration::take_answer(const std::string& used, const HttpAnswer& answer, Taker take) {
  if (answer.complete && answer.status == 200) return (this->*take)(used, answer.body);
  const auto failure = parse_failure(answer.body);
  if (answer.complete && lease_ != 0 && failure && failure->code == kGrpcNotFound) {
    return lease_lost();
  }
  failed_ = true;
  context_.failed(used, answer);
  back_off();
}

void EtcdRegistration::back_off() {
  Nanos delay = delay_.next(context_);
  // A lease must be renewed before it ends.
  if (lease_ != 0) delay = std::min(delay, ttl_ / 3);
  due_ = EtcdContext::now() + delay;
}

void EtcdRegistration::bad_answer(const std::string& used) {
  ++context_.stats.bad_answers;
  failed_ = true;
  context_.failed(used, "an answer that does not parse");
  back_off();
}

void EtcdRegistration::lease_lost() {
  if (self_) ++context_.stats.leases_lost;
  lease_ = 0;
  written_ = false;
  context_.stats.registered = false;
  // The first time at once; when etcd forgets every new lease, ever more slowly.
  due_ = EtcdContext::now() + delay_.next(context_) / 4;
}

void EtcdRegistration::replaced() {
  want(std::nullopt);
  context_.stats.replaced = true;
}

void EtcdRegistration::grant() {
  const int64_t ttl_s = std::chrono::ceil<std::chrono::seconds>(context_.options.lease_ttl).count();
  post("/v3/lease/grant", {{"TTL", std::to_string(ttl_s)}}, &EtcdRegistration::take_grant);
}

void EtcdRegistration::take_grant(const std::string& used, std::string_view body) {
  const auto lease = parse_lease(body);
  if (!lease || lease->ttl_s > kTtlMaxS) return bad_answer(used);
  lease_ = lease->id;
  ttl_ = std::chrono::seconds(lease->ttl_s);
  keep_due_ = EtcdContext::now() + ttl_ / 3;
}

void EtcdRegistration::read() {
  post("/v3/kv/range", {{"key", base64_encode(key_)}}, &EtcdRegistration::take_read);
}

void EtcdRegistration::take_read(const std::string& used, std::string_view body) {
  const auto list = parse_list(body, kOneEntry);
  if (!list) return bad_answer(used);
  if (!self_) return;
  if (list->entries.empty()) return write(0);
  const EtcdEntry& entry = list->entries.front();
  const auto member = decode_member(entry.value);
  if (member && member->incarnation > self_->incarnation) return replaced();
  write(entry.mod_revision);
}

void EtcdRegistration::write(int64_t mod_revision) {
  const std::string key = base64_encode(key_);
  writing_ = version_;
  post(
      "/v3/kv/txn",
      {{"compare",
        {{{"key", key},
          {"target", "MOD"},
          {"result", "EQUAL"},
          {"mod_revision", std::to_string(mod_revision)}}}},
       {"success",
        {{{"request_put",
           {{"key", key}, {"value", base64_encode(value_)}, {"lease", std::to_string(lease_)}}}}}}},
      &EtcdRegistration::take_write);
}

void EtcdRegistration::take_write(const std::string& used, std::string_view body) {
  const auto put = parse_put(body);
  if (!put) return bad_answer(used);
  if (!put->succeeded) return back_off();  // the key has changed: read it again
  if (writing_ != version_) return;        // announce() or leave() came in between
  written_ = true;
  written_revision_ = put->revision;
  delay_.reset();
  ++context_.stats.registrations;
  context_.stats.registered = true;
}

void EtcdRegistration::keep_alive() {
  post("/v3/lease/keepalive", {{"ID", std::to_string(lease_)}}, &EtcdRegistration::take_keep_alive);
}

void EtcdRegistration::take_keep_alive(const std::string& used, std::string_view body) {
  const auto lease = parse_keep_alive(body);
  if (!lease || lease->id != lease_ || lease->ttl_s > kTtlMaxS) return bad_answer(used);
  if (lease->ttl_s == 0) return lease_lost();
  keep_due_ = EtcdContext::now() + std::chrono::seconds(lease->ttl_s) / 3;
  ++context_.stats.keep_alives;
  if (written_) delay_.reset();
}

void EtcdRegistration::revoke() {
  post("/v3/lease/revoke", {{"ID", std::to_string(lease_)}}, &EtcdRegistration::take_revoked);
}

void EtcdRegistration::take_revoked(const std::string&, std::string_view) { lease_ = 0; }

void EtcdRegistration::check(const EtcdMembers& view) {
  if (!self_ || !written_ || self_->role != context_.options.role) return;
  if (view.revision() < written_revision_ || view.dropped() != 0) return;
  const auto found = view.members().find(self_->engine_id);
  if (found == view.members().end()) {
    written_ = false;
    context_.stats.registered = false;
    due_ = EtcdContext::now() + delay_.next(context_) / 4;
  } else if (found->second.incarnation > self_->incarnation) {
    replaced();
  }
}

}  // namespace fabric::kv
