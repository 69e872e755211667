#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/bytes.h"
#include "providers/shm/handles.h"

// Peers and their connections, control datagrams, the periodic scan, and sleeping.

namespace fabric::shm {

namespace {

constexpr uint32_t kCallsPerScan = 16;        // calls between two reads of the clock
constexpr uint32_t kCallsPerFrameCheck = 4;   // the same for frames_sent, while writes arrive
constexpr int64_t kScanNs = 1'000'000;        // for what memory does not show: sockets, deaths
constexpr int64_t kSleepNs = 10'000'000;      // a sleeper sees a death within 50 ms on busy CPUs
constexpr int64_t kBriefSleepNs = 1'000'000;  // while a proof is outstanding
constexpr uint32_t kUngreetedMax = 256;
// Bounds per call, so that one peer that never stops sending cannot starve the others.
constexpr uint32_t kFramesPerCall = 64;
constexpr uint32_t kAcceptsPerScan = 64;
constexpr uint32_t kPeersMax = 60'000;
constexpr uint32_t kEventsMax = 64;

bool watch(int events, int what) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = what;
  return ::epoll_ctl(events, EPOLL_CTL_ADD, what, &event) == 0;
}

}  // namespace

ShmNetwork::ShmNetwork(const OpenContext& context, WriterSlots* writer_slots, SharedMemory header,
                       SharedMemory arrivals)
    : driver_(*context.driver),
      wake_(context.wake),
      writer_slots_(writer_slots),
      header_(std::move(header)),
      arrivals_(std::move(arrivals.mapping)),
      arrivals_memory_(std::make_shared<const UniqueFd>(std::move(arrivals.fd))),
      rkeys_(*header_.mapping.as<SharedHeader>()) {}

Result<std::unique_ptr<OpenNetwork>> ShmNetwork::open(const Options& options,
                                                      const OpenContext& context) {
  register_membarrier();
  auto writer_slots = WriterSlots::of_process();
  if (!writer_slots) return writer_slots.error();
  auto header = make_memory(sizeof(SharedHeader), PeerAccess::kReadOnly);
  if (!header) return header.error();
  auto arrivals = make_memory(sizeof(ArrivalCount), PeerAccess::kReadWrite);
  if (!arrivals) return arrivals.error();
  std::unique_ptr<ShmNetwork> network(
      new ShmNetwork(context, *writer_slots, *std::move(header), *std::move(arrivals)));
  if (auto started = network->start(options); !started) return started.error();
  return std::unique_ptr<OpenNetwork>(std::move(network));
}

Result<void> ShmNetwork::start(const Options& options) {
  auto address = shm::own_address();
  if (!address) return address.error();
  address_ = *std::move(address);
  address_.instance = driver_.entropy();
  address_.directory = options.directory;
  if (!options.directory.empty()) remove_stale_sockets(options.directory);
  auto listener = listen_at(address_);
  if (!listener) return listener.error();
  listener_ = *std::move(listener);
  events_.reset(::epoll_create1(EPOLL_CLOEXEC));
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const bool watched = events_ && timer_ && watch(events_.get(), listener_.get()) &&
                       watch(events_.get(), timer_.get());
  if (!watched) return fail(Errc::kExhausted, "shm events", errno);

  const uint64_t random[] = {driver_.entropy(), driver_.entropy()};
  static_assert(sizeof(random) == Beacon::kBytes);
  std::memcpy(beacon_.data(), random, sizeof(random));
  greeting_.from = address_;
  greeting_.membarrier = fence_support().membarrier;
  greeting_.counts_arrivals = greeting_.membarrier;
  greeting_.beacon = {reinterpret_cast<uint64_t>(beacon_.data()), beacon_};
  buffer_.resize(kControlBytesMax + kFrameHeadBytesMax);
  for (uint32_t lane = 0; lane < options.lanes; ++lane) {
    rails_.push_back(std::make_unique<ShmRail>(*this, lane));
  }
  return {};
}

