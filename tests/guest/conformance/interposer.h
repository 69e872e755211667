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

// Between the network and the RDMA devices: who has which queue pair, and what a test has done to
// it. The devices beneath are real; what happens to a queue pair here is what a card does. Device
// xb1 is rail 1 of host b; hosts are counted from 0.
//
// The devices are watched: a queue pair's immediates have to come out in the order in which they
// were posted, none of them left out and none twice. SoftRoCE does not always keep to that
// (docs/verbs.md). It fails the test in those words, and leaves kDeviceFault for inside.sh, which
// plays everything once more.

namespace fabric::test {

class VerbsInterposer {
 public:
  static constexpr const char* kDeviceFault = "/tmp/device-fault";  ///< in the guest's own memory
  enum class End : uint8_t { kSender, kTarget };

  /// In front of libibverbs from the first call on.
  static VerbsInterposer& get();

  /// Puts one end of the paths from one host to another into the error state, on this rail of the
  /// sender. Returns how many there were.
  uint32_t break_path(uint32_t from, uint32_t to, uint32_t rail, End end);
  /// The next write from one host to another that has bytes goes out with another key.
  void corrupt_rkey(uint32_t from, uint32_t to);
  /// Receives that this host posts do not reach its cards, until it ends; then all of them do.
  void withhold_receives(uint32_t host, bool on);
  /// Its cards take so long to stop a queue pair that receives, which goes on as before until then,
  /// and as long again until they put out what came in and what comes back. None: as quick as it
  /// is.
  void delay_error_state(uint32_t host, std::chrono::nanoseconds time);
  /// The card tells its owner that the queue pairs of this end failed, or that its port is down or
  /// up again. It says so, whatever is true.
  void raise_qp_fatal(uint32_t from, uint32_t to, uint32_t rail, End end);
  void raise_port_event(uint32_t host, uint32_t rail, bool up);

 private:
  using Clock = std::chrono::steady_clock;
  struct Nic {
    uint32_t host = 0, rail = 0;
    int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
    int (*post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
    int (*poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;
    std::deque<ibv_async_event> raised{};            ///< and not heard yet
    std::map<ibv_cq*, std::deque<ibv_wc>> late{};  ///< completions that are not given out yet
  };
  struct QpState {
    uint32_t rail = 0;
    bool sends = false;
    uint32_t far_host = UINT32_MAX, far_rail = 0;  ///< once it is connected
    uint32_t far_number = 0;
    uint64_t taken = 0, errors = 0;    ///< receives that came back
    std::vector<uint64_t> withheld{};  ///< receives, by their ids
    Clock::time_point silent_until{};  ///< no completion of it is given out before
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
  /// Immediates on their way, by host, rail and number of the queue pair that sends them.
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::deque<uint32_t>> imms_;
  uint32_t corrupt_from_ = UINT32_MAX, corrupt_to_ = UINT32_MAX;
  uint32_t not_ready_ = UINT32_MAX;                    ///< a host
  std::map<uint32_t, std::chrono::nanoseconds> slow_;  ///< by host
  std::vector<ibv_async_event> delivered_;  ///< of what was only said, until it is acknowledged
};

}  // namespace fabric::test
