#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "scenario/story.h"
#include "support/log_guard.h"

// A few engines, all operations, every fault, by the seed. What must hold whatever happens: every
// operation ends once and in time, no count is ever higher than what was begun or lower than what
// was delivered, and once the faults are over everything works again.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint32_t kNodes = 3;
constexpr uint64_t kSlot = 16 << 10, kPage = kSlot / 8;
constexpr uint32_t kSlots = 16;
constexpr uint64_t kArea = kSlots * kSlot;  // of a memory: what it sends, then one for each sender
constexpr Nanos kChaos = 1s, kLongest = 1s, kDrain = 1s;

Config chaos_config(uint32_t node) {
  Config config = story_config();
  config.log_level = LogLevel::kError;
  config.engine_id = 100 + node;
  config.default_timeout = kLongest;
  config.drain_timeout = kDrain;
  config.peer_timeout = 1s;
  config.lost_timeout = 3s;
  config.stripe_bytes_min = 4096;
  return config;
}

/// A counter at one engine, and what another one sends to it.
struct Stream {
  uint32_t from = 0, to = 0, slot = 0;
  std::optional<Counter> counter;
  uint64_t begun = 0, delivered = 0, unknown = 0;
  uint64_t bytes = 0;  ///< so many of the slot were delivered
};

class Swarm {
 public:
  Swarm(uint64_t seed, const sim::NicModel& model)
      : random_(seed), world_({.seed = seed, .drop_control = 0.02, .duplicate_control = 0.02}) {
    for (uint32_t i = 0; i < kNodes; ++i) {
      hosts_.push_back(
          open_host(world_, world_.add_node(2, model), (1 + kNodes) * kArea, chaos_config(i)));
      fill(hosts_[i].bytes(0, kArea), i);
      listeners_.push_back(*hosts_[i].engine.listen(1, heard_.notify()));
    }
    ways_.resize(kNodes, std::vector<Way>(kNodes));
  }

