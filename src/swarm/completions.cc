#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "swarm/runner.h"

// What is reported, and what arrives: taken down, and held against what was said before.

namespace fabric::swarm {
namespace {

using Fate = Part::Fate;

constexpr int64_t kUnits = 840;  // of one whole count
constexpr uint32_t cut_of(uint32_t imm) noexcept { return (imm >> CounterKey::kBits & 7) + 1; }

constexpr std::byte kPoison{0xd5};

/// What is due is told within this, by a process that runs.
constexpr Nanos kPrompt{10'000'000};

bool is_transfer(Task::Kind kind) noexcept { return kind <= Task::Kind::kSignal; }

}  // namespace

void Stage::Ear::on_end(void* self, const Event& event) {
  const Ear& ear = *static_cast<Ear*>(self);
  ear.stage->coverage_.add("told by", "callback");
  ear.stage->on_end(event, ear.node, ear.life);
}
void Stage::Ear::on_news(void* self, const Event& event) {
  const Ear& ear = *static_cast<Ear*>(self);
  ear.stage->on_news(event, ear.node, ear.life);
}
void Stage::Ear::on_message(void* self, const Event& event) {
  const Ear& ear = *static_cast<Ear*>(self);
  ear.stage->on_message(event, ear.node, ear.life);
}
void Stage::Ear::on_watch(void* self, const Event& event) {
  const Ear& ear = *static_cast<Ear*>(self);
  if (ear.stage->alive(ear.node, ear.life)) ear.stage->lives_[ear.node]->watched = event.value;
}

// ---- What the NICs hand over --------------------------------------------------------------------

void Stage::on_arrival(const sim::Arrival& arrival) {
  const uint32_t cut = cut_of(arrival.imm);
  const auto found = by_key_.find({arrival.node, CounterKey::from_wire(arrival.imm)});
  Tally* tally = found == by_key_.end() ? nullptr : &tallies_[found->second];
  auto whose = by_address_.upper_bound(arrival.target);
  if (arrival.target != nullptr && whose != by_address_.begin()) {
    Part& part = parts_[(--whose)->second];
    part.cut = cut;
    if (++part.shards > cut) {
      broken("no count twice",
             fmt::format("a write of task {} counted {} times of {}", part.task, part.shards, cut));
    }
    if (part.fate == Fate::kNotDelivered) {
      broken("nothing counts after kNotDelivered", fmt::format("a write of task {}", part.task));
    }
    if (tally != nullptr && part.tally != tally->number) {
      broken("a key counts for its own writes",
             fmt::format("task {} was sent to counter {} and counted at {}", part.task, part.tally,
                         tally->number));
    }
  }
  // What its sender has called done may still lie in a NIC that is late: stale, and no lie.
  const bool quiet = quiet_.contains({arrival.node, CounterKey::from_wire(arrival.imm)});
  if (tally == nullptr && quiet && !late_.contains(arrival.node)) {
    broken("nothing counts at a key that was proved to be at rest",
           fmt::format("node {}, key {}", arrival.node, CounterKey::from_wire(arrival.imm).wire()));
  }
  if (tally == nullptr) return;
  tally->units += kUnits / cut;
  tally->arrived_at = now();
  touched_.insert(tally->number);
  fire(*tally);
}

/// An expectation is met in the moment in which enough is there.
void Stage::fire(Tally& tally) {
  if (tally.armed == 0 || tally.fired || tally.round != kNobody) return;
  if (tally.units / kUnits < static_cast<int64_t>(tally.taken + tally.wanted)) return;
  tally.fired = true;
  tally.taken += tally.wanted;
  tally.fired_at = now();
  // From now on its end is due.
  const auto waits = tasks_.find(tally.armed);
  if (waits == tasks_.end() || waits->second.kind != Task::Kind::kExpect) return;
  bounds_.erase({waits->second.look, tally.armed});
  waits->second.bound = waits->second.look = now() + kPrompt;
  bounds_.emplace(waits->second.look, tally.armed);
}

// ---- What the engines report --------------------------------------------------------------------

void Stage::on_end(const Event& event, uint32_t node, uint32_t life) {
  if (submitting_) broken("no callback inside submit()", fmt::format("node {}", node));
  const auto it = tasks_.find(event.tag);
  if (it == tasks_.end() || it->second.life != life) {
    return broken("every operation ends once",
                  fmt::format("node {}: task {} is reported again, with {}", node, event.tag,
                              to_string(event.code)));
  }
  Task task = std::move(it->second);
  tasks_.erase(it);
  bounds_.erase({task.look, task.tag});
  ended(task, event);
}

void Stage::on_news(const Event& event, uint32_t node, uint32_t life) {
  coverage_.add("event", to_string(event.kind));
  if (!alive(node, life)) return;
  switch (event.kind) {
    case EventKind::kRoom:
      lives_[node]->wants_room = false;
      return;
    case EventKind::kPeer:
      coverage_.add("peer", to_string(static_cast<PeerState>(event.value)));
      if (static_cast<PeerState>(event.value) < PeerState::kLost) return;
      for (Way& way : ways_) {
        const bool mine = way.from_life == life && way.peer == event.peer;
        if (mine || (way.to_life == life && way.there == event.peer)) way.ended = true;
      }
      return;
    case EventKind::kFenceProved:
      for (uint32_t i = 0; i < fields_.size(); ++i) {
        // Only a deregistration has no peer. Which field it was is not said: the operation is.
        if (event.peer || fields_[i].life != life || fields_[i].late != event.op) continue;
        field_ended(i);
      }
      for (const Way& way : ways_) {
        if (event.peer && way.to_life == life && way.there == event.peer) fence_ended(way.number);
      }
      return;
    case EventKind::kUnhandled:
      break;
    default:
      return;
  }
  const auto it = std::ranges::find_if(tasks_, [&](const auto& entry) {
    return entry.second.life == life && entry.second.silent && entry.second.id == event.op;
  });
  if (it == tasks_.end()) return;  // of a batch that is gone, or a probe of misuse
  coverage_.add("told by", "subscriber");
  Task task = std::move(it->second);
  tasks_.erase(it);
  bounds_.erase({task.look, task.tag});
  ended(task, event);
}

void Stage::on_message(const Event& event, uint32_t node, uint32_t life) {
  if (submitting_) broken("no callback inside submit()", fmt::format("node {}", node));
  uint64_t words[2] = {};
  if (event.size_bytes < sizeof words) {
    return broken("messages arrive as they were", fmt::format("{} bytes", event.size_bytes));
  }
  std::memcpy(words, event.data, sizeof words);
  if (words[0] >= ways_.size() || !holds_content(event.bytes().subspan(sizeof words), words[1])) {
    return broken("messages arrive as they were", fmt::format("number {}", words[1]));
  }
  Way& way = ways_[words[0]];
  if (way.to_life != life || !alive(node, life)) return;
  if (must_not_hear_.contains({way.number, words[1]})) {
    broken("a message that was not delivered is not heard", fmt::format("number {}", words[1]));
  }
  const auto [said, fresh] = said_.emplace(std::pair{way.number, words[1]}, true);
  if (!fresh) broken("messages arrive once", fmt::format("number {}", words[1]));
  if (!way.there) way.there = event.peer;
}

void Stage::poll_inboxes() {
  std::array<Event, 16> events;
  for (auto& life : lives_) {
    if (!life || !life->inbox) continue;
    uint32_t count = 0;
    while ((count = life->inbox->poll(events)) > 0) {
      coverage_.add("told by", "inbox", count);
      for (uint32_t i = 0; i < count; ++i) on_end(events[i], life->node, life->number);
    }
  }
}

// ---- Ends ---------------------------------------------------------------------------------------

void Stage::ended(Task& task, const Event& event) {
  ++ended_;
  coverage_.add("code", to_string(event.code));
  coverage_.add("end", fmt::format("{} {}", to_string(task.kind),
                                   event.code == Errc::kOk ? "ok" : to_string(event.remote)));
  const bool waits = task.kind == Task::Kind::kExpect || task.kind == Task::Kind::kRound;
  const bool must = strict_ && !waits && task.submitted >= strict_since_;
  if (must && event.code != Errc::kOk && event.code != Errc::kTooLarge) {
    broken("everything new succeeds", fmt::format("{}: {}", describe(task), to_string(event.code)));
  }
  if (!has_reason(task, event.code)) {
    broken("every failure has a reason",
           fmt::format("{}: {}", describe(task), to_string(event.code)));
  }
  if (is_transfer(task.kind)) return transfer_ended(task, event);
  switch (task.kind) {
    case Task::Kind::kExpect:
      return expectation_ended(task, event);
    case Task::Kind::kRound:
      return round_ended(task, event);
    case Task::Kind::kSend:
      return message_ended(task, event);
    case Task::Kind::kTimer:
      if (event.code == Errc::kOk && now() < task.due) {
        broken("an alarm rings when it is due", describe(task));
      }
      return;
    case Task::Kind::kFence:
      if (event.code == Errc::kOk) fence_ended(task.subject);
      return;
    case Task::Kind::kDeregister:
      if (event.code == Errc::kOk) {
        field_ended(task.subject);
      } else {
        fields_[task.subject].late = task.id;
      }
      return;
    case Task::Kind::kResolve:
      if (event.code == Errc::kOk) {
        Tally& tally = tallies_[task.subject];
        if (tally.counter && *task.answer != tally.key) {
          broken("a name resolves to its key", describe(task));
        }
        tally.resolved[ways_[task.way].number] = *task.answer;
      }
      return;
    default:
      return;
  }
}

/// Whether something happened in this world that a code may be blamed on.
bool Stage::has_reason(const Task& task, Errc code) const {
  std::vector<uint32_t> ways;
  bool field_closing = false, key_released = false;
  for (const uint32_t number : task.parts) {
    const Part& part = parts_[number];
    ways.push_back(part.way);
    field_closing |= part.field != kNobody && fields_[part.field].closing;
    key_released |= part.tally != kNobody && !tallies_[part.tally].counter;
  }
  if (task.kind == Task::Kind::kSend || task.kind == Task::Kind::kFence) {
    ways.push_back(task.subject);
  }
  if (task.kind == Task::Kind::kResolve) ways.push_back(task.way);
  const bool waits = task.kind == Task::Kind::kExpect || task.kind == Task::Kind::kRound;
  const bool way_lost = std::ranges::any_of(ways, [&](uint32_t number) {
    const Way& way = ways_[number];
    return lost(way) || fencing_.contains(std::minmax(way.from_life, way.to_life));
  });
  // A write that is refused takes its path with it, and on some networks all that is on it.
  const bool refusing = !fencing_.empty() || std::ranges::any_of(fields_, &OwnedField::closing);
  const bool troubled = refusing || !story_.troubles.empty() || story_.world.drop_control > 0;
  switch (code) {
    case Errc::kOk:
      return task.kind == Task::Kind::kTimer || !task.deaf;
    case Errc::kTimeout:
      return now() >= task.due;
    case Errc::kCancelled:
      return task.cancelled;
    case Errc::kClosed:
      return closing_ == task.life || way_lost;
    case Errc::kPeerLost:
      return way_lost || waits;  // which is looked at there
    case Errc::kUnsupported:
      return task.deaf || task.kind == Task::Kind::kFence;
    case Errc::kReleased:
      return key_released || waits;
    case Errc::kAborted:
      return waits;
    case Errc::kNotFound:
      return field_closing || task.kind == Task::Kind::kDeregister ||
             task.kind == Task::Kind::kFence;
    case Errc::kRemoteAccess:
      return field_closing || way_lost || troubled;
    case Errc::kRailLost:
    case Errc::kUnreachable:
      return troubled || way_lost;
    case Errc::kTooLarge:
      return std::ranges::any_of(story_.nodes[task.node].networks, [](const auto& network) {
        return network.model.write_bytes_max < 1u << 20;
      });
    case Errc::kBusy:
      return task.kind == Task::Kind::kFence;
    case Errc::kExhausted:
      return task.kind == Task::Kind::kResolve || way_lost;
    default:
      return false;
  }
}

void Stage::message_ended(const Task& task, const Event& event) {
  const std::pair<uint32_t, uint64_t> message{task.subject, task.message};
  if (event.code == Errc::kOk) {
    must_hear_.insert(message);
  } else if (event.remote == Remote::kNotDelivered) {
    must_not_hear_.insert(message);
    if (said_.contains(message)) {
      broken("a message that was not delivered is not heard", describe(task));
    }
  }
}

void Stage::transfer_ended(Task& task, const Event& event) {
  // Whoever still reads it sends something that nobody wrote.
  std::ranges::fill(task.source, kPoison);
  const auto parts = static_cast<uint32_t>(task.parts.size());
  std::vector<Remote> fates(parts, Remote::kDelivered);
  if (parts == 1) fates[0] = event.code == Errc::kOk ? Remote::kDelivered : event.remote;
  if (task.batch) {
    std::array<Failure, Batch::kFailuresMax> failures;
    const uint32_t count = task.batch->failures(failures);
    for (uint32_t i = 0; i < count; ++i) {
      if (failures[i].part >= parts) {
        broken("failures name parts of their operation", describe(task));
      } else {
        fates[failures[i].part] = failures[i].remote;
      }
    }
    if (task.batch->delivered() + task.batch->failed() != parts ||
        task.batch->failed() != event.parts_failed ||
        (event.code != Errc::kOk && task.batch->unknown() != event.previous)) {
      broken("a batch counts every part once",
             fmt::format("{}: {} delivered, {} failed, {} unknown; reported {} failed, {} unknown",
                         describe(task), task.batch->delivered(), task.batch->failed(),
                         task.batch->unknown(), event.parts_failed, event.previous));
    }
  }
  const bool failed = std::ranges::any_of(fates, [](Remote r) { return r != Remote::kDelivered; });
  if (failed == (event.code == Errc::kOk)) {
    broken("a code says whether all was delivered",
           fmt::format("{}: {}", describe(task), to_string(event.code)));
  }
  for (uint32_t i = 0; i < parts; ++i) part_ended(parts_[task.parts[i]], fates[i]);
}

void Stage::part_ended(Part& part, Remote remote) {
  Tally* tally = part.tally == kNobody ? nullptr : &tallies_[part.tally];
  OwnedField* owned = part.field == kNobody ? nullptr : &fields_[part.field];
  const bool there = owned != nullptr && alive(owned->node, owned->life);
  switch (remote) {
    case Remote::kDelivered:
      part.fate = Fate::kDelivered;
      if ((owned != nullptr && part.begun > owned->ended) || part.begun > ways_[part.way].fenced) {
        broken("nothing is delivered behind a fence", fmt::format("a write of task {}", part.task));
      }
      if (there && !owned->field.make_whole(part.place)) {
        broken("what was delivered is there", fmt::format("a write of task {}", part.task));
      }
      if (there) bytes_checked_ += owned->field.place(part.place).size;
      if (there && lands_twice_ && tally != nullptr && tally->done) owned->field.shut(part.place);
      return;
    case Remote::kNotDelivered:
      part.fate = Fate::kNotDelivered;
      if (part.shards > 0) {
        broken("kNotDelivered means not counted", fmt::format("a write of task {}", part.task));
      }
      if (there) owned->field.shut(part.place);
      if (tally != nullptr) std::erase(tally->parts, part.number);
      return;
    case Remote::kUnknown:
      part.fate = Fate::kUnknown;
      if (tally != nullptr) tally->loose = true;
      return;
  }
}

void Stage::expectation_ended(Task& task, const Event& event) {
  Tally& tally = tallies_[task.subject];
  const bool fired = tally.fired;
  tally.armed = 0;
  tally.fired = false;
  const auto lies = [&](std::string_view why) {
    broken("a wait ends as it should",
           fmt::format("{}: {} but {}; {} of {} sent, {} units", describe(task),
                       to_string(event.code), why, tally.parts.size(), tally.wanted, tally.units));
  };
  switch (event.code) {
    case Errc::kOk:
      if (!fired && !tally.self) lies("not enough has arrived");
      if (!fired) tally.taken += tally.wanted;
      return all_there(tally);
    case Errc::kTimeout:
      if (now() < task.due) lies("it was not due");
      break;
    case Errc::kAborted:
      if (!sender_may_be_lost(tally)) lies("all that was sent is certain");
      tally.loose = true;
      break;
    case Errc::kPeerLost:
      if (!sender_may_be_lost(tally)) lies("nobody is lost");
      tally.loose = true;
      break;
    case Errc::kReleased:
      if (tally.counter) lies("it was not released");
      break;
    case Errc::kCancelled:
    case Errc::kClosed:
      break;
    default:
      lies("that is no end of a wait");
  }
  if (!fired) return;
  // In the turn in which the last one came, what ended the wait may have been looked at first.
  tally.taken -= tally.wanted;
  if (tally.fired_at < now() && event.code != Errc::kClosed) lies("it was met before");
}

/// All that was sent to it has been taken: every byte must be there, and nothing comes after it.
void Stage::all_there(Tally& tally) {
  tally.done = true;
  if (tally.parts.size() < tally.wanted) {
    broken("count <= begun", fmt::format("counter {}: {} were taken and {} sent", tally.number,
                                         tally.wanted, tally.parts.size()));
  }
  for (const uint32_t number : tally.parts) {
    Part& part = parts_[number];
    if (part.field == kNobody) continue;
    Field& field = fields_[part.field].field;
    if (field.place(part.place).state == Field::State::kShut) continue;
    if (!field.make_whole(part.place)) {
      broken("a met expectation finds every byte",
             fmt::format("counter {}: a write of task {}", tally.number, part.task));
    }
    bytes_checked_ += field.place(part.place).size;
    // Where data may land twice, that ends with the completion, and not with the count.
    if (!lands_twice_ || part.fate == Fate::kDelivered) field.shut(part.place);
  }
}

bool Stage::sender_may_be_lost(const Tally& tally) const {
  if (tally.loose || (tally.bound != kNobody && lost(ways_[tally.bound]))) return true;
  return std::ranges::any_of(tally.parts, [&](uint32_t number) {
    const Part& part = parts_[number];
    if (part.fate == Fate::kDelivered) return false;
    if (part.fate == Fate::kUnknown || lost(ways_[part.way])) return true;
    // A part may have failed while the others go on: its key is spoiled before the operation ends.
    const auto task = tasks_.find(part.task);
    return part.fate == Fate::kUnderWay && task != tasks_.end() && task->second.parts.size() > 1;
  });
}

/// Whether either side has given the session up.
bool Stage::lost(const Way& way) const {
  if (way.ended || !alive(way.to, way.to_life) || !alive(way.from, way.from_life)) return true;
  const auto from = lives_[way.from]->engine->peer_info(way.peer);
  if (!from || from->state >= PeerState::kLost) return true;
  if (!way.there) return false;
  const auto info = lives_[way.to]->engine->peer_info(way.there);
  return !info || info->state >= PeerState::kLost;
}

void Stage::round_ended(Task& task, const Event& event) {
  Round& round = rounds_[task.subject];
  if (!round.group) return;
  bool all_met = true, may_be_lost = false, just_now = false;
  for (const uint32_t number : round.tallies) {
    const Tally& tally = tallies_[number];
    if (!tally.counter) continue;
    all_met &= tally.units >= kUnits;
    may_be_lost |= sender_may_be_lost(tally) || lost(ways_[tally.from_way]);
    just_now |= tally.arrived_at == now();
  }
  const bool lies =
      event.code == Errc::kOk ? !all_met
      : event.code == Errc::kTimeout
          ? all_met && !may_be_lost && !just_now
          : (event.code == Errc::kPeerLost || event.code == Errc::kAborted) && !may_be_lost;
  if (lies) {
    broken("a round ends as it should",
           fmt::format("{}: {} and {}", describe(task), to_string(event.code),
                       all_met ? "all have paid" : "somebody has not"));
  }
  if (event.code == Errc::kOk) {
    for (const uint32_t number : round.tallies) {
      if (tallies_[number].counter) all_there(tallies_[number]);
    }
    round.group.reset();
    return;
  }
  const bool may_go_on = event.code == Errc::kPeerLost || event.code == Errc::kAborted;
  if (!may_go_on || !event.peer || !round.group->mask(event.peer)) return;
  for (const uint32_t number : round.tallies) {
    Tally& tally = tallies_[number];
    // Its member is released: what comes later is stale.
    if (tally.member != event.peer || !tally.counter) continue;
    by_key_.erase({tally.node, tally.key});
    tally.counter.reset();
  }
  if (++round.asked < 4) ask(task.subject, Nanos(300'000'000));
}

/// Nothing of that session can land any more.
void Stage::fence_ended(uint32_t way) {
  ways_[way].fenced = std::min(ways_[way].fenced, now());
  for (Part& part : parts_) {
    if (part.way != way || part.field == kNobody) continue;
    Field& field = fields_[part.field].field;
    field.shut(part.place);
  }
}

void Stage::field_ended(uint32_t field) {
  fields_[field].ended = std::min(fields_[field].ended, now());
  fields_[field].field.shut_all();
}

}  // namespace fabric::swarm
