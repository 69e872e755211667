#include "kv/scale_cluster.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "harness/pattern.h"
#include "support/log_guard.h"

namespace fabric::kv::test {

// ---- Decode ranks -------------------------------------------------------------------------------

DecodeNode::DecodeNode(sim::World& world, uint32_t node, uint32_t pages,
                       const ClusterOptions& options)
    : pool(pages),
      options_(options),
      layout_(cache_layout(0, 1, pages, options.layers, options.page_tokens, options.head_size)) {
  engine.emplace(*world.open(node, engine_config(options, node)));
  memory.emplace(*engine->allocate({.size_bytes = layout_.region_bytes[0]}));
  tail.emplace(*engine->allocate({.size_bytes = pages * kTailBytes}));
  DecoderOptions opened{.layout = layout_, .regions = {&*memory}};
  opened.tail_region = &*tail;
  opened.tail_slot_bytes = kTailBytes;
  opened.patience = options.patience;
  opened.deadline = options.deadline;
  opened.fence_timeout = options.fence_timeout;
  decoder.emplace(*Decoder::open(*engine, opened));
  side_ = *decoder->add_prefill(
      cache_side(1, options.pages, options.layers, options.page_tokens, options.head_size));
  for (uint32_t page = 0; options.bytes && page < pages; ++page) {
    fill_whole_page(layout_, memory->bytes(), page, kCanary);
  }
}

DecodeNode::~DecodeNode() { close(); }

void DecodeNode::close() {
  decoder.reset();
  tail.reset();
  memory.reset();
  engine.reset();
}

void DecodeNode::poll(std::vector<DecodeEvent>& out) {
  DecodeEvent batch[8];
  for (uint32_t n = decoder->poll(batch); n > 0; n = decoder->poll(batch)) {
    for (uint32_t i = 0; i < n; ++i) {
      drained = drained || batch[i].kind == DecodeEvent::Kind::kDrained;
      out.push_back(std::move(batch[i]));
    }
  }
}

bool DecodeNode::start(const std::string& id, uint32_t attempt, uint32_t prompt_tokens,
                       const Engine& prefiller) {
  auto pages = pool.allocate((prompt_tokens + options_.page_tokens - 1) / options_.page_tokens);
  if (!pages) return false;
  DecodeRequest request{
      .id = id, .attempt = attempt, .prefill = side_, .prompt_tokens = prompt_tokens};
  request.sources = {{.rank = 0, .address = prefiller.address_text()}};
  request.tail_slot = (*pages)[0];
  request.pages = {*pages};
  if (!decoder->start(request)) {
    EXPECT_TRUE(pool.release(*pages));
    return false;
  }
  pages_[{id, attempt}] = *std::move(pages);
  return true;
}

void DecodeNode::give_back(const std::string& id, uint32_t attempt) {
  const auto held = pages_.find({id, attempt});
  ASSERT_NE(held, pages_.end()) << id << " gives pages back twice";
  for (const uint32_t page : held->second) {
    EXPECT_EQ(decoder->page_state(0, page), PageState::kUnleased);
    if (options_.bytes) fill_whole_page(layout_, memory->bytes(), page, kCanary);
  }
  EXPECT_TRUE(pool.release(held->second));
  pages_.erase(held);
}

bool DecodeNode::holds(const std::string& id, uint32_t attempt) {
  return !options_.bytes || holds_request(layout_, memory->bytes(), id, pages_.at({id, attempt}));
}

void DecodeNode::expect_all_back() {
  EXPECT_EQ(pool.free(), pool.size());
  const DecoderStats stats = decoder->stats();
  EXPECT_EQ(stats.requests, 0u);
  EXPECT_EQ(stats.pages_leased, 0u);
  EXPECT_EQ(stats.pages_quarantined, 0u);
  for (uint32_t page = 0; options_.bytes && page < pool.size(); ++page) {
    for (size_t t = 0; t < 2; ++t) {
      for (uint32_t l = 0; l < options_.layers; ++l) {
        const auto bytes = head_bytes(layout_, memory->bytes(), t, l, page, 0);
        ASSERT_TRUE(fabric::test::untouched(bytes, kCanary)) << "a free page was written: " << page;
      }
    }
  }
}

// ---- The cluster --------------------------------------------------------------------------------

ScaleCluster::ScaleCluster(const ScaleOptions& options)
    : options_(options), rng_(options.cache.seed), world_([&] {
        sim::WorldOptions network = options.cache.network;
        network.seed = options.cache.seed;
        return network;
      }()) {
  fabric::test::expect_fault_logs();
  for (const char* part : {"peer", "path", "rail", "drain", "fence", "proof", "operation"}) {
    fabric::test::expect_log(part);
  }
  prefillers_.resize(options.prefillers);
  decoders_.resize(options.decoders);
  prefill_members_.resize(options.prefillers);
  decode_members_.resize(options.decoders);
  for (uint32_t i = 0; i < options.prefillers + options.decoders; ++i) {
    world_.add_node(1, options.cache.model);
  }
  for (size_t i = 0; i < prefillers_.size(); ++i) open_prefiller(i);
  for (size_t i = 0; i < decoders_.size(); ++i) open_decoder(i);
  for (uint32_t i = 0; i < options.requests; ++i) {
    Request request{.id = "request " + std::to_string(i)};
    request.prompt_tokens =
        static_cast<uint32_t>(rng_.between(options.prompt_tokens_min, options.prompt_tokens_max));
    by_id_[request.id] = i;
    requests_.push_back(std::move(request));
  }
}

/// Decoders first: a prefiller that closes waits for writes to them.
ScaleCluster::~ScaleCluster() {
  decoders_.clear();
  prefillers_.clear();
}

void ScaleCluster::open_prefiller(size_t i) {
  prefillers_[i] = std::make_unique<PrefillRank>(world_, prefiller_node(i), 0, options_.cache);
}

void ScaleCluster::open_decoder(size_t i) {
  decoders_[i] =
      std::make_unique<DecodeNode>(world_, decoder_node(i), options_.decoder_pages, options_.cache);
}

void ScaleCluster::inject(const sim::Fault& fault) { ASSERT_TRUE(world_.at(world_.now(), fault)); }

bool ScaleCluster::run(Nanos limit) {
  const Nanos until = world_.now() + limit;
  const auto done = [this] {
    return std::ranges::all_of(requests_, [](const Request& request) { return request.done; });
  };
  while (!done() && !testing::Test::HasFailure()) {
    if (world_.now() >= until) return false;
    step();
  }
  return !testing::Test::HasFailure();
}

void ScaleCluster::step() {
  world_.run_for(options_.tick);
  bring_back();
  if (world_.now() >= next_churn_ && world_.now() < options_.churn_ends) {
    churn();
    next_churn_ = world_.now() + Nanos(rng_.below(2 * options_.churn_gap.count()));
  }
  for (size_t i = 0; i < prefillers_.size(); ++i) poll_prefiller(i);
  for (size_t i = 0; i < decoders_.size(); ++i) poll_decoder(i);
  while (arrived_ < requests_.size() && world_.now() >= next_request_) {
    ++arrived_;
    next_request_ += Nanos(rng_.below(2 * options_.request_gap.count() + 1));
  }
  for (size_t i = 0; i < arrived_; ++i) {
    if (!requests_[i].placed && !requests_[i].done) place(requests_[i]);
  }
}

void ScaleCluster::poll_prefiller(size_t i) {
  Member& member = prefill_members_[i];
  if (member.away == Away::kStopped || member.away == Away::kClosed) return;
  PrefillRank& rank = *prefillers_[i];
  rank.poll();
  if (member.away != Away::kDraining || rank.events.empty()) return;
  if (rank.events.back().kind != PrefillEvent::Kind::kDrained) return;
  EXPECT_TRUE(rank.idle()) << "a prefiller leaves with source pages in use";
  prefillers_[i].reset();
  member = {Away::kClosed, world_.now() + 100ms};
}

void ScaleCluster::poll_decoder(size_t i) {
  Member& member = decode_members_[i];
  if (member.away == Away::kStopped || member.away == Away::kClosed) return;
  std::vector<DecodeEvent> events;
  decoders_[i]->poll(events);
  for (const DecodeEvent& event : events) take(i, event);
  if (member.away != Away::kDraining || !decoders_[i]->drained) return;
  decoders_[i]->expect_all_back();
  count_stats(*decoders_[i]);
  decoders_[i].reset();
  member = {Away::kClosed, world_.now() + 100ms};
}

void ScaleCluster::take(size_t decoder, const DecodeEvent& event) {
  const auto at = by_id_.find(event.id);
  if (at == by_id_.end()) return;
  Request& request = requests_[at->second];
  const bool current =
      request.placed && request.attempt == event.attempt && request.decoder == decoder;
  switch (event.kind) {
    case DecodeEvent::Kind::kComplete:
      if (!decoders_[decoder]->holds(event.id, event.attempt)) ++totals_.wrong;
      if (!current) break;
      request.done = true;
      ++totals_.complete;
      break;
    case DecodeEvent::Kind::kMayWrite:
    case DecodeEvent::Kind::kPagesFree:
      decoders_[decoder]->give_back(event.id, event.attempt);
      break;
    case DecodeEvent::Kind::kFailed:
      ++totals_.failed;
      totals_.refused += event.refused != RefuseCode::kNone;
      if (current && !request.done) send_again(request);
      break;
    default:
      break;
  }
}

void ScaleCluster::send_again(Request& request) {
  request.placed = false;
  ++request.attempt;
  ++totals_.sent_again;
}

/// A member that is stopped is not known to be: it may be chosen.
void ScaleCluster::place(Request& request) {
  const size_t d = rng_.below(decoders_.size());
  const size_t p = rng_.below(prefillers_.size());
  if (decode_members_[d].away != Away::kNo || prefillers_[p] == nullptr) return;
  if (!prefillers_[p]->prefiller) return;
  if (!decoders_[d]->start(request.id, request.attempt, request.prompt_tokens,
                           *prefillers_[p]->engine)) {
    return;
  }
  request.placed = true;
  request.decoder = d;
}

/// Each kind at a member of each role, in an order that is drawn, then again.
void ScaleCluster::churn() {
  const Nanos away = Nanos(rng_.between(50'000'000, 4'500'000'000));
  if (next_kinds_.empty()) {
    for (uint32_t kind = 0; kind < 6; ++kind) next_kinds_.push_back(kind);
    for (size_t n = 6; n > 1; --n) std::swap(next_kinds_[n - 1], next_kinds_[rng_.below(n)]);
  }
  const bool at_prefiller = next_kinds_.back() % 2 == 0;
  std::vector<Member>& members = at_prefiller ? prefill_members_ : decode_members_;
  const size_t i = rng_.below(members.size());
  Member& member = members[i];
  if (member.away != Away::kNo) return;  // another one, later
  const uint32_t kind = next_kinds_.back() / 2;
  next_kinds_.pop_back();
  const uint32_t node = at_prefiller ? prefiller_node(i) : decoder_node(i);
  switch (kind) {
    case 0:
      ++(at_prefiller ? totals_.prefiller_crashes : totals_.decoder_crashes);
      inject(sim::Fault::crash(node));
      world_.run_for(Nanos(1));
      if (at_prefiller) {
        prefillers_[i].reset();
      } else {
        crash_decoder(i);
      }
      member = {Away::kClosed, world_.now() + away};
      return;
    case 1:
      ++(at_prefiller ? totals_.prefiller_stops : totals_.decoder_stops);
      inject(sim::Fault::stop(node));
      member = {Away::kStopped, world_.now() + away};
      return;
    default:
      ++(at_prefiller ? totals_.prefiller_drains : totals_.decoder_drains);
      at_prefiller ? prefillers_[i]->prefiller->drain() : decoders_[i]->decoder->drain();
      member = {Away::kDraining, Nanos::max()};
      return;
  }
}

/// Its requests and pages are gone with it.
void ScaleCluster::crash_decoder(size_t i) {
  count_stats(*decoders_[i]);
  decoders_[i].reset();
  for (Request& request : requests_) {
    if (request.placed && !request.done && request.decoder == i) send_again(request);
  }
}

void ScaleCluster::bring_back() {
  const auto due = [this](const Member& member) {
    const bool waits = member.away == Away::kStopped || member.away == Away::kClosed;
    return waits && (world_.now() >= member.back || world_.now() >= options_.churn_ends);
  };
  for (size_t i = 0; i < prefill_members_.size() + decode_members_.size(); ++i) {
    const bool at_prefiller = i < prefill_members_.size();
    const size_t at = at_prefiller ? i : i - prefill_members_.size();
    Member& member = at_prefiller ? prefill_members_[at] : decode_members_[at];
    if (!due(member)) continue;
    if (member.away == Away::kStopped) {
      inject(sim::Fault::resume(static_cast<uint32_t>(i)));
    } else {
      ++totals_.joins;
      at_prefiller ? open_prefiller(at) : open_decoder(at);
    }
    member = {};
  }
}

void ScaleCluster::count_stats(const DecodeNode& node) {
  totals_.fences_proved += node.decoder->stats().fences_proved;
}

void ScaleCluster::expect_all_back() {
  const auto at_rest = [this] {
    const bool present =
        std::ranges::all_of(prefill_members_,
                            [](const Member& m) { return m.away == Away::kNo; }) &&
        std::ranges::all_of(decode_members_, [](const Member& m) { return m.away == Away::kNo; });
    return present &&
           std::ranges::all_of(
               decoders_, [](const auto& node) { return node->decoder->stats().requests == 0; }) &&
           std::ranges::all_of(prefillers_, [](const auto& rank) {
             return rank->idle() && rank->prefiller->stats().dispatches == 0;
           });
  };
  for (Nanos until = world_.now() + 30s; !at_rest() && world_.now() < until;) step();
  ASSERT_TRUE(at_rest());
  for (const auto& node : decoders_) {
    node->expect_all_back();
    count_stats(*node);
  }
}

}  // namespace fabric::kv::test