  /// Begins something somewhere, and again a little later.
  void step() {
    if (world_.now() < next_) return;
    next_ = world_.now() + Nanos(static_cast<int64_t>(pick(400'000)));
    const uint32_t from = pick(kNodes), to = (from + 1 + pick(kNodes - 1)) % kNodes;
    if (!reach(from, to)) return;
    switch (pick(8)) {
      case 0:
        return submitted(hosts_[from].engine.submit(
            Send{.peer = ways_[from][to].peer, .channel = 1, .notify = notify({})}));
      case 1:
        return paged(stream(from, to));
      case 2:
        return cancel(from);
      default:
        return write(stream(from, to));
    }
  }

  void run(const std::vector<Fault::Kind>& kinds) {
    ASSERT_TRUE(world_.chaos({.until = kChaos, .gap = 20ms, .lasts = 60ms, .kinds = kinds}));
    const EachStep check(world_, [this] { counts_are_right(); });
    ASSERT_TRUE(world_.run_until([&] { return step(), world_.now() >= kChaos; }, 10s));
    const auto all_ended = [&] { return ops_.empty(); };
    EXPECT_TRUE(world_.run_until(all_ended, kLongest + kDrain + Nanos(100ms)))
        << ops_.size() << " operations do not end\n"
        << hosts_[0].engine.dump();
    world_.run_for(3s);
    counts_rest();
    bytes_rest();
    everything_works_again();
    for (Host& host : hosts_) EXPECT_TRUE(host.engine.close()) << "does not close";
  }
  uint64_t unknown() const { return unknown_; }
  uint64_t failed() const { return failed_; }
  uint64_t ended() const { return ended_; }

 private:
  struct Begun {
    std::shared_ptr<Stream> stream;
    uint64_t parts = 0, bytes = 0;
    Nanos at{};
  };

  uint32_t pick(uint32_t below) {
    random_ = random_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<uint32_t>((random_ >> 33) % below);
  }
  bool reach(uint32_t from, uint32_t to) {
    Way& way = ways_[from][to];
    Host& host = hosts_[from];
    if (way.peer && host.engine.peer_info(way.peer) &&
        host.engine.peer_info(way.peer)->state < PeerState::kLost) {
      return true;
    }
    const auto peer = host.engine.connect(hosts_[to].engine.address());
    if (!peer) return false;
    const auto region = host.engine.import_region(*peer, *hosts_[to].memory.desc());
    if (!region) return false;
    way = {*peer, *region};
    return true;
  }
  /// One that is in use, or a new one: a spoiled or old key is replaced.
  std::shared_ptr<Stream> stream(uint32_t from, uint32_t to) {
    auto& known = streams_[{from, to}];
    const bool tired = known != nullptr && (known->unknown > 0 || known->begun > 60);
    if (known != nullptr && !tired) return known;
    known = std::make_shared<Stream>();
    known->from = from;
    known->to = to;
    known->slot = pick(kSlots);
    known->counter.emplace(*hosts_[to].engine.make_counter());
    all_.push_back(known);
    return known;
  }
  Notify notify(const std::shared_ptr<Stream>& of, uint64_t parts = 1, uint64_t bytes = 0) {
    ops_[++tag_] = {of, parts, bytes, world_.now()};
    if (of != nullptr) of->begun += parts;
    return Notify::call<&Swarm::on_end>(this, tag_);
  }
  void submitted(const Result<OpId>& op) {
    if (op) {
      last_ = *op;
      return;
    }
    // Refused: nothing of it was begun.
    const Begun& refused = ops_.at(tag_);
    if (refused.stream != nullptr) refused.stream->begun -= refused.parts;
    ops_.erase(tag_);
  }
  void write(const std::shared_ptr<Stream>& stream) {
    Host& host = hosts_[stream->from];
    const uint64_t at = stream->slot * kSlot, size = 1 + pick(kSlot);
    const Way& way = ways_[stream->from][stream->to];
    submitted(host.engine.submit(Write{.source = host.memory.at(at),
                                       .target = way.at((1 + stream->from) * kArea + at),
                                       .size_bytes = size,
                                       .imm = stream->counter->key(),
                                       .whole = pick(4) == 0,
                                       .notify = notify(stream, 1, size)}));
  }
  void paged(const std::shared_ptr<Stream>& stream) {
    Host& host = hosts_[stream->from];
    std::vector<uint32_t> pages(1 + pick(8));
    for (uint32_t i = 0; i < pages.size(); ++i) pages[i] = stream->slot * 8 + i;
    Pages here{.indices = pages, .stride_bytes = kPage}, there = here;
    there.offset_bytes = (1 + stream->from) * kArea;
    submitted(host.engine.submit(
        PagedWrite{.source = host.memory.id(),
                   .source_pages = here,
                   .target = ways_[stream->from][stream->to].region,
                   .target_pages = there,
                   .page_bytes = kPage,
                   .imm = stream->counter->key(),
                   .notify = notify(stream, pages.size(), pages.size() * kPage)}));
  }
  void cancel(uint32_t at) {
    if (last_) (void)hosts_[at].engine.cancel(last_);
  }
  void on_end(const Event& event) {
    const auto it = ops_.find(event.tag);
    ASSERT_NE(it, ops_.end()) << "ended twice";
    const Begun begun = it->second;
    ops_.erase(it);
    ++ended_;
    failed_ += event.code != Errc::kOk;
    EXPECT_LE(world_.now() - begun.at, kLongest + kDrain + Nanos(10ms)) << to_string(event.code);
    if (begun.stream == nullptr) return;
    Stream& stream = *begun.stream;
    const uint64_t unknown = event.code == Errc::kOk ? 0 : event.previous;
    if (event.code == Errc::kOk) stream.bytes = std::max(stream.bytes, begun.bytes);
    stream.delivered += begun.parts - event.parts_failed;
    stream.unknown += unknown;
    unknown_ += unknown;
    stream.begun -= event.parts_failed - unknown;  // certainly not delivered: not counted, ever
  }
  void counts_are_right() {
    for (const auto& stream : all_) {
      EXPECT_LE(stream->counter->count(), stream->begun) << "counted twice, or never sent";
    }
  }
  void counts_rest() {
    // A NIC that dies between acknowledgement and completion takes counts with it.
    const bool swallowed =
        world_.faults(Fault::Kind::kSwallowCounts) > 0 || world_.faults(Fault::Kind::kOverrun) > 0;
    for (const auto& stream : all_) {
      if (stream->unknown > 0 || swallowed) continue;
      EXPECT_EQ(stream->counter->count(), stream->delivered);
      EXPECT_EQ(stream->begun, stream->delivered);
    }
  }
  /// Every byte is what its sender had at that place, or untouched; never where it was delivered.
  void bytes_rest() {
    for (uint32_t to = 0; to < kNodes; ++to) {
      for (uint32_t from = 0; from < kNodes; ++from) {
        const auto area = hosts_[to].bytes((1 + from) * kArea, kArea);
        const auto sent = hosts_[from].bytes(0, kArea);
        for (uint64_t i = 0; i < kArea; ++i) {
          ASSERT_TRUE(area[i] == sent[i] || area[i] == std::byte{0}) << from << " to " << to;
        }
      }
    }
    for (const auto& stream : all_) {
      const uint64_t at = stream->slot * kSlot;
      const auto area = hosts_[stream->to].bytes((1 + stream->from) * kArea + at, stream->bytes);
      EXPECT_TRUE(std::ranges::equal(area, hosts_[stream->from].bytes(at, stream->bytes)));
    }
  }
  void everything_works_again() {
    for (uint32_t from = 0; from < kNodes; ++from) {
      for (uint32_t to = 0; to < kNodes; ++to) {
        if (from == to) continue;
        ASSERT_TRUE(reach(from, to));
        Counter counter = *hosts_[to].engine.make_counter();
        const auto area = hosts_[to].bytes((1 + from) * kArea, kArea);
        std::ranges::fill(area, std::byte{0});
        ASSERT_TRUE(
            hosts_[from].engine.submit(Write{.source = hosts_[from].memory.at(0),
                                             .target = ways_[from][to].at((1 + from) * kArea),
                                             .size_bytes = kArea,
                                             .imm = counter.key()}));
        EXPECT_TRUE(counter.wait(1, 5s)) << from << " to " << to << hosts_[from].engine.dump();
        EXPECT_TRUE(holds(area, from));
      }
    }
  }

  uint64_t random_;
  Witness heard_;
  sim::World world_;
  std::vector<Host> hosts_;
  std::vector<Subscription> listeners_;
  std::vector<std::vector<Way>> ways_;
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<Stream>> streams_;
  std::vector<std::shared_ptr<Stream>> all_;
  std::map<uint64_t, Begun> ops_;
  uint64_t tag_ = 0, ended_ = 0, failed_ = 0, unknown_ = 0;
  OpId last_{};
  Nanos next_{};
};

/// All that leave the counts of a delivered write in place.
std::vector<Fault::Kind> honest_kinds() {
  std::vector<Fault::Kind> kinds;
  for (uint32_t i = 0; i < Fault::kKinds; ++i) {
    const auto kind = static_cast<Fault::Kind>(i);
    if (kind == Fault::Kind::kCrash || kind == Fault::Kind::kSwallowCounts) continue;
    if (kind != Fault::Kind::kOverrun) kinds.push_back(kind);
  }
  return kinds;
}

void survives(const sim::NicModel& model, uint64_t how_many) {
  expect_log("a peer acknowledged counts that it never took");
  uint64_t ended = 0, failed = 0;
  for (const uint64_t seed : seeds(how_many)) {
    SCOPED_TRACE(replay(seed));
    Swarm swarm(seed, model);
    swarm.run(seed % 2 == 0 ? std::vector<Fault::Kind>{} : honest_kinds());
    ended += swarm.ended();
    failed += swarm.failed();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(ended, how_many * 100);
  EXPECT_GT(failed, how_many * 2) << "a chaos without trouble shows nothing";
}

TEST(Chaos, OnConnections) { survives(sim::NicModel::connectx7(), 10); }
TEST(Chaos, WithoutConnections) { survives(sim::NicModel::efa_200g(), 10); }

}  // namespace
}  // namespace fabric::test
