// scatter: one request to many engines, to each its own part.

#include <algorithm>

#include "exercise.h"
#include "pattern.h"

namespace fabric::tool::bench {
namespace {

class ScatterAll final : public Exercise {
 public:
  ScatterAll(Side& side, const Shape& shape)
      : Exercise(side, shape), batch_(need(side.first().engine.make_batch(), "no batch")) {
    std::vector<PeerId> peers;
    for (const Offer& offer : side.offers) {
      targets_.push_back(
          {.target = offer.region.at(0), .size_bytes = shape.size, .imm = offer.key});
      peers.push_back(offer.peer);
    }
    if (!peers.empty()) group_ = need(side.first().engine.make_group(peers), "no group");
  }

  void send(uint64_t operations) override {
    Port& port = side_.first();
    const Scatter request{
        .source = port.memory.id(), .targets = targets_, .group = group_, .batch = batch_};
    for (uint64_t i = 0; i < operations; ++i) {
      move_to(i % shape_.places);
      while (batch_.pending() >= side_.plan().window) side_.turn();
      side_.submit(port.engine, request);
      side_.moved();
    }
    side_.await(port, 1);
    if (batch_.failed() > 0) throw Failed("a scatter failed");
  }

  void receive(uint64_t operations) override {
    for (Port& port : side_.ports()) side_.await(port, operations);
    side_.answer();
  }

  bool verify(uint64_t round, uint64_t operations) override {
    const uint64_t places = std::min(operations, shape_.places);
    for (uint64_t place = 0; place < places; ++place) {
      for (uint64_t i = 0; i < shape_.source_parts; ++i) {
        const auto bytes = side_.ports()[i].bytes.subspan(place * shape_.stride, shape_.size);
        const uint64_t from = (place * shape_.source_parts + i) * shape_.stride;
        if (!matches(bytes, round, from)) return false;
      }
    }
    return true;
  }

 private:
  void move_to(uint64_t place) {
    for (uint64_t i = 0; i < targets_.size(); ++i) {
      targets_[i].target.offset = place * shape_.stride;
      targets_[i].source_offset = (place * shape_.source_parts + i) * shape_.stride;
    }
  }

  Batch batch_;
  std::vector<ScatterTarget> targets_;
  PeerGroup group_;
};

}  // namespace

std::unique_ptr<Exercise> make_scatter(Side& side, const Shape& shape) {
  return std::make_unique<ScatterAll>(side, shape);
}

}  // namespace fabric::tool::bench
