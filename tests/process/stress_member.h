#pragma once

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <fabric/fabric.h>

#include "base/rng.h"
#include "base/unique_fd.h"
#include "process/stress_plan.h"

// One process of a StressCluster: writes to every other member and checks everything that is
// written to it. Violations are reported to the cluster as a text that begins with "violation".

namespace fabric::stress {

/// Memory to write to or from, and its registrations.
struct MemberMemory {
  enum class Kind : uint32_t {
    kAllocated,  ///< shared with its writers
    kSlice,      ///< a registration inside a larger allocation, which outlives it
    kOrdinary,   ///< ordinary memory of the process
  };
  std::span<std::byte> bytes{};
  std::vector<std::byte> own{};
  std::optional<MemoryRegion> block{};   ///< of a slice
  std::optional<MemoryRegion> region{};  ///< none: it was deregistered
};

struct MemberOptions {
  MemberId self{};
  uint64_t seed = 1;
  uint64_t buffer_bytes = 1 << 20;
};

/// Owns the engine of the process, a MemberSession per peer, and the memory that peers write to or
/// wrote to. One thread at a time. For each session there is one inbound buffer that the peer fills
/// in rounds and one outbound buffer of the peer that we fill; the owner grants a credit for each
/// next round.
class Member {
 public:
  /// `channel` is a SOCK_SEQPACKET to the StressCluster, one text per packet.
  Member(Engine engine, const MemberOptions& options, Scoreboard& scoreboard, UniqueFd channel);

  bool begin();
  /// One bounded step. False: the cluster commanded "close", or has exited.
  bool step();
  /// Closes the engine and checks that every operation was reported. False: there were violations.
  bool finish();

  /// For the engine's Config::log_sink, whose context outlives the member.
  struct Log {
    std::mutex mutex;
    std::vector<std::string> lines;
    LogSink sink();
  };
  void watch(Log& log) { log_ = &log; }

 private:
  enum class MemberOpKind : uint8_t {
    kWrite,
    kMessage,
    kCredit,
    kAwaitRound,
    kAwaitCredit,
    kFence,
    kRevoke,
    kRelease
  };
  /// An accepted operation that is not reported yet.
  struct PendingOp {
    MemberOpKind kind{};
    PeerId peer{};
    uint32_t buffer = 0;  ///< its number
    uint64_t counts = 0;  ///< of a write: how many counts it adds
    bool long_write = false;
  };
  /// A buffer of ours that the peer of a session writes to.
  struct Inbound {
    BufferId id{};
    MemberMemory memory{};
    std::optional<Counter> counter{};
    uint32_t number = 0;  ///< of the round
    TrafficRound round{};
    OpId expectation{};     ///< none while nothing is expected
    uint64_t taken = 0;     ///< counts of completed expectations
    OpId revocation{};      ///< one that was not proved in time
    bool closed = false;    ///< poisoned, or its memory is freed
    bool reported = false;  ///< the writer has reported its totals
    uint64_t delivered = 0, unknown = 0;
  };
  /// A buffer of the peer that we write to.
  struct Outbound {
    BufferId id{};
    RemoteRegion region{};
    CounterKey key{};
    uint64_t buffer_bytes = 0;
    uint64_t credit_base = 0;  ///< credits of earlier buffers
    uint32_t number = 0;       ///< of the round
    uint64_t pending = 0;      ///< operations
    uint64_t delivered = 0, unknown = 0;
    bool aborted = false;
    bool reported = false;
  };
  /// A session with one generation of another member.
  struct MemberSession {
    PeerId peer{};
    MemberId member{};
    PeerGroup group{};
    Inbound in{};
    std::deque<Inbound> old{};  ///< revoked, and not yet reconciled with the writer
    Outbound out{};
    std::optional<Outbound> next{};
    MemberMemory source{};
    std::optional<Counter> credits{};
    uint64_t credits_received = 0, credits_sent = 0, credits_owed = 0;
    CounterKey credit_key{};  ///< the peer's
    uint32_t ops = 0;         ///< accepted and not yet reported, including expectations
    bool lost = false;
    bool fence_asked = false, fence_pending = false;
    bool fence_commanded = false;  ///< by the cluster, which waits for the report
    OpId fence_op{};
  };
  /// Poisoned memory that must not change after its fence.
  struct FencedMemory {
    MemberMemory memory{};
    uint64_t poison = 0;
    BufferId whose{};
  };
  /// Memory that is freed when its deregistrations have completed.
  struct Deregistering {
    MemberMemory memory{};
    uint32_t waits = 0;
  };
  /// A message between members; a region descriptor may follow.
  struct PeerMessage {
    enum Kind : uint32_t { kBuffer, kBufferClosed };
    Kind kind = kBuffer;
    uint32_t number = 0, key = 0, credit_key = 0;
    uint64_t buffer_bytes = 0, credits = 0, delivered = 0, unknown = 0;
  };

