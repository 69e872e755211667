#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fabric/kv.h>

#include "workloads/common/deadlines.h"
#include "workloads/common/lease.h"
#include "workloads/kv/message.h"
#include "workloads/kv/page_owners.h"

// Internals of kv::Decoder. A *task* is one attempt of a request. It has a *flow* for each prefill
// rank that sends something: the lease, its counters and its dispatch. Flows to one prefiller
// belong to a *source session*, which has up to grants_per_peer *grant sets*: one grant of each
// region of the cache, revoked together. Writes in doubt are resolved by revoking their
// grant set, or by fencing the peer if it is lost.

namespace fabric::kv::decode {

using workloads::Deadlines;
using workloads::later;
using workloads::Lease;
using workloads::LeaseEffects;
using workloads::LeaseState;

/// On EFA each grant is a registration; half of what the wire format can name leaves room for sets
/// in quarantine.
inline constexpr uint32_t kGrantsPerPeerMax = wire::kGrantSetsMax / 2;

struct Task;
struct SourceSession;
struct GrantSet;

/// What an event of the inbox is about: the upper 8 bits of its tag. The rest is a number.
enum class TagKind : uint8_t {
  kMessage = 1,
  kEngine,    ///< peers, room, late proofs
  kTimer,     ///< Deadlines
  kWake,      ///< makes the descriptor readable: poll() has events
  kDispatch,  ///< flow
  kCancel,    ///< flow
  kCount,     ///< flow
  kRevoke,    ///< grant set
  kFence,     ///< source session
  kHello,     ///< source session
  kGrants,    ///< grant set
};

/// What a deadline is about: the upper 8 bits of its tag, as TagKind.
enum class DueKind : uint8_t {
  kFlow = 1,  ///< a reply, counts or the quiet report are overdue
  kTask,      ///< the deadline of a request
  kStall,     ///< a source session has been stalled for DecoderOptions::patience
  kDrain,     ///< compare the counts of draining flows again
  kGrants,    ///< make a grant set after a failure: work() does so
};

template <class Kind>
constexpr uint64_t tagged(Kind kind, uint64_t number = 0) {
  return static_cast<uint64_t>(kind) << 56 | number;
}
constexpr uint64_t tag_number(uint64_t tag) { return tag & ((uint64_t{1} << 56) - 1); }

/// A plan from one prefill side to this decoder.
struct PrefillPlan {
  std::vector<std::byte> side;  ///< encode(Side)
  TransferPlan plan;
  std::vector<uint32_t> ranks;         ///< sources, ascending
  std::vector<uint32_t> layout_group;  ///< of each group of the plan, its index in the layout
  uint32_t tail_rank = 0;              ///< the first source of the last pipeline stage
};

/// Counts of one counter key: all of a flow, or one layer of it, or its tail.
struct FlowCounter {
  static constexpr uint32_t kNoLayer = UINT32_MAX;
  Counter counter;
  uint64_t share = 0;
  uint32_t layer = kNoLayer;
};

/// The units of one UnitList that a flow gets staged. Entry n of the two vectors is one unit.
struct StagedUnits {
  const PairGroup* group = nullptr;
  uint32_t list = 0;
  std::vector<uint32_t> target{};  ///< UnitIndices::target
  std::vector<uint32_t> records{};
};

struct Flow {
  uint64_t number = 0;
  Task* task = nullptr;
  SourceSession* session = nullptr;  ///< until the lease is quiet
  GrantSet* set = nullptr;           ///< from the dispatch until then
  uint32_t rank = 0;
  Lease lease{};
  uint64_t total = 0;
  /// Met in their order: only `counters[at]` has an expectation, so a flow takes one slot of the
  /// inbox, however many layers it has.
  std::vector<FlowCounter> counters{};
  size_t at = 0;
  uint64_t taken = 0;  ///< counts of the counters before `at`
  bool armed = false;
  bool needs_arm = false;     ///< the inbox was full
  bool needs_cancel = false;  ///< the engine's queue was full
  bool wants_quiet = false;
  Nanos due{};                        ///< of its DueKind::kFlow; 0: none
  std::vector<StagedUnits> staged{};  ///< until the lease is quiet: its records are taken
  wire::Dispatch dispatch{};
};

struct LayerWait {
  uint32_t layer = 0;
  uint32_t sources_left = 0;
};

struct Task {
  enum class Phase : uint8_t { kRunning, kComplete, kFailed, kCancelled };
  uint64_t number = 0;
  uint32_t slot = 0;  ///< in the page owners
  std::string id{};
  uint32_t attempt = 0;
  Phase phase = Phase::kRunning;
  bool per_layer = false;
  bool cancel_reported = false;
  bool quarantine_reported = false;
  bool over = false;  ///< its last event is queued; erased when poll() has taken it
  Nanos deadline{};
  uint32_t prefill = 0;
  uint32_t tail_slot = DecodeRequest::kNoTail;
  std::vector<std::vector<uint32_t>> leased{};  ///< pages that are written, for each group
  std::vector<std::unique_ptr<Flow>> flows{};
  std::vector<LayerWait> layers{};  ///< ascending
};

struct GrantSet {
  enum class State : uint8_t { kLive, kRevoking, kUnproved };
  uint64_t number = 0;
  SourceSession* session = nullptr;
  uint32_t slot = 0;  ///< its number on the wire, below kGrantSetsMax
  uint32_t generation = 0;
  State state = State::kLive;
  bool retired = false;  ///< not for new requests: the prefiller could not import it
  std::vector<Grant> grants{};
  uint32_t sent = 0;  ///< descriptors sent to the peer
  std::map<uint64_t, Flow*> flows{};
  size_t revokes_sent = 0;
  size_t revokes_ended = 0;
  std::vector<OpId> unproved{};
};

struct SourceSession {
  enum class Fencing : uint8_t { kNo, kWanted, kRunning, kUnproved, kRefused };
  uint64_t number = 0;
  PeerId peer{};
  uint16_t channel = 0;
  bool connected = false;
  bool lost = false;
  bool hello_sent = false;
  bool accepted = false;  ///< a dispatch, since the last HELLO
  uint64_t next_serial = 0;
  uint64_t hello_serial = 0;  ///< `next_serial` at the last HELLO
  uint32_t next_generation = 1;
  uint32_t message_bytes_max = 0;
  Nanos stall_due{};
  Nanos grants_due{};  ///< after a failure: when to try again to make a set; 0: at once
  Error grants_error{};
  std::map<uint64_t, Flow*> by_serial{};
  std::deque<uint64_t> waiting{};  ///< flows that are not dispatched yet
  std::map<uint64_t, std::unique_ptr<GrantSet>> sets{};
  Fencing fencing = Fencing::kNo;
  OpId fence{};
};

class DecoderCore {
 public:
  DecoderCore(Engine& engine, const DecoderOptions& options, Inbox inbox);
  Result<void> open();

