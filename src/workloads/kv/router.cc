#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fabric/kv_router.h>

#include "base/hash.h"

namespace fabric::kv {

namespace {

constexpr uint32_t kSlackPercentMax = 10'000;

struct Candidate {
  Member member{};
  uint32_t load = 0;
  bool lost = false;
};

bool excepted(const PickRequest& request, uint64_t engine_id) {
  return std::ranges::find(request.except, engine_id) != request.except.end();
}

/// Every bit of the result depends on every bit of `hash`. A TraceHash mixes its last word only
/// once, so without this, prefixes would move to members with adjacent ids.
uint64_t spread(const TraceHash& hash) {
  uint64_t z = hash.value();
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

/// Whether a's load is a smaller part of its capacity than b's.
bool emptier(const Candidate& a, const Candidate& b) {
  return uint64_t{a.load} * b.member.capacity < uint64_t{b.load} * a.member.capacity;
}

}  // namespace

struct Router::Impl {
  RouterOptions options;
  std::map<uint64_t, Candidate> all;
  uint64_t picks = 0;

  /// How well a member and a prefix fit: a number that depends on nothing else, so that a member
  /// which comes or goes changes no order among the others (rendezvous hashing).
  uint64_t weight(std::string_view prefix, uint64_t engine_id) const {
    return spread(TraceHash().add(options.seed).add(prefix).add(engine_id));
  }

  Result<std::vector<Candidate*>> candidates(const PickRequest& request);
  bool fits(const Candidate& one, uint64_t loads, uint64_t capacities) const;
  Candidate& least_loaded(const std::vector<Candidate*>& found);
};

Router::Router(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Router::Router(Router&&) noexcept = default;
Router& Router::operator=(Router&&) noexcept = default;
Router::~Router() = default;

Result<Router> Router::make(const RouterOptions& options) {
  if (options.slack_percent > kSlackPercentMax) {
    return fail(Errc::kInvalidArgument, "slack_percent: more than 10,000", kSlackPercentMax);
  }
  return Router(std::make_unique<Impl>(Impl{options, {}, 0}));
}

void Router::update(const View& view) {
  std::map<uint64_t, Candidate> next;
  for (const Member& member : view.members) {
    if (member.role != Role::kPrefill) continue;
    Candidate& one = next[member.engine_id];
    one.member = member;
    one.load = member.load;
    const auto known = impl_->all.find(member.engine_id);
    if (known == impl_->all.end()) continue;
    const Candidate& old = known->second;
    if (old.member.incarnation != member.incarnation) {
      // A directory that lags may list an earlier incarnation again: what was lost stays lost.
      one.lost = old.lost && member.incarnation < old.member.incarnation;
      continue;
    }
    one.load = old.load;
    one.lost = old.lost;
  }
  impl_->all = std::move(next);
}

void Router::report(uint64_t engine_id, uint32_t load) {
  const auto found = impl_->all.find(engine_id);
  if (found == impl_->all.end()) return;
  found->second.load = load;
  found->second.lost = false;
}

void Router::lost(uint64_t engine_id) {
  const auto found = impl_->all.find(engine_id);
  if (found != impl_->all.end()) found->second.lost = true;
}

uint32_t Router::load(uint64_t engine_id) const noexcept {
  const auto found = impl_->all.find(engine_id);
  return found == impl_->all.end() ? 0 : found->second.load;
}

Result<std::vector<Candidate*>> Router::Impl::candidates(const PickRequest& request) {
  if (all.empty()) return fail(Errc::kNotFound, "no prefiller is listed");
  bool layout = false;
  bool there = false;
  std::vector<Candidate*> found;
  for (auto& [engine_id, one] : all) {
    const uint64_t hash = one.member.layout_hash;
    if (request.layout_hash != 0 && hash != 0 && hash != request.layout_hash) continue;
    layout = true;
    if (one.lost || excepted(request, engine_id)) continue;
    there = true;
    if (one.load < one.member.capacity) found.push_back(&one);
  }
  if (!layout) return fail(Errc::kNotFound, "no prefiller has this layout");
  if (!there) return fail(Errc::kNotFound, "all prefillers are lost or excepted");
  if (found.empty()) return fail(Errc::kExhausted, "all prefillers are at capacity");
  return found;
}

/// Whether one request more leaves the member within its share of all load, plus the slack. Rounded
/// up, so that the least loaded member always fits.
bool Router::Impl::fits(const Candidate& one, uint64_t loads, uint64_t capacities) const {
  // At most 2^32 members of 2^32 - 1: the products need more than 64 bits.
  __extension__ typedef unsigned __int128 Wide;
  const Wide share = Wide{one.member.capacity} * (loads + 1) * (100 + options.slack_percent);
  const Wide all_shares = Wide{capacities} * 100;
  return (Wide{one.load} + 1) <= (share + all_shares - 1) / all_shares;
}

/// Ties are broken by a number that differs from pick to pick, so that equal members share.
Candidate& Router::Impl::least_loaded(const std::vector<Candidate*>& found) {
  const uint64_t draw = picks;
  const auto order = [&](const Candidate* a, const Candidate* b) {
    if (emptier(*a, *b)) return true;
    if (emptier(*b, *a)) return false;
    const auto tie = [&](const Candidate* one) {
      return spread(TraceHash().add(options.seed).add(draw).add(one->member.engine_id));
    };
    return tie(a) > tie(b);
  };
  return **std::ranges::min_element(found, order);
}

Result<Pick> Router::pick(const PickRequest& request) {
  auto found = impl_->candidates(request);
  if (!found) return found.error();
  Candidate* chosen = nullptr;
  bool preferred = false;
  if (request.prefix.empty()) {
    chosen = &impl_->least_loaded(*found);
  } else {
    uint64_t loads = 0;
    uint64_t capacities = 0;
    for (const Candidate* one : *found) {
      loads += one->load;
      capacities += one->member.capacity;
    }
    const auto heavier = [&](const Candidate* a, const Candidate* b) {
      return impl_->weight(request.prefix, a->member.engine_id) >
             impl_->weight(request.prefix, b->member.engine_id);
    };
    std::ranges::sort(*found, heavier);
    const auto fitting = std::ranges::find_if(
        *found, [&](const Candidate* one) { return impl_->fits(*one, loads, capacities); });
    chosen = fitting == found->end() ? &impl_->least_loaded(*found) : *fitting;
    preferred = chosen == found->front();
  }
  ++impl_->picks;
  ++chosen->load;
  return Pick{chosen->member, preferred};
}

}  // namespace fabric::kv
