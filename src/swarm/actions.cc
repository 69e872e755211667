#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "swarm/runner.h"

// What the nodes do. A deed for which something is missing (the other node is down, nothing is
// there to be cancelled) does nothing.

namespace fabric::swarm {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kFieldBytes = 1u << 20, kSourceBytes = 1u << 20;
constexpr uint64_t kWriteBytesMax = 64u << 10, kPageBytesMax = 4u << 10;
constexpr uint32_t kPagesMax = 24, kFieldsMax = 8;
/// Beyond timeout and drain: a turn, and a NIC that is slow to let go of the source.
constexpr Nanos kSlack = 30ms;
constexpr uint16_t kChannel = 1, kDeafChannel = 9;

/// Sizes crowd around zero, one and the edges, where mistakes live.
uint64_t draw_size(Rng& dice) {
  switch (dice.below(4)) {
    case 0:
      return dice.below(3);
    case 1:
      return dice.below(512);
    case 2: {
      const uint64_t edge = uint64_t{4096} << dice.below(4);
      return std::min(kWriteBytesMax, edge + dice.below(3));
    }
    default:
      return dice.below(kWriteBytesMax + 1);
  }
}

Nanos draw_timeout(Rng& dice) {
  switch (dice.below(5)) {
    case 0:
      return 1us * static_cast<int64_t>(dice.between(1, 1000));
    case 1:
      return 1ms * static_cast<int64_t>(dice.between(1, 50));
    case 2:
      return 1500ms;
    default:
      return 500ms;
  }
}

/// At least one byte, so that no two places begin at the same one.
uint64_t draw_gap(Rng& dice) { return dice.between(1, 64); }

Priority draw_priority(Rng& dice) { return static_cast<Priority>(dice.below(3)); }

}  // namespace

/// Once everything must succeed, nothing is given a time that it could miss.
Nanos Stage::patience(Rng& dice) const {
  const Nanos drawn = draw_timeout(dice);
  return strict_ ? Nanos(1500ms) : drawn;
}

void Stage::perform(const Deed& deed) {
  Life* actor = life(deed.node);
  if (actor == nullptr) return;
  coverage_.add("deed", to_string(deed.kind));
  Rng dice(deed.dice);
  switch (deed.kind) {
    case Deed::Kind::kWrite:
      return write(*actor, deed.other, dice, 1);
    case Deed::Kind::kWrites:
      return write(*actor, deed.other, dice, static_cast<uint32_t>(dice.between(2, 12)));
    case Deed::Kind::kPaged:
      return paged(*actor, deed.other, dice);
    case Deed::Kind::kScatter:
      return scatter(*actor, dice);
    case Deed::Kind::kSignal:
      return signal(*actor, dice);
    case Deed::Kind::kSend:
      return send(*actor, deed.other, dice);
    case Deed::Kind::kTimer:
      return alarm(*actor, dice);
    case Deed::Kind::kWatch:
      return watch(*actor);
    case Deed::Kind::kExpect:
      return expect_some(*actor, dice);
    case Deed::Kind::kTake:
      return take_some(*actor);
    case Deed::Kind::kRound:
      return round(*actor, dice);
    case Deed::Kind::kCancel:
      return cancel(*actor, dice);
    case Deed::Kind::kWait:
      return wait(*actor, dice);
    case Deed::Kind::kRelease:
      return release(*actor, dice);
    case Deed::Kind::kFence:
      return fence(*actor, deed.other, dice);
    case Deed::Kind::kDeregister:
      return deregister(*actor, dice);
    case Deed::Kind::kDisconnect:
      return disconnect(*actor, deed.other);
    case Deed::Kind::kRestart:
      close(deed.node);
      return reopen_later(deed.node, world_.now() + draw_timeout(dice) / 4);
    case Deed::Kind::kMisuse:
      return misuse(*actor, deed.other, dice);
  }
}

// ---- Ways and memory ----------------------------------------------------------------------------

