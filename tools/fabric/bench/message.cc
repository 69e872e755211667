// message: Send to a listener. First a stream for throughput, then ping-pong for latency.

#include <algorithm>
#include <atomic>
#include <cstring>

#include "pattern.h"
#include "workload.h"

namespace fabric::tool::bench {
namespace {

constexpr uint16_t kChannel = 1;
constexpr uint64_t kTrips = 2000;

class Message final : public Workload {
 public:
  Message(Side& side, const Layout& layout)
      : Workload(side, layout),
        batch_(need(side.first().engine.make_batch(), "no batch")),
        expected_(layout.size),
        listener_(
            need(side.first().engine.listen(kChannel, Notify::call<&Message::on_message>(this)),
                 "no listener")) {}

  void fill_source(uint64_t round) override {
    Workload::fill_source(round);
    ready_target(round);
  }
  void ready_target(uint64_t round) override { fill(expected_, round, 0); }

  void send(uint64_t operations) override {
    const Send request = message();
    for (uint64_t i = 0; i < operations; ++i) {
      while (batch_.pending() >= side_.plan().window) side_.turn();
      side_.submit(side_.first().engine, request);
      side_.note_progress();
    }
    side_.await(side_.first(), 1);
    if (batch_.failed() > 0) throw BenchError("a message failed");
  }

  void receive(uint64_t operations) override {
    await_messages(operations);
    side_.send_reply();
  }

  void send_trips() override {
    half_trips_ns.clear();
    half_trips_ns.reserve(kTrips);
    auto before = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < kTrips; ++i) {
      side_.submit(side_.first().engine, message());
      await_messages(1);
      const auto now = std::chrono::steady_clock::now();
      half_trips_ns.push_back(static_cast<uint32_t>((now - before).count() / 2));
      before = now;
    }
  }

  void receive_trips() override {
    const auto bytes = side_.first().bytes.first(layout_.size);
    std::memcpy(bytes.data(), expected_.data(), bytes.size());
    for (uint64_t i = 0; i < kTrips; ++i) {
      await_messages(1);
      side_.submit(side_.first().engine, message());
    }
  }

  bool verify(uint64_t, uint64_t) override { return wrong_.load(std::memory_order_relaxed) == 0; }
  bool verify_echo(uint64_t) override { return wrong_.load(std::memory_order_relaxed) == 0; }

 private:
  /// Runs in the engine's callback: the bytes are only valid here, so they are checked here.
  void on_message(const Event& event) {
    const auto bytes = event.bytes();
    if (!std::equal(bytes.begin(), bytes.end(), expected_.begin(), expected_.end())) {
      wrong_.fetch_add(1, std::memory_order_relaxed);  // published by arrived_
    }
    arrived_.fetch_add(1, std::memory_order_release);  // pairs with await_messages()
  }

  void await_messages(uint64_t n) {
    awaited_ += n;
    while (arrived_.load(std::memory_order_acquire) < awaited_) side_.turn();  // on_message()
    side_.note_progress();
  }

  Send message() {
    return {.peer = side_.first().remote.peer,
            .channel = kChannel,
            .bytes = side_.first().bytes.first(layout_.size),
            .batch = batch_};
  }

  Batch batch_;
  std::vector<std::byte> expected_;
  std::atomic<uint64_t> arrived_{0}, wrong_{0};
  uint64_t awaited_ = 0;
  Subscription
      listener_;  ///< last member: destroyed first, so that no callback finds the others gone
};

}  // namespace

std::unique_ptr<Workload> make_message(Side& side, const Layout& layout) {
  return std::make_unique<Message>(side, layout);
}

}  // namespace fabric::tool::bench
