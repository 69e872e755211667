#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "process/stress_member.h"

// Traffic between two members: the owner of a buffer knows every byte of a round, checks all of
// them when the expected count is reached, and grants the writer a credit for the next round.

namespace fabric::stress {
namespace {

/// Half of it is the grace for a writer that does not answer.
constexpr std::chrono::milliseconds kRevokeTimeout(400);

std::string text_of(const BufferId& buffer) {
  return "buffer " + std::to_string(buffer.number) + " of " + std::to_string(buffer.owner.slot) +
         "." + std::to_string(buffer.owner.generation) + " written by " +
         std::to_string(buffer.writer.slot) + "." + std::to_string(buffer.writer.generation);
}

/// Takes so long to copy that a fault can hit it.
bool is_long(uint64_t bytes) { return bytes >= 128 << 10; }

/// Codes of a write whose target is being revoked or lost.
bool is_expected_loss(Errc code) {
  return code == Errc::kPeerLost || code == Errc::kNotFound || code == Errc::kRemoteAccess;
}

}  // namespace

// Memory

MemberMemory Member::make_memory(MemberMemory::Kind kind, uint64_t bytes, bool target) {
  MemberMemory memory;
  const auto keep = [&](std::optional<MemoryRegion>& place, Result<MemoryRegion> region) {
    if (!region) {
      violation("memory: " + std::string(to_string(region.error().code)) + " " +
                region.error().what);
      return false;
    }
    place.emplace(*std::move(region));
    return true;
  };
  if (kind == MemberMemory::Kind::kAllocated) {
    if (keep(memory.region, engine_.allocate({.size_bytes = bytes}))) {
      memory.bytes = memory.region->bytes();
    }
    return memory;
  }
  if (kind == MemberMemory::Kind::kSlice) {
    constexpr uint64_t kBefore = 4096;
    if (!keep(memory.block, engine_.allocate({.size_bytes = bytes + 2 * kBefore}))) return memory;
    memory.bytes = memory.block->bytes().subspan(kBefore, bytes);
  } else {
    memory.own.resize(bytes);
    memory.bytes = memory.own;
  }
  keep(memory.region,
       engine_.register_memory(
           {.address = memory.bytes.data(), .size_bytes = bytes, .remote_write = target}));
  return memory;
}

/// Deregisters without waiting; the memory is freed when that has completed.
void Member::release(MemberMemory memory) {
  const uint32_t id = next_deregistering_++;
  Deregistering& deregistering = deregistering_[id];
  deregistering.memory = std::move(memory);
  for (auto* region : {&deregistering.memory.region, &deregistering.memory.block}) {
    if (!*region) continue;
    const PendingOp op{.kind = MemberOpKind::kRelease, .buffer = id};
    if (accepted(engine_.submit(Deregister{.region = (*region)->id(), .notify = track(op)}),
                 "a deregistration")) {
      ++deregistering.waits;
    }
  }
  if (deregistering.waits == 0) deregistering_.erase(id);
}

void Member::release_completed(const PendingOp& op, const Event& event) {
  if (event.code != Errc::kOk) {
    violation("a deregistration completed with " + std::string(to_string(event.code)));
  }
  Deregistering& deregistering = deregistering_.at(op.buffer);
  if (--deregistering.waits == 0) deregistering_.erase(op.buffer);
}

// The owner's side

void Member::open_buffer(MemberSession& session) {
  Inbound in;
  in.id = {.writer = session.member,
           .owner = options_.self,
           .number = buffers_made_[session.member.slot]++};
  in.memory =
      make_memory(static_cast<MemberMemory::Kind>(rng_.below(3)), options_.buffer_bytes, true);
  auto counter = engine_.make_counter();
  if (!counter || !in.memory.region) return violation("a buffer could not be made");
  in.counter.emplace(*std::move(counter));
  if (auto bound = in.counter->bind(session.peer);
      !bound && bound.error().code != Errc::kPeerLost) {
    violation("bind: " + std::string(to_string(bound.error().code)));
  }
  // Half of them are granted to this peer only.
  const auto granted = [&]() -> Result<std::vector<std::byte>> {
    auto grant = in.memory.region->grant(session.peer);
    if (!grant) return grant.error();
    return std::move(grant->desc);
  };
  auto desc = rng_.chance(0.5) ? in.memory.region->desc() : granted();
  if (!desc) {
    if (desc.error().code != Errc::kPeerLost && desc.error().code != Errc::kNotFound) {
      violation("a descriptor: " + std::string(to_string(desc.error().code)));
    }
    desc = std::vector<std::byte>{};
  }
  const PeerMessage message{.number = in.id.number,
                            .key = in.counter->key().wire(),
                            .buffer_bytes = options_.buffer_bytes,
                            .credits = session.credits_sent + session.credits_owed};
  session.in = std::move(in);
  begin_inbound(session, session.in);
  send(session, message, *desc);
}

void Member::begin_inbound(MemberSession& session, Inbound& in) {
  in.round = draw_round(in.id, in.number, options_.buffer_bytes);
  set_guards(in.memory.bytes, in.round);
  const PendingOp op{
      .kind = MemberOpKind::kAwaitRound, .peer = session.peer, .buffer = in.id.number};
  auto expected = in.counter->expect(in.round.counts(), track(op));
  in.expectation = accepted(expected, "an expectation") ? *expected : OpId{};
}

Member::Inbound* Member::inbound(MemberSession& session, uint32_t number) {
  if (session.in.id.number == number) return &session.in;
  const auto it =
      std::ranges::find(session.old, number, [](const Inbound& in) { return in.id.number; });
  return it == session.old.end() ? nullptr : &*it;
}

void Member::round_completed(MemberSession& session, const PendingOp& op, const Event& event) {
  Inbound* in = inbound(session, op.buffer);
  if (in == nullptr) return violation("a round of an unknown buffer");
  in->expectation = {};
  if (event.code != Errc::kOk) {
    // A split write of which only a part arrived before the session closed poisons the counter key.
    // If the session stays open no further round completes, and the cluster times out.
    const bool excused = event.code == Errc::kPeerLost || event.code == Errc::kAborted ||
                         (event.code == Errc::kCancelled && in != &session.in);
    if (!excused) {
      violation("a round completed with " + std::string(to_string(event.code)) + ", " +
                text_of(in->id));
    }
    return;
  }
  in->taken += in->round.counts();
  if (in->taken > scoreboard_.started(in->id))
    violation("more counted than started, " + text_of(in->id));
  if (in->closed) return;
  check_round(*in);
  // A buffer that is being revoked gets no further round.
  if (in != &session.in || session.lost) return;
  ++in->number;
  begin_inbound(session, *in);
  ++session.credits_owed;
}

void Member::check_round(const Inbound& in) {
  for (uint32_t i = 0; i < in.round.writes.size(); ++i) {
    const RoundWrite& write = in.round.writes[i];
    const auto bytes = in.memory.bytes.subspan(write.target, write.bytes);
    const uint64_t name = name_of(in.id, in.number, i);
    const uint64_t at = first_difference(bytes, name);
    bytes_ += write.bytes * in.round.repeats;
    if (at == bytes.size()) continue;
    uint64_t found = 0;
    std::memcpy(&found, bytes.data(), std::min<uint64_t>(sizeof found, bytes.size()));
    violation("counted but incomplete: " + text_of(in.id) + " round " + std::to_string(in.number) +
              " write " + std::to_string(i) + " byte " + std::to_string(at) + " of " +
              std::to_string(write.bytes) + ", stamped " + std::to_string(found) + " instead of " +
              std::to_string(name));
  }
  if (!guards_hold(in.memory.bytes, in.round))
    violation("bytes outside of a write, " + text_of(in.id));
  counts_ += in.round.counts();
  ++rounds_;
  scoreboard_.pair[in.id.writer.slot][in.id.owner.slot].rounds.fetch_add(1);
}

uint64_t Member::complete_writes(const Inbound& in) const {
  uint64_t whole = 0;
  for (uint32_t i = 0; i < in.round.writes.size(); ++i) {
    const RoundWrite& write = in.round.writes[i];
    const auto bytes = in.memory.bytes.subspan(write.target, write.bytes);
    whole += first_difference(bytes, name_of(in.id, in.number, i)) == bytes.size() ? 1 : 0;
  }
  return whole;
}

/// In the middle of a round, even after the writer died: no more counts than writes were started,
/// and for each count of an unsplit write all its bytes.
void Member::check_count(Inbound& in) {
  const uint64_t count = in.counter->count();
  if (in.taken + count > scoreboard_.started(in.id))
    violation("more counted than started, " + text_of(in.id));
  if (count == 0 || !in.round.unsplit || in.memory.bytes.empty()) return;
  if (const uint64_t whole = complete_writes(in); whole * in.round.repeats < count) {
    violation("counted " + std::to_string(count) + ", complete " + std::to_string(whole) + ", " +
              text_of(in.id) + " round " + std::to_string(in.number));
  }
}

/// No peer can write here any more: from now on every change is a violation.
void Member::close_inbound(Inbound& in) {
  if (in.closed) return;
  if (in.counter) check_count(in);
  in.closed = true;
  if (in.memory.bytes.empty()) return;
  fenced_memory_.push_back({std::move(in.memory), poison_name(poisons_++), in.id});
  stamp(fenced_memory_.back().memory.bytes, fenced_memory_.back().poison);
}

void Member::revoke(MemberSession& session) {
  const BufferId id = session.in.id;
  if (session.in.expectation) (void)engine_.cancel(session.in.expectation);
  session.old.push_back(std::move(session.in));
  const RegionId region = session.old.back().memory.region->id();
  const PendingOp op{.kind = MemberOpKind::kRevoke, .peer = session.peer, .buffer = id.number};
  accepted(
      engine_.submit(Deregister{.region = region, .timeout = kRevokeTimeout, .notify = track(op)}),
      "a revocation");
  session.in = {};
  open_buffer(session);
}

void Member::revoked(MemberSession& session, const PendingOp& op, const Event& event) {
  Inbound* in = inbound(session, op.buffer);
  if (in == nullptr) return violation("a revocation of an unknown buffer");
  if (event.code == Errc::kOk) return revocation_proved(session, *in);
  // Not proved in time: the memory is not touched until the proof arrives.
  in->revocation = event.op;
  if (event.code == Errc::kTimeout && event.remote == Remote::kUnknown) return;
  violation("a revocation completed with " + std::string(to_string(event.code)));
}

void Member::revocation_proved(MemberSession& session, Inbound& in) {
  // Memory from allocate() is freed with its registration; other memory can still be checked.
  const bool freed = in.memory.own.empty() && !in.memory.block;
  in.memory.region.reset();
  if (freed) in.memory = {};
  close_inbound(in);
  report("revoked " + std::to_string(session.member.slot) + " " +
         std::to_string(session.member.generation) + " ok");
}

/// The writer has reported its totals, and the counts agree with them.
bool Member::reconciled(const Inbound& in) {
  if (!in.reported) return false;
  const uint64_t counted = in.taken + in.counter->count();
  if (counted > in.delivered + in.unknown) {
    violation("counted " + std::to_string(counted) + ", delivered " + std::to_string(in.delivered) +
              ", unknown " + std::to_string(in.unknown) + ", " + text_of(in.id));
    return true;
  }
  return counted >= in.delivered;
}

void Member::send_credits(MemberSession& session) {
  if (session.lost || !session.credit_key) return;
  for (; session.credits_owed > 0; --session.credits_owed) {
    const PendingOp op{.kind = MemberOpKind::kCredit, .peer = session.peer};
    const CounterKey key = session.credit_key;
    if (!accepted(
            engine_.submit(Signal{.group = session.group, .keys = {&key, 1}, .notify = track(op)}),
            "a credit")) {
      return;
    }
    ++session.credits_sent;
  }
}

void Member::check_fenced_memory(size_t keep) {
  while (fenced_memory_.size() > keep) {
    FencedMemory fenced = std::move(fenced_memory_.front());
    fenced_memory_.pop_front();
    const uint64_t at = first_difference(fenced.memory.bytes, fenced.poison);
    if (at != fenced.memory.bytes.size()) {
      violation("written after the fence: byte " + std::to_string(at) + " of " +
                text_of(fenced.whose));
    }
    release(std::move(fenced.memory));
  }
}

// The writer's side

void Member::new_buffer(MemberSession& session, const PeerMessage& message,
                        std::span<const std::byte> desc) {
  Outbound next;
  next.id = {.writer = options_.self, .owner = session.member, .number = message.number};
  next.key = CounterKey::from_wire(message.key);
  next.buffer_bytes = message.buffer_bytes;
  next.credit_base = message.credits;
  const Outbound* last = session.next ? &*session.next : session.out.key ? &session.out : nullptr;
  if (last != nullptr && last->id.number > message.number) {
    // Its replacement arrived first: nothing was written there.
    send(session, {.kind = PeerMessage::kBufferClosed, .number = message.number});
    return;
  }
  if (session.next)
    send(session, {.kind = PeerMessage::kBufferClosed, .number = session.next->id.number});
  scoreboard_.open(next.id);
  if (auto region = engine_.import_region(session.peer, desc)) {
    next.region = *region;
  } else {
    // Revoked before its descriptor arrived; a replacement follows, or the peer is lost.
    next.aborted = true;
    if (!is_expected_loss(region.error().code)) {
      violation("import: " + std::string(to_string(region.error().code)));
    }
  }
  session.next = std::move(next);
}

void Member::advance_outbound(MemberSession& session) {
  Outbound& out = session.out;
  if (session.lost || out.pending > 0) return;
  const bool ends = session.next.has_value() || draining_;
  if (out.key && ends && !out.reported) {
    out.reported = true;
    send(session, {.kind = PeerMessage::kBufferClosed,
                   .number = out.id.number,
                   .delivered = out.delivered,
                   .unknown = out.unknown});
  }
  if (session.next) {
    session.out = *std::move(session.next);
    session.next.reset();
    return;
  }
  const bool may = out.key && session.credits_received >= out.credit_base + out.number;
  if (may && !out.aborted && !draining_) write_round(session);
}

void Member::write_round(MemberSession& session) {
  Outbound& out = session.out;
  const TrafficRound round = draw_round(out.id, out.number, out.buffer_bytes);
  for (uint32_t i = 0; i < round.writes.size(); ++i) {
    const RoundWrite& write = round.writes[i];
    stamp(session.source.bytes.subspan(write.source, write.bytes), name_of(out.id, out.number, i));
  }
  PendingOp op{
      .kind = MemberOpKind::kWrite, .peer = session.peer, .buffer = out.id.number, .counts = 1};
  ++out.number;
  if (!round.source_pages.empty()) {
    op.counts = round.writes.size();
    scoreboard_.begin(out.id, op.counts);
    const bool taken = accepted(
        engine_.submit(PagedWrite{
            .source = session.source.region->id(),
            .source_pages = {.indices = round.source_pages, .stride_bytes = round.stride_bytes},
            .target = out.region,
            .target_pages = {.indices = round.target_pages, .stride_bytes = round.stride_bytes},
            .page_bytes = round.page_bytes,
            .imm = out.key,
            .notify = track(op)}),
        "pages");
    out.pending += taken ? 1 : 0;
    out.aborted = !taken;
    return;
  }
  for (uint32_t i = 0; i < round.counts(); ++i) {
    const RoundWrite& write = round.writes[i % round.writes.size()];
    scoreboard_.begin(out.id, 1);
    op.long_write = is_long(write.bytes);
    if (op.long_write) long_writes(session).fetch_add(1);
    const bool taken =
        accepted(engine_.submit(Write{.source = session.source.region->at(write.source),
                                      .target = out.region.at(write.target),
                                      .size_bytes = write.bytes,
                                      .imm = out.key,
                                      .unsplit = round.unsplit,
                                      .notify = track(op)}),
                 "a write");
    if (op.long_write && !taken) long_writes(session).fetch_sub(1);
    out.pending += taken ? 1 : 0;
    out.aborted = out.aborted || !taken;
  }
}

std::atomic<uint64_t>& Member::long_writes(const MemberSession& session) {
  return scoreboard_.pair[options_.self.slot][session.member.slot].long_writes;
}

void Member::write_completed(MemberSession& session, const PendingOp& op, const Event& event) {
  Outbound& out = session.out;
  if (op.long_write) long_writes(session).fetch_sub(1);
  if (out.id.number != op.buffer || out.pending == 0) return violation("a write of an old buffer");
  --out.pending;
  if (event.parts_failed > op.counts || event.parts_unknown > event.parts_failed) {
    return violation("more parts failed than were written");
  }
  if ((event.code == Errc::kOk) != (event.parts_failed == 0)) violation("parts and code disagree");
  out.delivered += op.counts - event.parts_failed;
  out.unknown += event.parts_unknown;
  if (event.code == Errc::kOk) return;
  out.aborted = true;
  if (is_expected_loss(event.code)) return;
  violation("a write completed with " + std::string(to_string(event.code)) + " and " +
            to_string(event.remote) + ", " + text_of(out.id));
}

void Member::await_credit(MemberSession& session) {
  const PendingOp op{.kind = MemberOpKind::kAwaitCredit, .peer = session.peer};
  accepted(session.credits->expect(1, track(op), Timeout::forever()), "the wait for a credit");
}

void Member::credit_received(MemberSession& session, const Event& event) {
  if (event.code == Errc::kOk) {
    ++session.credits_received;
    if (!session.lost) await_credit(session);
  } else if (event.code != Errc::kPeerLost) {
    violation("a wait for a credit completed with " + std::string(to_string(event.code)));
  }
}

}  // namespace fabric::stress
