// latency: a write there, a write back when it is counted, one at a time. Each side sends bytes of
// its own, as the others' tests do; at each side what is sent and what comes lie on different
// pages.

#include "exercise.h"
#include "pattern.h"

namespace fabric::tool::bench {
namespace {

class Latency final : public Exercise {
 public:
  Latency(Side& side, const Shape& shape) : Exercise(side, shape) {}

  void fill_source(uint64_t round) override {
    Exercise::fill_source(round);
    fill(behind(), round + 1, 0);  // so that an answer that never came is seen
  }
  void ready_target(uint64_t round) override { fill(behind(), round, shape_.behind_at()); }

  void send(uint64_t operations) override {
    using Clock = std::chrono::steady_clock;
    halves.clear();
    halves.reserve(operations);
    const Write ping = write_to(0, 0);
    auto before = Clock::now();
    for (uint64_t i = 0; i < operations; ++i) {
      side_.submit(side_.first().engine, ping);
      side_.await(side_.first(), 1);
      const auto now = Clock::now();
      halves.push_back(static_cast<uint32_t>((now - before).count() / 2));
      before = now;
      side_.moved();
    }
  }

  void receive(uint64_t operations) override {
    const Write pong = write_to(shape_.behind_at(), shape_.behind_at());
    for (uint64_t i = 0; i < operations; ++i) {
      side_.await(side_.first(), 1);
      side_.submit(side_.first().engine, pong);
      side_.moved();
    }
  }

  bool verify_echo(uint64_t round) override { return matches(behind(), round, shape_.behind_at()); }

 private:
  Write write_to(uint64_t from, uint64_t to) {
    const Port& port = side_.first();
    return {.source = port.memory.at(from),
            .target = port.other.region.at(to),
            .size_bytes = shape_.size,
            .imm = port.other.key};
  }
  /// The answer: at the receiver as it is sent, at the sender as it came.
  std::span<std::byte> behind() {
    return side_.first().bytes.subspan(shape_.behind_at(), shape_.size);
  }
};

}  // namespace

std::unique_ptr<Exercise> make_latency(Side& side, const Shape& shape) {
  return std::make_unique<Latency>(side, shape);
}

}  // namespace fabric::tool::bench
