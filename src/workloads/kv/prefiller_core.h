#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fabric/kv.h>

#include "workloads/common/deadlines.h"
#include "workloads/kv/message.h"

// Internals of kv::Prefiller. An *offer* is one attempt of a request, made by offer() or by the
// first dispatch of it, whichever comes first. A *target* is one dispatch: a decode rank that wants
// the request. All writes of a target are in one batch; when it is sealed and drained, its report
// gives what landed, and the source is not read any more.

namespace fabric::kv::prefill {

using workloads::Deadlines;
using workloads::later;

struct HeldOffer;
struct DecoderSession;

enum class TagKind : uint8_t {
  kMessage = 1,
  kEngine,  ///< peers and room
  kTimer,
  kWake,
  kSeal,    ///< target
  kStaged,  ///< a staged write: its slots are free
  kOther,   ///< answers: when one is lost, the decoder asks again, then fences
};

enum class DueKind : uint8_t {
  kOffer = 1,  ///< an offer has waited for its dispatches long enough
  kTarget,     ///< a dispatch has waited for its offer long enough
};

template <class Kind>
constexpr uint64_t tagged(Kind kind, uint64_t number = 0) {
  return static_cast<uint64_t>(kind) << 56 | number;
}
constexpr uint64_t tag_number(uint64_t tag) { return tag & ((uint64_t{1} << 56) - 1); }

/// The plan slices of one group that one step of a pass sends.
struct StepPart {
  const PairGroup* group = nullptr;
  const LayerSlices* layer = nullptr;
  uint32_t first_list = 0;  ///< of the group, in Target::source_lists
};

/// The plan from this rank to one decoder layout, arranged by step. Shared by all sessions of
/// decoders with that layout.
struct DecoderPlan {
  RefuseCode refused = RefuseCode::kNone;  ///< there is no plan
  std::string text{};
  TransferPlan plan{};
  const PairPlan* pair = nullptr;  ///< nullptr: nothing in common with this rank
  size_t regions = 0;
  size_t slices = 0;
  std::vector<uint32_t> first_list{};  ///< of each group of the pair
  uint32_t lists = 0;
  std::vector<std::vector<StepPart>> steps{};
};

struct ImportedSet {
  uint32_t generation = 0;
  uint32_t total = 0;
  bool has_tail = false;
  bool has_staging = false;
  bool bad = false;  ///< a descriptor could not be imported, or a part is missing
  std::vector<RemoteRegion> regions{};
};

/// A closed range of serial numbers that were skipped: their dispatches never arrived.
struct MissedSerials {
  uint64_t first = 0;
  uint64_t last = 0;
};

/// The units of the current chunk that are sent staged, of one list. Entry n of the two vectors is
/// one unit.
struct StagedUnits {
  std::vector<uint32_t> source{};   ///< UnitIndices::source
  std::vector<uint32_t> records{};  ///< of the decoder
};

struct Target {
  enum class End : uint8_t { kNone, kByDecoder, kHere, kFailed, kNotOffered, kDuplicate, kLost };
  uint64_t number = 0;
  uint64_t serial = 0;
  PeerId peer{};
  DecoderSession* session = nullptr;
  HeldOffer* offer = nullptr;
  std::shared_ptr<const DecoderPlan> plan{};
  std::shared_ptr<const ImportedSet> regions{};
  RequestTokens tokens{};
  std::vector<wire::GroupPages> pages{};  ///< of the decoder, for each group of the plan
  std::vector<CounterKey> layer_keys{};   ///< for each step; empty: `counter_key` for all
  CounterKey counter_key{};
  CounterKey tail_key{};
  bool wants_quiet = false;
  bool has_tail = false;
  bool tail_sent = false;
  bool sealed = false;
  bool blocked = false;
  uint64_t tail_offset = 0;
  uint64_t tail_bytes_max = 0;
  Batch batch;
  End end = End::kNone;
  Nanos due{};  ///< of DueKind::kTarget; 0: none
  // The next write: this slice of this part of this step of this chunk.
  size_t chunk = 0;
  uint32_t step = 0;
  uint32_t part = 0;
  uint32_t slice = 0;
  uint32_t staged = 0;       ///< after the slices: this staged write of the part
  uint32_t staged_unit = 0;  ///< and from this unit on
  bool prepared = false;     ///< the lists are those of `chunk`
  std::vector<PageList> source_lists{};
  std::vector<PageList> target_lists{};
  uint64_t staging_record_bytes = 0;
  std::vector<std::vector<uint32_t>> records{};  ///< of the whole request, for each list
  std::vector<StagedUnits> staged_units{};       ///< for each list

