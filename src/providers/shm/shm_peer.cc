#include "providers/shm/shm_peer.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "providers/shm/proof.h"

namespace fabric::shm {

namespace {
// More than any number of paths and blocks that are shown at once.
constexpr uint32_t kWaitingMax = 1u << 17;
// Entered into the page table at a time: some 100 us.
constexpr uint64_t kPopulateBytes = 2u << 20;
}  // namespace

// The line out

bool Neighbour::connect(const Self& self) {
  auto socket = connect_to(address_);
  obstacle_ = socket ? Error{} : socket.error();
  if (!socket) {
    // Who listened before anybody knew its address, and listens no more, has closed or died.
    const int32_t why = socket.error().native;
    refuses_ = why == ECONNREFUSED || why == ENOENT;
    return false;
  }
  Greeting greeting = *self.greeting;
  greeting.line = line;
  const auto head = encode(Frame(greeting));
  const int descriptors[] = {self.cards, self.front};
  // The first frame on a new socket always finds room.
  if (send_frame(socket->get(), head, {}, descriptors) != Sent::kYes) return false;
  out_ = *std::move(socket);
  own_front_ = self.own;
  own_front_->sent[line].fetch_add(1, std::memory_order_release);  // pairs with has_mail()
  return true;
}

void Neighbour::send(const Frame& frame, std::shared_ptr<const UniqueFd> descriptor) {
  if (pending_.size() == kWaitingMax) hang_up();
  pending_.push_back({encode(frame), std::move(descriptor)});
  flush();
}

bool Neighbour::flush() {
  while (out_ && !pending_.empty()) {
    const Waiting& next = pending_.front();
    const int raw = next.descriptor == nullptr ? -1 : next.descriptor->get();
    const Sent sent =
        send_frame(out_.get(), next.head, {}, std::span(&raw, next.descriptor == nullptr ? 0 : 1));
    if (sent == Sent::kFull) return false;
    if (sent == Sent::kBroken) {
      hang_up();
      return false;
    }
    pending_.pop_front();
    own_front_->sent[line].fetch_add(1, std::memory_order_release);  // pairs with has_mail()
  }
  return pending_.empty();
}

bool Neighbour::send_now(std::span<const std::byte> head, std::span<const std::byte> rest) {
  if (!out_ || !flush()) return false;
  switch (send_frame(out_.get(), head, rest, {})) {
    case Sent::kYes:
      own_front_->sent[line].fetch_add(1, std::memory_order_release);  // pairs with has_mail()
      return true;
    case Sent::kFull:
      return false;
    case Sent::kBroken:
      hang_up();
      return false;
  }
  return false;
}

void Neighbour::hang_up() noexcept {
  out_.reset();
  pending_.clear();
}

void Neighbour::wake(uint64_t bell) noexcept {
  if (!out_) return;
  static const std::vector<std::byte> kWake = encode(Frame(Wake{}));
  // A socket without room has something to read: it wakes as well.
  if (send_frame(out_.get(), kWake, {}, {}) == Sent::kYes) {
    own_front_->sent[line].fetch_add(1, std::memory_order_release);  // pairs with has_mail()
  }
  rung_ = bell;
}

// The line in

Result<void> Neighbour::greeted(UniqueFd socket, const Greeting& greeting, Credentials who,
                                std::span<UniqueFd> descriptors) {
  if (greeting.line >= Front::kOffloadQueues) return fail(Errc::kBadFormat, "shm line");
  if (gone_) return fail(Errc::kPeerLost, "shm line");
  struct stat file {};
  if (::fstat(descriptors[1].get(), &file) != 0) return fail(Errc::kBadFormat, "shm line", errno);
  // The second line of an instance shows what the first one has shown; paths point into that.
  if (front_ && file.st_ino != front_file_) {
    return fail(Errc::kPermission, "shm: a line of somebody else");
  }
  if (!front_) {
    auto front = map_foreign(descriptors[1].get(), sizeof(Front), Peers::kMayRead);
    if (!front) return front.error();
    auto cards = PeerCards::map(std::move(descriptors[0]), who.pid);
    if (!cards) return cards.error();
    front_ = *std::move(front);
    front_file_ = file.st_ino;
    cards_ = *std::move(cards);
    process_.reset(who.pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0)) : -1);
    gone_ = ended_ =
        who.pid > 0 && !process_ && errno == ESRCH;  // it died with its greeting in the socket
  }
  in_ = std::move(socket);
  their_line_ = greeting.line;
  seen_ = their_front()->sent[their_line_].load(std::memory_order_acquire) - 1;
  needs_fence_ = !greeting.membarrier || !fence_parts().membarrier;
  beacon = greeting.beacon;
  return {};
}