  // stress_member.cc
  void report(const std::string& text);
  void violation(const std::string& what);
  bool on_command(const std::string& text);
  void on_event(const Event& event);
  void on_done(const Event& event);
  void on_peer(const Event& event);
  void on_message(const Event& event);
  void lost_before_meeting(const MemberId& member, Errc code);
  MemberSession* session_of(PeerId peer);
  MemberSession* session_to(uint32_t slot);
  Notify track(const PendingOp& op);
  bool accepted(const Result<OpId>& op, const char* what);
  void send(MemberSession& session, PeerMessage message, std::span<const std::byte> tail = {});
  void end_sessions();
  void fence_lost(MemberSession& session);
  void fence(const std::string& verb, uint32_t slot);
  void fence_completed(MemberSession& session, const Event& event);
  void fence_proved(MemberSession& session);
  void report_reconciled();
  std::string footprint(bool listed) const;

  // stress_traffic.cc
  MemberMemory make_memory(MemberMemory::Kind kind, uint64_t bytes, bool target);
  void release(MemberMemory memory);
  void release_completed(const PendingOp& op, const Event& event);
  void open_buffer(MemberSession& session);
  void begin_inbound(MemberSession& session, Inbound& in);
  Inbound* inbound(MemberSession& session, uint32_t number);
  void round_completed(MemberSession& session, const PendingOp& op, const Event& event);
  void check_round(const Inbound& in);
  uint64_t complete_writes(const Inbound& in) const;
  void check_count(Inbound& in);
  void close_inbound(Inbound& in);
  void revoke(MemberSession& session);
  void revoked(MemberSession& session, const PendingOp& op, const Event& event);
  void revocation_proved(MemberSession& session, Inbound& in);
  bool reconciled(const Inbound& in);
  void new_buffer(MemberSession& session, const PeerMessage& message,
                  std::span<const std::byte> desc);
  void advance_outbound(MemberSession& session);
  void write_round(MemberSession& session);
  std::atomic<uint64_t>& long_writes(const MemberSession& session);
  void write_completed(MemberSession& session, const PendingOp& op, const Event& event);
  void await_credit(MemberSession& session);
  void send_credits(MemberSession& session);
  void credit_received(MemberSession& session, const Event& event);
  void check_fenced_memory(size_t keep);

  Engine engine_;
  const MemberOptions options_;
  Scoreboard& scoreboard_;
  UniqueFd channel_;
  Log* log_ = nullptr;
  Rng rng_;
  std::optional<Inbox> inbox_;
  std::optional<Subscription> subscription_, listener_;
  std::map<uint64_t, PendingOp> ops_;  ///< by tag
  uint64_t next_tag_ = 1;
  std::map<PeerId, MemberSession> sessions_;
  std::map<PeerId, MemberId> connecting_;
  std::array<uint32_t, kSlotsMax> buffers_made_{};
  std::deque<FencedMemory> fenced_memory_;
  uint64_t poisons_ = 0;
  std::map<uint32_t, Deregistering> deregistering_;
  uint32_t next_deregistering_ = 1;
  uint64_t rounds_ = 0, counts_ = 0, bytes_ = 0, violations_ = 0;
  bool draining_ = false, reported_reconciled_ = false, footprint_asked_ = false;
};

}  // namespace fabric::stress