Way* Stage::reach(Life& life, uint32_t to) {
  Life* there = this->life(to);
  if (there == nullptr) return nullptr;
  if (const auto known = life.ways.find(to); known != life.ways.end()) {
    Way& way = ways_[known->second];
    const auto info = life.engine->peer_info(way.peer);
    if (!way.ended && info && info->state < PeerState::kLost) {
      if (!way.there && !tasks_.contains(way.greeting)) greet(life, way);
      return &way;
    }
  }
  const auto peer = life.engine->connect(there->engine->address());
  if (!peer) {
    coverage_.add("refusal", to_string(peer.error().code));
    return nullptr;
  }
  Way& way = ways_.emplace_back();
  way.number = static_cast<uint32_t>(ways_.size() - 1);
  way.from = life.node;
  way.to = to;
  way.from_life = life.number;
  way.to_life = there->number;
  way.peer = *peer;
  life.ways[to] = way.number;
  greet(life, way);
  return &way;
}

uint32_t Stage::field_for(Way& way, uint64_t size) {
  Life& owner = *life(way.to);
  uint32_t owned = 0;
  for (uint32_t i = 0; i < fields_.size(); ++i) {
    OwnedField& field = fields_[i];
    if (field.life != owner.number) continue;
    ++owned;
    if (!field.closing && field.region && field.field.left() >= size) return i;
  }
  if (owned >= kFieldsMax) return kNobody;
  OwnedField& field =
      fields_.emplace_back(OwnedField{owner.node, owner.number, Field(kFieldBytes)});
  auto region = owner.engine->register_memory(
      {.address = field.field.bytes().data(), .size_bytes = kFieldBytes});
  if (!region) {
    coverage_.add("refusal", to_string(region.error().code));
    return kNobody;
  }
  field.region.emplace(*std::move(region));
  return static_cast<uint32_t>(fields_.size() - 1);
}

RemoteRegion Stage::region_of(Way& way, uint32_t field) {
  if (const auto known = way.regions.find(field); known != way.regions.end()) return known->second;
  if (story_.grants && !way.there) return {};  // the owner does not know yet whom to grant it
  const MemoryRegion& region = *fields_[field].region;
  const auto desc = story_.grants ? region.grant(way.there) : region.desc();
  if (!desc) {
    coverage_.add("refusal", to_string(desc.error().code));
    return {};
  }
  const auto imported = life(way.from)->engine->import_region(way.peer, *desc);
  if (!imported) {
    coverage_.add("refusal", to_string(imported.error().code));
    return {};
  }
  way.regions[field] = *imported;
  old_descs_.try_emplace(way.to, OldDesc{way.to_life, *desc});
  check_old_desc(way);
  return *imported;
}

Stage::Spot Stage::source_for(Life& life, uint64_t size, uint64_t content) {
  if (life.sources.empty() || life.sources.back().used + size > kSourceBytes) {
    Source source{std::make_unique<std::byte[]>(kSourceBytes)};
    auto region = life.engine->register_memory(
        {.address = source.bytes.get(), .size_bytes = kSourceBytes, .remote_write = false});
    if (!region) return {};
    source.region.emplace(*std::move(region));
    life.sources.push_back(std::move(source));
  }
  Source& source = life.sources.back();
  const Spot spot{source.region->at(source.used), {source.bytes.get() + source.used, size}};
  source.used += size;
  fill_content(spot.bytes, content);
  return spot;
}

// ---- Counters -----------------------------------------------------------------------------------

Tally* Stage::make_tally(uint32_t node, uint64_t wanted, uint64_t name) {
  Engine& engine = *life(node)->engine;
  auto counter = name == 0 ? engine.make_counter() : engine.named_counter(name);
  if (!counter) {
    coverage_.add("refusal", to_string(counter.error().code));
    return nullptr;
  }
  Tally& tally = tallies_.emplace_back();
  tally.number = static_cast<uint32_t>(tallies_.size() - 1);
  tally.node = node;
  tally.life = life(node)->number;
  tally.wanted = wanted;
  tally.name = name;
  tally.key = counter->key();
  tally.counter.emplace(*std::move(counter));
  by_key_[{node, tally.key}] = tally.number;
  quiet_.erase({node, tally.key});
  return &tally;
}