ShmNetwork::~ShmNetwork() { unlisten(address_); }

// Peers

Result<std::shared_ptr<ShmPeer>> ShmNetwork::peer(std::span<const std::byte> address) {
  auto decoded = decode_address(address);
  if (!decoded) return decoded.error();
  return peer(*decoded);
}

Result<std::shared_ptr<ShmPeer>> ShmNetwork::peer(const Address& address) {
  if (address.host != address_.host) {
    return fail(Errc::kUnreachable, "shm: the peer is on another host");
  }
  if (address.user != address_.user) {
    return fail(Errc::kUnreachable, "shm: the peer runs as another user");
  }
  // Abstract names exist in one network namespace only, and each side has to find the other's.
  if ((address.directory.empty() || address_.directory.empty()) &&
      address.net_namespace != address_.net_namespace) {
    return fail(Errc::kUnreachable,
                "shm: the peer is in another network namespace: give both of them a directory that "
                "they share (shm::Options::directory)");
  }
  if (address.instance == address_.instance)
    return fail(Errc::kUnreachable, "shm: the address is this engine's own");
  const auto known = peers_.find(address.instance);
  if (known != peers_.end()) {
    if (known->second->address() != address) return fail(Errc::kBadFormat, "shm address");
    return known->second;
  }
  if (peers_.size() >= kPeersMax) return fail(Errc::kExhausted, "shm peers");
  auto made = std::make_shared<ShmPeer>(address);
  peer_list_.reserve(peer_list_.size() + 1);  // so that the peer is in both or in neither
  peers_.emplace(address.instance, made);
  peer_list_.push_back(made.get());
  return made;
}

/// Connects to the peer if needed. False: not possible now.
bool ShmNetwork::ensure_connected(ShmPeer& to) {
  if (to.connected()) return true;
  if (to.dead() || to.stopped_listening()) return false;
  if (to.connection == ShmPeer::kNoConnection && free_connections_.empty()) {
    if (next_connection_ == SharedHeader::kConnections) return false;
    free_connections_.push_back(next_connection_++);
  }
  if (to.connection == ShmPeer::kNoConnection) {
    to.connection = free_connections_.back();
    free_connections_.pop_back();
  }
  if (!to.connect({&greeting_, writer_slots_->fd(), header_.fd.get(), &own_header()})) return false;
  to.flush();
  return true;
}

void ShmNetwork::release_if_unused(ShmPeer& one) noexcept {
  if (one.links != 0 || one.paths != 0) return;
  if (one.connected()) {
    // Sends what is queued, a goodbye for example.
    one.flush();
    one.disconnect();
  }
  if (one.connection != ShmPeer::kNoConnection) {
    free_connections_.push_back(std::exchange(one.connection, ShmPeer::kNoConnection));
  }
  if (one.in() < 0) {
    std::erase(peer_list_, &one);
    peers_.erase(one.address().instance);
  }
}

std::string ShmNetwork::peers_text() const {
  uint32_t hidden = 0;
  for (const auto& [instance, one] : peers_) {
    hidden += one->writer_slots() != nullptr && one->writer_slots()->pid() == 0;
  }
  std::string text = std::to_string(peers_.size());
  if (hidden != 0) {
    text += "; in another pid namespace, where procfs proves nothing: " + std::to_string(hidden);
  }
  return text;
}

std::vector<std::shared_ptr<ShmPeer>> ShmNetwork::possible_writers() const {
  std::vector<std::shared_ptr<ShmPeer>> all;
  for (const auto& [instance, one] : peers_) {
    if (one->writer_slots() != nullptr && one->ever_shared && !one->dead()) all.push_back(one);
  }
  return all;
}

void ShmNetwork::announce_block_released(uint64_t block) {
  for (const auto& [instance, one] : peers_) {
    if (one->shared_blocks.erase(block) != 0) one->send(BlockReleased{block});
  }
}

