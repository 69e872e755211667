#include "swarm/runner.h"

#include <algorithm>

#include <fmt/format.h>

namespace fabric::swarm {
namespace {

using namespace std::chrono_literals;
using FaultKind = sim::Fault::Kind;

/// Times that let a world fail and recover within a few virtual seconds.
Config config_of(const Story& story, uint32_t node) {
  Config config;
  config.default_timeout = 500ms;
  config.drain_timeout = Stage::kDrain;
  config.timeout_max = 2s;
  config.peer_timeout = 200ms;
  config.lost_timeout = 600ms;
  config.stripe_bytes_min = 4096;
  config.stripe_align = 512;
  config.bulk_slice_bytes = 8192;
  config.peers_max = 256;
  config.counters_max = 1024;
  config.batches_max = 512;
  config.ops_max = 512;
  config.message_buffers = 64;
  config.engine_id = 1000 + node;
  config.reroute = story.nodes[node].reroute;
  config.log_level = LogLevel::kOff;
  if (story.job_key) config.job_key = "the same for all of them";
  if (story.nodes[node].tight) {
    config.ops_max = 16;
    config.message_buffers = 4;
    config.message_credits = 2;
    config.index_arena_bytes = 16u << 10;
  }
  return config;
}

}  // namespace

Stage::Stage(const Story& story)
    : story_(story), verdict_([this] { return world_.now(); }), world_(story.world) {
  for (const NodePlan& node : story.nodes) world_.add_node(node.networks);
  lives_.resize(story.nodes.size());
  lands_twice_ = std::ranges::any_of(story.troubles, [](const Trouble& trouble) {
    return trouble.fault.kind == FaultKind::kTwice;
  });
  world_.each_arrival([this](const sim::Arrival& arrival) { on_arrival(arrival); });
  world_.each_step([this] { each_step(); });
}

Stage::~Stage() = default;

void Stage::play() {
  for (uint32_t node = 0; node < lives_.size(); ++node) open(node);
  auto trouble = story_.troubles.begin();
  for (auto deed = story_.deeds.begin(); verdict_.holds();) {
    const bool troubles_left = trouble != story_.troubles.end();
    if (deed == story_.deeds.end() && !troubles_left) break;
    if (deed == story_.deeds.end() || (troubles_left && trouble->at <= deed->at)) {
      act_until(trouble->at);
      make_trouble(*trouble++);
    } else {
      act_until(deed->at);
      perform(*deed++);
    }
  }
  act_until(story_.calm);
  while (verdict_.holds() && !reopenings_.empty()) act_until(reopenings_.begin()->first);
  if (verdict_.holds()) rest();
  if (verdict_.holds()) everything_works();
  if (verdict_.holds()) check_leaks();
  for (uint32_t i = 0; i < sim::Fault::kKinds; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    coverage_.add("fault", to_string(kind), world_.faults(kind));
  }
  for (uint32_t node = 0; node < lives_.size() && verdict_.holds(); ++node) close(node);
  if (verdict_.holds()) check_fields();
}

/// Lets time pass, and nodes come back that are due. Waits inside deeds may have used it up.
void Stage::act_until(Nanos time) {
  const auto run_to = [this](Nanos until) {
    if (until <= world_.now()) return;
    world_.run_until([this] { return !verdict_.holds(); }, until - world_.now());
  };
  while (!reopenings_.empty() && reopenings_.begin()->first <= time && verdict_.holds()) {
    const auto [when, node] = *reopenings_.begin();
    reopenings_.erase(reopenings_.begin());
    run_to(when);
    open(node);
  }
  run_to(time);
}

void Stage::make_trouble(const Trouble& trouble) {
  const sim::Fault& fault = trouble.fault;
  if (fault.kind == FaultKind::kCrash) {
    crash(fault.node);
    return reopen_later(fault.node, world_.now() + trouble.lasts);
  }
  // Waits inside deeds may have made it late: it must not outlive the calm.
  const Nanos until = std::max(world_.now(), trouble.at) + trouble.lasts;
  if (!world_.at(world_.now(), fault)) return;  // the two nodes share no such rail
  if (const auto undone = sim::opposite(fault); undone && !world_.at(until, *undone)) {
    broken("what goes wrong is undone", to_string(fault.kind));
  }
  if (fault.kind == FaultKind::kStop || fault.kind == FaultKind::kSlow) {
    pauses_.push_back({world_.now(), trouble.lasts, fault});
  }
  if (fault.kind == FaultKind::kSwallowCounts || fault.kind == FaultKind::kOverrun) {
    losing_.insert(fault.node);
  }
  if (fault.kind == FaultKind::kLateCounts) late_.insert(fault.node);
}

void Stage::open(uint32_t node) {
  if (lives_[node]) return;
  auto engine = world_.open(node, config_of(story_, node));
  if (!engine) return broken("a node opens", fmt::format("node {}: {}", node, engine.error().what));
  Life& life = lives_[node].emplace();
  life.number = ++next_life_;
  life.node = node;
  life.ear = std::make_unique<Ear>(Ear{this, node, life.number});
  life.engine.emplace(*std::move(engine));
  life.inbox.emplace(*life.engine->make_inbox(story_.nodes[node].tight ? 4 : 64));
  life.news = *life.engine->subscribe(Notify::call(&Ear::on_news, life.ear.get()));
  life.listener = *life.engine->listen(1, Notify::call(&Ear::on_message, life.ear.get()));
}

void Stage::reopen_later(uint32_t node, Nanos when) { reopenings_.emplace(when, node); }

/// Everything that was accepted has been reported when it returns, and nothing lands any more.
void Stage::close(uint32_t node) {
  Life* leaving = life(node);
  if (leaving == nullptr) return;
  const Nanos begun = world_.now();
  closing_ = leaving->number;
  const auto closed = leaving->engine->close();
  closing_ = kNobody;
  coverage_.add_steps(leaving->engine->dump_json());
  poll_inboxes();
  const Nanos took = world_.now() - begun - paused(node, begun);
  // Once for the operations, once for the memory.
  if (took > 2 * kDrain + 100ms)
    broken("close() ends in time", fmt::format("node {}: {} ns", node, took.count()));
  for (const auto& [tag, task] : tasks_) {
    if (task.life == leaving->number && !task.silent) {
      broken("every operation is reported before close() returns", describe(task));
    }
  }
  bury(node, closed.has_value());
}

void Stage::crash(uint32_t node) {
  if (life(node) == nullptr) return;
  coverage_.add_steps(life(node)->engine->dump_json());
  const uint64_t before = world_.faults(FaultKind::kCrash);
  if (!world_.at(world_.now(), sim::Fault::crash(node))) return;
  world_.run_until([&] { return world_.faults(FaultKind::kCrash) > before; }, 1ms);
  bury(node, false);
}

/// The process is gone, and with it all that it knew.
void Stage::bury(uint32_t node, bool politely) {
  const uint32_t number = lives_[node]->number;
  for (auto it = tasks_.begin(); it != tasks_.end();) {
    const Task& task = it->second;
    if (task.life != number) {
      ++it;
      continue;
    }
    for (const uint32_t part : task.parts) part_ended(parts_[part], Remote::kUnknown);
    bounds_.erase({task.look, task.tag});
    it = tasks_.erase(it);
  }
  for (Tally& tally : tallies_) {
    if (tally.node != node || !tally.counter) continue;
    by_key_.erase({node, tally.key});
    tally.counter.reset();
  }
  std::erase_if(quiet_, [node](const auto& key) { return key.first == node; });
  for (Round& round : rounds_) {
    if (round.node == node) round.group.reset();
  }
  for (Way& way : ways_) {
    if (way.from_life == number || way.to_life == number) way.ended = true;
  }
  for (uint32_t i = 0; i < fields_.size(); ++i) {
    if (fields_[i].life != number) continue;
    if (politely && !fields_[i].field.is_shut()) field_ended(i);
    fields_[i].region.reset();
  }
  lives_[node].reset();
}

Stage::Life* Stage::life(uint32_t node) noexcept { return lives_[node] ? &*lives_[node] : nullptr; }

bool Stage::alive(uint32_t node, uint32_t number) const noexcept {
  return lives_[node] && lives_[node]->number == number;
}

/// How long the processes of a node did not run, or ran slowly, since then.
Nanos Stage::paused(uint32_t node, Nanos since) const {
  Nanos sum{};
  for (const Trouble& pause : pauses_) {
    if (pause.fault.node != node) continue;
    const Nanos begin = std::max(pause.at, since), end = std::min(pause.at + pause.lasts, now());
    if (end > begin) sum += end - begin;
  }
  return sum;
}

}  // namespace fabric::swarm