  // decoder_start.cc
  Result<uint32_t> add_prefill(const Side& side, Refusal* refusal);
  Result<const PrefillPlan*> find_prefill(uint32_t prefill) const;
  Result<uint64_t> count(const DecodeRequest& request) const;
  Result<void> start(const DecodeRequest& request);

  // decoder_core.cc
  Result<void> cancel(std::string_view id);
  void drain(bool stop);
  Result<bool> layer_ready(std::string_view id, uint32_t layer) const;
  Result<void> wait_layer(std::string_view id, uint32_t layer, Timeout timeout);
  uint32_t poll(std::span<DecodeEvent> out);
  Result<void> wait(Timeout timeout);
  Result<int> fd() { return inbox_.fd(); }
  PageState page_state(uint32_t group, uint32_t page) const noexcept;
  std::optional<PrefillLoad> load(PeerId peer) const;
  DecoderStats stats() const;

 private:
  /// A request that start() has checked, and what it derived from it.
  struct Checked {
    const PrefillPlan* prefill = nullptr;
    RequestTokens tokens{};
    uint32_t tail_rank = 0;
    std::vector<PairCounts> counts{};  ///< for each of prefill->ranks
    uint64_t total = 0;
  };

  // decoder_start.cc
  Result<Checked> check(const DecodeRequest& request) const;
  Result<void> check_id(const DecodeRequest& request) const;
  Result<void> check_reserve(const DecodeRequest& request) const;
  Result<std::vector<std::vector<uint32_t>>> written_pages(const DecodeRequest& request,
                                                           const Checked& checked) const;
  Result<SourceSession*> session_for(const Source& source);
  Result<std::unique_ptr<Flow>> make_flow(const DecodeRequest& request, const Checked& checked,
                                          size_t rank_index, SourceSession& session);
  Result<void> make_counters(Flow& flow, const DecodeRequest& request, const PairCounts& counts);
  void fill_dispatch(Flow& flow, const DecodeRequest& request, const Checked& checked,
                     const PairPlan& pair);
  Result<void> take_records(Flow& flow, const DecodeRequest& request, const Checked& checked,
                            const PairPlan& pair);
  void release_records(Flow& flow);
  Result<uint64_t> records_needed(const Checked& checked) const;
  static void await_layers(Task& task, const Checked& checked);
  Result<void> lease_pages(Task& task);
  void begin(std::unique_ptr<Task> owned, Nanos deadline);

