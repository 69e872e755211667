// fabric sim: one seeded world. Nodes write to each other at random, in every way there is, and at
// the end every byte and every count must be where a plan on paper says.

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "need.h"
#include "verbs.h"

namespace fabric::tool {
namespace {

using namespace std::chrono_literals;

struct Options {
  uint64_t seed = 1;
  uint32_t nodes = 4;
  uint32_t rails = 2;
  uint32_t writes = 500;
  std::string model = "connectx7";
  bool json = false;
};

// Beyond the size at which writes are cut over the NICs (Config::stripe_bytes_min), so that whole
// and cut ones mix.
constexpr uint64_t kWriteBytesMax = 256u << 10;
constexpr uint64_t kPageBytesMax = 8u << 10;
constexpr uint32_t kPagesMax = 16;
constexpr uint64_t kSourceBytes = 1u << 20;
static_assert(kSourceBytes >= kWriteBytesMax && kSourceBytes >= kPageBytesMax * kPagesMax);

enum class Kind : uint8_t { kWrite, kPaged, kScatter };

/// Bytes that one count stands for.
struct Piece {
  uint32_t target = 0;
  uint64_t source_offset = 0;
  uint64_t target_offset = 0;
  uint64_t size_bytes = 0;
};

/// One operation. The pieces of a paged write are its pages.
struct Step {
  Kind kind = Kind::kWrite;
  uint32_t sender = 0;
  std::vector<Piece> pieces{};
  std::vector<uint32_t> source_pages{}, target_pages{};
  uint64_t page_bytes = 0, target_stride = 0, target_base = 0;
};

/// Everything that will happen, drawn before anything does. No two pieces share a target byte, so
/// the outcome does not depend on the order of arrival.
class Plan {
 public:
  explicit Plan(const Options& options)
      : options_(options), random_(options.seed), used_(options.nodes) {
    steps.reserve(options.writes);
    for (uint32_t i = 0; i < options.writes; ++i) steps.push_back(draw());
  }

  /// How large the region of a node must be. Never empty: a region of nothing cannot be registered.
  uint64_t region_bytes(uint32_t node) const { return std::max<uint64_t>(used_[node], 64); }

  std::vector<Step> steps{};

 private:
  // The engine's output is the same everywhere; the standard distributions are not.
  uint64_t below(uint64_t n) { return random_() % n; }

  /// Sizes crowd around zero, one and the edges, where mistakes live.
  uint64_t draw_size() {
    switch (below(4)) {
      case 0:
        return below(3);
      case 1:
        return below(512);
      case 2:
        return (uint64_t{4096} << below(6)) + below(3);
      default:
        return below(kWriteBytesMax + 1);
    }
  }

  uint64_t take(uint32_t node, uint64_t size_bytes) {
    const uint64_t offset = used_[node];
    used_[node] += size_bytes + below(3);  // An unwritten gap now and then: nothing may land there.
    return offset;
  }

  Piece draw_piece(uint32_t target) {
    const uint64_t size = std::min(draw_size(), kWriteBytesMax);
    return {target, below(kSourceBytes - size + 1), take(target, size), size};
  }

  Step draw() {
    Step step{.kind = static_cast<Kind>(below(3)),
              .sender = static_cast<uint32_t>(below(options_.nodes))};
    const auto target = static_cast<uint32_t>(below(options_.nodes));
    switch (step.kind) {
      case Kind::kWrite:
        step.pieces.push_back(draw_piece(target));
        break;
      case Kind::kPaged:
        draw_pages(step, target);
        break;
      case Kind::kScatter:
        for (uint64_t left = 1 + below(options_.nodes); left > 0; --left) {
          step.pieces.push_back(draw_piece(static_cast<uint32_t>(below(options_.nodes))));
        }
        break;
    }
    return step;
  }

  void draw_pages(Step& step, uint32_t target) {
    const auto pages = static_cast<uint32_t>(1 + below(kPagesMax));
    step.page_bytes = 1 + below(kPageBytesMax);
    step.target_stride = step.page_bytes + below(2) * 64;
    step.target_base = take(target, pages * step.target_stride);
    step.target_pages.resize(pages);
    std::iota(step.target_pages.begin(), step.target_pages.end(), 0);
    for (uint32_t i = pages - 1; i > 0; --i) {
      std::swap(step.target_pages[i], step.target_pages[below(i + 1)]);
    }
    for (const uint32_t page : step.target_pages) {
      step.source_pages.push_back(static_cast<uint32_t>(below(kSourceBytes / step.page_bytes)));
      step.pieces.push_back({target, step.source_pages.back() * step.page_bytes,
                             step.target_base + page * step.target_stride, step.page_bytes});
    }
  }

