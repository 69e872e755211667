#include "providers/shm/shm_peer.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "providers/shm/proof.h"

namespace fabric::shm {

namespace {
// More than the paths and blocks that can be announced at once.
constexpr uint32_t kSendQueueMax = 1u << 17;
// Prefaulted at a time: some 100 us.
constexpr uint64_t kPopulateBytes = 2u << 20;
}  // namespace

// Outgoing connection

bool ShmPeer::connect(const Self& self) {
  auto socket = connect_to(address_);
  connect_error_ = socket ? Error{} : socket.error();
  if (!socket) {
    // An engine listens before its address is known, so without a listener it has closed or died.
    const int32_t why = socket.error().native;
    stopped_listening_ = why == ECONNREFUSED || why == ENOENT;
    return false;
  }
  Greeting greeting = *self.greeting;
  greeting.connection = connection;
  const auto head = encode(Frame(greeting));
  const int descriptors[] = {self.writer_slots, self.header};
  // The first frame always fits into the buffer of a new socket.
  if (send_frame(socket->get(), head, {}, descriptors) != SendStatus::kSent) return false;
  out_ = *std::move(socket);
  own_header_ = self.own;
  own_header_->frames_sent[connection].fetch_add(
      1, std::memory_order_release);  // pairs with has_frames()
  return true;
}

void ShmPeer::send(const Frame& frame, std::shared_ptr<const UniqueFd> descriptor) {
  if (send_queue_.size() == kSendQueueMax) disconnect();
  send_queue_.push_back({encode(frame), std::move(descriptor)});
  flush();
}

bool ShmPeer::flush() {
  while (out_ && !send_queue_.empty()) {
    const QueuedFrame& next = send_queue_.front();
    const int raw = next.descriptor == nullptr ? -1 : next.descriptor->get();
    const SendStatus sent =
        send_frame(out_.get(), next.head, {}, std::span(&raw, next.descriptor == nullptr ? 0 : 1));
    if (sent == SendStatus::kFull) return false;
    if (sent == SendStatus::kBroken) {
      disconnect();
      return false;
    }
    send_queue_.pop_front();
    own_header_->frames_sent[connection].fetch_add(
        1, std::memory_order_release);  // pairs with has_frames()
  }
  return send_queue_.empty();
}

bool ShmPeer::send_now(std::span<const std::byte> head, std::span<const std::byte> rest) {
  if (!out_ || !flush()) return false;
  switch (send_frame(out_.get(), head, rest, {})) {
    case SendStatus::kSent:
      own_header_->frames_sent[connection].fetch_add(
          1, std::memory_order_release);  // pairs with has_frames()
      return true;
    case SendStatus::kFull:
      return false;
    case SendStatus::kBroken:
      disconnect();
      return false;
  }
  return false;
}

void ShmPeer::disconnect() noexcept {
  out_.reset();
  send_queue_.clear();
}

void ShmPeer::wake(uint64_t sleep_epoch) noexcept {
  if (!out_) return;
  static const std::vector<std::byte> kWake = encode(Frame(Wake{}));
  // A full socket is readable, which wakes the peer as well.
  if (send_frame(out_.get(), kWake, {}, {}) == SendStatus::kSent) {
    own_header_->frames_sent[connection].fetch_add(
        1, std::memory_order_release);  // pairs with has_frames()
  }
  woken_epoch_ = sleep_epoch;
}

// Incoming connection

Result<void> ShmPeer::accept_greeting(UniqueFd socket, const Greeting& greeting, Credentials who,
                                      std::span<UniqueFd> descriptors) {
  if (greeting.connection >= SharedHeader::kConnections)
    return fail(Errc::kBadFormat, "shm connection");
  if (dead_) return fail(Errc::kPeerLost, "shm connection");
  struct stat file {};
  if (::fstat(descriptors[1].get(), &file) != 0)
    return fail(Errc::kBadFormat, "shm connection", errno);
  // A second connection of an engine must pass the same header, because paths point into the first.
  if (header_ && file.st_ino != header_inode_) {
    return fail(Errc::kPermission, "shm: the greeting is of another engine");
  }
  if (!header_) {
    auto header = map_foreign(descriptors[1].get(), sizeof(SharedHeader), PeerAccess::kReadOnly);
    if (!header) return header.error();
    auto writer_slots = PeerWriterSlots::map(std::move(descriptors[0]), who.pid);
    if (!writer_slots) return writer_slots.error();
    header_ = *std::move(header);
    header_inode_ = file.st_ino;
    writer_slots_ = *std::move(writer_slots);
    pidfd_.reset(who.pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0)) : -1);
    dead_ = exited_ = who.pid > 0 && !pidfd_ && errno == ESRCH;  // died after it sent the greeting
  }
  in_ = std::move(socket);
  their_connection_ = greeting.connection;
  frames_seen_ = their_header()->frames_sent[their_connection_].load(std::memory_order_acquire) - 1;
  needs_barrier_ = !greeting.membarrier || !fence_support().membarrier;
  beacon = greeting.beacon;
  counts_arrivals = greeting.counts_arrivals;
  return {};
}

