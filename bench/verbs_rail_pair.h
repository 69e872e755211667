#pragma once

#include <array>
#include <memory>
#include <vector>

#include "bench_engines.h"
#include "providers/verbs/handles.h"

namespace fabric::bench {

/// The clock never advances, and offloaded jobs run at once.
class FixedTimeDriver final : public Driver {
 public:
  int64_t now_ns() const noexcept override { return 0; }
  uint64_t entropy() noexcept override { return ++numbers_; }
  uint64_t incarnation() noexcept override { return ++numbers_; }
  Result<void> attach(Progress&, const AttachOptions&) override { return {}; }
  void detach(Progress&) noexcept override {}
  void wake(Progress&) noexcept override {}
  void wake_callbacks(Progress&) noexcept override {}
  bool threaded() const noexcept override { return false; }
  bool drive(const std::function<bool()>& done, int64_t) override { return done(); }
  void offload(std::function<void()> job, uint32_t) override { job(); }

 private:
  uint64_t numbers_ = 0;
};

/// Two rails of the verbs network and a path from one to the other, on the driver in
/// fake_verbs/fake_verbs.cc.
class VerbsRailPair {
 public:
  static constexpr uint32_t kChain = 32;

  /// With an immediate each, or without.
  explicit VerbsRailPair(bool immediates) {
    need(verbs::load_library(), "libibverbs");
    const auto devices = need(verbs::open_devices({.most = 1}, verbs::Options{}), "open_devices");
    const OpenContext context{.driver = &driver_, .wake = [] {}};
    for (uint32_t i = 0; i < 2; ++i) {
      auto queue = need(verbs::CompletionQueue::make(devices[0], 0), "completion queue");
      rails_[i] = std::make_unique<verbs::VerbsRail>(std::move(queue), context, kFirst + i, 0);
    }
    std::vector<std::byte> key;
    const Memory memory{.address = bytes_.data(), .size_bytes = bytes_.size()};
    const uint64_t local = need(sender().register_memory(memory, key), "register_memory");
    need(receiver().register_memory(memory, key), "register_memory");
    const uint64_t remote = need(sender().import_rkey(key), "import_rkey");
    const uint32_t path = connect();
    for (uint32_t i = 0; i < kChain; ++i) {
      ops_[i] = {.source = reinterpret_cast<uint64_t>(bytes_.data()) + i * kWriteBytes,
                 .target = i * kWriteBytes,
                 .size_bytes = kWriteBytes,
                 .lkey = local,
                 .rkey = remote,
                 .cookie = i,
                 .path = path,
                 .imm = i,
                 .has_imm = immediates};
    }
  }

  void post() { need(sender().post(ops_) == kChain, "post"); }
  void poll_sender() {
    need(poll(sender(), RailEvent::Kind::kCompletion) == kChain, "completions");
  }
  void poll_receiver() { need(poll(receiver(), RailEvent::Kind::kImm) == kChain, "immediates"); }

 private:
  // Too long for inline data.
  static constexpr uint64_t kWriteBytes = 1024;
  static constexpr uint64_t kFirst = 7;  // instance

  verbs::VerbsRail& sender() { return *rails_[0]; }
  verbs::VerbsRail& receiver() { return *rails_[1]; }

  uint32_t connect() {
    const verbs::Address to{
        .instance = kFirst + 1, .rails = 1, .control = {{.ip = {1}, .port = 1}}};
    std::vector<std::byte> hello, answer;
    const uint32_t path = need(sender().open_path(verbs::encode(to), 0, hello), "open_path");
    need(receiver().accept_path(hello, answer), "accept_path");
    need(sender().start_path(path, answer), "start_path");
    // Takes the results of the offloaded jobs.
    for (const auto& rail : rails_) need(rail->poll(events_) == 0, "an event");
    return path;
  }

  /// Work requests that one poll() reports as completed.
  uint64_t poll(verbs::VerbsRail& rail, RailEvent::Kind kind) {
    const uint32_t n = rail.poll(events_);
    uint64_t completed = 0;
    for (const RailEvent& event : std::span(events_).first(n)) {
      need(event.kind == kind && event.code == Errc::kOk, "another event");
      completed += 1 + event.value;
    }
    return completed;
  }

  FixedTimeDriver driver_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kChain * kWriteBytes);
  std::array<std::unique_ptr<verbs::VerbsRail>, 2> rails_;
  std::array<WriteOp, kChain> ops_{};
  std::array<RailEvent, 256> events_{};
};

}  // namespace fabric::bench
