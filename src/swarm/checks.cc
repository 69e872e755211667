#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "swarm/runner.h"

// The invariants that are looked at all the time, and those of a world at rest.

namespace fabric::swarm {
namespace {

using namespace std::chrono_literals;
using Fate = Part::Fate;

constexpr int64_t kUnits = 840;

}  // namespace

void Stage::broken(std::string_view invariant, std::string detail) {
  verdict_.broken(invariant, std::move(detail));
}

std::string Stage::describe(const Task& task) const {
  return fmt::format("node {}: {} {} of {} parts, submitted at {} ns", task.node,
                     to_string(task.kind), task.tag, task.parts.size(), task.submitted.count());
}

/// What was sent to a counter, one by one.
std::string Stage::describe(const Tally& tally) const {
  constexpr const char* kFates[] = {"under way", "delivered", "not delivered", "unknown"};
  std::string out = fmt::format(" {} wanted", tally.wanted);
  if (tally.name != 0) out += fmt::format(", name {}", tally.name);
  if (tally.bound != kNobody) out += fmt::format(", bound to node {}", ways_[tally.bound].from);
  for (const uint32_t number : tally.parts) {
    const Part& part = parts_[number];
    out += fmt::format(" [task {} of node {}: {}, {} of {} shards counted]", part.task,
                       ways_[part.way].from, kFates[static_cast<size_t>(part.fate)], part.shards,
                       part.cut);
  }
  return out;
}

void Stage::each_step() {
  if (!verdict_.holds()) return;
  poll_inboxes();
  check_bounds();
  for (const uint32_t tally : touched_) check_count(tallies_[tally]);
  touched_.clear();
  // One of all in turn: what changes without an arrival is found, too.
  ++looked_;
  if (!tallies_.empty()) check_count(tallies_[looked_ % tallies_.size()]);
  check_place();
}

void Stage::check_bounds() {
  while (!bounds_.empty() && bounds_.begin()->first < now()) {
    Task& task = tasks_.at(bounds_.begin()->second);
    bounds_.erase(bounds_.begin());
    const Nanos more = paused(task.node, task.submitted);
    const Nanos bound = task.bound + more;
    if (task.silent) continue;  // nobody says when it ended
    if (bound < now()) {
      const Life* owner = life(task.node);
      return broken("every operation ends in time",
                    describe(task) + "\n" + (owner == nullptr ? "" : owner->engine->dump()));
    }
    task.look = now() + 1ms;
    bounds_.emplace(task.look, task.tag);
  }
}

/// whole <= count <= begun at every instant. What NICs have handed over says more: how much
/// exactly.
void Stage::check_count(const Tally& tally) {
  if (!tally.counter || !alive(tally.node, tally.life) || tally.self) return;
  const uint64_t count = tally.counter->count();
  const int64_t there = tally.units / kUnits - static_cast<int64_t>(tally.taken);
  if (static_cast<int64_t>(count) > there) {
    return broken("count <= begun",
                  fmt::format("counter {} of node {} says {}, {} have arrived and {} were sent",
                              tally.number, tally.node, count, there, tally.parts.size()));
  }
  if (tally.units / kUnits > static_cast<int64_t>(tally.parts.size())) {
    return broken("count <= begun",
                  fmt::format("counter {} of node {}: {} counts of {} writes", tally.number,
                              tally.node, tally.units / kUnits, tally.parts.size()));
  }
  // A member of a round gives what it has to its group.
  if (tally.round != kNobody || sender_may_be_lost(tally)) return;
  if (static_cast<int64_t>(count) < there) {
    broken("whole <= count", fmt::format("counter {} of node {} says {}, and {} have arrived",
                                         tally.number, tally.node, count, there));
  }
}

/// A place at a time: what was shut stays shut, what is open holds nothing foreign.
void Stage::check_place() {
  if (fields_.empty()) return;
  const OwnedField& owned = fields_[looked_ % fields_.size()];
  if (owned.field.places() == 0) return;
  const uint32_t place = static_cast<uint32_t>(looked_ / fields_.size() % owned.field.places());
  if (owned.field.place(place).size > 4096 && looked_ % 16 != 0) return;
  if (!owned.field.right(place)) {
    broken("nothing lands where nothing may",
           fmt::format("node {}: place {} at {}, {}", owned.node, place,
                       owned.field.place(place).offset,
                       owned.field.place(place).state == Field::State::kShut ? "shut" : "open"));
  }
}

// ---- At rest ------------------------------------------------------------------------------------

void Stage::rest() {
  const auto all_reported = [this] {
    return !verdict_.holds() ||
           std::ranges::all_of(tasks_, [](const auto& entry) { return entry.second.silent; });
  };
  world_.run_until(all_reported, 5s);
  // Sessions that broke are given up and opened again, keys are settled, rails come back.
  world_.run_until([this] { return !verdict_.holds(); }, 3s);
  poll_inboxes();
  if (verdict_.holds()) settle_silent();
  if (verdict_.holds()) check_rest();
  if (verdict_.holds()) check_spoiled();
}

/// What nobody was told of has succeeded, or its failure would have come to the subscribers.
void Stage::settle_silent() {
  for (const auto& life : lives_) {
    if (life && life->engine->stats().ops_in_flight != 0) {
      return broken("every operation ends", life->engine->dump());
    }
  }
  auto silent = std::move(tasks_);
  tasks_.clear();
  bounds_.clear();
  coverage_.add("told by", "nobody", silent.size());
  for (auto& [tag, task] : silent) ended(task, Event{.tag = tag});
}

/// Also those of processes that are gone: what they shut stays shut.
void Stage::check_fields() {
  for (const OwnedField& owned : fields_) {
    for (uint32_t i = 0; i < owned.field.places(); ++i) {
      bytes_checked_ += owned.field.place(i).size;
      if (!owned.field.right(i)) {
        return broken("every byte is as its write says",
                      fmt::format("node {}: place {}", owned.node, i));
      }
    }
    if (!owned.field.gaps_right()) {
      return broken("nothing lands beside its place", fmt::format("node {}", owned.node));
    }
  }
}

void Stage::check_rest() {
  for (const Tally& tally : tallies_) {
    if (!tally.counter || !alive(tally.node, tally.life)) continue;
    if (tally.armed != 0) {
      return broken("every operation ends once",
                    fmt::format("the wait at counter {}", tally.number));
    }
    if (sender_may_be_lost(tally) || losing_.contains(tally.node)) continue;
    if (tally.round == kNobody && !tally.done &&
        tally.counter->count() + tally.taken != tally.parts.size()) {
      return broken("whole = count = begun at rest",
                    fmt::format("counter {} of node {}: {} counted, {} taken of{}", tally.number,
                                tally.node, tally.counter->count(), tally.taken, describe(tally)));
    }
  }
  check_fields();
  for (const auto& [way, message] : must_hear_) {
    const Way& by = ways_[way];
    if (alive(by.to, by.to_life) && !said_.contains({way, message})) {
      return broken("a message that was delivered is heard", fmt::format("number {}", message));
    }
  }
  for (const auto& life : lives_) {
    if (!life) continue;
    if (life->wants_room) {
      return broken("after kExhausted comes kRoom", fmt::format("node {}", life->node));
    }
    if (life->watched != life->stored) {
      return broken("the last value of a watched word is told",
                    fmt::format("node {}: {} of {}", life->node, life->watched, life->stored));
    }
  }
}

/// A counted write of unknown fate has spoiled its key, if both sides are still there: half of it
/// and half of another would make a whole.
void Stage::check_spoiled() {
  for (Tally& tally : tallies_) {
    if (!tally.counter || tally.done || tally.self || tally.round != kNobody) continue;
    const bool must = std::ranges::any_of(tally.parts, [&](uint32_t number) {
      const Part& part = parts_[number];
      const Way& way = ways_[part.way];
      return part.fate == Fate::kUnknown && !lost(way) && alive(way.from, way.from_life);
    });
    if (!must) continue;
    const auto waited = tally.counter->wait(1, 1us);
    if (waited.error().code == Errc::kAborted || waited.error().code == Errc::kPeerLost) continue;
    return broken("a write of unknown fate spoils its key",
                  fmt::format("counter {} of node {}: {}, {}", tally.number, tally.node,
                              to_string(waited.error().code), describe(tally)));
  }
}

/// What an earlier life of the target has shown does not lead into this one.
void Stage::check_old_desc(const Way& way) {
  const auto old = old_descs_.find(way.to);
  if (old == old_descs_.end() || old->second.life == way.to_life) return;
  const auto imported = life(way.from)->engine->import_region(way.peer, old->second.bytes);
  if (imported.error().code == Errc::kPeerLost || imported.error().code == Errc::kPermission)
    return;
  broken("a descriptor of an earlier life is refused",
         fmt::format("node {} to node {}: {}", way.from, way.to, to_string(imported.error().code)));
}

/// Nothing is held for what has ended. A probe or a repeated message may be under way at any
/// instant, where datagrams get lost: it ends, and a leak stays.
void Stage::check_leaks() {
  std::string leak;
  for (uint32_t looks = 10; looks > 0; --looks) {
    leak.clear();
    for (auto& life : lives_) {
      if (life && leak.empty()) leak = find_leak(*life);
    }
    if (leak.empty()) return;
    world_.run_until([this] { return !verdict_.holds(); }, 10ms);
  }
  broken("nothing leaks", leak);
}

/// What a process holds too much of; empty when nothing.
std::string Stage::find_leak(const Life& life) {
  const EngineStats stats = life.engine->stats();
  uint32_t counters = 0, regions = static_cast<uint32_t>(life.sources.size());
  uint32_t names = 0;  // that were released, and may have been resolved once more
  for (const Tally& tally : tallies_) {
    counters += tally.life == life.number && tally.counter;
    names += tally.life == life.number && !tally.counter && tally.name != 0;
  }
  // A group has a counter of its own.
  for (const Round& round : rounds_) counters += round.node == life.node && round.group;
  for (const OwnedField& field : fields_) {
    regions += field.life == life.number && field.region && !field.field.is_shut();
  }
  const auto dump = nlohmann::json::parse(life.engine->dump_json());
  const auto held = dump.find("held");
  if (held == dump.end()) return "the dump does not say what is held";

  std::string found;
  const auto at_most = [&](std::string_view what, uint64_t count, uint64_t wanted) {
    if (count <= wanted || !found.empty()) return;
    found = fmt::format("node {}: {} {}, and it should be {}\n{}", life.node, count, what, wanted,
                        life.engine->dump());
  };
  at_most("operations", stats.ops_in_flight, 0);
  at_most("counters", stats.counters, counters + names);
  at_most("peers", stats.peers, lives_.size());  // one session with everybody, itself included
  at_most("pieces queued", stats.tx.queued, 0);
  at_most("pieces posted", stats.tx.posted, 0);
  at_most("regions", stats.regions, regions);
  for (const auto& [name, value] : held->items()) at_most(name, value.get<uint64_t>(), 0);
  return found;
}

/// After the faults everything new succeeds, from everybody to everybody.
void Stage::everything_works() {
  // Datagrams still get lost in some worlds, so that even a session may be given up now and then.
  const uint32_t attempts = story_.world.drop_control > 0 ? 4 : 1;
  for (uint32_t from = 0; from < lives_.size(); ++from) {
    for (uint32_t to = 0; to < lives_.size() && verdict_.holds(); ++to) {
      std::string why = "untried";
      for (uint32_t left = attempts; left > 0 && !why.empty(); --left) why = try_write(from, to);
      if (why.empty()) continue;
      broken("everything new succeeds",
             fmt::format("{} writes to {}: {}\n{}", from, to, why, life(from)->engine->dump()));
    }
  }
  // And everything else that can be asked for. Waits may still lack something, and a network may
  // have no proof for a fence.
  const auto all_do = [this](std::initializer_list<Deed::Kind> kinds, Rng dice) {
    for (uint32_t node = 0; node < lives_.size(); ++node) {
      const auto other = static_cast<uint32_t>((node + 1) % lives_.size());
      for (const Deed::Kind kind : kinds) {
        if (verdict_.holds()) perform({now(), kind, node, other, dice.next()});
      }
    }
    world_.run_until([this] { return !verdict_.holds() || tasks_.empty(); }, 4s);
  };
  strict_ = story_.world.drop_control == 0;
  strict_since_ = now();
  all_do({Deed::Kind::kPaged, Deed::Kind::kWrites, Deed::Kind::kScatter, Deed::Kind::kSignal,
          Deed::Kind::kSend, Deed::Kind::kTimer, Deed::Kind::kPaged},
         Rng(story_.seed));
  all_do({Deed::Kind::kDeregister}, Rng(story_.seed));
  strict_ = false;
}

/// A way that the other side knows, or that failed on the way to it.
Way* Stage::reach_surely(uint32_t from, uint32_t to) {
  Way* way = reach(*life(from), to);
  if (way == nullptr) return nullptr;
  world_.run_until([&] { return !verdict_.holds() || way->there || way->ended; }, 600ms);
  return way;
}

/// Why a write did not get through; empty: it did.
std::string Stage::try_write(uint32_t from, uint32_t to) {
  constexpr uint64_t kSize = 20'000;
  constexpr Nanos kPatience = 1500ms;
  Way* way = reach_surely(from, to);
  if (way == nullptr) return "not reached";
  const uint32_t field = field_for(*way, kSize + 64);
  const RemoteRegion region = field == kNobody ? RemoteRegion{} : region_of(*way, field);
  Tally* tally = make_tally(to, 1, 0);
  if (!region || tally == nullptr) return "not let in";
  Life& sender = *life(from);
  Task task = begin(sender, Task::Kind::kWrite, kPatience);
  const uint64_t content = ++next_content_, tag = task.tag;
  const Part& part = parts_[add_part(task, *way, field, kSize, content, tally, 1)];
  const Spot source = source_for(sender, kSize, content);
  task.source = source.bytes;
  const auto id = sender.engine->submit(
      Write{.source = source.ref,
            .target = region.at(fields_[field].field.place(part.place).offset),
            .size_bytes = kSize,
            .imm = tally->key,
            .timeout = kPatience,
            .notify = Notify::call(&Ear::on_end, sender.ear.get(), tag)});
  if (!id) {
    refused(sender, task, id.error());
    return to_string(id.error().code);
  }
  accepted(std::move(task), *id);
  tally->armed = tag;
  const bool counted = tally->counter->wait(1, kPatience).has_value();
  tally->armed = 0;
  world_.run_until([&] { return !verdict_.holds() || !tasks_.contains(tag); }, kDrain + 100ms);
  if (!counted) return "not counted";
  if (part.fate != Fate::kDelivered) return "not reported";
  all_there(*tally);
  return {};
}

}  // namespace fabric::swarm
