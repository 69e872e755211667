// scatter: one request to many engines, one part to each.

#include <algorithm>

#include "pattern.h"
#include "workload.h"

namespace fabric::tool::bench {
namespace {

class ScatterAll final : public Workload {
 public:
  ScatterAll(Side& side, const Layout& layout)
      : Workload(side, layout), batch_(need(side.first().engine.make_batch(), "no batch")) {
    std::vector<PeerId> peers;
    for (const Offer& offer : side.offers) {
      targets_.push_back(
          {.target = offer.region.at(0), .size_bytes = layout.size, .imm = offer.key});
      peers.push_back(offer.peer);
    }
    if (!peers.empty()) group_ = need(side.first().engine.make_group(peers), "no group");
  }

  void send(uint64_t operations) override {
    BenchEngine& local = side_.first();
    const Scatter request{
        .source = local.memory.id(), .targets = targets_, .group = group_, .batch = batch_};
    for (uint64_t i = 0; i < operations; ++i) {
      move_to(i % layout_.slots);
      while (batch_.pending() >= side_.plan().window) side_.turn();
      side_.submit(local.engine, request);
      side_.note_progress();
    }
    side_.await(local, 1);
    if (batch_.failed() > 0) throw BenchError("a scatter failed");
  }

  void receive(uint64_t operations) override {
    for (BenchEngine& local : side_.engines()) side_.await(local, operations);
    side_.send_reply();
  }

  bool verify(uint64_t round, uint64_t operations) override {
    const uint64_t slots = std::min(operations, layout_.slots);
    for (uint64_t slot = 0; slot < slots; ++slot) {
      for (uint64_t i = 0; i < layout_.source_parts; ++i) {
        const auto bytes = side_.engines()[i].bytes.subspan(slot * layout_.stride, layout_.size);
        const uint64_t from = (slot * layout_.source_parts + i) * layout_.stride;
        if (!matches(bytes, round, from)) return false;
      }
    }
    return true;
  }

 private:
  void move_to(uint64_t slot) {
    for (uint64_t i = 0; i < targets_.size(); ++i) {
      targets_[i].target.offset = slot * layout_.stride;
      targets_[i].source_offset = (slot * layout_.source_parts + i) * layout_.stride;
    }
  }

  Batch batch_;
  std::vector<ScatterTarget> targets_;
  PeerGroup group_;
};

}  // namespace

std::unique_ptr<Workload> make_scatter(Side& side, const Layout& layout) {
  return std::make_unique<ScatterAll>(side, layout);
}

}  // namespace fabric::tool::bench
