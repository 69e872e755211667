#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/engine.h>
#include <fabric/export.h>
#include <fabric/kv_layout.h>
#include <fabric/kv_plan.h>
#include <fabric/result.h>

/// Moves the KV cache of requests from prefill ranks to decode ranks, on any engine.
///
/// A rank has one Decoder or one Prefiller. The decode side of a request calls Decoder::start()
/// with the pages that shall receive the cache, the prefill side calls Prefiller::offer() with the
/// pages that will hold it. Either may come first: they meet by request id and attempt. After each
/// layer the prefill side says so (layer_done(), or a word that a GPU kernel stores to), and the
/// pages of that layer are written to the decoder. The decoder knows the number of writes from the
/// plan (kv_plan.h) and reports kComplete when its counters have reached it: there is no "done"
/// message.
///
/// **Whose pages.** From start() on, the pages of a request belong to its page lease. They are the
/// caller's again with kMayWrite (after kComplete) or kPagesFree (after kFailed, kCancelled), and
/// never before: these two events are proofs that no write of the request can land any more, not
/// timers. Wrong:
///
///     if (event.kind == DecodeEvent::Kind::kFailed) pool.release(pages);  // may still be written
///
/// Right: give the request new pages at once, with the next attempt, and release the old ones when
/// their kPagesFree comes.
///
///     case DecodeEvent::Kind::kFailed:
///       decoder.start({.id = event.id, .attempt = event.attempt + 1, ..., .pages = other_pages});
///       break;
///     case DecodeEvent::Kind::kPagesFree:
///       pool.release(pages_of(event.id, event.attempt));
///
/// Everything is driven by poll(): call it once per step of the inference engine, or when fd() is
/// readable. No callbacks. Time comes from the engine, so all of it runs on the simulator too.
/// docs/kv_lifecycle.md has the life of a request, the state table and what happens in each
/// failure.
namespace fabric::kv {

inline constexpr uint32_t kRequestIdBytesMax = 256;
inline constexpr uint32_t kInfoBytesMax = 16384;              ///< DecodeRequest::info
inline constexpr uint64_t kStagingRecordBytesMax = 1u << 30;  ///< staging_record_bytes
inline constexpr uint32_t kSourcesMax = 256;  ///< prefill ranks that one request draws from
inline constexpr uint16_t kDefaultDecodeChannel = 0x4b44;
inline constexpr uint16_t kDefaultPrefillChannel = 0x4b50;

/// Why a prefiller does not take a dispatch.
enum class RefuseCode : uint8_t {
  kNone = 0,
  kCapacity,     ///< it holds as many requests as it may; try another one, or later
  kDraining,     ///< it is about to leave
  kNotOffered,   ///< no offer() came for the request in time, or it was cancelled there
  kDuplicate,    ///< (id, attempt) is known already: use a higher attempt
  kLayout,       ///< the two layouts have no plan
  kPlanDiffers,  ///< both sides planned, and the results differ: other versions or layouts
  kGrants,       ///< the descriptors cannot be imported
  kPages,        ///< page lists that do not fit the layout or the prompt
  kBadMessage,   ///< bytes that cannot be read, or another version
  /// It was opened after the decoder introduced itself, or that message was lost. The decoder does
  /// so again: use a higher attempt
  kUnknownDecoder,
};
FABRIC_EXPORT const char* to_string(RefuseCode code) noexcept;

/// Why a request will not complete.
enum class FailCode : uint8_t {
  kNone = 0,
  kRefused,        ///< DecodeEvent::refused says why
  kNotDelivered,   ///< the dispatch did not reach the prefiller
  kPeerLost,       ///< the prefiller is dead, unreachable, fenced or restarted
  kStalled,        ///< the prefiller did not answer for DecoderOptions::patience
  kDeadline,       ///< DecodeRequest::deadline
  kPrefillFailed,  ///< the prefiller gave up: cancelled there, or writes that failed
  kPoisoned,       ///< the fate of a write is unknown, so the counts prove nothing
  kRevoked,        ///< the grant that it shares with a request in doubt had to be revoked
};
FABRIC_EXPORT const char* to_string(FailCode code) noexcept;

/// How busy a prefiller is. Rides on its answers to dispatches.
struct PrefillLoad {
  uint32_t requests = 0;      ///< dispatches that it holds
  uint32_t requests_max = 0;  ///< and at most holds
  uint64_t queued = 0;        ///< as given to Prefiller::set_load(): tokens, for example
};

// ---- Decode side --------------------------------------------------------------------------------

/// Where a page of the decoder's cache is in the lives of its requests.
enum class PageState : uint8_t {
  kUnleased,     ///< no page lease: the caller's, free or in use
  kInFlight,     ///< writes may land: asked for, flowing, stopping or draining
  kReadable,     ///< of a complete request whose source has not said that it is quiet
  kFencing,      ///< the proof has been asked for
  kQuarantined,  ///< the proof did not come in time; it may still come
};
FABRIC_EXPORT const char* to_string(PageState state) noexcept;

struct DecoderOptions {
  Layout layout{};  ///< of this rank
  /// Region i of the layout, Layout::region_bytes[i] bytes or more. Never give a desc() of them to
  /// a prefiller: the decoder makes grants, which is what lets it prove that writes have ended.
  std::vector<const MemoryRegion*> regions{};
  const MemoryRegion* tail_region = nullptr;  ///< for hidden states and logits; optional
  uint64_t tail_slot_bytes = 0;               ///< tail slot s begins at s * tail_slot_bytes
  PlanOptions plan{};
  /// With plan.staging: where staged writes land before they are scattered into pages. Record r
  /// begins at r * staging_record_bytes and takes one unit of all layers, so it has at least the
  /// largest UnitList::staging_record_bytes of the plans: add_prefill() says how much that is. This
  /// region, and those of the layout, are host memory.
  const MemoryRegion* staging_region = nullptr;
  uint64_t staging_record_bytes = 0;

