#include <algorithm>
#include <cstdint>

#include "providers/verbs/handles.h"

namespace fabric::verbs {

VerbsRail::VerbsRail(std::shared_ptr<CompletionQueue> queue, const OpenContext& context,
                     uint64_t instance, uint32_t index)
    : device_(queue->device),
      driver_(*context.driver),
      instance_(instance),
      index_(index),
      job_results_(std::make_shared<JobResults>(context.wake)),
      caps_{.ordered = false,  // relaxed ordering lets bytes pass each other on the bus
            .slice_safe = true,
            .exact_replay = true,
            .count_is_final = true,  // RC drops duplicates
            .checks_access = true,
            .fence = FenceKind::kLocal,
            .queue_depth = std::min(16 * device_->options().send_depth, 1u << 14),
            .path_depth = device_->options().send_depth,
            .memory_kinds = device_->memory_kinds(),
            .write_bytes_max =
                std::clamp<uint64_t>(device_->state().attributes.max_msg_sz, 4096, 1u << 30)},
      queues_{std::move(queue)},
      receives_(device_->options().receive_depth),
      // Left uninitialised: most of these pages are never touched.
      shifts_(std::make_unique_for_overwrite<uint64_t[]>(kMemoryMax)) {
  for (uint32_t i = 0; i < kChain; ++i) {
    sends_[i].sg_list = &sources_[i];
    sends_[i].next = i + 1 < kChain ? &sends_[i + 1] : nullptr;
  }
  for (size_t i = 0; i + 1 < receives_.size(); ++i) receives_[i].next = &receives_[i + 1];
  shifts_[0] = 0;  // a write of no bytes may have no lkey
  if (!device_->active()) rail_state(false);
  fill_pool(Direction::kOut);
  fill_pool(Direction::kIn);
}

VerbsRail::~VerbsRail() {
  job_results_->close();
  const auto abandon = [](auto& path) {
    if (path.qp != nullptr) path.qp->abandon();
  };
  out_.each(abandon);
  in_.each(abandon);
  for (ibv_mr* mr : memory_) {
    if (mr != nullptr && mr != &dead_device_mr_) library().dereg_mr(mr);
  }
}

std::vector<std::pair<std::string, std::string>> VerbsRail::facts() const {
  auto facts = device_->facts();
  facts.emplace_back("completion queues", std::to_string(queues_.size()));
  facts.emplace_back("drains abandoned", std::to_string(drains_abandoned_));
  return facts;
}

}  // namespace fabric::verbs