  explicit Target(Batch made) : batch(std::move(made)) {}
};

struct PassChunk {
  TokenRange tokens{};
  uint64_t first_step = 0;
};

struct HeldOffer {
  uint64_t number = 0;
  std::string id{};
  uint32_t attempt = 0;
  bool offered = false;  ///< by offer(); false: only dispatches have arrived
  bool cancelled = false;
  bool finished = false;
  uint32_t prompt_tokens = 0;
  uint32_t tokens_done = 0;  ///< where the last chunk ended
  uint32_t targets_wanted = 0;
  uint32_t targets_seen = 0;
  uint32_t targets_ended = 0;
  std::vector<std::vector<uint32_t>> pages{};  ///< for each group of the layout
  std::vector<PassChunk> chunks{};
  PrefillTail tail{};
  std::vector<std::unique_ptr<Target>> targets{};
  Errc code = Errc::kOk;
  uint64_t delivered = 0;
  uint64_t unknown = 0;
  Nanos due{};
};

struct DecoderSession {
  PeerId peer{};
  uint16_t channel = 0;
  std::shared_ptr<const DecoderPlan> plan{};
  std::map<uint32_t, std::shared_ptr<ImportedSet>> sets{};
  /// The lowest serial number that can have come to this prefiller. Those of its incarnation below
  /// may be those of an earlier prefiller on this engine.
  uint64_t first = 0;
  uint64_t seen = 0;  ///< the largest serial number received
  std::deque<MissedSerials> missed{};
  std::map<uint64_t, Target*> targets{};  ///< by serial number
};

struct PassRecord {
  uint64_t first_step = 0;
  std::vector<HeldOffer*> offers{};
};

/// Threads: every function of the public class takes `mutex_`; the private ones need it.
class PrefillerCore {
 public:
  PrefillerCore(Engine& engine, const PrefillerOptions& options, Inbox inbox);
  ~PrefillerCore();
  Result<void> open();

  // prefiller_push.cc
  Result<uint64_t> pass(std::span<const PassEntry> entries);
  Result<void> layer_done(uint64_t steps);
  // prefiller_core.cc
  Result<void> offer(const OfferRequest& request);
  Result<void> finish(std::string_view id, uint32_t attempt, const PrefillTail& tail);
  Result<void> cancel(std::string_view id, uint32_t attempt);
  void drain(bool stop);
  void set_load(uint64_t queued);
  uint32_t poll(std::span<PrefillEvent> out);
  Result<void> wait(Timeout timeout);
  Result<int> fd() { return inbox_.fd(); }
  PrefillerStats stats() const;
  const std::vector<uint32_t>& layers() const { return layers_; }
  Watcher* watcher() { return watcher_ ? &*watcher_ : nullptr; }
  void on_word(const Event& event);

 private:
  using OfferId = std::pair<std::string, uint32_t>;
  struct QueuedAnswer {
    uint16_t channel = 0;
    std::vector<std::byte> bytes{};
  };

  // prefiller_core.cc
  void work();
  void handle(const Event& event);
  void peer_changed(const Event& event);
  void lose_targets(DecoderSession& session);
  void due(uint64_t what);
  HeldOffer* find_offer(std::string_view id, uint32_t attempt) const;
  HeldOffer& make_offer(const std::string& id, uint32_t attempt);
  Result<void> check_offer(const OfferRequest& request) const;
  Result<void> check_page_ids(std::span<const std::vector<uint32_t>> pages) const;
  void cancel_offer(HeldOffer& offer, Errc code);
  void seal_ended(Target& target, const Event& event);
  void answer_end(Target& target, uint64_t delivered, uint64_t unknown, bool all);
  void end_target(Target& target);
  void end_offer_if_over(HeldOffer& offer);
  void remember(const HeldOffer& offer, RefuseCode code);
  void free_ended();
  void clear_due(Target& target);
  void wake();
  PrefillEvent& emit(const HeldOffer& offer, PrefillEvent::Kind kind);