Result<std::pair<uint32_t, uint64_t>> ShmNetwork::take_path_epoch() {
  if (free_epochs_.empty() && next_epoch_index_ == SharedHeader::kPaths) {
    return fail(Errc::kExhausted, "shm paths");
  }
  uint32_t index = next_epoch_index_;
  if (free_epochs_.empty()) {
    free_epochs_.reserve(++next_epoch_index_);  // so that freeing cannot fail
  } else {
    index = free_epochs_.back();
    free_epochs_.pop_back();
  }
  return std::pair(index, next_epoch_++);
}

void ShmNetwork::share_arrivals(ShmPeer& to) {
  if (to.counts_arrivals && !std::exchange(to.arrivals_sent, true)) {
    to.send(Arrivals{}, arrivals_memory_);
  }
}

void ShmNetwork::probe_read_access(ShmPeer& from) {
  if (!from.has_greeted()) return;
  if (from.puller().try_process(from.writer_slots()->pid(), from.beacon)) {
    from.read_access = ShmPeer::ReadAccess::kGranted;
  } else {
    from.read_access = ShmPeer::ReadAccess::kRequested;
    ensure_connected(from);
    from.send(MemoryRequest{});
  }
}

std::string ShmNetwork::read_access_text() const {
  uint32_t process = 0, file = 0, bounced = 0;
  for (const auto& [instance, one] : peers_) {
    process += one->puller().method() == Puller::Method::kProcessVm;
    file += one->puller().method() == Puller::Method::kMemFile;
    bounced += one->read_access == ShmPeer::ReadAccess::kDenied;
  }
  return "process_vm_readv from " + std::to_string(process) + ", memory file from " +
         std::to_string(file) + ", bounced by " + std::to_string(bounced);
}

// Links

Result<uint32_t> ShmNetwork::open_link(std::span<const std::byte> address) {
  auto to = peer(address);
  if (!to) return to.error();
  ++(*to)->links;
  ensure_connected(**to);
  // Permanent errors: names are not reused, so another user's or a missing socket stays so.
  if (const Error connect_error = (*to)->connect_error();
      connect_error.code == Errc::kPermission || connect_error.code == Errc::kNotFound) {
    --(*to)->links;
    release_if_unused(**to);
    return fail(Errc::kUnreachable, connect_error.what, connect_error.native);
  }
  const uint32_t link = next_link_++;
  if ((*to)->loss_reported) lost_links_.push_back(link);
  links_.emplace(link, *std::move(to));
  return link;
}

void ShmNetwork::close_link(uint32_t link) noexcept {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  const std::shared_ptr<ShmPeer> to = std::move(found->second);
  links_.erase(found);
  --to->links;
  release_if_unused(*to);
}

bool ShmNetwork::send(uint32_t link, std::span<const std::byte> datagram) noexcept {
  const auto found = links_.find(link);
  if (found == links_.end() || datagram.size() > kControlBytesMax) return false;
  if (!ensure_connected(*found->second)) return false;
  static const std::vector<std::byte> kHead = encode(Frame(Datagram{}));
  return found->second->send_now(kHead, datagram);
}

uint32_t ShmNetwork::receive(std::span<std::byte> out) noexcept {
  // Turns that copy a lot are long, so they read the clock, or a death would be noticed late.
  bool long_turn = false, found = false;
  for (const auto& rail : rails_) {
    long_turn |= rail->copied_much();
    found |= rail->polled_events();
  }
  ++calls_;
  const bool slept = (own_header().sleep_epoch.load(std::memory_order_relaxed) & 1) != 0;
  if (slept || long_turn || calls_ % kCallsPerScan == 0) scan_if_due(slept);
  if (read_queue_.empty() && (!found || calls_ % kCallsPerFrameCheck == 0)) {
    for (ShmPeer* const one : peer_list_) {
      if (one->has_frames()) queue_read(peers_.find(one->address().instance)->second);
    }
  }
  return read_queue_.empty() ? 0 : next_datagram(out);
}