/// One at the way's target that still waits for that many, or a new one.
Tally* Stage::tally_for(Life& life, Way& way, Rng& dice, uint32_t counts) {
  std::vector<uint32_t> fitting;
  for (const Tally& tally : tallies_) {
    if (tally.node != way.to || !tally.open()) continue;
    if (tally.only_from != kNobody && tally.only_from != way.from) continue;
    if (tally.parts.size() + counts <= tally.wanted) fitting.push_back(tally.number);
  }
  Tally* tally = nullptr;
  if (!fitting.empty() && dice.chance(0.8)) {
    tally = &tallies_[fitting[dice.below(fitting.size())]];
  } else {
    const uint64_t name = dice.chance(0.2) ? ++next_name_ : 0;
    tally = make_tally(way.to, counts + dice.below(4), name);
    if (tally != nullptr && dice.chance(0.5)) expect(*tally, dice);
  }
  if (tally != nullptr && tally->name != 0 && !tally->resolved.contains(way.number)) {
    resolve(life, way, *tally, dice);
    return nullptr;
  }
  return tally;
}

void Stage::expect(Tally& tally, Rng& dice) {
  Life& owner = *life(tally.node);
  // Bound to somebody, it ends with him.
  if (dice.chance(0.3)) {
    for (const Way& way : ways_) {
      if (way.to_life == owner.number && way.there && !way.ended && tally.only_from == kNobody) {
        tally.only_from = way.from;
        tally.bound = way.number;
        // Bound to somebody who is gone, it is spoiled at once.
        if (tally.counter->bind(way.there).error().code == Errc::kPeerLost) tally.loose = true;
        break;
      }
    }
  }
  const Nanos timeout = patience(dice);
  Task task = begin(owner, Task::Kind::kExpect, timeout);
  task.subject = tally.number;
  const Notify how = Notify::call(&Ear::on_end, owner.ear.get(), task.tag);
  submitting_ = true;
  const auto id = tally.counter->expect(tally.wanted, how, timeout);
  submitting_ = false;
  if (!id) {
    coverage_.add("refusal", to_string(id.error().code));
    if (id.error().code == Errc::kPeerLost) tally.loose = true;
    return refused(owner, task, id.error());
  }
  tally.armed = task.tag;
  accepted(std::move(task), *id);
  fire(tally);
}

void Stage::expect_some(Life& life, Rng& dice) {
  for (Tally& tally : tallies_) {
    if (tally.life != life.number || !tally.open() || tally.armed != 0) continue;
    if (tally.round != kNobody || dice.chance(0.3)) continue;
    return expect(tally, dice);
  }
}

void Stage::take_some(Life& life) {
  for (Tally& tally : tallies_) {
    if (tally.life != life.number || !tally.open() || tally.armed != 0) continue;
    if (tally.round != kNobody || tally.parts.size() < tally.wanted) continue;
    const bool enough = tally.units / 840 >= static_cast<int64_t>(tally.taken + tally.wanted);
    const bool took = tally.counter->try_take(tally.wanted);
    if (took != enough && !tally.self && !sender_may_be_lost(tally)) {
      broken("try_take() takes what is there", fmt::format("counter {}", tally.number));
    }
    if (!took) continue;
    tally.taken += tally.wanted;
    return all_there(tally);
  }
}

void Stage::round(Life& life, Rng& dice) {
  auto group = life.engine->make_counter_group();
  if (!group) return;
  Round round{life.node, *std::move(group)};
  for (uint32_t from = 0; from < lives_.size(); ++from) {
    const auto way = std::ranges::find_if(ways_, [&](const Way& w) {
      return w.from == from && w.to_life == life.number && w.there && !w.ended;
    });
    if (way == ways_.end() || from == life.node) continue;
    Tally* tally = make_tally(life.node, 1, 0);
    if (tally == nullptr) break;
    tally->only_from = from;
    tally->round = static_cast<uint32_t>(rounds_.size());
    tally->member = way->there;
    tally->from_way = way->number;
    if (!round.group->add(*tally->counter, way->there)) {
      tally->loose = true;
      continue;
    }
    round.tallies.push_back(tally->number);
  }
  if (round.tallies.empty()) return;
  rounds_.push_back(std::move(round));
  ask(static_cast<uint32_t>(rounds_.size() - 1), patience(dice));
}

void Stage::ask(uint32_t number, Nanos timeout) {
  Round& round = rounds_[number];
  Life& owner = *life(round.node);
  uint64_t members = 0;
  for (const uint32_t tally : round.tallies) members += tallies_[tally].counter.has_value();
  if (members == 0) return;
  Task task = begin(owner, Task::Kind::kRound, timeout);
  task.subject = number;
  // Those that were masked count as paid.
  const auto id = round.group->expect(
      round.tallies.size(), Notify::call(&Ear::on_end, owner.ear.get(), task.tag), timeout);
  if (!id) {
    coverage_.add("refusal", to_string(id.error().code));
    return;
  }
  accepted(std::move(task), *id);
}