  // decoder_session.cc: requests, grants, cancels
  void pump(SourceSession& session);
  enum class Launch : uint8_t { kSent, kNoRoom, kFailed };
  Launch launch(Flow& flow);
  bool send_hello(SourceSession& session);
  void hello_lost(SourceSession& session);
  void grants_lost(uint64_t set_number);
  void forgotten(SourceSession& session, uint64_t serial);
  SourceSession* find_session(uint64_t number) const;
  bool send_grants(GrantSet& set);
  Result<GrantSet*> choose_set(SourceSession& session);
  Result<GrantSet*> make_set(SourceSession& session);
  void send_cancel(Flow& flow);
  Result<OpId> send(const SourceSession& session, std::span<const std::byte> bytes, uint64_t tag);
  // decoder_session.cc: revocations, fences and their proofs
  void fence(Flow& flow);
  void revoke(GrantSet& set);
  void submit_revokes(GrantSet& set);
  void submit_fence(SourceSession& session);
  void revoke_ended(const Event& event);
  void fence_ended(const Event& event);
  void proof_came(const Event& event);
  void set_proved(GrantSet& set);
  void set_unproved(GrantSet& set);
  void session_proved(SourceSession& session);
  void peer_changed(const Event& event);
  void watch_stall(SourceSession& session);
  void lose(SourceSession& session);
  void detach(Flow& flow);
  void drop_empty(SourceSession& session);

  // decoder_core.cc: events, replies, counts, deadlines
  Result<void> await_layer(std::string_view id, uint32_t layer, Timeout timeout);
  void work();
  void handle(const Event& event);
  void engine_event(const Event& event);
  void message(const Event& event);
  void answer(SourceSession& session, wire::MessageKind kind, std::span<const std::byte> bytes);
  void count_event(const Event& event);
  void count_code(Flow& flow, Errc code);
  void counter_met(Flow& flow);
  void scatter_arrived(const Flow& flow, uint32_t layer);
  void arm(Flow& flow);
  void check_counts(Flow& flow);
  void due(uint64_t what);
  void apply(Flow& flow, const LeaseEffects& effects, FailCode cause, std::string text = {},
             RefuseCode refused = RefuseCode::kNone);
  void fail_task(Task& task, FailCode code, uint32_t rank, std::string text,
                 RefuseCode refused = RefuseCode::kNone);
  void update(Task& task);
  void finish(Task& task);
  void erase_ended();
  void set_due(Flow& flow, Nanos after);
  void clear_due(Flow& flow);
  bool is_final(const Flow& flow) const;
  DecodeEvent& emit(const Task& task, DecodeEvent::Kind kind);
  void wake();
  Flow* find_flow(uint64_t number);
  Task* newest(std::string_view id) const;
  static FlowCounter* current(Flow& flow);
  static uint64_t counts_here(const Flow& flow);

  Engine& engine_;
  DecoderOptions options_;
  const Nanos answer_time_;  ///< of a prefiller: until then its answer is not late
  std::vector<std::byte> layout_bytes_;
  std::vector<std::unique_ptr<PrefillPlan>> prefills_;
  std::vector<PageOwners> owners_;  ///< for each group
  PageOwners tail_owners_;
  PagePool staging_{0};
  std::vector<std::span<std::byte>> region_bytes_;  ///< of the layout's regions, with staging
  std::vector<uint64_t> quarantined_;               ///< pages, for each group
  std::map<std::pair<std::string, uint32_t>, std::unique_ptr<Task>> tasks_;
  std::map<uint64_t, Task*> by_number_;
  std::vector<Task*> by_slot_;
  std::vector<uint32_t> free_slots_;
  std::vector<Task*> ended_;
  uint32_t live_ = 0;  ///< tasks that are not over
  std::map<uint64_t, Flow*> flows_;
  std::map<uint64_t, Flow*> draining_;
  std::map<uint64_t, Flow*> retries_;  ///< flows with needs_arm or needs_cancel
  std::map<std::pair<PeerId, uint16_t>, std::unique_ptr<SourceSession>> sessions_;
  std::vector<std::pair<PeerId, uint16_t>> dead_sessions_;  ///< erased at the end of the call
  std::map<PeerId, PrefillLoad> loads_;
  Deadlines deadlines_;
  std::deque<DecodeEvent> events_;
  uint64_t next_number_ = 1;
  bool draining_all_ = false;
  bool drained_reported_ = false;
  bool wake_pending_ = false;
  Nanos drain_check_{};  ///< of DueKind::kDrain; 0: none
  DecoderStats stats_;
  // Last, hence destroyed first: no event reaches a half-destroyed decoder.
  Inbox inbox_;
  Subscription messages_;
  Subscription engine_events_;
};

}  // namespace fabric::kv::decode
