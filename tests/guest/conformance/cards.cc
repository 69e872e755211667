#include "guest/conformance/cards.h"

#include <gtest/gtest.h>

namespace fabric::test {
namespace {

/// "xb1" is rail 1 of host b.
uint32_t rail_of(const ibv_device* device) { return static_cast<uint32_t>(device->name[2] - '0'); }

}  // namespace

Cards& Cards::get() {
  static Cards cards;
  return cards;
}

Cards::Cards() {
  const auto loaded = verbs::load_library();
  EXPECT_TRUE(loaded) << loaded.error().what;
  real_ = **loaded;
  verbs::Library& table = verbs::library_for_tests();
  table.open_device = open_device;
  table.close_device = close_device;
  table.create_qp = create_qp;
  table.modify_qp = modify_qp;
  table.destroy_qp = destroy_qp;
}

void Cards::belong_to(uint32_t host) {
  const std::lock_guard lock(mutex_);
  host_ = host;
}

// ---- What the network calls ---------------------------------------------------------------------

ibv_context* Cards::open_device(ibv_device* device) {
  Cards& all = get();
  const std::lock_guard lock(all.mutex_);
  ibv_context* const context = all.real_.open_device(device);
  if (context == nullptr) return nullptr;
  all.cards_[context] = {all.host_, context->ops.post_send, context->ops.post_recv};
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  return context;
}

int Cards::close_device(ibv_context* context) {
  Cards& all = get();
  const std::lock_guard lock(all.mutex_);
  all.cards_.erase(context);
  return all.real_.close_device(context);
}

ibv_qp* Cards::create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  Cards& all = get();
  const bool sends = wanted->cap.max_send_wr > 1;  // the others post nothing but receives
  ibv_qp* const qp = all.real_.create_qp(pd, wanted);
  if (qp == nullptr) return nullptr;
  const std::lock_guard lock(all.mutex_);
  all.pairs_[qp] = {.rail = rail_of(qp->context->device), .sends = sends};
  return qp;
}

int Cards::modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  Cards& all = get();
  std::unique_lock lock(all.mutex_);
  const auto found = all.pairs_.find(qp);
  if ((mask & IBV_QP_STATE) != 0 && attributes->qp_state == IBV_QPS_ERR &&
      found != all.pairs_.end()) {
    return all.to_error(qp, found->second);
  }
  if ((mask & IBV_QP_AV) != 0 && found != all.pairs_.end()) {
    // The last bytes of its IPv4 address are rail and host.
    found->second.far_rail = attributes->ah_attr.grh.dgid.raw[14];
    found->second.far_host = attributes->ah_attr.grh.dgid.raw[15] - 1u;
  }
  lock.unlock();  // connecting may take the kernel a second
  return all.real_.modify_qp(qp, attributes, mask);
}

int Cards::destroy_qp(ibv_qp* qp) {
  Cards& all = get();
  const std::lock_guard lock(all.mutex_);
  all.pairs_.erase(qp);
  return all.real_.destroy_qp(qp);
}

int Cards::post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  Cards& all = get();
  std::unique_lock lock(all.mutex_);
  const Card card = all.cards_.at(qp->context);
  const Pair& pair = all.pairs_.at(qp);
  ibv_send_wr* spoiled = nullptr;
  if (card.host == all.spoil_from_ && pair.far_host == all.spoil_to_) {
    spoiled = first;
    while (spoiled != nullptr && spoiled->num_sge == 0) spoiled = spoiled->next;
  }
  if (spoiled != nullptr) {
    all.spoil_from_ = all.spoil_to_ = UINT32_MAX;
    spoiled->wr.rdma.rkey ^= 0x5a00;
  }
  lock.unlock();
  return card.post_send(qp, first, bad);
}

int Cards::post_recv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) {
  Cards& all = get();
  const std::lock_guard lock(all.mutex_);
  const Card& card = all.cards_.at(qp->context);
  if (card.host != all.not_ready_) return card.post_recv(qp, first, bad);
  Pair& pair = all.pairs_.at(qp);
  for (const ibv_recv_wr* one = first; one != nullptr; one = one->next) {
    pair.withheld.push_back(one->wr_id);
  }
  return 0;
}

// ---- What a test does ---------------------------------------------------------------------------

void Cards::hand_over(ibv_qp* qp, Pair& pair) {
  for (const uint64_t id : pair.withheld) {
    ibv_recv_wr one{};
    ibv_recv_wr* bad = nullptr;
    one.wr_id = id;
    EXPECT_EQ(cards_.at(qp->context).post_recv(qp, &one, &bad), 0);
  }
  pair.withheld.clear();
}

/// A card that goes into the error state gives back all receives. Those that were withheld are
/// posted behind it, so that nothing lands in them, and the state is asked for again, as for all
/// receives behind it.
int Cards::to_error(ibv_qp* qp, Pair& pair) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const int code = real_.modify_qp(qp, &attributes, IBV_QP_STATE);
  if (code != 0 || pair.withheld.empty()) return code;
  hand_over(qp, pair);
  return real_.modify_qp(qp, &attributes, IBV_QP_STATE);
}

uint32_t Cards::break_path(uint32_t from, uint32_t to, uint32_t rail, End end) {
  const std::lock_guard lock(mutex_);
  uint32_t broken = 0;
  for (auto& [qp, pair] : pairs_) {
    const uint32_t host = cards_.at(qp->context).host;
    const bool hit =
        end == End::kSender
            ? pair.sends && host == from && pair.far_host == to && pair.rail == rail
            : !pair.sends && host == to && pair.far_host == from && pair.far_rail == rail;
    if (!hit || (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_RTR)) continue;
    broken += to_error(qp, pair) == 0;
  }
  return broken;
}

void Cards::spoil_key(uint32_t from, uint32_t to) {
  const std::lock_guard lock(mutex_);
  spoil_from_ = from;
  spoil_to_ = to;
}

void Cards::withhold_receives(uint32_t host, bool on) {
  const std::lock_guard lock(mutex_);
  not_ready_ = on ? host : UINT32_MAX;
  if (on) return;
  for (auto& [qp, pair] : pairs_) hand_over(qp, pair);
}

}  // namespace fabric::test
