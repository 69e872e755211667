#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "providers/verbs/library.h"

// Interposes on libibverbs, between the network and real RDMA devices, to inject faults: what it
// does to a queue pair is what a NIC can do. Device xb1 is rail 1 of host b; hosts count from 0.
//
// It also checks the devices: a queue pair's immediates must be delivered once each, in the order
// in which they were posted. SoftRoCE does not always do that (docs/verbs.md). Then the test fails
// with a message that says so, and the file kDeviceFault makes inside.sh run the suite once more.

namespace fabric::test {

class VerbsInterposer {
 public:
  static constexpr const char* kDeviceFault = "/tmp/device-fault";  ///< in the guest's own memory
  enum class End : uint8_t { kSender, kTarget };

  /// Interposes from the first call on.
  static VerbsInterposer& get();

  /// Moves one end of the paths from one host to another to the error state, on this rail of the
  /// sender. Returns how many there were.
  uint32_t break_path(uint32_t from, uint32_t to, uint32_t rail, End end);
  /// The next write with bytes from one host to another is posted with a wrong rkey.
  void corrupt_rkey(uint32_t from, uint32_t to);
  /// While on, receives that this host posts are withheld from its NICs.
  void withhold_receives(uint32_t host, bool on);
  /// Its NICs go on receiving for `time` after a queue pair is moved to the error state, and
  /// deliver the completions of that time, and the flushes, as much later again. Zero: no delay.
  void delay_error_state(uint32_t host, std::chrono::nanoseconds time);
  /// Raises an event of the NIC: the queue pairs of this end failed, or the port is down or up.
  /// Their real state does not change.
  void raise_qp_fatal(uint32_t from, uint32_t to, uint32_t rail, End end);
  void raise_port_event(uint32_t host, uint32_t rail, bool up);

 private:
  using Clock = std::chrono::steady_clock;
  struct Nic {
    uint32_t host = 0, rail = 0;
    int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
    int (*post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
    int (*poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;
    std::deque<ibv_async_event> raised{};          ///< not read yet
    std::map<ibv_cq*, std::deque<ibv_wc>> late{};  ///< completions held back
  };
  struct QpState {
    uint32_t rail = 0;
    bool sends = false;
    uint32_t far_host = UINT32_MAX, far_rail = 0;  ///< once it is connected
    uint32_t far_number = 0;
    uint64_t taken = 0, errors = 0;    ///< completed receives
    std::vector<uint64_t> withheld{};  ///< wr_ids of receives
    Clock::time_point silent_until{};  ///< its completions are held back until then
  };

  VerbsInterposer();
  static ibv_context* open_device(ibv_device* device);
  static int close_device(ibv_context* context);
  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted);
  static int modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask);
  static int destroy_qp(ibv_qp* pair);
  static int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** bad);
  static int post_recv(ibv_qp* pair, ibv_recv_wr* first, ibv_recv_wr** bad);
  static int poll_cq(ibv_cq* queue, int room, ibv_wc* out);
  static int get_async_event(ibv_context* context, ibv_async_event* event);
  static void ack_async_event(ibv_async_event* event);
  std::vector<ibv_qp*> find(uint32_t from, uint32_t to, uint32_t rail, End end);
  std::chrono::nanoseconds error_state_delay(const ibv_qp* qp, const QpState& state) const;
  static std::vector<uint32_t> imms_of(const ibv_send_wr* first);
  QpState* find(ibv_context* context, uint32_t number);
  void watch(QpState& state, const ibv_wc& completion);
  int take(Nic& nic, ibv_cq* queue, std::span<ibv_wc> out);
  int to_error(ibv_qp* qp, QpState& state);
  void post_withheld(ibv_qp* qp, QpState& state);

  std::mutex mutex_;
  verbs::Library real_;
  std::map<ibv_context*, Nic> nics_;
  std::map<ibv_qp*, QpState> qp_states_;
  std::map<std::pair<ibv_context*, uint32_t>, ibv_qp*> numbers_;
  /// Immediates in flight, by host, rail and number of the sending queue pair.
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::deque<uint32_t>> imms_;
  uint32_t corrupt_from_ = UINT32_MAX, corrupt_to_ = UINT32_MAX;
  uint32_t not_ready_ = UINT32_MAX;                    ///< a host
  std::map<uint32_t, std::chrono::nanoseconds> slow_;  ///< by host
  std::vector<ibv_async_event> delivered_;  ///< injected events that are not acknowledged yet
};

}  // namespace fabric::test