void ShmPeer::arrivals_received(UniqueFd descriptor) {
  if (arrivals_ || !header_) return;
  auto mapping = map_foreign(descriptor.get(), sizeof(ArrivalCount), PeerAccess::kReadWrite);
  if (mapping) arrivals_ = *std::move(mapping);
}

bool ShmPeer::check_dead() noexcept {
  if (dead_ || writer_slots_ == nullptr) return dead_;
  if (writer_slots_->process_died()) {
    dead_ = true;
  } else if (!in_ || !writer_slots_->any_held()) {
    // It closed its socket, or no thread of it holds a slot: only the pidfd shows its death,
    // because a child may keep the socket open.
    dead_ = exited();
  }
  return dead_;
}

bool ShmPeer::exited() noexcept {
  if (!exited_ && pidfd_) {
    pollfd process{pidfd_.get(), POLLIN, 0};
    exited_ = ::poll(&process, 1, 0) > 0;
  }
  return exited_;
}

void ShmPeer::release_resources() noexcept {
  disconnect();
  views_.clear();
  blocks_.clear();
  unpopulated_.clear();
  puller_ = {};
  pidfd_.reset();
  writer_slots_.reset();
  arrivals_ = {};
  header_ = {};
}

// Its registered memory

const ShmPeer::RkeyView& ShmPeer::find_rkey_view(uint32_t index, uint32_t generation) {
  const uint64_t rkey = uint64_t{generation} << 32 | index;
  none_ = {.access = RkeyView::Access::kStale};
  if (!header_ || index >= SharedHeader::kRkeys) return none_;
  const RkeyEntry& entry = their_header()->rkeys[index];
  if (entry.validity_epoch.load(std::memory_order_acquire) != generation) return none_;
  RkeyView found{.generation = generation,
                 .size_bytes = entry.size_bytes.load(std::memory_order_relaxed),
                 .validity_epoch = &entry.validity_epoch};
  const auto kind = static_cast<RkeyKind>(entry.kind.load(std::memory_order_relaxed));
  const uint64_t block = entry.block.load(std::memory_order_relaxed);
  const uint64_t offset = entry.offset.load(std::memory_order_relaxed);
  if (kind == RkeyKind::kPulled) {
    found.access = RkeyView::Access::kPulled;
  } else if (kind != RkeyKind::kMapped) {
    return none_;
  } else if (const auto mapped = blocks_.find(block); mapped != blocks_.end()) {
    const uint64_t bytes = mapped->second.size();
    if (offset > bytes || found.size_bytes > bytes - offset) return none_;
    found.access = RkeyView::Access::kMapped;
    found.base = mapped->second.data() + offset;
  } else if (unusable_.contains({block, rkey})) {
    return none_;
  } else {
    if (requested_.emplace(block, rkey).second) send(BlockRequest{block});
    none_ = {.access = RkeyView::Access::kRequested};
    return none_;
  }
  // Seqlock: the fields are consistent if the epoch has not changed.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.validity_epoch.load(std::memory_order_relaxed) != generation) return none_;
  if (index >= views_.size()) views_.resize(index + 1);
  return views_[index] = found;
}

void ShmPeer::block_received(const BlockReply& block, UniqueFd descriptor) {
  const auto requested = requested_.find(block.block);
  if (requested == requested_.end()) return;
  const uint64_t rkey = requested->second;
  requested_.erase(requested);
  auto mapping = map_foreign(descriptor.get(), block.size_bytes, PeerAccess::kReadWrite);
  if (mapping) {
    mapping->populate(0, kPopulateBytes);
    if (mapping->size() > kPopulateBytes) unpopulated_[block.block] = kPopulateBytes;
    blocks_[block.block] = *std::move(mapping);
  } else {
    unusable_.emplace(block.block, rkey);  // released or out of memory: refuse its writes
  }
}

bool ShmPeer::populate_some() noexcept {
  if (unpopulated_.empty()) return false;
  const auto next = unpopulated_.begin();
  const auto block = blocks_.find(next->first);
  if (block != blocks_.end()) block->second.populate(next->second, kPopulateBytes);
  next->second += kPopulateBytes;
  if (block == blocks_.end() || next->second >= block->second.size()) unpopulated_.erase(next);
  return true;
}

void ShmPeer::block_released(uint64_t block) noexcept {
  if (blocks_.erase(block) != 0) views_.clear();
}

}  // namespace fabric::shm
