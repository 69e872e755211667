#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "process/stress_member.h"

// What flows between two members: the owner of a plot knows every byte that a round should bring,
// checks it when its count is met, and lets the writer go on to the next round.

namespace fabric::crowd {
namespace {

/// Half of it is the grace of a writer that does not answer.
constexpr std::chrono::milliseconds kRevokeTimeout(400);

std::string text_of(const PlotId& plot) {
  return "plot " + std::to_string(plot.number) + " of " + std::to_string(plot.owner.slot) + "." +
         std::to_string(plot.owner.life) + " written by " + std::to_string(plot.writer.slot) + "." +
         std::to_string(plot.writer.life);
}

/// What takes so long to copy that somebody can come in between.
bool is_long(uint64_t bytes) { return bytes >= 128 << 10; }

/// How a write may end because its target is being taken away.
bool excusable(Errc code) {
  return code == Errc::kPeerLost || code == Errc::kNotFound || code == Errc::kRemoteAccess;
}

}  // namespace

// Memory

Ground Member::make_ground(Ground::Kind kind, uint64_t bytes, bool target) {
  Ground ground;
  const auto keep = [&](std::optional<MemoryRegion>& place, Result<MemoryRegion> region) {
    if (!region) {
      broken("memory: " + std::string(to_string(region.error().code)) + " " + region.error().what);
      return false;
    }
    place.emplace(*std::move(region));
    return true;
  };
  if (kind == Ground::Kind::kAllocated) {
    if (keep(ground.region, engine_.allocate({.size_bytes = bytes}))) {
      ground.bytes = ground.region->bytes();
    }
    return ground;
  }
  if (kind == Ground::Kind::kSlice) {
    constexpr uint64_t kBefore = 4096;
    if (!keep(ground.block, engine_.allocate({.size_bytes = bytes + 2 * kBefore}))) return ground;
    ground.bytes = ground.block->bytes().subspan(kBefore, bytes);
  } else {
    ground.own.resize(bytes);
    ground.bytes = ground.own;
  }
  keep(ground.region,
       engine_.register_memory(
           {.address = ground.bytes.data(), .size_bytes = bytes, .remote_write = target}));
  return ground;
}

/// Takes the registrations back without waiting; the memory goes when they are gone.
void Member::release(Ground ground) {
  const uint32_t id = next_leaving_++;
  Leaving& leaving = leaving_[id];
  leaving.ground = std::move(ground);
  for (auto* region : {&leaving.ground.region, &leaving.ground.block}) {
    if (!*region) continue;
    const Op op{.deed = Deed::kRelease, .plot = id};
    if (accepted(engine_.submit(Deregister{.region = (*region)->id(), .notify = noted(op)}),
                 "a deregistration")) {
      ++leaving.waits;
    }
  }
  if (leaving.waits == 0) leaving_.erase(id);
}

void Member::release_ended(const Op& op, const Event& event) {
  if (event.code != Errc::kOk) {
    broken("a deregistration ended with " + std::string(to_string(event.code)));
  }
  Leaving& leaving = leaving_.at(op.plot);
  if (--leaving.waits == 0) leaving_.erase(op.plot);
}

// The owner's side

void Member::open_plot(Link& link) {
  Inbound in;
  in.id = {.writer = link.party, .owner = options_.self, .number = plots_made_[link.party.slot]++};
  in.ground = make_ground(static_cast<Ground::Kind>(rng_.below(3)), options_.plot_bytes, true);
  auto counter = engine_.make_counter();
  if (!counter || !in.ground.region) return broken("a plot could not be made");
  in.counter.emplace(*std::move(counter));
  if (auto bound = in.counter->bind(link.peer); !bound && bound.error().code != Errc::kPeerLost) {
    broken("bind: " + std::string(to_string(bound.error().code)));
  }
  // Half of them are for this peer only.
  auto desc = rng_.chance(0.5) ? in.ground.region->desc() : in.ground.region->grant(link.peer);
  if (!desc) {
    if (desc.error().code != Errc::kPeerLost && desc.error().code != Errc::kNotFound) {
      broken("a descriptor: " + std::string(to_string(desc.error().code)));
    }
    desc = std::vector<std::byte>{};
  }
  const Note note{.number = in.id.number,
                  .key = in.counter->key().wire(),
                  .plot_bytes = options_.plot_bytes,
                  .goes = link.goes_sent + link.goes_owed};
  link.in = std::move(in);
  begin_inbound(link, link.in);
  send(link, note, *desc);
}

void Member::begin_inbound(Link& link, Inbound& in) {
  in.round = draw_round(in.id, in.number, options_.plot_bytes);
  set_guards(in.ground.bytes, in.round);
  const Op op{.deed = Deed::kAwaitRound, .peer = link.peer, .plot = in.id.number};
  auto expected = in.counter->expect(in.round.counts(), noted(op));
  in.expectation = accepted(expected, "an expectation") ? *expected : OpId{};
}

Member::Inbound* Member::inbound(Link& link, uint32_t number) {
  if (link.in.id.number == number) return &link.in;
  const auto it =
      std::ranges::find(link.old, number, [](const Inbound& in) { return in.id.number; });
  return it == link.old.end() ? nullptr : &*it;
}

void Member::round_arrived(Link& link, const Op& op, const Event& event) {
  Inbound* in = inbound(link, op.plot);
  if (in == nullptr) return broken("a round of an unknown plot");
  in->expectation = {};
  if (event.code != Errc::kOk) {
    // A cut write of which one half arrived before the session was ended spoils the key. When
    // nobody ends the session, no round comes either, and the referee notices.
    const bool excused = event.code == Errc::kPeerLost || event.code == Errc::kAborted ||
                         (event.code == Errc::kCancelled && in != &link.in);
    if (!excused) {
      broken("a round ended with " + std::string(to_string(event.code)) + ", " + text_of(in->id));
    }
    return;
  }
  in->taken += in->round.counts();
  if (in->taken > board_.begun(in->id)) broken("more counted than begun, " + text_of(in->id));
  if (in->closed) return;
  check_arrived(*in);
  // It may be on its way out already, and then nobody writes a next round.
  if (in != &link.in || link.lost) return;
  ++in->number;
  begin_inbound(link, *in);
  ++link.goes_owed;
}

void Member::check_arrived(const Inbound& in) {
  for (uint32_t i = 0; i < in.round.pieces.size(); ++i) {
    const Piece& piece = in.round.pieces[i];
    const auto bytes = in.ground.bytes.subspan(piece.target, piece.bytes);
    const uint64_t name = name_of(in.id, in.number, i);
    const uint64_t at = first_difference(bytes, name);
    bytes_ += piece.bytes * in.round.repeats;
    if (at == bytes.size()) continue;
    uint64_t found = 0;
    std::memcpy(&found, bytes.data(), std::min<uint64_t>(sizeof found, bytes.size()));
    broken("counted and not whole: " + text_of(in.id) + " round " + std::to_string(in.number) +
           " piece " + std::to_string(i) + " byte " + std::to_string(at) + " of " +
           std::to_string(piece.bytes) + ", named " + std::to_string(found) + " and not " +
           std::to_string(name));
  }
  if (!guards_hold(in.ground.bytes, in.round)) broken("bytes beside a piece, " + text_of(in.id));
  counts_ += in.round.counts();
  ++rounds_;
  board_.pair[in.id.writer.slot][in.id.owner.slot].rounds.fetch_add(1);
}

uint64_t Member::whole_pieces(const Inbound& in) const {
  uint64_t whole = 0;
  for (uint32_t i = 0; i < in.round.pieces.size(); ++i) {
    const Piece& piece = in.round.pieces[i];
    const auto bytes = in.ground.bytes.subspan(piece.target, piece.bytes);
    whole += first_difference(bytes, name_of(in.id, in.number, i)) == bytes.size() ? 1 : 0;
  }
  return whole;
}

/// In the middle of a round, also of one whose writer is gone: no more than was begun, and for each
/// one an uncut piece that is whole.
void Member::look_at_gauge(Inbound& in) {
  const uint64_t count = in.counter->count();
  if (in.taken + count > board_.begun(in.id)) broken("more counted than begun, " + text_of(in.id));
  if (count == 0 || !in.round.uncut || in.ground.bytes.empty()) return;
  if (const uint64_t whole = whole_pieces(in); whole * in.round.repeats < count) {
    broken("counted " + std::to_string(count) + ", whole " + std::to_string(whole) + ", " +
           text_of(in.id) + " round " + std::to_string(in.number));
  }
}

/// Nobody can write here any more: from now on every change is a broken promise.
void Member::close_inbound(Inbound& in) {
  if (in.closed) return;
  if (in.counter) look_at_gauge(in);
  in.closed = true;
  if (in.ground.bytes.empty()) return;
  graves_.push_back({std::move(in.ground), poison_name(poisons_++), in.id});
  stamp(graves_.back().ground.bytes, graves_.back().poison);
}

void Member::revoke(Link& link) {
  const PlotId id = link.in.id;
  if (link.in.expectation) (void)engine_.cancel(link.in.expectation);
  link.old.push_back(std::move(link.in));
  const RegionId region = link.old.back().ground.region->id();
  const Op op{.deed = Deed::kRevoke, .peer = link.peer, .plot = id.number};
  accepted(
      engine_.submit(Deregister{.region = region, .timeout = kRevokeTimeout, .notify = noted(op)}),
      "a revocation");
  link.in = {};
  open_plot(link);
}

void Member::revoked(Link& link, const Op& op, const Event& event) {
  Inbound* in = inbound(link, op.plot);
  if (in == nullptr) return broken("a revocation of an unknown plot");
  if (event.code == Errc::kOk) return revocation_proved(link, *in);
  // Without a proof in time nothing is touched until it comes.
  in->revocation = event.op;
  if (event.code == Errc::kTimeout && event.remote == Remote::kUnknown) return;
  broken("a revocation ended with " + std::string(to_string(event.code)));
}

void Member::revocation_proved(Link& link, Inbound& in) {
  // What allocate() gave is gone with its registration; the rest is still there to be looked at.
  const bool gone = in.ground.own.empty() && !in.ground.block;
  in.ground.region.reset();
  if (gone) in.ground = {};
  close_inbound(in);
  say("revoked " + std::to_string(link.party.slot) + " " + std::to_string(link.party.life) + " ok");
}

/// The writer has said how its writes ended, and the counts are what follows from it.
bool Member::settled(const Inbound& in) {
  if (!in.told) return false;
  const uint64_t counted = in.taken + in.counter->count();
  if (counted > in.delivered + in.unknown) {
    broken("counted " + std::to_string(counted) + ", delivered " + std::to_string(in.delivered) +
           ", unknown " + std::to_string(in.unknown) + ", " + text_of(in.id));
    return true;
  }
  return counted >= in.delivered;
}

void Member::send_goes(Link& link) {
  if (link.lost || !link.go_key) return;
  for (; link.goes_owed > 0; --link.goes_owed) {
    const Op op{.deed = Deed::kGo, .peer = link.peer};
    const CounterKey key = link.go_key;
    if (!accepted(
            engine_.submit(Signal{.group = link.group, .keys = {&key, 1}, .notify = noted(op)}),
            "a go")) {
      return;
    }
    ++link.goes_sent;
  }
}

void Member::retire_graves(size_t keep) {
  while (graves_.size() > keep) {
    Grave grave = std::move(graves_.front());
    graves_.pop_front();
    const uint64_t at = first_difference(grave.ground.bytes, grave.poison);
    if (at != grave.ground.bytes.size()) {
      broken("written after the fence: byte " + std::to_string(at) + " of " + text_of(grave.whose));
    }
    release(std::move(grave.ground));
  }
}

// The writer's side

void Member::new_plot(Link& link, const Note& note, std::span<const std::byte> desc) {
  Outbound next;
  next.id = {.writer = options_.self, .owner = link.party, .number = note.number};
  next.key = CounterKey::from_wire(note.key);
  next.plot_bytes = note.plot_bytes;
  next.go_base = note.goes;
  const Outbound* last = link.next ? &*link.next : link.out.key ? &link.out : nullptr;
  if (last != nullptr && last->id.number > note.number) {
    // Overtaken by the one that replaced it: nothing was written there.
    send(link, {.kind = Note::kPlotEnded, .number = note.number});
    return;
  }
  if (link.next) send(link, {.kind = Note::kPlotEnded, .number = link.next->id.number});
  board_.open(next.id);
  if (auto region = engine_.import_region(link.peer, desc)) {
    next.region = *region;
  } else {
    // Taken back before we had heard of it; another one follows, or the peer is lost.
    next.broken_off = true;
    if (!excusable(region.error().code)) {
      broken("import: " + std::string(to_string(region.error().code)));
    }
  }
  link.next = std::move(next);
}

void Member::advance_outbound(Link& link) {
  Outbound& out = link.out;
  if (link.lost || out.pending > 0) return;
  const bool ends = link.next.has_value() || quiet_;
  if (out.key && ends && !out.told) {
    out.told = true;
    send(link, {.kind = Note::kPlotEnded,
                .number = out.id.number,
                .delivered = out.delivered,
                .unknown = out.unknown});
  }
  if (link.next) {
    link.out = *std::move(link.next);
    link.next.reset();
    return;
  }
  const bool may = out.key && link.goes_heard >= out.go_base + out.number;
  if (may && !out.broken_off && !quiet_) write_round(link);
}

void Member::write_round(Link& link) {
  Outbound& out = link.out;
  const Round round = draw_round(out.id, out.number, out.plot_bytes);
  for (uint32_t i = 0; i < round.pieces.size(); ++i) {
    const Piece& piece = round.pieces[i];
    stamp(link.source.bytes.subspan(piece.source, piece.bytes), name_of(out.id, out.number, i));
  }
  Op op{.deed = Deed::kWrite, .peer = link.peer, .plot = out.id.number, .counts = 1};
  ++out.number;
  if (!round.source_pages.empty()) {
    op.counts = round.pieces.size();
    board_.begin(out.id, op.counts);
    const bool taken = accepted(
        engine_.submit(PagedWrite{
            .source = link.source.region->id(),
            .source_pages = {.indices = round.source_pages, .stride_bytes = round.stride_bytes},
            .target = out.region,
            .target_pages = {.indices = round.target_pages, .stride_bytes = round.stride_bytes},
            .page_bytes = round.page_bytes,
            .imm = out.key,
            .notify = noted(op)}),
        "pages");
    out.pending += taken ? 1 : 0;
    out.broken_off = !taken;
    return;
  }
  for (uint32_t i = 0; i < round.counts(); ++i) {
    const Piece& piece = round.pieces[i % round.pieces.size()];
    board_.begin(out.id, 1);
    op.long_write = is_long(piece.bytes);
    if (op.long_write) long_writes(link).fetch_add(1);
    const bool taken = accepted(engine_.submit(Write{.source = link.source.region->at(piece.source),
                                                     .target = out.region.at(piece.target),
                                                     .size_bytes = piece.bytes,
                                                     .imm = out.key,
                                                     .unsplit = round.uncut,
                                                     .notify = noted(op)}),
                                "a write");
    if (op.long_write && !taken) long_writes(link).fetch_sub(1);
    out.pending += taken ? 1 : 0;
    out.broken_off = out.broken_off || !taken;
  }
}

std::atomic<uint64_t>& Member::long_writes(const Link& link) {
  return board_.pair[options_.self.slot][link.party.slot].long_writes;
}

void Member::write_ended(Link& link, const Op& op, const Event& event) {
  Outbound& out = link.out;
  if (op.long_write) long_writes(link).fetch_sub(1);
  if (out.id.number != op.plot || out.pending == 0) return broken("a write of an old plot");
  --out.pending;
  if (event.parts_failed > op.counts || event.previous > event.parts_failed) {
    return broken("more parts failed than there were");
  }
  if ((event.code == Errc::kOk) != (event.parts_failed == 0)) broken("parts and code disagree");
  out.delivered += op.counts - event.parts_failed;
  out.unknown += event.previous;
  if (event.code == Errc::kOk) return;
  out.broken_off = true;
  if (excusable(event.code)) return;
  broken("a write ended with " + std::string(to_string(event.code)) + " and " +
         to_string(event.remote) + ", " + text_of(out.id));
}

void Member::await_go(Link& link) {
  const Op op{.deed = Deed::kAwaitGo, .peer = link.peer};
  accepted(link.go->expect(1, noted(op), Timeout::forever()), "the wait for a go");
}

void Member::go_heard(Link& link, const Event& event) {
  if (event.code == Errc::kOk) {
    ++link.goes_heard;
    if (!link.lost) await_go(link);
  } else if (event.code != Errc::kPeerLost) {
    broken("a wait for a go ended with " + std::string(to_string(event.code)));
  }
}

}  // namespace fabric::crowd
