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

// What a card made of software consists of. Each begins with the struct of libibverbs that the
// network gets a pointer to. Everything here is guarded by the one mutex of FakeNics.

namespace fabric::test::fake {

struct Context;

/// One NIC with one port.
struct Device : ibv_device {
  uint32_t host = 0, rail = 0;
  verbs::GidBytes gid{};
  uint8_t gid_index = 1;
  bool up = true;
  bool fatal = false;         ///< it answers nothing any more
  bool land_late = false;     ///< packets land behind the error state, until a receive is flushed
  bool lands_first = false;   ///< what is under way lands while the error state is asked for
  bool hold_flushes = false;  ///< error completions wait
  bool hold_packets = false;  ///< what comes to it waits on the cable
  bool not_ready = false;     ///< it finds no receive
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
  /// A queue pair was destroyed with something still to come. Only a rail that is going away may do
  /// that, and it looks at nothing any more.
  std::string undrained{};
};

struct Pd : ibv_pd {
  Pd* root = nullptr;       ///< itself, or what a parent domain stands on
  bool one_thread = false;  ///< it has a thread domain
  int users = 0;
};

struct Td : ibv_td {
  int users = 0;
};

struct Mr : ibv_mr {
  uint64_t iova = 0;
  unsigned access = 0;
  std::byte* bytes = nullptr;  ///< where the first byte is for this process
  void* mapped = nullptr;      ///< of a DMA-BUF
  size_t mapped_bytes = 0;
  int users = 0;  ///< sends that read it
};

struct Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events{};
  int users = 0;
};

struct Qp;

/// A completion, and what polling it gives free.
struct Completion {
  ibv_wc wc{};
  Qp* qp = nullptr;
  bool receive = false;
  uint64_t index = 0;  ///< of a send: all places up to this one are free
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
  uint32_t first_packet = 0;  ///< counted from the first of the queue pair, not yet cut to 24 bits
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
  uint64_t address = 0;  ///< with the first one, as the length of all
  uint32_t key = 0, imm = 0, length = 0;
  std::vector<std::byte> bytes{};
};

/// How the network asked for its connection: for tests that look whether options arrive.
struct QpSettings {
  uint8_t service_level = 0, traffic_class = 0, gid_index = 0, timeout = 0, retries = 0;
  uint8_t rnr_retries = 0, rnr_timer = 0;
  uint16_t pkey_index = 0;
  uint32_t first_packet = 0;  ///< of an end that sends
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
  std::deque<Request> requests{};     ///< not acknowledged, the oldest first
  uint64_t posted = 0, released = 0;  ///< places of the send queue
  uint32_t packets_made = 0;          ///< of all requests
  uint32_t packets_sent = 0, packets_acked = 0;
  uint32_t packets_high = 0;  ///< the most that were ever sent
  uint32_t first_number = 0;
  uint32_t retries_left = 0, rnr_left = 0;
  int64_t retry_ns = INT64_MAX;  ///< when nothing was heard until then
  int64_t pause_ns = 0;          ///< the far end is not ready

  // The responder.
  std::deque<uint64_t> receives{};
  std::deque<uint64_t> receives_after_error{};  ///< posted behind the error state
  uint64_t receives_posted = 0, receives_polled = 0;
  uint32_t expected = 0;
  bool nak_sent = false;  ///< of a packet that is missing
  uint64_t address = 0;     ///< where the next packet of a message goes
  uint32_t key = 0;
  bool flushed = false;  ///< a receive has come back by the error state: nothing lands any more

  uint64_t events_got = 0, events_acked = 0;

  // Who posts to a queue pair of a thread domain takes no lock; the plain number is for
  // ThreadSanitizer, the flag for everybody else.
  std::atomic<bool> busy{false};
  uint64_t unlocked = 0;
};

/// Packets that a queue pair has sent. They outlive it.
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
