#include <algorithm>

#include "base/check.h"
#include "fuzz/fuzz_session.h"

// The calls of the engine's user. Each may fail because of what the peers have done; what the
// engine accepts has to complete.

namespace fabric::fuzz {

namespace {

constexpr Nanos kSlack = 50ms;

template <class T>
void may_fail(const Result<T>&) {}

}  // namespace

void FuzzSession::local(const FuzzAction& action) {
  const uint32_t who = action.who % 2;
  const Nanos timeout = 1ms * (1u << action.b % 10);
  const auto what = static_cast<Local>(action.what % kLocals);
  if (what <= Local::kSend) return local_transfer(action, who, timeout);
  if (what <= Local::kCancel) return local_control(action, who, timeout);
  if (what <= Local::kCloseCounter) return local_counter(action, who, timeout);
  local_region(action, who, timeout);
}

void FuzzSession::local_transfer(const FuzzAction& action, uint32_t who, Nanos timeout) {
  Engine& engine = engine_->engine;
  const MemoryRegion& source = shared_[who].back()->memory;
  const Nanos within = timeout + kDrain + kSlack;
  const CounterKey imm = CounterKey::from_wire(action.a);
  const uint32_t pages[] = {0, 3, 1, 2};
  switch (static_cast<Local>(action.what % kLocals)) {
    case Local::kWrite:
      auditor_.offer(within, [&](Notify notify) {
        return engine.submit(Write{.source = source.at(0),
                                   .target = target_[who].at(action.n % 64u),
                                   .size_bytes = action.n % kSharedBytes,
                                   .imm = imm,
                                   .timeout = timeout,
                                   .notify = notify});
      });
      break;
    case Local::kPaged:
      auditor_.offer(within, [&](Notify notify) {
        return engine.submit(PagedWrite{.source = source.id(),
                                        .source_pages = {.indices = pages, .stride_bytes = 512},
                                        .target = target_[who],
                                        .target_pages = {.indices = pages, .stride_bytes = 1024},
                                        .page_bytes = action.n % 512u,
                                        .imm = imm,
                                        .timeout = timeout,
                                        .notify = notify});
      });
      break;
    case Local::kScatter: {
      const ScatterTarget targets[] = {{target_[0].at(0), 0, 64, imm},
                                       {target_[1].at(64), 64, action.n % 256u, imm}};
      auditor_.offer(within, [&](Notify notify) {
        return engine.submit(Scatter{
            .source = source.id(), .targets = targets, .timeout = timeout, .notify = notify});
      });
      break;
    }
    case Local::kSignal: {
      const PeerId peers[] = {peer_of(0), peer_of(1)};
      const auto group = engine.make_group(peers);
      if (!group) return;
      auditor_.offer(within, [&](Notify notify) {
        return engine.submit(
            Signal{.group = *group, .keys = {&imm, 1}, .timeout = timeout, .notify = notify});
      });
      break;
    }
    default: {
      const Bytes text(action.n % 2048u, std::byte{5});
      auditor_.offer(within, [&](Notify notify) {
        return engine.submit(Send{.peer = peer_of(who),
                                  .channel = static_cast<uint16_t>(action.a % 4),
                                  .bytes = text,
                                  .timeout = timeout,
                                  .notify = notify});
      });
    }
  }
}

void FuzzSession::local_control(const FuzzAction& action, uint32_t who, Nanos timeout) {
  Engine& engine = engine_->engine;
  const Nanos within = timeout + kDrain + kSlack;
  switch (static_cast<Local>(action.what % kLocals)) {
    case Local::kConnect: {
      // A peer without the job key may claim any identity, but the user, from whom the address
      // comes, does not pass it off as a later incarnation of the honest peer.
      const control::Address named = hostile_[who]->address();
      const auto honest = control::decode_address(honest_->engine.address());
      if (honest && named.engine_id == honest->engine_id &&
          named.incarnation > honest->incarnation) {
        break;
      }
      const auto peer = engine.connect(control::encode(named), {.warm = action.a % 2 != 0});
      if (peer && *peer != engine_->other.peer) peer_[who] = *peer;
      break;
    }
    case Local::kDisconnect:
      may_fail(engine.disconnect(peer_of(who)));
      break;
    case Local::kFence:
      auditor_.offer(
          within,
          [&](Notify notify) {
            return engine.submit(Fence{.peer = peer_of(who), .timeout = timeout, .notify = notify});
          },
          [this, who](const Event& event) {
            // Without a local proof the engine relies on the peer's reply, and this peer may lie.
            const bool proof = (setting_.flags & Setting::kUnordered) == 0;
            if (event.code == Errc::kOk && proof)
              take_snapshot(who, shared_[who].size() - 1, false);
          });
      break;
    case Local::kResolve: {
      resolved_.push_back(std::make_unique<std::array<CounterKey, 8>>());
      const std::array<uint64_t, 8> names{1, 2, 3, 4, 5, 6, 7, action.n};
      const size_t count = 1 + action.a % 8;
      auditor_.offer(within, [&](Notify notify) {
        return engine.submit(Resolve{.peer = peer_of(who),
                                     .names = std::span(names).first(count),
                                     .out = std::span(*resolved_.back()).first(count),
                                     .timeout = timeout,
                                     .notify = notify});
      });
      break;
    }
    default:
      may_fail(engine.cancel(auditor_.recent(action.a % 16)));
  }
}

void FuzzSession::local_counter(const FuzzAction& action, uint32_t who, Nanos timeout) {
  Engine& engine = engine_->engine;
  const auto keep = [&](Result<Counter> counter) {
    if (!counter) return;
    if (action.a % 2 != 0) may_fail(counter->bind(peer_of(who)));
    counters_.push_back(*std::move(counter));
    auditor_.offer(timeout + kSlack, [&](Notify notify) {
      return counters_.back().expect(1 + action.n % 4u, notify, timeout);
    });
  };
  switch (static_cast<Local>(action.what % kLocals)) {
    case Local::kExpect:
      return keep(engine.make_counter());
    case Local::kNamed:
      return keep(engine.named_counter(action.n % 16u));
    case Local::kRelease:
      if (!counters_.empty()) counters_.erase(counters_.begin());
      break;
    default: {
      if (counters_.empty()) return;
      Counter counter = std::move(counters_.back());
      counters_.pop_back();
      const int64_t began = world_->wire.now_ns();
      may_fail(counter.close(timeout));
      FABRIC_CHECK(world_->wire.now_ns() - began <= (timeout + kSlack).count());
    }
  }
}

void FuzzSession::local_region(const FuzzAction& action, uint32_t who, Nanos timeout) {
  Engine& engine = engine_->engine;
  switch (static_cast<Local>(action.what % kLocals)) {
    case Local::kDeregister: {
      const size_t which = shared_[who].size() - 1;
      auditor_.offer(
          timeout + kDrain + kSlack,
          [&](Notify notify) {
            return engine.submit(Deregister{
                .region = shared_[who][which]->memory.id(), .timeout = timeout, .notify = notify});
          },
          [this, who, which](const Event& event) {
            if (event.code == Errc::kOk) take_snapshot(who, which, true);
          });
      share(who);
      break;
    }
    case Local::kGrant:
      may_fail(shared_[who].back()->memory.grant(peer_of(who)));
      grant(who);
      break;
    case Local::kRevoke:
      return local_revoke(action, who, timeout);
    case Local::kListen: {
      if (action.a % 4 == 0) {
        small_listener_.reset();
        return;
      }
      if (!inbox_) inbox_.emplace(*engine.make_inbox(2));
      Event events[2];
      inbox_->poll(events);
      if (small_listener_) return;
      auto listener = engine.listen(1, Notify::inbox(*inbox_));
      if (listener) small_listener_.emplace(*std::move(listener));
      break;
    }
    default: {
      Bytes desc = hostile_[who]->desc();
      if (action.a % 4 == 1) desc.resize(action.n % desc.size());
      if (action.a % 4 == 2) desc[action.n % desc.size()] ^= static_cast<std::byte>(action.b | 1);
      const auto target = engine.import_region(peer_of(who), desc);
      if (target) target_[who] = *target;
    }
  }
}

/// One of the grants, whether it has ended already or not.
void FuzzSession::local_revoke(const FuzzAction& action, uint32_t who, Nanos timeout) {
  if (granted_[who].empty()) return;
  Granted& granted = *granted_[who][action.n % granted_[who].size()];
  auditor_.offer(
      timeout + kDrain + kSlack,
      [&](Notify notify) {
        return engine_->engine.submit(
            Revoke{.grant = granted.id, .timeout = timeout, .notify = notify});
      },
      // Its own rkeys are the proof, whatever the peer replies and whichever NIC it is.
      [&granted](const Event& event) {
        if (event.code == Errc::kOk && !granted.snapshot) granted.snapshot = granted.bytes;
      });
}

/// From here on no write of the hostile peer may land.
void FuzzSession::take_snapshot(uint32_t who, size_t which, bool deregistered) {
  Shared& shared = *shared_[who][which];
  if (shared.deregistered) return;
  shared.snapshot = shared.bytes;
  shared.paths_then = hostile_[who]->paths_started();
  shared.deregistered = deregistered;
}

}  // namespace fabric::fuzz