  // prefiller_messages.cc
  void message(const Event& event);
  void hello(PeerId peer, uint16_t channel, std::span<const std::byte> bytes);
  void from_unknown(PeerId peer, wire::MessageHead head, std::span<const std::byte> bytes);
  std::shared_ptr<const DecoderPlan> plan_for(std::span<const std::byte> layout);
  bool make_room_for(const DecoderPlan& plan);
  void grants(DecoderSession& session, std::span<const std::byte> bytes);
  void dispatch(DecoderSession& session, std::span<const std::byte> bytes);
  /// Why a dispatch is refused: a code, and a text.
  struct Refusing {
    RefuseCode code = RefuseCode::kNone;
    std::string text{};
  };
  Refusing check_session(const DecoderSession& session, const wire::Dispatch& dispatch) const;
  Refusing check_request(const DecoderSession& session, const wire::Dispatch& dispatch) const;
  Refusing check_offer_of(const DecoderSession& session, const wire::Dispatch& dispatch) const;
  Refusing check_pages(const DecoderSession& session, const wire::Dispatch& dispatch) const;
  void accept(DecoderSession& session, wire::Dispatch& dispatch, Batch batch);
  void set_records(Target& target, const wire::Dispatch& dispatch) const;
  void set_counter_keys(Target& target, const wire::Dispatch& dispatch) const;
  void note_serial(DecoderSession& session, uint64_t serial);
  static bool was_missed(const DecoderSession& session, uint64_t serial);
  void cancel_message(DecoderSession& session, std::span<const std::byte> bytes);
  void cancel_unknown(DecoderSession& session, uint64_t serial);
  void refuse(DecoderSession& session, uint64_t serial, const Refusing& refusing);
  void send(const DecoderSession& session, std::vector<std::byte> bytes);
  void flush_answers();
  void flush(PeerId peer, std::deque<QueuedAnswer>& queue);
  PrefillLoad current_load() const;

  // prefiller_push.cc
  void steps_done(uint64_t steps);
  /// Pushes the computed chunks of the target. False: the engine has no room, and it is blocked.
  bool advance(Target& target);
  enum class Push : uint8_t { kDone, kNoRoom, kFailed };
  Push prepare(Target& target, const PassChunk& chunk);
  Push push_step(Target& target);
  Push push_staged(Target& target, const StepPart& part, CounterKey counter_key);
  Push push_tail(Target& target);
  Push pushed(Target& target, const Result<OpId>& submitted);
  bool block(Target& target);
  void resume_blocked();
  void resume(std::deque<Target*>& blocked);
  void stop(Target& target, Target::End end);
  bool seal(Target& target);
  Result<void> check_entry(const PassEntry& entry) const;

  mutable std::mutex mutex_;
  Engine& engine_;
  PrefillerOptions options_;
  std::vector<uint32_t> layers_;
  std::map<std::vector<std::byte>, std::shared_ptr<const DecoderPlan>> plans_;  ///< by layout
  std::map<OfferId, std::unique_ptr<HeldOffer>> offers_;
  std::map<uint64_t, HeldOffer*> offers_by_number_;
  std::map<uint64_t, Target*> targets_;
  std::map<std::pair<PeerId, uint16_t>, std::unique_ptr<DecoderSession>> sessions_;
  std::map<OfferId, RefuseCode> ended_;  ///< attempts that are over, and how to answer a dispatch
  std::deque<OfferId> ended_order_;
  std::vector<PassRecord> passes_;  ///< a ring
  size_t first_pass_ = 0;
  size_t pass_count_ = 0;
  uint64_t announced_ = 0;  ///< steps of all passes so far
  uint64_t steps_ = 0;      ///< of those, done
  // What found no room in the engine, for each decoder: one that does not take its share keeps
  // only its own waiting.
  std::map<PeerId, std::deque<Target*>> blocked_;
  PeerId first_resumed_{};  ///< last time: the others have their turn before it
  std::map<PeerId, std::deque<QueuedAnswer>> answers_;
  PagePool slots_{0};                                        ///< of the staging region
  std::map<uint64_t, std::vector<uint32_t>> staged_writes_;  ///< the slots that each one reads
  std::vector<std::unique_ptr<Target>> dead_targets_;        ///< freed at the end of the call
  std::vector<std::unique_ptr<HeldOffer>> dead_offers_;
  Deadlines deadlines_;
  std::deque<PrefillEvent> events_;
  uint64_t next_number_ = 1;
  uint64_t queued_ = 0;
  bool draining_ = false;
  bool drained_reported_ = false;
  bool wake_pending_ = false;
  PrefillerStats stats_;
  // Last, hence destroyed first: no event reaches a half-destroyed prefiller.
  Inbox inbox_;
  Subscription messages_;
  Subscription engine_events_;
  std::optional<Watcher> watcher_;
};

}  // namespace fabric::kv::prefill
