#pragma once

#include <memory>
#include <vector>

#include "side.h"

namespace fabric::tool::bench {

/// What the two sides do in a round: one subclass for each benchmark, with both sides of the
/// exchange in one file. Made for one size and used for many rounds.
class Workload {
 public:
  Workload(Side& side, const Layout& layout) : side_(side), layout_(layout) {}
  virtual ~Workload() = default;
  Workload(Workload&&) = delete;

  const Layout& layout() const { return layout_; }

  // Before the measurement.
  virtual void fill_source(uint64_t round);
  virtual void ready_target(uint64_t round) { (void)round; }
  // Measured. send() returns when the receiver's reply has arrived, receive() when it was sent.
  virtual void send(uint64_t operations) = 0;
  virtual void receive(uint64_t operations) = 0;
  // Afterwards, if the benchmark also times single operations: both sides of them.
  virtual void send_trips() {}
  virtual void receive_trips() {}
  /// At the receiver, last: whether all parts hold the bytes of this round.
  virtual bool verify(uint64_t round, uint64_t operations);
  /// At the sender: whether the reply holds the bytes of this round.
  virtual bool verify_echo(uint64_t round) {
    (void)round;
    return true;
  }

  // Of the last round, if the benchmark times them.
  std::vector<uint32_t> half_trips_ns{};
  std::vector<uint32_t> word_to_post_ns{};

 protected:
  Side& side_;
  const Layout layout_;
};

/// Memory that each side needs for a size.
uint64_t sender_bytes(const BenchPlan& plan, const Layout& layout);
uint64_t receiver_bytes(const BenchPlan& plan, const Layout& layout);

std::unique_ptr<Workload> make_workload(Side& side, uint64_t size);

// Each in the file of its name.
std::unique_ptr<Workload> make_stream(Side& side, const Layout& layout);
std::unique_ptr<Workload> make_latency(Side& side, const Layout& layout);
std::unique_ptr<Workload> make_paged(Side& side, const Layout& layout);
std::unique_ptr<Workload> make_scatter(Side& side, const Layout& layout);
std::unique_ptr<Workload> make_message(Side& side, const Layout& layout);
std::unique_ptr<Workload> make_kv(Side& side, const Layout& layout);

}  // namespace fabric::tool::bench