// ---- Submitting ---------------------------------------------------------------------------------

Task Stage::begin(Life& life, Task::Kind kind, Nanos timeout) {
  Task task;
  task.tag = ++next_tag_;
  task.kind = kind;
  task.node = life.node;
  task.life = life.number;
  task.submitted = world_.now();
  task.due = task.submitted + timeout;
  task.bound = kind == Task::Kind::kTimer ? task.due + kSlack : task.due + kDrain + kSlack;
  return task;
}

/// A callback, an inbox, or nobody; some are in a batch of their own, and all of several parts.
Notify Stage::notify(Life& life, Task& task, Rng& dice, bool may_be_silent) {
  const uint64_t way = dice.below(10);
  const bool batched = task.parts.size() > 1 || dice.chance(0.2);
  may_be_silent &= !strict_;
  if (batched) {
    if (auto batch = life.engine->make_batch()) task.batch.emplace(*std::move(batch));
  }
  if (way < 6 || task.parts.size() > 1 || task.kind == Task::Kind::kResolve) {
    return Notify::call(&Ear::on_end, life.ear.get(), task.tag);
  }
  if (way < 9 || batched || !may_be_silent) return Notify::inbox(*life.inbox, task.tag);
  task.silent = true;
  return {};
}

uint32_t Stage::add_part(Task& task, const Way& way, uint32_t field, uint64_t size,
                         uint64_t content, Tally* tally, uint64_t gap) {
  Part& part = parts_.emplace_back();
  part.number = static_cast<uint32_t>(parts_.size() - 1);
  part.task = task.tag;
  part.begun = task.submitted;
  part.way = way.number;
  if (field != kNobody) {
    part.field = field;
    part.place = fields_[field].field.take(size, content, gap);
    const Field& there = fields_[field].field;
    by_address_[there.bytes(there.place(part.place)).data()] = part.number;
  }
  if (tally != nullptr) {
    part.tally = tally->number;
    tally->parts.push_back(part.number);
    if (way.from == way.to) tally->self = true;
  }
  task.parts.push_back(part.number);
  return part.number;
}

void Stage::refused(Life& life, Task& task, const Error& error) {
  if (error.code == Errc::kExhausted && error.what != nullptr &&
      std::strcmp(error.what, "notify") != 0) {
    life.wants_room = true;
  }
  // Nothing was taken: nothing may come of it.
  if (task.kind == Task::Kind::kSend) must_not_hear_.emplace(task.subject, task.message);
  for (const uint32_t part : task.parts) part_ended(parts_[part], Remote::kNotDelivered);
}

void Stage::accepted(Task task, OpId id) {
  task.id = id;
  task.look = task.bound;
  bounds_.emplace(task.look, task.tag);
  const uint64_t tag = task.tag;
  tasks_.emplace(tag, std::move(task));
}

template <class Request>
void Stage::submit(Life& life, Task task, Request request, Rng& dice) {
  request.notify = notify(life, task, dice, true);
  if (task.batch) request.batch = *task.batch;
  submitting_ = true;
  const auto id = life.engine->submit(request);
  submitting_ = false;
  if (!id) {
    coverage_.add("refusal", to_string(id.error().code));
    return refused(life, task, id.error());
  }
  accepted(std::move(task), *id);
}

// ---- Transfers ----------------------------------------------------------------------------------