/// From memory only. For what memory does not show, reports control work every kCallsPerScan calls.
OpenNetwork::PendingWork ShmNetwork::pending_work() noexcept {
  const bool slept = (own_header().sleep_epoch.load(std::memory_order_relaxed) & 1) != 0;
  PendingWork pending{.rails = false,
                      .control = slept || !read_queue_.empty() || !lost_links_.empty()};
  for (const auto& rail : rails_) {
    pending.rails |= rail->pending_work();
    pending.control |= rail->copied_much();
  }
  for (const ShmPeer* const one : peer_list_) pending.control |= one->may_have_frames();
  if (++calls_since_scan_ >= kCallsPerScan) {
    pending.control = true;
    calls_ |= kCallsPerScan - 1;  // so that the next receive() reads the clock
  }
  return pending;
}

void ShmNetwork::scan_if_due(bool slept) {
  calls_since_scan_ = 0;
  if (slept) own_header().sleep_epoch.fetch_add(1, std::memory_order_relaxed);
  const int64_t now = now_ns();
  if (!slept && now < next_scan_ns_) return;
  next_scan_ns_ = now + kScanNs;
  scan();
  if (!slept) populate_some();
}

uint32_t ShmNetwork::next_datagram(std::span<std::byte> out) {
  while (!read_queue_.empty()) {
    const std::shared_ptr<ShmPeer> from = std::move(read_queue_.front());
    read_queue_.pop_front();
    from->read_queued = false;
    const uint32_t size = read_frames(*from, out);
    if (size == 0) continue;
    queue_read(from);  // at the end: round robin between peers
    return size;
  }
  return 0;
}

void ShmNetwork::queue_read(const std::shared_ptr<ShmPeer>& from) {
  if (!std::exchange(from->read_queued, true)) read_queue_.push_back(from);
}

/// Reads frames up to the next datagram and handles those before it. 0: none left, or the bound of
/// frames per call was reached.
uint32_t ShmNetwork::read_frames(ShmPeer& from, std::span<std::byte> out) {
  for (uint32_t frames = 0; from.in() >= 0; ++frames) {
    if (frames == kFramesPerCall) {
      from.recheck_frames();
      return 0;
    }
    const int socket = from.in();
    Received received = receive_frame(socket, buffer_);
    if (received.kind == Received::Kind::kNothing) return 0;
    Result<Frame> frame = fail(Errc::kClosed, "shm connection");
    if (received.kind == Received::Kind::kFrame) {
      frame =
          decode_frame(std::span(buffer_).first(received.size_bytes), received.descriptor_count);
    }
    // A frame without its descriptors is dropped; writes that need them end by their deadlines.
    if (!frame && received.truncated) continue;
    // An invalid frame closes the connection.
    if (!frame || std::holds_alternative<Greeting>(*frame)) {
      by_socket_.erase(socket);
      from.close_inbound();
      ++scans_;
      release_if_unused(from);
      return 0;
    }
    if (const auto* datagram = std::get_if<Datagram>(&*frame); datagram != nullptr) {
      const auto size = static_cast<uint32_t>(datagram->bytes.size());
      if (size == 0 || size > out.size()) continue;
      std::memcpy(out.data(), datagram->bytes.data(), size);
      return size;
    }
    handle(from, *frame,
           std::span(received.descriptors).first(std::max(received.descriptor_count, 1u)));
  }
  return 0;
}

