#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "core/core.h"

// The public handles of inboxes, flags, watchers and regions. Each keeps the engine's core alive,
// and has no effect once the engine is closed. Any thread of the application: polling an inbox and
// reading or storing a flag or a watched word take no lock; making, arming and destroying take the
// state lock for a moment.

namespace fabric {

using core::EngineCore;

namespace {
uint64_t packed(uint32_t slot, uint32_t generation) {
  return static_cast<uint64_t>(generation) << 32 | slot;
}
}  // namespace

// Notify

Notify Notify::inbox(Inbox& inbox, uint64_t tag) noexcept {
  Notify notify(Kind::kInbox, nullptr, nullptr, tag, 0);
  notify.handle_ = 0;
  if (inbox.state_ != nullptr) {
    notify.target_ = inbox.state_->core.get();
    notify.handle_ = packed(inbox.state_->index, inbox.state_->generation);
  }
  return notify;
}

Notify Notify::flag(Flag& flag, uint32_t value) noexcept {
  Notify notify(Kind::kFlag, nullptr, nullptr, 0, value);
  notify.handle_ = 0;
  if (flag.state_ != nullptr) {
    notify.target_ = flag.state_->core.get();
    notify.handle_ = packed(flag.state_->index, flag.state_->generation);
  }
  return notify;
}

// Inbox

Inbox::Inbox(std::shared_ptr<core::InboxState> state) noexcept : state_(std::move(state)) {}
Inbox::Inbox(Inbox&&) noexcept = default;
Inbox& Inbox::operator=(Inbox&& other) noexcept {
  Inbox dying(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

Inbox::~Inbox() {
  if (state_ == nullptr) return;
  if (EngineCore::leak_if_forked(state_)) return;
  EngineCore& core = *state_->core;
  for (const core::EventExtra& extra : state_->taken) core.reporter.release_extra(extra);
  const core::StateGuard lock(core.state_mutex);
  core.reporter.drop_inbox(state_->index);
}

uint32_t Inbox::poll(std::span<Event> out) noexcept {
  if (state_ == nullptr || state_->core->forked()) return 0;
  EngineCore& core = *state_->core;
  core::InboxSlot& slot = *state_->slot;
  for (const core::EventExtra& extra : state_->taken) core.reporter.release_extra(extra);
  state_->taken.clear();
  if (out.empty()) return 0;  // the descriptor stays readable
  if (const int fd = slot.fd.load(std::memory_order_relaxed); fd >= 0) {
    // Before the queue is read: an event that comes later makes it readable again.
    uint64_t count = 0;
    [[maybe_unused]] const auto n = ::read(fd, &count, sizeof count);
  }
  uint32_t n = 0;
  core::InboxEntry entry;
  while (n < out.size() && slot.ring->pop(entry)) {
    out[n++] = entry.event;
    const bool owes = entry.extra.message != nullptr || entry.extra.watcher_generation != 0;
    if (owes && entry.extra.message != nullptr) {
      state_->taken.push_back(entry.extra);
    } else if (owes) {
      core.reporter.release_extra(entry.extra);
    }
  }
  if (n == 0) return 0;
  slot.reserved.fetch_sub(n, std::memory_order_seq_cst);  // before the look at `starved` below
  if (n == out.size() && !slot.ring->empty()) {
    // More events than were asked for: the descriptor must stay readable.
    if (const int fd = slot.fd.load(std::memory_order_relaxed); fd >= 0) {
      const uint64_t one = 1;
      [[maybe_unused]] const auto written = ::write(fd, &one, sizeof one);
    }
  }
  // Pairs with reserve_or_starve(): an event may wait for the room that was just made.
  if (slot.starved.exchange(false, std::memory_order_seq_cst)) core.kick();
  core.inbox_read();
  return n;
}

Result<void> Inbox::wait(Timeout timeout) noexcept {
  if (state_ == nullptr || state_->core->forked()) return fail(Errc::kClosed, "engine");
  EngineCore& core = *state_->core;
  core::InboxSlot& slot = *state_->slot;
  const auto ready = [&] {
    return !slot.ring->empty() || core.closed.load(std::memory_order_acquire);
  };
  if (auto ok = core.block(slot.event_count, ready, timeout); !ok) return ok;
  if (slot.ring->empty()) return fail(Errc::kClosed, "engine");
  return {};
}

Result<int> Inbox::fd() {
  if (state_ == nullptr) return fail(Errc::kClosed, "engine");
  // Events are pushed under the same lock: each is either seen here, or signals the descriptor.
  const core::OpenStateGuard lock(*state_->core);
  if (!lock) return fail(Errc::kClosed, "engine");
  core::InboxSlot& slot = *state_->slot;
  if (const int fd = slot.fd.load(std::memory_order_relaxed); fd >= 0) return fd;
  const int fd = ::eventfd(slot.ring->empty() ? 0 : 1, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) return fail(Errc::kExhausted, "eventfd", errno);
  slot.fd.store(fd, std::memory_order_release);  // pairs with push_inbox()
  return fd;
}

// Flag

Flag::Flag(std::shared_ptr<core::FlagState> state) noexcept : state_(std::move(state)) {}
Flag::Flag(Flag&&) noexcept = default;
Flag& Flag::operator=(Flag&& other) noexcept {
  Flag dying(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

Flag::~Flag() {
  if (state_ == nullptr) return;
  if (EngineCore::leak_if_forked(state_)) return;
  EngineCore& core = *state_->core;
  const core::StateGuard lock(core.state_mutex);
  core.reporter.drop_flag(state_->index);
}

uint32_t Flag::load() const noexcept {
  // Acquire pairs with the release in Reporter::deliver().
  return state_ == nullptr ? 0 : state_->slot->word.load(std::memory_order_acquire);
}
void Flag::store(uint32_t value) noexcept {
  if (state_ != nullptr) state_->slot->word.store(value, std::memory_order_release);
}
uint64_t Flag::gpu_address() const noexcept { return 0; }

// Watcher

Watcher::Watcher(std::shared_ptr<core::WatcherState> state) noexcept : state_(std::move(state)) {}
Watcher::Watcher(Watcher&&) noexcept = default;
Watcher& Watcher::operator=(Watcher&& other) noexcept {
  Watcher dying(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

Watcher::~Watcher() {
  if (state_ == nullptr) return;
  if (EngineCore::leak_if_forked(state_)) return;
  EngineCore& core = *state_->core;
  {
    const core::StateGuard lock(core.state_mutex);
    core.reporter.arm_watcher(state_->index, false);
    core.reporter.watchers.hide(state_->index);
  }
  // Waits for a running callback of this watcher, unless this is that callback.
  { std::lock_guard running(state_->slot->running); }
  const core::StateGuard lock(core.state_mutex);
  core.reporter.drop_watcher(state_->index);
}

uint64_t* Watcher::word() const noexcept {
  return state_ == nullptr ? nullptr : &state_->slot->word;
}
uint64_t Watcher::gpu_address() const noexcept { return 0; }

void Watcher::store(uint64_t value) noexcept {
  if (state_ == nullptr || state_->core->forked()) return;
  // Release pairs with the acquire in Reporter::poll_watchers().
  __atomic_store_n(&state_->slot->word, value, __ATOMIC_RELEASE);
  state_->core->kick();
}

void Watcher::arm() noexcept {
  if (state_ == nullptr) return;
  const core::OpenStateGuard lock(*state_->core);
  if (!lock) return;
  state_->core->reporter.arm_watcher(state_->index, true);
  state_->core->kick();
}

void Watcher::disarm() noexcept {
  if (state_ == nullptr) return;
  const core::OpenStateGuard lock(*state_->core);
  if (!lock) return;
  state_->core->reporter.arm_watcher(state_->index, false);
}

// MemoryRegion

MemoryRegion::MemoryRegion(std::shared_ptr<core::RegionState> state) noexcept
    : state_(std::move(state)) {}
MemoryRegion::MemoryRegion(MemoryRegion&&) noexcept = default;
MemoryRegion& MemoryRegion::operator=(MemoryRegion&& other) noexcept {
  MemoryRegion dying(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

MemoryRegion::~MemoryRegion() {
  if (state_ == nullptr) return;
  if (EngineCore::leak_if_forked(state_)) return;
  EngineCore& core = *state_->core;
  bool proved = core.end_region(state_->id);
  if (!state_->owned) return;
  if (!proved && core::in_callback()) {
    // A callback cannot wait. The region unmaps the pages when it is released, unless it just was.
    const core::StateGuard lock(core.state_mutex);
    if (core.regions.adopt_pages(state_->id, state_->owned)) return;
    proved = true;
  }
  if (proved) {
    state_->owned.unmap();
  } else {
    // A peer may still write there: better leaked than reused.
    FABRIC_LOG(core.log, kWarning, "core", "memory is leaked: no proof that no peer writes to it",
               {"region", state_->id}, {"bytes", state_->owned.size_bytes()});
  }
}

RegionId MemoryRegion::id() const noexcept { return state_ == nullptr ? RegionId{} : state_->id; }
uint64_t MemoryRegion::size_bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->memory.size_bytes;
}

std::span<std::byte> MemoryRegion::bytes() const noexcept {
  if (state_ == nullptr || state_->memory.kind != MemoryKind::kHost) return {};
  return {static_cast<std::byte*>(state_->memory.address), state_->memory.size_bytes};
}

Result<LocalRef> MemoryRegion::find(const void* address, uint64_t size_bytes) const noexcept {
  if (state_ == nullptr) return fail(Errc::kNotFound, "region");
  const auto base = reinterpret_cast<uint64_t>(state_->memory.address);
  const auto at = reinterpret_cast<uint64_t>(address);
  const uint64_t limit = state_->memory.size_bytes;
  if (at < base || at - base > limit || size_bytes > limit - (at - base)) {
    return fail(Errc::kOutOfBounds, "address");
  }
  return LocalRef{state_->id, at - base};
}

Result<std::vector<std::byte>> MemoryRegion::desc() const {
  if (state_ == nullptr) return fail(Errc::kNotFound, "region");
  if (state_->core->refuses()) return fail(Errc::kClosed, "engine");
  return state_->core->regions.desc(state_->id);
}

Result<Grant> MemoryRegion::grant(PeerId peer) const {
  if (state_ == nullptr) return fail(Errc::kNotFound, "region");
  if (state_->core->refuses()) return fail(Errc::kClosed, "engine");
  return state_->core->regions.grant(state_->id, peer);
}

}  // namespace fabric

namespace fabric::core {

bool EngineCore::end_region(RegionId id) {
  const auto released = [&] {
    const StateGuard lock(state_mutex);
    return networks.empty() || regions.released(id);  // without a network nothing can land
  };
  if (released()) return true;
  if (!refuses()) {
    Notify none;
    auto op =
        submit(Deregister{.region = id, .timeout = Timeout(config.drain_timeout), .notify = none});
    // If it is being deregistered already, or no slot is free, the wait below is still right.
    if (!op && op.error().code == Errc::kExhausted) {
      const StateGuard lock(state_mutex);
      advance_clock(driver->now_ns());
      if (regions.local(id) != nullptr) regions.begin_deregister(id.slot);
      kick();
    }
  }
  if (in_callback() || closed.load(std::memory_order_acquire)) return released();
  return wait_until(config.drain_timeout.count(), released);
}

}  // namespace fabric::core