void Stage::write(Life& life, uint32_t to, Rng& dice, uint32_t how_many) {
  Way* way = reach(life, to);
  if (way == nullptr) return;
  std::vector<Task> tasks;
  std::vector<Write> requests;
  for (uint32_t i = 0; i < how_many; ++i) {
    const uint64_t size = how_many > 1 ? dice.below(2048) : draw_size(dice);
    const uint32_t field = field_for(*way, size + 64);
    if (field == kNobody) return;
    const RemoteRegion region = region_of(*way, field);
    if (!region) break;
    Tally* tally = dice.chance(0.1) ? nullptr : tally_for(life, *way, dice, 1);
    const Nanos timeout = patience(dice);
    Task task = begin(life, Task::Kind::kWrite, timeout);
    const uint64_t content = ++next_content_;
    const Part& part = parts_[add_part(task, *way, field, size, content, tally, draw_gap(dice))];
    const Spot source = source_for(life, size, content);
    task.source = source.bytes;
    task.bytes = size;
    requests.push_back({.source = source.ref,
                        .target = region.at(fields_[field].field.place(part.place).offset),
                        .size_bytes = size,
                        .imm = tally == nullptr ? CounterKey{} : tally->key,
                        .priority = draw_priority(dice),
                        .unsplit = dice.chance(0.2),
                        .timeout = timeout});
    tasks.push_back(std::move(task));
  }
  if (how_many == 1 && !requests.empty()) {
    return submit(life, std::move(tasks[0]), requests[0], dice);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    // Which operation is which is not said for a prefix: only the tag tells.
    requests[i].notify = notify(life, tasks[i], dice, false);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (tasks[i].batch) requests[i].batch = *tasks[i].batch;
  }
  if (requests.empty()) return;
  submitting_ = true;
  const auto taken = life.engine->submit(std::span<const Write>(requests));
  submitting_ = false;
  if (!taken) coverage_.add("refusal", to_string(taken.error().code));
  const uint32_t count = taken ? *taken : 0;
  for (uint32_t i = 0; i < count; ++i) accepted(std::move(tasks[i]), {});
  for (uint32_t i = count; i < tasks.size(); ++i) {
    refused(life, tasks[i], taken ? Error{.code = Errc::kExhausted, .what = "ops"} : taken.error());
  }
}

void Stage::paged(Life& life, uint32_t to, Rng& dice) {
  Way* way = reach(life, to);
  if (way == nullptr) return;
  const auto pages = static_cast<uint32_t>(dice.between(1, kPagesMax));
  const uint64_t page = dice.between(1, kPageBytesMax);
  // Pages lie on a grid: the gaps between their places are all the same.
  const uint64_t stride = page + 64;
  const uint32_t field = field_for(*way, (pages + 1) * stride + 64);
  if (field == kNobody) return;
  const RemoteRegion region = region_of(*way, field);
  if (!region) return;
  Tally* tally = dice.chance(0.1) ? nullptr : tally_for(life, *way, dice, pages);
  const Nanos timeout = patience(dice);
  Task task = begin(life, Task::Kind::kPaged, timeout);
  const Spot source = source_for(life, pages * page, 0);
  task.source = source.bytes;
  task.bytes = pages * page;
  std::vector<uint32_t> from(pages), there(pages);
  uint64_t base = 0;
  for (uint32_t i = 0; i < pages; ++i) {
    const uint64_t content = ++next_content_;
    // From the last to the first, so that source and target are not the same list.
    from[i] = pages - 1 - i;
    there[i] = i;
    fill_content(source.bytes.subspan(from[i] * page, page), content);
    const Part& part = parts_[add_part(task, *way, field, page, content, tally, stride - page)];
    if (i == 0) base = fields_[field].field.place(part.place).offset;
  }
  submit(life, std::move(task),
         PagedWrite{.source = source.ref.region,
                    .source_pages = {from, page, source.ref.offset},
                    .target = region,
                    .target_pages = {there, stride, base},
                    .page_bytes = page,
                    .imm = tally == nullptr ? CounterKey{} : tally->key,
                    .priority = draw_priority(dice),
                    .timeout = timeout},
         dice);
}