bool Neighbour::look_for_death() noexcept {
  if (gone_ || cards_ == nullptr) return gone_;
  if (cards_->died()) {
    gone_ = true;
  } else if (!in_ || !cards_->held()) {
    // It hung up, or its last thread with a card has signed off: the line may be held open by a
    // child of it.
    gone_ = ended();
  }
  return gone_;
}

bool Neighbour::ended() noexcept {
  if (!ended_ && process_) {
    pollfd process{process_.get(), POLLIN, 0};
    ended_ = ::poll(&process, 1, 0) > 0;
  }
  return ended_;
}

void Neighbour::forget() noexcept {
  hang_up();
  views_.clear();
  blocks_.clear();
  unpopulated_.clear();
  puller_ = {};
  process_.reset();
  cards_.reset();
  front_ = {};
}

// Its memory

const Neighbour::View& Neighbour::find_view(uint32_t index, uint32_t generation) {
  const uint64_t remote_key = uint64_t{generation} << 32 | index;
  none_ = {.way = View::Way::kStale};
  if (!front_ || index >= Front::kKeys) return none_;
  const KeyEntry& entry = their_front()->keys[index];
  if (entry.permit.load(std::memory_order_acquire) != generation) return none_;
  View found{.generation = generation,
             .size_bytes = entry.size_bytes.load(std::memory_order_relaxed),
             .permit = &entry.permit};
  const auto kind = static_cast<KeyKind>(entry.kind.load(std::memory_order_relaxed));
  const uint64_t block = entry.block.load(std::memory_order_relaxed);
  const uint64_t offset = entry.offset.load(std::memory_order_relaxed);
  if (kind == KeyKind::kPulled) {
    found.way = View::Way::kPulled;
  } else if (kind != KeyKind::kMapped) {
    return none_;
  } else if (const auto mapped = blocks_.find(block); mapped != blocks_.end()) {
    const uint64_t bytes = mapped->second.size();
    if (offset > bytes || found.size_bytes > bytes - offset) return none_;
    found.way = View::Way::kMapped;
    found.base = mapped->second.data() + offset;
  } else if (unusable_.contains({block, remote_key})) {
    return none_;
  } else {
    if (asked_.emplace(block, remote_key).second) send(NeedBlock{block});
    none_ = {.way = View::Way::kAsked};
    return none_;
  }
  // Read between two looks: it belongs together, or the key has ended.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.permit.load(std::memory_order_relaxed) != generation) return none_;
  if (index >= views_.size()) views_.resize(index + 1);
  return views_[index] = found;
}

void Neighbour::block_came(const Block& block, UniqueFd descriptor) {
  const auto asked = asked_.find(block.block);
  if (asked == asked_.end()) return;
  const uint64_t remote_key = asked->second;
  asked_.erase(asked);
  auto mapping = map_foreign(descriptor.get(), block.size_bytes, Peers::kMayWrite);
  if (mapping) {
    mapping->populate(0, kPopulateBytes);
    if (mapping->size() > kPopulateBytes) unpopulated_[block.block] = kPopulateBytes;
    blocks_[block.block] = *std::move(mapping);
  } else {
    unusable_.emplace(block.block,
                      remote_key);  // gone meanwhile, or no memory: writes into it are refused
  }
}

bool Neighbour::populate_some() noexcept {
  if (unpopulated_.empty()) return false;
  const auto next = unpopulated_.begin();
  const auto block = blocks_.find(next->first);
  if (block != blocks_.end()) block->second.populate(next->second, kPopulateBytes);
  next->second += kPopulateBytes;
  if (block == blocks_.end() || next->second >= block->second.size()) unpopulated_.erase(next);
  return true;
}

void Neighbour::block_gone(uint64_t block) noexcept {
  if (blocks_.erase(block) != 0) views_.clear();
}

}  // namespace fabric::shm