  Options options_;
  std::mt19937_64 random_;
  std::vector<uint64_t> used_;
};

/// One engine with what it sends from and receives into, and what it should hold at the end.
struct Node {
  Engine engine;
  MemoryRegion source, target;
  Counter counter;
  Batch batch;
  std::vector<RemoteRegion> remotes{};  ///< the targets of all nodes, as this one sees them
  std::vector<std::byte> expected{};
  uint64_t counts_due = 0;   ///< here, from everybody
  uint64_t counts_sent = 0;  ///< from here
};

class Run {
 public:
  Run(const Options& options, const Plan& plan)
      : world_({.seed = options.seed}), random_(~options.seed) {
    const auto model =
        options.model == "efa_200g" ? sim::NicModel::efa_200g() : sim::NicModel::connectx7();
    for (uint32_t i = 0; i < options.nodes; ++i) {
      world_.add_node(options.rails, model);
      open(i, plan.region_bytes(i));
    }
    for (Node& node : nodes_) introduce(node);
  }

  void play(const Plan& plan) {
    for (const Step& step : plan.steps) {
      Node& sender = nodes_[step.sender];
      for (const Piece& piece : step.pieces) {
        Node& target = nodes_[piece.target];
        std::ranges::copy(sender.source.bytes().subspan(piece.source_offset, piece.size_bytes),
                          target.expected.begin() + static_cast<ptrdiff_t>(piece.target_offset));
        bytes_ += piece.size_bytes;
        ++target.counts_due;
        ++sender.counts_sent;
      }
      submit(sender, step);
    }
  }

  /// What the senders were told, what the receivers counted, and what is in memory: all three.
  void verify() {
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      need(node.engine.wait(node.batch, 60s), fmt::format("node {} waits for its writes", i));
      expect(i, "delivered", node.batch.delivered(), node.counts_sent);
      expect(i, "failed", node.batch.failed(), 0);
    }
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (node.counts_due > 0) {
        need(node.counter.wait(node.counts_due, 60s), fmt::format("node {} waits for counts", i));
      }
      expect(i, "counts too many", node.counter.count(), 0);
      const auto bytes = node.target.bytes();
      const auto wrong = std::ranges::mismatch(bytes, node.expected).in1;
      expect(i, "bytes that are right", static_cast<uint64_t>(wrong - bytes.begin()), bytes.size());
    }
  }

  uint64_t bytes() const { return bytes_; }
  Nanos now() const { return world_.now(); }
  uint64_t trace_hash() const { return world_.trace_hash(); }

 private:
  void open(uint32_t index, uint64_t region_bytes) {
    Engine engine = need(world_.open(index), "open");
    auto source = need(engine.allocate({.size_bytes = kSourceBytes}), "allocate");
    auto target = need(engine.allocate({.size_bytes = region_bytes}), "allocate");
    auto counter = need(engine.make_counter(), "make_counter");
    auto batch = need(engine.make_batch(), "make_batch");
    for (std::byte& byte : source.bytes()) byte = static_cast<std::byte>(random_());
    for (std::byte& byte : target.bytes()) byte = static_cast<std::byte>(random_());
    std::vector<std::byte> expected(target.bytes().begin(), target.bytes().end());
    nodes_.push_back({.engine = std::move(engine),
                      .source = std::move(source),
                      .target = std::move(target),
                      .counter = std::move(counter),
                      .batch = std::move(batch),
                      .expected = std::move(expected)});
  }

  void introduce(Node& node) {
    for (const Node& other : nodes_) {
      const PeerId peer = need(node.engine.connect(other.engine.address()), "connect");
      const auto desc = need(other.target.desc(), "desc");
      node.remotes.push_back(need(node.engine.import_region(peer, desc), "import_region"));
    }
  }

