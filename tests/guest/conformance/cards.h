#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "providers/verbs/library.h"

// Between the network and the RDMA devices: who has which queue pair, and what a test has done to
// it. The devices beneath are real; what happens to a queue pair here is what a card does.

namespace fabric::test {

class Cards {
 public:
  enum class End : uint8_t { kSender, kTarget };

  /// In front of libibverbs from the first call on.
  static Cards& get();

  /// Devices that are opened from here on belong to this host of the guest, 0 for a.
  void belong_to(uint32_t host);
  /// Puts one end of the paths from one host to another into the error state, on this rail of the
  /// sender. Returns how many there were.
  uint32_t break_path(uint32_t from, uint32_t to, uint32_t rail, End end);
  /// The next write from one host to another that has bytes goes out with another key.
  void spoil_key(uint32_t from, uint32_t to);
  /// Receives that this host posts do not reach its cards, until it ends; then all of them do.
  void withhold_receives(uint32_t host, bool on);

 private:
  struct Card {
    uint32_t host = 0;
    int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
    int (*post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
  };
  struct Pair {
    uint32_t rail = 0;
    bool sends = false;
    uint32_t far_host = UINT32_MAX, far_rail = 0;  ///< once it is connected
    std::vector<uint64_t> withheld{};              ///< receives, by their ids
  };

  Cards();
  static ibv_context* open_device(ibv_device* device);
  static int close_device(ibv_context* context);
  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted);
  static int modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask);
  static int destroy_qp(ibv_qp* pair);
  static int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** bad);
  static int post_recv(ibv_qp* pair, ibv_recv_wr* first, ibv_recv_wr** bad);
  int to_error(ibv_qp* qp, Pair& pair);
  void hand_over(ibv_qp* qp, Pair& pair);

  std::mutex mutex_;
  verbs::Library real_;
  uint32_t host_ = 0;
  std::map<ibv_context*, Card> cards_;
  std::map<ibv_qp*, Pair> pairs_;
  uint32_t spoil_from_ = UINT32_MAX, spoil_to_ = UINT32_MAX;
  uint32_t not_ready_ = UINT32_MAX;  ///< a host
};

}  // namespace fabric::test
