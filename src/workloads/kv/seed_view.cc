#include "workloads/kv/seed_view.h"

#include <utility>

namespace fabric::kv {

SeedView::Applied SeedView::apply(const ViewMessage& message, uint32_t members_max) {
  if (message.from != 0 && message.from != have_) {
    have_ = 0;
    return Applied::kGap;
  }
  if (message.from == 0) incoming_.clear();
  for (const uint64_t engine_id : message.left) incoming_.erase(engine_id);
  for (const Member& member : message.members) {
    if (incoming_.size() >= members_max && !incoming_.contains(member.engine_id)) {
      have_ = 0;
      incoming_.clear();
      return Applied::kTooMany;
    }
    incoming_[member.engine_id] = member;
  }
  have_ = message.upto;
  if (!message.last) return Applied::kPart;
  listed_ = incoming_;
  complete_ = true;
  warmed_up_ = warmed_up_ || message.warmed_up;
  if (fresh()) kept_.clear();
  return Applied::kView;
}

void SeedView::interrupted() {
  if (fresh()) {
    kept_ = std::move(listed_);
  } else {
    for (auto& [engine_id, member] : listed_) kept_[engine_id] = std::move(member);
  }
  listed_.clear();
  incoming_.clear();
  have_ = 0;
  complete_ = warmed_up_ = false;
}

}  // namespace fabric::kv
