#include <fabric/engine.h>

#include <algorithm>

#include "core/core.h"

// The public Engine, on any thread of the application: checks that the engine is open, takes the
// state lock where needed (set-up calls, never submit()), forwards.

namespace fabric {

using core::EngineCore;

Engine::Engine(std::shared_ptr<EngineCore> core) noexcept : core_(std::move(core)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&& other) noexcept {
  Engine dying(std::move(*this));
  core_ = std::move(other.core_);
  return *this;
}

Engine::~Engine() {
  if (core_ == nullptr) return;
  if (core_->forked()) {
    // Threads and networks belong to the parent: not even the reference count is touched
    // (contracts.md P21).
    new (EngineCore::leaked(sizeof core_)) std::shared_ptr<EngineCore>(std::move(core_));
    return;
  }
  if (core_->closing.load(std::memory_order_acquire)) return;
  if (close().error().code != Errc::kWouldDeadlock) return;
  // A callback cannot wait for the engine's threads, one of which may be running it: they keep what
  // they use.
  FABRIC_LOG(core_->log, kError, "core", "an engine was destroyed in a callback: it stays open");
  EngineCore& core = *core_;
  core.orphan = std::move(core_);
}

Result<Engine> Engine::open(const Config& config, std::shared_ptr<Runtime> runtime) {
  Driver* driver = runtime == nullptr ? nullptr : &runtime->driver();
  auto core = EngineCore::open(config, std::move(runtime), driver);
  if (!core) return core.error();
  return Engine(*std::move(core));
}

Result<void> Engine::close(Timeout timeout) {
  if (core_ == nullptr) return fail(Errc::kClosed, "engine");
  return core_->close(timeout);
}

namespace {
bool refused(const std::shared_ptr<EngineCore>& core) { return core == nullptr || core->refuses(); }
const Error kEngineClosed = {Errc::kClosed, 0, "engine", __FILE__, __LINE__};
}  // namespace

// Peers

std::vector<std::byte> Engine::address() const {
  if (refused(core_)) return {};
  const core::OpenStateGuard lock(*core_);
  if (!lock) return {};
  return control::encode(core_->peers.own_address(false));
}

std::string Engine::address_text() const { return control::address_to_text(address()); }

Result<PeerId> Engine::connect(std::span<const std::byte> address, const ConnectOptions& options) {
  if (refused(core_)) return kEngineClosed;
  auto parsed = control::decode_address(address);
  if (!parsed) return parsed.error();
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  core_->advance_clock(core_->driver->now_ns());
  auto peer = core_->peers.connect(*parsed, options);
  core_->kick();
  return peer;
}

Result<PeerId> Engine::connect(std::string_view address_text, const ConnectOptions& options) {
  if (refused(core_)) return kEngineClosed;
  auto bytes = control::address_from_text(address_text);
  if (!bytes) return bytes.error();
  return connect(*bytes, options);
}

Result<void> Engine::disconnect(PeerId id) {
  if (refused(core_)) return kEngineClosed;
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  core::Peer* peer = core_->peers.find(id);
  if (peer == nullptr) return fail(Errc::kNotFound, "peer");
  if (peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) {
    return fail(Errc::kPeerLost, "peer");
  }
  core_->advance_clock(core_->driver->now_ns());
  core_->peers.disconnect(*peer);
  core_->kick();
  return {};
}

Result<PeerInfo> Engine::peer_info(PeerId id) const {
  if (refused(core_)) return kEngineClosed;
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  const core::Peer* peer = core_->peers.find(id);
  if (peer == nullptr) return fail(Errc::kNotFound, "peer");
  return core_->peers.info(*peer);
}

std::vector<PeerId> Engine::peers(PeerFilter filter) const {
  if (refused(core_)) return {};
  const core::OpenStateGuard lock(*core_);
  if (!lock) return {};
  return core_->peers.list(filter);
}

Result<std::string> Engine::offer(const MemoryRegion& region, CounterKey key) const {
  if (refused(core_)) return kEngineClosed;
  auto desc = region.desc();
  if (!desc) return desc.error();
  return control::encode_offer({address(), *std::move(desc), key});
}

Result<Offer> Engine::accept(std::string_view text) {
  if (refused(core_)) return kEngineClosed;
  auto parts = control::decode_offer(text);
  if (!parts) return parts.error();
  auto peer = connect(parts->address);
  if (!peer) return peer.error();
  auto region = import_region(*peer, parts->desc);
  if (!region) return region.error();
  return Offer{*peer, *region, parts->key};
}

Result<PeerGroup> Engine::make_group(std::span<const PeerId> peers) {
  if (refused(core_)) return kEngineClosed;
  if (peers.empty()) return fail(Errc::kInvalidArgument, "peers");
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  for (const PeerId id : peers) {
    const core::Peer* peer = core_->peers.find(id);
    if (peer == nullptr) return fail(Errc::kNotFound, "peers");
    if (peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) {
      return fail(Errc::kPeerLost, "peers");
    }
  }
  uint32_t slot = 0;
  core_->sweep_groups();
  core::GroupSlot* group = core_->groups.acquire(slot);
  if (group == nullptr) return fail(Errc::kExhausted, "groups");
  group->peers.assign(peers.begin(), peers.end());
  auto state = std::make_shared<core::PeerGroupState>();
  state->core = core_;
  state->id = GroupId(slot, core_->groups.publish(slot));
  state->peers = group->peers;
  return PeerGroup(std::move(state));
}

// Memory

Result<MemoryRegion> Engine::register_memory(const Memory& memory) {
  if (refused(core_)) return kEngineClosed;
  auto id = core_->regions.register_memory(memory);
  if (!id) return id.error();
  auto state = std::make_shared<core::RegionState>();
  state->core = core_;
  state->id = *id;
  state->memory = memory;
  return MemoryRegion(std::move(state));
}

Result<MemoryRegion> Engine::allocate(const AllocateOptions& options) {
  if (refused(core_)) return kEngineClosed;
  if (options.size_bytes == 0) return fail(Errc::kInvalidArgument, "size_bytes");
  if (options.kind != MemoryKind::kHost) return fail(Errc::kUnsupported, "kind");
  auto pages = core::OwnedPages::allocate(options.size_bytes, options.huge_pages,
                                          core_->maps_memory, core_->log);
  if (!pages) return pages.error();
  auto region = register_memory({.address = pages->address(), .size_bytes = options.size_bytes});
  if (!region) {
    pages->unmap();  // no peer has an rkey to them
    return region.error();
  }
  region->state_->owned = *std::move(pages);
  return region;
}

Result<RemoteRegion> Engine::import_region(PeerId owner, std::span<const std::byte> desc) {
  if (refused(core_)) return kEngineClosed;
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  core::Peer* peer = core_->peers.find(owner);
  if (peer == nullptr) return fail(Errc::kNotFound, "owner");
  if (peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) {
    return fail(Errc::kPeerLost, "owner");
  }
  return core_->regions.import(*peer, desc);
}

// Notification

Result<Inbox> Engine::make_inbox(uint32_t depth) {
  if (refused(core_)) return kEngineClosed;
  constexpr uint32_t kDepthMax = 1u << 20;
  if (depth == 0 || depth > kDepthMax) return fail(Errc::kInvalidArgument, "depth");
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  auto state = std::make_shared<core::InboxState>();
  state->slot = core_->reporter.make_inbox(depth, state->index);
  if (state->slot == nullptr) return fail(Errc::kExhausted, "inboxes");
  state->generation = state->slot->last_generation;
  state->core = core_;
  return Inbox(std::move(state));
}

Result<Batch> Engine::make_batch() {
  if (refused(core_)) return kEngineClosed;
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  uint32_t index = 0;
  core::BatchSlot* slot = core_->reporter.make_batch(index);
  if (slot == nullptr) return fail(Errc::kExhausted, "batches_max");
  auto state = std::make_shared<core::BatchState>();
  state->core = core_;
  state->slot = slot;
  state->id = BatchId(index, slot->last_generation);
  return Batch(std::move(state));
}

Result<Counter> Engine::make_counter() {
  if (refused(core_)) return kEngineClosed;
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  auto key = core_->counters.make(core_->driver->now_ns());
  if (!key) return key.error();
  auto state = std::make_shared<core::CounterState>();
  state->core = core_;
  state->key = *key;
  return Counter(std::move(state));
}

Result<Counter> Engine::named_counter(uint64_t name) {
  if (refused(core_)) return kEngineClosed;
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  auto key = core_->counters.claim_name(name, core_->driver->now_ns());
  if (!key) return key.error();
  auto state = std::make_shared<core::CounterState>();
  state->core = core_;
  state->key = *key;
  state->named = true;
  state->name = name;
  return Counter(std::move(state));
}

Result<void> Engine::resolve(PeerId peer, std::span<const uint64_t> names,
                             std::span<CounterKey> out, Timeout timeout) {
  if (refused(core_)) return kEngineClosed;
  if (core::in_callback()) return fail(Errc::kWouldDeadlock, "a blocking call in a callback");
  auto batch = make_batch();
  if (!batch) return batch.error();
  auto op = submit(
      Resolve{.peer = peer, .names = names, .out = out, .timeout = timeout, .batch = batch->id()});
  if (!op) return op.error();
  // The operation has the deadline. It uses `out` until it is reported, so this waits without one.
  return core_->wait(*batch, Timeout::forever());
}

Result<CounterGroup> Engine::make_counter_group() {
  if (refused(core_)) return kEngineClosed;
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  auto key = core_->counters.make(core_->driver->now_ns());
  if (!key) return key.error();
  auto state = std::make_shared<core::CounterGroupState>();
  state->core = core_;
  state->parent = *key;
  core_->counters.add_group(*state);
  return CounterGroup(std::move(state));
}

Result<Watcher> Engine::make_watcher(Notify notify, const WatcherOptions& options) {
  if (refused(core_)) return kEngineClosed;
  using Kind = core::NotifyAccess::Kind;
  const Kind kind = core::NotifyAccess::kind(notify);
  if (kind != Kind::kCall && kind != Kind::kInbox) return fail(Errc::kInvalidArgument, "notify");
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  if (auto ok = core_->reporter.reserve(notify); !ok) return ok.error();
  core_->reporter.unreserve(notify);
  auto state = std::make_shared<core::WatcherState>();
  state->slot = core_->reporter.make_watcher(notify, options.polled, state->index);
  if (state->slot == nullptr) return fail(Errc::kExhausted, "watchers");
  state->generation = state->slot->last_generation;
  state->core = core_;
  return Watcher(std::move(state));
}

Result<Flag> Engine::make_flag(MemoryKind kind, int32_t gpu) {
  if (refused(core_)) return kEngineClosed;
  if (kind != MemoryKind::kHost) return fail(Errc::kUnsupported, "kind");
  if (gpu != -1) return fail(Errc::kInvalidArgument, "gpu");
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  auto state = std::make_shared<core::FlagState>();
  state->slot = core_->reporter.make_flag(state->index);
  if (state->slot == nullptr) return fail(Errc::kExhausted, "flags");
  state->generation = state->slot->last_generation;
  state->core = core_;
  return Flag(std::move(state));
}

Result<Subscription> Engine::listen(uint16_t channel, Notify notify) {
  if (refused(core_)) return kEngineClosed;
  auto state = std::make_shared<core::SubscriptionState>();
  state->notify = notify;
  state->is_listener = true;
  state->channel = channel;
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  auto ok = core_->reporter.subscribe(state);
  if (!ok) return ok.error();
  state->core = core_;
  return Subscription(std::move(state));
}

Result<Subscription> Engine::subscribe(Notify notify) {
  if (refused(core_)) return kEngineClosed;
  auto state = std::make_shared<core::SubscriptionState>();
  state->notify = notify;
  const core::OpenStateGuard lock(*core_);
  if (!lock) return kEngineClosed;
  auto ok = core_->reporter.subscribe(state);
  if (!ok) return ok.error();
  state->core = core_;
  for (const core::Peer* peer : core_->peers.all()) {
    const PeerState now = peer->state.load(std::memory_order_relaxed);
    if (now >= PeerState::kLost || !peer->announced) continue;
    Event event{.kind = EventKind::kPeer};
    event.peer = peer->id();
    event.value = static_cast<uint64_t>(now);
    event.previous_state = now;
    state->waiting.push_back({event, nullptr});
  }
  core_->reporter.flush();
  return Subscription(std::move(state));
}

// Operations

#define FABRIC_SUBMIT(Request)                          \
  Result<OpId> Engine::submit(const Request& request) { \
    if (core_ == nullptr) return kEngineClosed;         \
    return core_->submit(request);                      \
  }
FABRIC_SUBMIT(Write)
FABRIC_SUBMIT(PagedWrite)
FABRIC_SUBMIT(ListedWrites)
FABRIC_SUBMIT(Scatter)
FABRIC_SUBMIT(Signal)
FABRIC_SUBMIT(Send)
FABRIC_SUBMIT(Timer)
FABRIC_SUBMIT(Resolve)
FABRIC_SUBMIT(Fence)
FABRIC_SUBMIT(Drop)
FABRIC_SUBMIT(Revoke)
FABRIC_SUBMIT(Deregister)
#undef FABRIC_SUBMIT

Result<uint32_t> Engine::submit(std::span<const Write> requests) {
  if (core_ == nullptr) return kEngineClosed;
  return core_->submit(requests);
}

Result<void> Engine::cancel(OpId op) {
  if (core_ == nullptr) return kEngineClosed;
  return core_->cancel(op);
}

Result<void> Engine::cancel(BatchId batch) {
  if (core_ == nullptr) return kEngineClosed;
  return core_->cancel(batch);
}

Result<void> Engine::wait(BatchId batch, Timeout timeout) {
  if (core_ == nullptr) return kEngineClosed;
  return core_->wait(batch, timeout);
}

Nanos Engine::now() const noexcept {
  if (core_ == nullptr || core_->forked()) return {};
  return Nanos(core_->driver->now_ns());
}

uint32_t Engine::progress() noexcept {
  if (core_ == nullptr || core_->forked() || core_->closed.load(std::memory_order_acquire))
    return 0;
  return core_->driver->turn_one(*core_);
}

// Groups of peers

PeerGroup::PeerGroup(std::shared_ptr<const core::PeerGroupState> state) noexcept
    : state_(std::move(state)) {}
GroupId PeerGroup::id() const noexcept { return state_ == nullptr ? GroupId{} : state_->id; }
uint32_t PeerGroup::size() const noexcept {
  return state_ == nullptr ? 0 : static_cast<uint32_t>(state_->peers.size());
}
PeerId PeerGroup::operator[](uint32_t i) const noexcept {
  return i < size() ? state_->peers[i] : PeerId{};
}
std::span<const PeerId> PeerGroup::peers() const noexcept {
  return state_ == nullptr ? std::span<const PeerId>{} : std::span<const PeerId>(state_->peers);
}

core::PeerGroupState::~PeerGroupState() {
  if (core == nullptr) return;
  if (core->forked()) {
    new (EngineCore::leaked(sizeof core)) std::shared_ptr<EngineCore>(std::move(core));
    return;
  }
  const core::StateGuard lock(core->state_mutex);
  core->destroy_group(id);
}

// Subscriptions

Subscription::Subscription(std::shared_ptr<core::SubscriptionState> state) noexcept
    : state_(std::move(state)) {}
Subscription::Subscription(Subscription&&) noexcept = default;
Subscription& Subscription::operator=(Subscription&& other) noexcept {
  Subscription dying(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

Subscription::~Subscription() {
  if (state_ == nullptr || state_->core == nullptr) return;
  if (EngineCore::leak_if_forked(state_)) return;
  const std::shared_ptr<EngineCore> core = state_->core;
  {
    const core::StateGuard lock(core->state_mutex);
    core->reporter.unsubscribe(*state_);
    core->kick();  // answers messages that were held for it
  }
  // Waits for a running callback, unless this is that callback.
  std::lock_guard running(state_->running);
  state_->alive = false;
  state_->core = nullptr;  // a callback that is still queued keeps the state, not the engine
}

}  // namespace fabric