void Stage::scatter(Life& life, Rng& dice) {
  const Nanos timeout = patience(dice);
  Task task = begin(life, Task::Kind::kScatter, timeout);
  std::vector<ScatterTarget> targets;
  const auto nodes = static_cast<uint32_t>(lives_.size());
  const auto count = static_cast<uint32_t>(dice.between(1, 2 * nodes));
  std::vector<uint64_t> sizes(count);
  uint64_t total = 0;
  for (uint64_t& size : sizes) total += size = dice.below(8192);
  const Spot source = source_for(life, total, 0);
  if (source.bytes.empty() && total > 0) return;
  task.source = source.bytes;
  task.bytes = total;
  uint64_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const auto to = static_cast<uint32_t>(dice.below(nodes));
    Way* way = to == life.node ? nullptr : reach(life, to);
    if (way == nullptr) continue;
    const uint32_t field = field_for(*way, sizes[i] + 64);
    const RemoteRegion region = field == kNobody ? RemoteRegion{} : region_of(*way, field);
    if (!region) continue;
    Tally* tally = tally_for(life, *way, dice, 1);
    const uint64_t content = ++next_content_;
    const Part& part =
        parts_[add_part(task, *way, field, sizes[i], content, tally, draw_gap(dice))];
    fill_content(source.bytes.subspan(at, sizes[i]), content);
    targets.push_back({.target = region.at(fields_[field].field.place(part.place).offset),
                       .source_offset = source.ref.offset + at,
                       .size_bytes = sizes[i],
                       .imm = tally == nullptr ? CounterKey{} : tally->key});
    at += sizes[i];
  }
  if (targets.empty()) return;
  submit(life, std::move(task),
         Scatter{.source = source.ref.region,
                 .targets = targets,
                 .priority = draw_priority(dice),
                 .timeout = timeout},
         dice);
}

void Stage::signal(Life& life, Rng& dice) {
  const Nanos timeout = patience(dice);
  Task task = begin(life, Task::Kind::kSignal, timeout);
  std::vector<PeerId> peers;
  std::vector<CounterKey> keys;
  for (uint32_t to = 0; to < lives_.size(); ++to) {
    Way* way = to == life.node ? nullptr : reach(life, to);
    Tally* tally = way == nullptr ? nullptr : tally_for(life, *way, dice, 1);
    if (tally == nullptr) continue;
    peers.push_back(way->peer);
    keys.push_back(tally->key);
    add_part(task, *way, kNobody, 0, 0, tally, 0);
  }
  if (peers.empty()) return;
  const auto group = life.engine->make_group(peers);
  if (!group) {
    coverage_.add("refusal", to_string(group.error().code));
    return refused(life, task, group.error());
  }
  submit(life, std::move(task), Signal{.group = *group, .keys = keys, .timeout = timeout}, dice);
}

// ---- The rest -----------------------------------------------------------------------------------

/// A first message by which the other side learns which session this is.
void Stage::greet(Life& life, Way& way) {
  Task task = begin(life, Task::Kind::kSend, 500ms);
  const uint64_t words[2] = {way.number, ++next_message_};
  task.subject = way.number;
  task.message = words[1];
  const Send request{.peer = way.peer,
                     .channel = kChannel,
                     .bytes = std::as_bytes(std::span(words)),
                     .timeout = Nanos(500ms),
                     .notify = Notify::call(&Ear::on_end, life.ear.get(), task.tag)};
  submitting_ = true;
  const auto id = life.engine->submit(request);
  submitting_ = false;
  if (!id) return refused(life, task, id.error());
  way.greeting = task.tag;
  accepted(std::move(task), *id);
}

void Stage::send(Life& life, uint32_t to, Rng& dice) {
  Way* way = reach(life, to);
  if (way == nullptr) return;
  const Nanos timeout = patience(dice);
  Task task = begin(life, Task::Kind::kSend, timeout);
  const uint64_t words[2] = {way->number, ++next_message_};
  std::vector<std::byte> bytes(sizeof words + dice.below(4096));
  std::memcpy(bytes.data(), words, sizeof words);
  fill_content(std::span(bytes).subspan(sizeof words), words[1]);
  task.subject = way->number;
  task.message = words[1];
  task.deaf = !strict_ && dice.chance(0.05);
  const uint16_t channel = task.deaf ? kDeafChannel : kChannel;
  submit(life, std::move(task),
         Send{.peer = way->peer, .channel = channel, .bytes = bytes, .timeout = timeout}, dice);
}

void Stage::alarm(Life& life, Rng& dice) {
  const Nanos after = patience(dice);
  Task task = begin(life, Task::Kind::kTimer, after);
  submit(life, std::move(task), Timer{.after = after}, dice);
}

void Stage::watch(Life& life) {
  if (!life.watcher) {
    // A polled one would keep the world awake: every turn of it costs, and shows nothing.
    auto watcher =
        life.engine->make_watcher(Notify::call(&Ear::on_watch, life.ear.get()), {.polled = false});
    if (!watcher) return;
    life.watcher.emplace(*std::move(watcher));
    life.watcher->arm();
  }
  life.watcher->store(++life.stored);
}

