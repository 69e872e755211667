// What it costs to be sure of the memory of one request on shm: revoking its grant, beside fencing
// the whole peer, reconnecting and granting every region again. Both ends on one thread.
//
//     build/release/bench/revoke_speed [--regions 64] [--rounds 200]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <fabric/fabric.h>

namespace {

using namespace fabric;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kRegionBytes = 64u << 10;

template <class T>
T need(Result<T> result, const char* what) {
  if (result) return *std::move(result);
  fmt::print(stderr, "{}: {} {}\n", what, to_string(result.error().code), result.error().what);
  std::exit(1);
}
void need(Result<void> result, const char* what) {
  if (result) return;
  fmt::print(stderr, "{}: {} {}\n", what, to_string(result.error().code), result.error().what);
  std::exit(1);
}

/// An owner whose regions are granted to one writer, each by a grant of its own.
class Pair {
 public:
  explicit Pair(uint32_t regions)
      : runtime_(std::make_shared<InlineRuntime>()),
        owner_(need(Engine::open({.networks = {{.provider = "shm"}}}, runtime_), "owner")),
        writer_(need(Engine::open({.networks = {{.provider = "shm"}}}, runtime_), "writer")),
        source_(need(writer_.allocate({.size_bytes = kRegionBytes}), "source")),
        counter_(need(owner_.make_counter(), "counter")),
        batch_(need(owner_.make_batch(), "batch")) {
    for (uint32_t i = 0; i < regions; ++i) {
      regions_.push_back(need(owner_.allocate({.size_bytes = kRegionBytes}), "region"));
    }
    grants_.resize(regions);
    imported_.resize(regions);
    connect();
    for (uint32_t i = 0; i < regions; ++i) grant(i);
    write(0);
  }

  void connect() {
    to_owner_ = need(writer_.connect(owner_.address()), "connect");
    to_writer_ = need(owner_.connect(writer_.address()), "connect");
    const auto up = [](Engine& engine, PeerId peer) {
      return need(engine.peer_info(peer), "peer").state == PeerState::kConnected;
    };
    while (!up(writer_, to_owner_) || !up(owner_, to_writer_)) runtime_->turn();
  }
  void grant(uint32_t i) {
    grants_[i] = need(regions_[i].grant(to_writer_), "grant");
    imported_[i] = need(writer_.import_region(to_owner_, grants_[i].desc), "import");
  }
  /// Until it is counted at the owner.
  void write(uint32_t i) {
    need(writer_.submit(Write{.source = source_.at(0),
                              .target = imported_[i].at(0),
                              .size_bytes = 4096,
                              .imm = counter_.key()}),
         "write");
    need(counter_.wait(1, std::chrono::seconds(10)), "count");
  }
  template <class Request>
  void prove(Request request) {
    request.batch = batch_;
    need(owner_.submit(request), "submit");
    need(owner_.wait(batch_, std::chrono::seconds(10)), "proof");
    need(batch_.reset(), "reset");
  }
  void revoke(uint32_t i) { prove(Revoke{.grant = grants_[i].id}); }
  void fence() { prove(Fence{.peer = to_writer_}); }

 private:
  std::shared_ptr<InlineRuntime> runtime_;
  Engine owner_, writer_;
  MemoryRegion source_;
  Counter counter_;
  Batch batch_;
  PeerId to_owner_{}, to_writer_{};
  std::vector<MemoryRegion> regions_;
  std::vector<Grant> grants_;
  std::vector<RemoteRegion> imported_;
};

/// The median and the 99th percentile of `rounds` runs.
template <class Step>
void measure(const char* name, uint32_t rounds, Step step) {
  std::vector<double> times;
  for (uint32_t i = 0; i < rounds; ++i) {
    const auto begin = Clock::now();
    step(i);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  fmt::print("{:<44} median {:>9.1f} us   p99 {:>9.1f} us\n", name, times[times.size() / 2],
             times[times.size() * 99 / 100]);
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t regions = 64, rounds = 200;
  CLI::App app("The cost of revoking one grant, beside fencing its peer");
  app.add_option("--regions", regions, "granted to the writer")->check(CLI::Range(1, 1000));
  app.add_option("--rounds", rounds, "of each measurement")->check(CLI::Range(1, 100000));
  CLI11_PARSE(app, argc, argv);

  Pair pair(regions);
  measure("revoke one grant, with its proof, and grant again", rounds, [&](uint32_t i) {
    pair.revoke(i % regions);
    pair.grant(i % regions);
  });
  measure("the same, and a write under the new grant", rounds, [&](uint32_t i) {
    pair.revoke(i % regions);
    pair.grant(i % regions);
    pair.write(i % regions);
  });
  measure("fence the peer, with its proof, and reconnect", rounds, [&](uint32_t) {
    pair.fence();
    pair.connect();
  });
  for (uint32_t i = 0; i < regions; ++i) pair.grant(i);
  measure("fence, reconnect, grant all again, and a write", rounds, [&](uint32_t i) {
    pair.fence();
    pair.connect();
    for (uint32_t r = 0; r < regions; ++r) pair.grant(r);
    pair.write(i % regions);
  });
  return 0;
}