void ShmNetwork::handle(ShmPeer& from, const Frame& frame, std::span<UniqueFd> descriptors) {
  if (const auto* ring = std::get_if<RingReady>(&frame)) {
    if (ring->lane < rails_.size()) {
      rails_[ring->lane]->ring_ready(from, *ring, std::move(descriptors[0]));
    }
  } else if (const auto* need = std::get_if<BlockRequest>(&frame)) {
    // Memory is shared only with peers that have a path, that is, that the core has accepted.
    const SharedPages::Location location =
        from.paths == 0 ? SharedPages::Location{} : rkeys_.block(need->block);
    if (location.file != nullptr) {
      from.shared_blocks.insert(need->block);
      from.ever_shared = true;
    }
    ensure_connected(from);
    from.send(BlockReply{need->block, location.block_bytes}, location.file);
  } else if (const auto* block = std::get_if<BlockReply>(&frame)) {
    from.block_received(*block, std::move(descriptors[0]));
  } else if (const auto* released = std::get_if<BlockReleased>(&frame)) {
    from.block_released(released->block);
  } else if (std::holds_alternative<MemoryRequest>(frame)) {
    if (own_memory_ == nullptr && from.paths != 0) {
      if (UniqueFd memory = open_own_memory()) {
        own_memory_ = std::make_shared<const UniqueFd>(std::move(memory));
      }
    }
    ensure_connected(from);
    from.send(MemoryReply{}, from.paths == 0 ? nullptr : own_memory_);
  } else if (std::holds_alternative<MemoryReply>(frame)) {
    if (from.read_access != ShmPeer::ReadAccess::kRequested) return;
    const bool yes =
        descriptors[0] && from.puller().try_mem_file(std::move(descriptors[0]), from.beacon);
    from.read_access = yes ? ShmPeer::ReadAccess::kGranted : ShmPeer::ReadAccess::kDenied;
    for (const auto& rail : rails_) rail->announce_rings(from);
  } else if (std::holds_alternative<Arrivals>(frame)) {
    from.arrivals_received(std::move(descriptors[0]));
  } else if (std::holds_alternative<Wake>(frame)) {
    ++wakes_;
  }
}

// The periodic scan, for what memory does not show

void ShmNetwork::scan() {
  ++scans_;
  if (!listening_) listening_ = watch(events_.get(), listener_.get());
  handle_events();
  std::vector<std::shared_ptr<ShmPeer>> unneeded;
  for (const auto& [instance, one] : peers_) {
    one->check_dead();
    // Its last frames are read before its loss is reported.
    if (one->closed() && one->has_frames()) {
      queue_read(one);
      continue;
    }
    if (one->closed() && !std::exchange(one->loss_reported, true)) {
      for (const auto& [link, to] : links_) {
        if (to == one) lost_links_.push_back(link);
      }
    }
    if (one->loss_reported) {  // a late greeting may have arrived after the report
      by_socket_.erase(one->in());
      one->close_inbound();
    }
    if (one->closed() && one->paths == 0 && one->has_greeted()) one->release_resources();
    const bool needed = one->links != 0 || one->paths != 0;
    if (needed && !one->dead()) {
      if (ensure_connected(*one)) one->flush();
    } else if (!needed && one->in() < 0) {
      unneeded.push_back(one);
    }
  }
  for (const auto& one : unneeded) release_if_unused(*one);
}

/// Prefaults for one peer. Not called right after a sleep, when there is other work.
void ShmNetwork::populate_some() noexcept {
  for (const auto& [instance, one] : peers_) {
    if (one->populate_some()) return;
  }
}

void ShmNetwork::handle_events() {
  std::array<epoll_event, kEventsMax> events{};
  const int count = ::epoll_wait(events_.get(), events.data(), kEventsMax, 0);
  for (int i = 0; i < count; ++i) {
    const int socket = events[static_cast<size_t>(i)].data.fd;
    if (socket == listener_.get()) {
      accept_connections();
    } else if (socket == timer_.get()) {
      uint64_t ticks = 0;
      (void)!::read(socket, &ticks, sizeof(ticks));  // only to clear its readability
    } else if (const auto connection = by_socket_.find(socket); connection != by_socket_.end()) {
      const auto from = peers_.find(connection->second);
      if (from != peers_.end()) queue_read(from->second);
    } else if (ungreeted_.contains(socket)) {
      read_greeting(socket);
    }
  }
}

