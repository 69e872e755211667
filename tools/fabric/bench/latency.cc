// latency: ping-pong of counted writes, one at a time. Each side sends its own bytes, as the
// ping-pong tests of other libraries do; sent and received bytes are on different pages.

#include "pattern.h"
#include "workload.h"

namespace fabric::tool::bench {
namespace {

class Latency final : public Workload {
 public:
  Latency(Side& side, const Layout& layout) : Workload(side, layout) {}

  void fill_source(uint64_t round) override {
    Workload::fill_source(round);
    fill(reply_bytes(), round + 1, 0);  // so that a missing reply is detected
  }
  void ready_target(uint64_t round) override { fill(reply_bytes(), round, layout_.reply_offset()); }

  void send(uint64_t operations) override {
    half_trips_ns.clear();
    half_trips_ns.reserve(operations);
    const Write ping = write_to(0, 0);
    auto before = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < operations; ++i) {
      side_.submit(side_.first().engine, ping);
      side_.await(side_.first(), 1);
      const auto now = std::chrono::steady_clock::now();
      half_trips_ns.push_back(static_cast<uint32_t>((now - before).count() / 2));
      before = now;
      side_.note_progress();
    }
  }

  void receive(uint64_t operations) override {
    const Write pong = write_to(layout_.reply_offset(), layout_.reply_offset());
    for (uint64_t i = 0; i < operations; ++i) {
      side_.await(side_.first(), 1);
      side_.submit(side_.first().engine, pong);
      side_.note_progress();
    }
  }

  bool verify_echo(uint64_t round) override {
    return matches(reply_bytes(), round, layout_.reply_offset());
  }

 private:
  Write write_to(uint64_t from, uint64_t to) {
    const BenchEngine& local = side_.first();
    return {.source = local.memory.at(from),
            .target = local.remote.region.at(to),
            .size_bytes = layout_.size,
            .imm = local.remote.key};
  }
  /// The reply: to be sent at the receiver, received at the sender.
  std::span<std::byte> reply_bytes() {
    return side_.first().bytes.subspan(layout_.reply_offset(), layout_.size);
  }
};

}  // namespace

std::unique_ptr<Workload> make_latency(Side& side, const Layout& layout) {
  return std::make_unique<Latency>(side, layout);
}

}  // namespace fabric::tool::bench