  Result<OpId> try_submit(Node& sender, const Step& step) {
    const Piece& first = step.pieces.front();
    const Key key = nodes_[first.target].counter.key();
    const RemoteRegion target = sender.remotes[first.target];
    switch (step.kind) {
      case Kind::kWrite:
        return sender.engine.submit(Write{.source = sender.source.at(first.source_offset),
                                          .target = target.at(first.target_offset),
                                          .size_bytes = first.size_bytes,
                                          .imm = key,
                                          .batch = sender.batch});
      case Kind::kPaged:
        return sender.engine.submit(
            PagedWrite{.source = sender.source.id(),
                       .source_pages = {step.source_pages, step.page_bytes},
                       .target = target,
                       .target_pages = {step.target_pages, step.target_stride, step.target_base},
                       .page_bytes = step.page_bytes,
                       .imm = key,
                       .batch = sender.batch});
      case Kind::kScatter:
        break;
    }
    std::vector<ScatterTarget> targets;
    for (const Piece& piece : step.pieces) {
      targets.push_back({.target = sender.remotes[piece.target].at(piece.target_offset),
                         .source_offset = piece.source_offset,
                         .size_bytes = piece.size_bytes,
                         .imm = nodes_[piece.target].counter.key()});
    }
    return sender.engine.submit(
        Scatter{.source = sender.source.id(), .targets = targets, .batch = sender.batch});
  }

  /// A full queue is a normal answer: let the world go on and offer it again.
  void submit(Node& sender, const Step& step) {
    const Nanos deadline = world_.now() + 60s;
    auto taken = try_submit(sender, step);
    while (!taken && taken.error().code == Errc::kExhausted && world_.now() < deadline) {
      world_.run_for(10us);
      taken = try_submit(sender, step);
    }
    need(taken, "submit");
  }

  static void expect(uint32_t node, std::string_view what, uint64_t found, uint64_t wanted) {
    if (found == wanted) return;
    throw std::runtime_error(
        fmt::format("node {}: {}: {}, and it should be {}", node, what, found, wanted));
  }

  sim::World world_;
  std::mt19937_64 random_;
  std::vector<Node> nodes_{};
  uint64_t bytes_ = 0;
};

int run(const Options& options) {
  // First of all, so that a run that hangs or crashes can be repeated.
  fmt::print(options.json ? stderr : stdout, "seed {}\n", options.seed);
  std::fflush(stdout);

  const Plan plan(options);
  Run world(options, plan);
  world.play(plan);
  world.verify();

  const auto counts =
      std::accumulate(plan.steps.begin(), plan.steps.end(), uint64_t{0},
                      [](uint64_t sum, const Step& step) { return sum + step.pieces.size(); });
  const auto trace = fmt::format("{:016x}", world.trace_hash());
  if (options.json) {
    const nlohmann::ordered_json report{{"seed", options.seed},
                                        {"nodes", options.nodes},
                                        {"rails", options.rails},
                                        {"model", options.model},
                                        {"operations", options.writes},
                                        {"counts", counts},
                                        {"bytes", world.bytes()},
                                        {"virtual_ns", world.now().count()},
                                        {"trace", trace}};
    fmt::print("{}\n", report.dump());
    return 0;
  }
  fmt::print("{} nodes with {} rails ({}): {} operations\n", options.nodes, options.rails,
             options.model, options.writes);
  fmt::print("every count is there ({}), every byte is right ({}), no write failed\n", counts,
             world.bytes());
  fmt::print("{} ns of virtual time\ntrace {}\n", world.now().count(), trace);
  return 0;
}

}  // namespace

void add_sim(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand(
      "sim", "Run one seeded world on the simulator; the same seed gives the same run");
  verb->add_option("--seed", options->seed, "Everything random comes from it")
      ->capture_default_str();
  verb->add_option("--nodes", options->nodes)->check(CLI::Range(1, 64))->capture_default_str();
  verb->add_option("--rails", options->rails, "NICs per node")
      ->check(CLI::Range(1u, kRailsMax))
      ->capture_default_str();
  verb->add_option("--writes", options->writes, "How many operations")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  verb->add_option("--model", options->model, "Which NIC: ordered, or not")
      ->check(CLI::IsMember({"connectx7", "efa_200g"}))
      ->capture_default_str();
  verb->add_flag("--json", options->json, "The report as JSON; the seed goes to standard error");
  verb->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace fabric::tool
