#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "providers/verbs/gids.h"

// The objects of a fake NIC. Each derives from the struct of libibverbs that the network gets a
// pointer to. All are guarded by the mutex of FakeNics.

namespace fabric::test::fake {

struct Context;

/// One NIC with one port.
struct Device : ibv_device {
  uint32_t host = 0, rail = 0;
  verbs::GidBytes gid{};
  uint8_t gid_index = 1;
  bool up = true;
  bool fatal = false;         ///< every call fails
  bool land_late = false;     ///< packets land after the error state, until a receive is flushed
  bool lands_first = false;   ///< packets in flight land before the error state is entered
  bool hold_flushes = false;  ///< error completions are held back
  bool hold_packets = false;  ///< packets to it stay in flight
  bool not_ready = false;     ///< it acts as if no receive were posted
  std::set<Context*> contexts{};
};

struct AsyncEvent {
  ibv_event_type type = IBV_EVENT_CQ_ERR;
  void* element = nullptr;  ///< a queue pair or a completion queue; null: the port
};

struct Context : verbs_context {
  Device* device = nullptr;
  UniqueFd async{};
  std::deque<AsyncEvent> events{};
  int pds = 0, tds = 0, channels = 0, cqs = 0, qps = 0, mrs = 0;
  /// A queue pair was destroyed with completions outstanding. Only a rail that is being closed may
  /// do that, so it becomes a violation with the next poll.
  std::string undrained{};
};

struct Pd : ibv_pd {
  Pd* root = nullptr;       ///< itself, or the domain beneath a parent domain
  bool one_thread = false;  ///< has a thread domain
  int users = 0;
};

struct Td : ibv_td {
  int users = 0;
};

struct Mr : ibv_mr {
  uint64_t iova = 0;
  unsigned access = 0;
  std::byte* bytes = nullptr;  ///< the first byte, in this process
  void* mapped = nullptr;      ///< mapping of a DMA-BUF
  size_t mapped_bytes = 0;
  int users = 0;  ///< sends in flight that read it
};

struct Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events{};
  int users = 0;
};

struct Qp;

/// A completion, and the queue slots that polling it frees.
struct Completion {
  ibv_wc wc{};
  Qp* qp = nullptr;
  bool receive = false;
  uint64_t index = 0;  ///< of a send: slots up to this one become free
};

struct Cq : ibv_cq {
  std::deque<Completion> entries{};
  bool armed = false;
  bool overrun = false;
  int users = 0;
  uint64_t cq_events_raised = 0, cq_events_acked = 0;
  uint64_t events_got = 0, events_acked = 0;
};

struct Request {
  uint64_t index = 0;
  ibv_send_wr wr{};
  ibv_sge source{};
  std::vector<std::byte> carried{};  ///< inline bytes
  Mr* mr = nullptr;
  uint32_t length = 0;
  uint32_t first_packet = 0;  ///< counted from the queue pair's first, not truncated to 24 bits
  uint32_t packets = 1;
};

struct Packet {
  enum class Kind : uint8_t { kData, kAck, kOutOfOrder, kRefused, kNotReady };
  Kind kind = Kind::kData;
  Device* source = nullptr;
  verbs::GidBytes target{};
  uint32_t queue_pair = 0;
  uint32_t number = 0;
  int64_t due_ns = 0;
  bool first = false, last = false, has_imm = false;
  uint64_t address = 0;  ///< in the first packet, as is the message's length
  uint32_t key = 0, imm = 0, length = 0;
  std::vector<std::byte> bytes{};
};

/// The attributes with which the network connected a queue pair, for tests of options.
struct QpSettings {
  uint8_t service_level = 0, traffic_class = 0, gid_index = 0, timeout = 0, retries = 0;
  uint8_t rnr_retries = 0, rnr_timer = 0;
  uint16_t pkey_index = 0;
  uint32_t first_packet = 0;  ///< initial PSN of a sending end
  ibv_mtu mtu = IBV_MTU_256;
};

struct Qp : ibv_qp {
  Context* owner = nullptr;
  uint64_t serial = 0;
  bool destroyed = false;
  uint32_t send_max = 0, receive_max = 0, inline_max = 0;
  unsigned access = 0;
  QpSettings settings{};
  verbs::GidBytes far_gid{};
  uint32_t far_number = 0;
  uint32_t packet_bytes = 256;

  // The requester.
  std::deque<Request> requests{};     ///< unacknowledged, the oldest first
  uint64_t posted = 0, released = 0;  ///< slots of the send queue
  uint32_t packets_made = 0;          ///< of all requests
  uint32_t packets_sent = 0, packets_acked = 0;
  uint32_t packets_high = 0;  ///< the largest packets_sent so far
  uint32_t first_number = 0;
  uint32_t retries_left = 0, rnr_left = 0;
  int64_t retry_ns = INT64_MAX;  ///< retransmission timeout
  int64_t pause_ns = 0;          ///< end of an RNR pause

  // The responder.
  std::deque<uint64_t> receives{};
  std::deque<uint64_t> receives_after_error{};  ///< posted after the error state
  uint64_t receives_posted = 0, receives_polled = 0;
  uint32_t expected = 0;
  bool nak_sent = false;  ///< of a packet that is missing
  uint64_t address = 0;   ///< where the next packet of a message goes
  uint32_t key = 0;
  bool flushed = false;  ///< a receive was flushed: nothing lands any more

  uint64_t events_got = 0, events_acked = 0;

  // Detect concurrent posts to a queue pair of a thread domain, whose driver takes no lock: the
  // plain counter for ThreadSanitizer, the flag in other builds.
  std::atomic<bool> busy{false};
  uint64_t unlocked = 0;
};

/// Packets in flight of one queue pair. They outlive it.
struct Flight {
  Device* source = nullptr;
  std::deque<Packet> packets{};
};

inline Context* of(ibv_context* context) { return static_cast<Context*>(verbs_get_ctx(context)); }
inline Qp* of(ibv_qp* qp) { return static_cast<Qp*>(qp); }
inline Cq* of(ibv_cq* cq) { return static_cast<Cq*>(cq); }
inline Mr* of(ibv_mr* mr) { return static_cast<Mr*>(mr); }
inline Pd* of(ibv_pd* pd) { return static_cast<Pd*>(pd); }

}  // namespace fabric::test::fake