void Stage::cancel(Life& life, Rng& dice) {
  std::vector<uint64_t> mine;
  for (const auto& [tag, task] : tasks_) {
    // A greeting is not cancelled: without it the session has no name at the other side.
    const bool greeting = task.kind == Task::Kind::kSend && ways_[task.subject].greeting == tag;
    if (task.life == life.number && task.id && !greeting) mine.push_back(tag);
  }
  if (mine.empty()) return;
  Task& task = tasks_.at(mine[dice.below(mine.size())]);
  task.cancelled = true;
  const auto asked =
      task.batch ? life.engine->cancel(task.batch->id()) : life.engine->cancel(task.id);
  if (!asked) coverage_.add("refusal", to_string(asked.error().code));
}

void Stage::wait(Life& life, Rng& dice) {
  for (const auto& [tag, task] : tasks_) {
    if (task.life != life.number || !task.batch) continue;
    const BatchId batch = task.batch->id();
    const uint64_t number = tag;
    // Its end lets go of the batch, which is no reason to wait for ever.
    const auto ended = life.engine->wait(batch, 1ms * static_cast<int64_t>(dice.between(1, 5)));
    coverage_.add("wait", to_string(ended.error().code));
    const auto still = tasks_.find(number);
    if (ended && still != tasks_.end() && still->second.batch->pending() > 0) {
      broken("a wait for a batch ends with its last operation", describe(still->second));
    }
    return;
  }
}

void Stage::release(Life& life, Rng& dice) {
  for (Tally& tally : tallies_) {
    if (tally.life != life.number || !tally.counter || tally.round != kNobody) continue;
    if (!tally.done && dice.chance(0.7)) continue;
    by_key_.erase({tally.node, tally.key});
    Counter counter = *std::move(tally.counter);
    tally.counter.reset();
    if (dice.chance(0.5)) return counter.release();
    const auto rest = counter.close(1ms * static_cast<int64_t>(dice.between(1, 20)));
    if (rest && *rest == Quiescence::kProved) quiet_.emplace(tally.node, tally.key);
    coverage_.add("close of a key", rest ? to_string(*rest) : to_string(rest.error().code));
    return;
  }
}

void Stage::fence(Life& life, uint32_t other, Rng& dice) {
  for (const Way& way : ways_) {
    if (way.from != other || way.to_life != life.number || !way.there) continue;
    if (dice.chance(0.5)) continue;
    // It ends what both have of each other.
    fencing_.insert(std::minmax(way.from_life, way.to_life));
    const Nanos timeout = patience(dice);
    Task task = begin(life, Task::Kind::kFence, timeout);
    task.subject = way.number;
    return submit(life, std::move(task), Fence{.peer = way.there, .timeout = timeout}, dice);
  }
}

void Stage::deregister(Life& life, Rng& dice) {
  for (uint32_t i = 0; i < fields_.size(); ++i) {
    OwnedField& field = fields_[i];
    if (field.life != life.number || field.closing || !field.region || dice.chance(0.5)) continue;
    const Nanos timeout = patience(dice);
    Task task = begin(life, Task::Kind::kDeregister, timeout);
    task.subject = i;
    field.closing = true;
    return submit(life, std::move(task),
                  Deregister{.region = field.region->id(), .timeout = timeout}, dice);
  }
}

void Stage::disconnect(Life& life, uint32_t other) {
  const auto known = life.ways.find(other);
  if (known == life.ways.end() || other == life.node) return;
  ways_[known->second].ended = true;
  (void)life.engine->disconnect(ways_[known->second].peer);
  life.ways.erase(known);
}

void Stage::resolve(Life& life, const Way& way, Tally& tally, Rng& dice) {
  Task task = begin(life, Task::Kind::kResolve, 500ms);
  task.subject = tally.number;
  task.way = way.number;
  task.answer = std::make_unique<CounterKey>();
  const uint64_t name = tally.name;
  const Resolve request{.peer = way.peer,
                        .names = std::span(&name, 1),
                        .out = std::span(task.answer.get(), 1),
                        .timeout = Nanos(500ms)};
  submit(life, std::move(task), request, dice);
}

}  // namespace fabric::swarm