  uint16_t channel = kDefaultDecodeChannel;  ///< of this decoder; one for each on an engine
  uint32_t requests_max = 16384;             ///< leases at a time
  /// Reports and messages that wait for poll(). Each source of a request takes one of three
  /// quarters of it, until the request is over.
  uint32_t inbox_depth = 32768;
  /// Grants of each region that a prefill session gets. One that is in doubt takes the requests
  /// that share it with it. On EFA a grant is a registration of the whole region, made once.
  uint32_t grants_per_peer = 4;
  /// start() is refused when quarantine leaves fewer pages than this in a group, besides those that
  /// it asks for.
  uint32_t reserve_pages = 0;

  // All of them on the engine's clock.
  Nanos deadline{120'000'000'000};     ///< of a request without its own
  Nanos patience{5'000'000'000};       ///< a stalled prefiller; and four times that for its answers
  Nanos fence_timeout{5'000'000'000};  ///< without proof in this time pages are quarantined
};

/// A prefill rank that a request draws from.
struct Source {
  uint32_t rank = 0;      ///< index in Side::ranks of the prefill side
  PeerId peer{};          ///< an open session, or
  std::string address{};  ///< Engine::address_text(): connected to if there is no session yet
  uint16_t channel = kDefaultPrefillChannel;  ///< PrefillerOptions::channel
};

struct DecodeRequest {
  static constexpr uint32_t kNoTail = UINT32_MAX;

  std::string id{};               ///< 1 to kRequestIdBytesMax bytes
  uint32_t attempt = 0;           ///< larger each time that the request is sent again
  uint32_t prefill = 0;           ///< from add_prefill()
  std::vector<Source> sources{};  ///< those of source_ranks(), each once
  uint32_t prompt_tokens = 0;     ///< tokens whose cache is moved, cached ones included
  /// For each group of the decoder's layout, the tokens that are here already; empty: none.
  /// RequestTokens::cached_tokens has the rule for them.
  std::vector<uint32_t> cached_tokens{};
  /// For each group of the decoder's layout, the page ids of the request from its first token on.
  /// Entries of pages that nothing is written to (cached, before a window) may hold anything.
  std::vector<std::vector<uint32_t>> pages{};
  uint32_t tail_slot = kNoTail;
  uint32_t tail_rank = kNoTail;  ///< which source sends the tail; kNoTail: first of the last stage
  bool per_layer = false;        ///< a counter for each layer: layer_ready(), kLayer
  Nanos deadline{};              ///< 0: DecoderOptions::deadline
  /// For the prefill side's eyes (PrefillEvent::info): a prompt, sampling options.
  std::vector<std::byte> info{};
};

struct DecodeEvent {
  enum class Kind : uint8_t {
    kAccepted,   ///< the source `rank` holds the request
    kLayer,      ///< `layer` may be read; per_layer only, in ascending order for each source
    kComplete,   ///< everything may be read. Pages may not be written yet, unless kMayWrite follows
    kMayWrite,   ///< after kComplete: the pages are the caller's. Last event of the attempt
    kFailed,     ///< it will not complete; `fail`, `rank`, `text`. Pages stay leased
    kCancelled,  ///< after cancel(): all sources have stopped or are being fenced. `landed`
    kPagesFree,  ///< after kFailed or kCancelled: pages are the caller's. Last event of the attempt
    kQuarantined,  ///< a proof is late: pages of this attempt stay leased until it comes
    kDrained,      ///< after drain(): no page lease is left
  };
  Kind kind = Kind::kComplete;
  std::string id{};
  uint32_t attempt = 0;
  uint32_t layer = 0;
  uint32_t rank = 0;  ///< the prefill rank that it is about
  FailCode fail = FailCode::kNone;
  RefuseCode refused = RefuseCode::kNone;
  /// kCancelled: writes that landed, as far as proved. kComplete: all of them.
  uint64_t landed = 0;
  std::string text{};  ///< human-readable
};
FABRIC_EXPORT const char* to_string(DecodeEvent::Kind kind) noexcept;

struct DecoderStats {
  // Now.
  uint64_t requests = 0;   ///< leases
  uint64_t in_flight = 0;  ///< (request, source) pairs by state
  uint64_t stopping = 0;
  uint64_t draining = 0;
  uint64_t awaiting_quiet = 0;
  uint64_t fencing = 0;
  uint64_t quarantined = 0;
  uint64_t pages_leased = 0;
  uint64_t pages_quarantined = 0;
  uint64_t staging_records = 0;  ///< of DecoderOptions::staging_region, that leases hold
  uint64_t grants = 0;           ///< of single regions
  // Since the decoder was made.
  uint64_t started = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t cancelled = 0;
  uint64_t waited_for_counts = 0;  ///< confirmations that overtook the counts
  uint64_t waited_for_quiet = 0;
  uint64_t revokes = 0;  ///< of grant sets, and how many were proved
  uint64_t fences = 0;   ///< of sessions
  uint64_t fences_proved = 0;
  uint64_t fences_late = 0;     ///< quarantined first
  uint64_t stale_messages = 0;  ///< about requests that are over: expected after races
  uint64_t bad_messages = 0;    ///< bytes that cannot be read
};

/// The decode side of one rank.
///
/// Lifetime: engine and regions outlive it and are not moved. A Decoder that is destroyed with
///   leases gives no proof for their pages: drain() it first, or deregister the regions.
/// Threads: one at a time.
class FABRIC_EXPORT Decoder {
 public:
  /// Fails with kInvalidArgument (layout, regions, tail_region, staging_region, an option of 0),
  /// kUnsupported (staging_region with memory that is not the host's), kBusy (channel) and
  /// kExhausted.
  static Result<Decoder> open(Engine& engine, const DecoderOptions& options);
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  /// Plans the transfer from a prefill side to this rank. The same side gives the same number.
  ///
  /// Cost: plan(). Once for each layout of prefill engines, not per request.
  /// Fails as plan() does, and with kExhausted (256 sides), kUnsupported (a plan with staged writes
  /// and no staging_region) and kTooLarge (staging_record_bytes is less than such a plan needs:
  /// native).
  Result<uint32_t> add_prefill(const Side& side, Refusal* refusal = nullptr);
  /// The prefill ranks that send something to this rank. Fails with kNotFound.
  Result<std::vector<uint32_t>> source_ranks(uint32_t prefill) const;
  /// Writes of a request, over all its sources, the tail included. Fails as start() does.
  Result<uint64_t> count(const DecodeRequest& request) const;

  /// Leases the pages and dispatches the request to its sources. With attempt + 1 also while an
  /// earlier attempt still holds its pages.
  ///
  /// Cost: a counter (with per_layer one for each layer) and a message for each source. What is
  /// staged is copied once more, by the poll() or wait_layer() that finds the counts.
  /// Fails with kInvalidArgument (id, attempt not larger than those before, prompt_tokens,
  /// cached_tokens, sources, tail_slot, a page twice: native is its id), kOutOfBounds (a page at or
  /// past the pool: native), kBusy (id and attempt, or a page or tail slot that a page lease holds:
  /// native), kNotFound (prefill, peer), kTooLarge (the dispatch does not fit in a message: native
  /// is its size), kExhausted (requests_max, inbox_depth, counters, reserve_pages, or
  /// staging_region: native is the number of records that the request needs), kClosed (draining)
  /// and as Engine::connect() does. Nothing is leased then.
  Result<void> start(const DecodeRequest& request);
  /// Stops the newest attempt of a request; older ones are stopping already. kCancelled and
  /// kPagesFree follow. Without effect when it is complete, failed or cancelled already.
  /// Fails with kNotFound.
  Result<void> cancel(std::string_view id);
  /// Refuses start() from now on. Requests go on; with `stop` they are cancelled. kDrained follows
  /// when no page lease is left.
  void drain(bool stop = false);

  /// Whether a layer of the newest attempt may be read. Fails with kNotFound (id: unknown or over;
  /// layer: not in the plan) and kCancelled (it will not complete).
  Result<bool> layer_ready(std::string_view id, uint32_t layer) const;
  /// Blocks until it may be read. Events that come up stay for poll(). Fails as layer_ready() does,
  /// and with kTimeout.
  Result<void> wait_layer(std::string_view id, uint32_t layer, Timeout timeout = {});

  /// Does everything that is due and moves up to out.size() events into `out`.
  uint32_t poll(std::span<DecodeEvent> out);
  /// Blocks until poll() has something to do. Drives progress when the engine is inline. Returns
  /// also when that leads to no event.
  Result<void> wait(Timeout timeout = {});
  /// Readable when poll() has something to do, for epoll and asyncio.
  Result<int> fd();

  PageState page_state(uint32_t group, uint32_t page) const noexcept;
  /// As of its last answer; nothing before that.
  std::optional<PrefillLoad> load(PeerId peer) const;
  DecoderStats stats() const;

 private:
  struct Impl;
  explicit Decoder(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// ---- Prefill side -------------------------------------------------------------------------------

struct PrefillerOptions {
  Side side{};                      ///< all ranks of the prefill engine
  uint32_t rank = 0;                ///< which of them this one is
  std::vector<RegionId> regions{};  ///< region i of the layout of this rank
  PlanOptions plan{};
  /// With plan.staging: where staged writes are gathered. Slot s begins at s * staging_slot_bytes
  /// and takes one unit of one layer; it is taken until its write has completed. Dispatches whose
  /// plan needs larger slots are refused with kLayout. One slot is enough for any request, more let
  /// writes overlap: a push that finds none waits for one, in the order of all pushes that wait.
  const MemoryRegion* staging_region = nullptr;
  uint64_t staging_slot_bytes = 0;
  /// The bytes of `regions`, in their order, for the gathering: host memory.
  std::vector<std::span<const std::byte>> staging_sources{};

  uint16_t channel = kDefaultPrefillChannel;  ///< of this prefiller; one for each on an engine
  uint32_t requests_max = 4096;  ///< dispatches held at a time; at most Config::batches_max
  uint32_t offers_max = 16384;   ///< offers without a dispatch
  uint32_t decoders_max = 1024;  ///< sessions of decoders
  uint32_t passes_max = 64;      ///< passes whose last layer is not done
  uint32_t prompt_tokens_max =
      1u << 21;  ///< of a dispatch; bounds what a peer can make this allocate
  uint32_t inbox_depth = 8192;
  bool watch_word =
      false;  ///< make word(); layers are then pushed from the engine's callback thread
  bool polled_word = true;  ///< WatcherOptions::polled

  // All of them on the engine's clock.
  Nanos offer_wait{120'000'000'000};    ///< how long an offer and a dispatch wait for each other
  Nanos write_timeout{30'000'000'000};  ///< of each write
};

/// What the prefill side computes for one request.
struct OfferRequest {
  std::string id{};
  uint32_t attempt = 0;
  uint32_t prompt_tokens = 0;  ///< equal to that of the dispatch, or the dispatch is refused
  /// Page ids for each group of this rank's layout, from the first token on. More may come with the
  /// passes.
  std::vector<std::vector<uint32_t>> pages{};
  /// Decode ranks that draw from this rank (source_ranks()): dispatches to wait for. A decode rank
  /// that has everything cached sends none; then cancel() the offer.
  uint32_t targets = 1;
};

/// One request in a pass of the model over all layers.
struct PassEntry {
  std::string_view id{};
  uint32_t attempt = 0;
  TokenRange tokens{};  ///< the chunk; the first one begins at 0, the next where the last one ended
  std::span<const std::vector<uint32_t>> more_pages{};  ///< appended, for each group; or empty
};

/// What follows the cache of a request: hidden states, logits.
struct PrefillTail {
  LocalRef source{};
  uint64_t size_bytes = 0;  ///< at most DecoderOptions::tail_slot_bytes; 0: no bytes
};

struct PrefillEvent {
  enum class Kind : uint8_t {
    kDispatched,   ///< a decode rank asks for the request; `peer`, `prompt_tokens`, `info`
    kRefused,      ///< a dispatch was refused; `refused`, `text`
    kCancelled,    ///< a decode rank wants it no more
    kDecoderLost,  ///< a decode rank is gone
    /// The request is over here and its source pages are free. `code` is kOk when all decode ranks
    /// have everything, else why not. Last event of the attempt.
    kSourceFree,
    kDrained,  ///< after drain(): no request is left
  };
  Kind kind = Kind::kSourceFree;
  std::string id{};
  uint32_t attempt = 0;
  PeerId peer{};
  Errc code = Errc::kOk;
  RefuseCode refused = RefuseCode::kNone;
  uint32_t prompt_tokens = 0;
  uint64_t delivered = 0;  ///< kSourceFree: writes, over all decode ranks
  uint64_t unknown = 0;
  std::vector<std::byte> info{};
  std::string text{};
};
FABRIC_EXPORT const char* to_string(PrefillEvent::Kind kind) noexcept;

struct PrefillerStats {
  // Now.
  uint64_t requests = 0;       ///< offered
  uint64_t dispatches = 0;     ///< held, waiting ones included
  uint64_t waiting = 0;        ///< of those, without an offer
  uint64_t blocked = 0;        ///< of those, waiting for room in the engine's queue
  uint64_t decoders = 0;       ///< sessions
  uint64_t tombstones = 0;     ///< ended attempts that are remembered
  uint64_t passes = 0;         ///< not done
  uint64_t staging_slots = 0;  ///< of PrefillerOptions::staging_region, that writes hold
  // Since the prefiller was made.
  uint64_t accepted = 0;
  uint64_t refused = 0;
  uint64_t sent = 0;       ///< dispatches that got everything
  uint64_t cancelled = 0;  ///< by their decoders
  uint64_t failed = 0;
  uint64_t layers_pushed = 0;   ///< (dispatch, layer)
  uint64_t exhausted = 0;       ///< pushes that had to wait for room
  uint64_t bad_steps = 0;       ///< values of word() beyond what pass() announced
  uint64_t duplicates = 0;      ///< dispatches that came again
  uint64_t stale_messages = 0;  ///< cancels of dispatches that are over here
  uint64_t early_cancels = 0;   ///< of those, cancels of dispatches that never came
  uint64_t bad_messages = 0;
};

/// The prefill side of one rank.
///
///     prefiller.offer({.id = id, .prompt_tokens = n, .pages = pages});
///     uint64_t begin = *prefiller.pass(entries);        // before the pass is launched
///     for (uint32_t i = 0; i < layers; ++i) {
///       compute(i);
///       prefiller.layer_done(begin + i + 1);            // or the GPU stores it to word()
///     }
///     prefiller.finish(id, attempt, {.source = tail.at(0), .size_bytes = size});  // last chunk
///     ...
///     case PrefillEvent::Kind::kSourceFree: pool.release(pages_of(event.id));
///
/// Lifetime: as for Decoder. Source pages are read until kSourceFree.
/// Threads: every function from any thread, under one lock; wait() from one at a time. With
///   watch_word layers are pushed on the engine's callback thread, without poll().
class FABRIC_EXPORT Prefiller {
 public:
  /// Fails with kInvalidArgument (side, rank, regions, staging_region, an option of 0),
  /// kUnsupported (a staging_region that is not host memory), kBusy (channel), kExhausted.
  static Result<Prefiller> open(Engine& engine, const PrefillerOptions& options);
  Prefiller(Prefiller&&) noexcept;
  Prefiller& operator=(Prefiller&&) noexcept;
  ~Prefiller();

  /// Fails with kInvalidArgument (id, prompt_tokens, pages: one list for each group, targets),
  /// kOutOfBounds (a page: native), kBusy (id and attempt), kCancelled (every dispatch of it has
  /// been cancelled already), kExhausted (offers_max) and kClosed (draining).
  Result<void> offer(const OfferRequest& request);
  /// Announces a pass before it is launched. Returns its first step: `steps` of layer_done() is
  /// that number when none of its layers is done, and layers().size() more when all are. Entries of
  /// attempts that are over are skipped.
  ///
  /// Cost: two page lists for each entry, decode rank and group.
  /// Fails with kInvalidArgument (tokens: not where the last chunk ended, or past the prompt; pages
  /// that do not reach its end; more_pages), kNotFound (id), kOutOfBounds and kExhausted
  /// (passes_max). No entry takes effect then.
  Result<uint64_t> pass(std::span<const PassEntry> entries);
  /// All steps below `steps` are done, as counted by pass(). Pushes the layers passed since then.
  /// Steps may be merged; a smaller number has no effect.
  ///
  /// Cost: one PagedWrite for each plan slice (usually: tensor) of each entry. Allocates nothing.
  /// Staged writes are gathered here, and allocate their page indices.
  /// Fails with kInvalidArgument: more steps than passes were announced.
  Result<void> layer_done(uint64_t steps);
  /// What a GPU kernel (or word_store()) sets to `steps`; nullptr without watch_word.
  uint64_t* word() const noexcept;
  uint64_t word_gpu_address() const noexcept;
  void word_store(uint64_t steps) noexcept;
  /// The layers of this rank in the order of the steps of a pass: ascending global ids.
  std::span<const uint32_t> layers() const noexcept;

  /// The last pass of the request has been announced, and the tail is in place. Sent to the decode
  /// ranks that asked for it.
  ///
  /// Fails with kNotFound (id), kInvalidArgument (chunks that do not reach the end of the prompt)
  /// and kBusy (called before).
  Result<void> finish(std::string_view id, uint32_t attempt, const PrefillTail& tail = {});
  /// Gives up: the decoders get the number of writes that landed. kSourceFree follows. Fails with
  /// kNotFound.
  Result<void> cancel(std::string_view id, uint32_t attempt);
  /// Refuses dispatches and offers from now on; kDrained follows when no request is left. With
  /// `stop` all requests are cancelled.
  void drain(bool stop = false);
  void set_load(uint64_t queued) noexcept;  ///< PrefillLoad::queued of the next answers

  uint32_t poll(std::span<PrefillEvent> out);
  Result<void> wait(Timeout timeout = {});
  Result<int> fd();
  PrefillerStats stats() const;

 private:
  struct Impl;
  explicit Prefiller(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// ---- Page ids -----------------------------------------------------------------------------------

/// A small allocator of page ids, for examples and tests. Inference engines have their own.
///
/// Threads: one at a time.
class FABRIC_EXPORT PagePool {
 public:
  explicit PagePool(uint32_t pages);
  /// The ids that were released longest ago come first, so that early reuse is rare and a late
  /// write is found by what it destroys. Fails with kExhausted: nothing is taken.
  Result<std::vector<uint32_t>> allocate(uint32_t count);
  /// Fails with kInvalidArgument (a page that is free or not of this pool: native): nothing is
  /// released.
  Result<void> release(std::span<const uint32_t> pages);
  uint32_t free() const noexcept { return free_; }
  uint32_t size() const noexcept { return static_cast<uint32_t>(used_.size()); }
  bool is_free(uint32_t page) const noexcept { return page < size() && !used_[page]; }

 private:
  std::vector<uint32_t> ring_;  ///< free ids, a circular queue of `free_` entries
  std::vector<bool> used_;
  uint32_t next_ = 0;
  uint32_t free_ = 0;
};

}  // namespace fabric::kv