void ShmNetwork::accept_connections() {
  for (uint32_t i = 0; i < kAcceptsPerScan; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      // Out of descriptors: the listener would stay readable and prevent sleep.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED && listening_) {
        listening_ = ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr) != 0;
      }
      return;
    }
    const auto who = credentials(socket.get());
    if (!who || who->user != address_.user) continue;  // another user: closes the socket
    if (ungreeted_.size() >= kUngreetedMax) ungreeted_.erase(ungreeted_.begin());
    const int number = socket.get();
    if (!watch(events_.get(), number)) continue;
    ungreeted_[number] = {std::move(socket), *who};
    read_greeting(number);
  }
}

/// Reads the first frame of a new connection, which must be a greeting.
void ShmNetwork::read_greeting(int socket) {
  const auto stranger = ungreeted_.find(socket);
  Received received = receive_frame(socket, buffer_);
  if (received.kind == Received::Kind::kNothing) return;
  UngreetedSocket one = std::move(stranger->second);
  ungreeted_.erase(stranger);
  if (received.kind == Received::Kind::kClosed) return;
  const auto frame =
      decode_frame(std::span(buffer_).first(received.size_bytes), received.descriptor_count);
  if (!frame || !std::holds_alternative<Greeting>(*frame)) return;
  const auto& greeting = std::get<Greeting>(*frame);
  const auto from = peer(greeting.from);
  if (!from) return;
  const int before = (*from)->in();
  if (!(*from)->accept_greeting(std::move(one.socket), greeting, one.who, received.descriptors)) {
    release_if_unused(**from);
    return;
  }
  by_socket_.erase(before);
  by_socket_[socket] = greeting.from.instance;
  queue_read(*from);
  for (const auto& rail : rails_) rail->announce_rings(**from);
}

bool ShmNetwork::take_lost(uint32_t& link) noexcept {
  if (lost_links_.empty()) return false;
  link = lost_links_.back();
  lost_links_.pop_back();
  return true;
}

// Sleeping

void ShmNetwork::set_timer(int64_t interval_ns) noexcept {
  if (interval_ns == timer_ns_) return;
  timer_ns_ = interval_ns;
  itimerspec when{};
  when.it_value.tv_nsec = when.it_interval.tv_nsec = interval_ns;
  ::timerfd_settime(timer_.get(), 0, &when, nullptr);
}

bool ShmNetwork::sleep_through(uint32_t arrivals) noexcept {
  // Half a ring at most, so that no sender finds its ring full and waits for one that sleeps.
  arrivals_needed_ = std::min(arrivals, Ring::kImms / 2);
  return arrivals_needed_ > 1;
}

bool ShmNetwork::arm() noexcept {
  const auto work = [this] {
    return !read_queue_.empty() || !lost_links_.empty() ||
           std::any_of(rails_.begin(), rails_.end(),
                       [](const auto& rail) { return rail->has_work(); });
  };
  if (work()) return false;
  SharedHeader& own = own_header();
  const uint64_t sleep_epoch = own.sleep_epoch.load(std::memory_order_relaxed);
  // Relaxed: heavy_barrier() orders both. A peer that publishes later sees the odd epoch and wakes
  // us, or counts (arrivals.h); what was published earlier is seen by the second work().
  own.wake_at.store(wake_at_after(arrivals_.as<ArrivalCount>()->arrived, arrivals_needed_),
                    std::memory_order_relaxed);
  if ((sleep_epoch & 1) == 0) own.sleep_epoch.store(sleep_epoch + 1, std::memory_order_relaxed);
  const bool fenced = peers_.empty() || heavy_barrier();
  if (work()) return false;
  const bool proofs = std::any_of(rails_.begin(), rails_.end(),
                                  [](const auto& rail) { return rail->has_pending_proofs(); });
  // Without the barrier a wake may be missed, so the sleep is brief.
  const bool brief = proofs || !fenced;
  const bool quiet = peers_.empty() && listening_;
  set_timer(quiet ? 0 : brief ? kBriefSleepNs : kSleepNs);
  return true;
}

}  // namespace fabric::shm
