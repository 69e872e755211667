#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/bytes.h"
#include "providers/shm/handles.h"

// Lines: who is on this host, what they say, and sleeping.

namespace fabric::shm {

namespace {

constexpr uint32_t kCallsPerLook = 16;    // the clock is read this often
constexpr uint32_t kCallsPerMail = 4;     // and, while writes come, the counts of frames
constexpr int64_t kLookNs = 1'000'000;    // what no memory shows: sockets, deaths
constexpr int64_t kSleepNs = 10'000'000;  // a sleeper notices a death in 50 ms, busy CPUs or not
constexpr int64_t kBriefSleepNs = 1'000'000;  // while somebody waits for a proof
constexpr uint32_t kStrangersMax = 256;
// What one call does for whoever never stops: then it is the others' turn.
constexpr uint32_t kFramesPerCall = 64;
constexpr uint32_t kLetInPerLook = 64;
constexpr uint32_t kNeighboursMax = 60'000;
constexpr uint32_t kEventsMax = 64;

bool watch(int events, int what) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = what;
  return ::epoll_ctl(events, EPOLL_CTL_ADD, what, &event) == 0;
}

}  // namespace

ShmNetwork::ShmNetwork(const OpenContext& context, Cards* cards, SharedMemory front) noexcept
    : driver_(*context.driver),
      wake_(context.wake),
      cards_(cards),
      front_(std::move(front)),
      keys_(*front_.mapping.as<Front>()) {}

Result<std::unique_ptr<OpenNetwork>> ShmNetwork::open(const Options& options,
                                                      const OpenContext& context) {
  register_fences();
  auto cards = Cards::of_process();
  if (!cards) return cards.error();
  auto front = make_memory(sizeof(Front), Peers::kMayRead);
  if (!front) return front.error();
  std::unique_ptr<ShmNetwork> network(new ShmNetwork(context, *cards, *std::move(front)));
  if (auto started = network->start(options); !started) return started.error();
  return std::unique_ptr<OpenNetwork>(std::move(network));
}

Result<void> ShmNetwork::start(const Options& options) {
  auto address = shm::own_address();
  if (!address) return address.error();
  address_ = *std::move(address);
  address_.instance = driver_.entropy();
  address_.directory = options.directory;
  if (!options.directory.empty()) sweep(options.directory);
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
  greeting_.membarrier = fence_parts().membarrier;
  greeting_.beacon = {reinterpret_cast<uint64_t>(beacon_.data()), beacon_};
  buffer_.resize(kControlBytesMax + kFrameHeadBytesMax);
  for (uint32_t lane = 0; lane < options.lanes; ++lane) {
    rails_.push_back(std::make_unique<ShmRail>(*this, lane));
  }
  return {};
}

ShmNetwork::~ShmNetwork() { unlisten(address_); }

// Neighbours

Result<std::shared_ptr<Neighbour>> ShmNetwork::neighbour(std::span<const std::byte> address) {
  auto decoded = decode_address(address);
  if (!decoded) return decoded.error();
  return neighbour(*decoded);
}

Result<std::shared_ptr<Neighbour>> ShmNetwork::neighbour(const Address& address) {
  if (address.host != address_.host) {
    return fail(Errc::kUnreachable, "shm: the peer is on another host");
  }
  if (address.user != address_.user) {
    return fail(Errc::kUnreachable, "shm: the peer runs as another user");
  }
  // Names without a directory exist in one network namespace only, and each side has to find the
  // other's.
  if ((address.directory.empty() || address_.directory.empty()) &&
      address.net_namespace != address_.net_namespace) {
    return fail(Errc::kUnreachable,
                "shm: the peer is in another network namespace: give both of them a directory that "
                "they share (Network::devices)");
  }
  if (address.instance == address_.instance) return fail(Errc::kUnreachable, "shm: itself");
  const auto known = neighbours_.find(address.instance);
  if (known != neighbours_.end()) {
    if (known->second->address() != address) return fail(Errc::kBadFormat, "shm address");
    return known->second;
  }
  if (neighbours_.size() >= kNeighboursMax) return fail(Errc::kExhausted, "shm neighbours");
  auto made = std::make_shared<Neighbour>(address);
  listed_.reserve(listed_.size() + 1);  // so that it is in both, or in neither
  neighbours_.emplace(address.instance, made);
  listed_.push_back(made.get());
  return made;
}

/// Makes sure of a line to it. False: not now.
bool ShmNetwork::reach(Neighbour& to) {
  if (to.connected()) return true;
  if (to.gone() || to.refuses()) return false;
  if (to.line == Neighbour::kNoLine && free_lines_.empty()) {
    if (next_line_ == Front::kOffloadQueues) return false;
    free_lines_.push_back(next_line_++);
  }
  if (to.line == Neighbour::kNoLine) {
    to.line = free_lines_.back();
    free_lines_.pop_back();
  }
  if (!to.connect({&greeting_, cards_->fd(), front_.fd.get(), &front()})) return false;
  to.flush();
  return true;
}

void ShmNetwork::let_go(Neighbour& one) noexcept {
  if (one.links != 0 || one.paths != 0) return;
  if (one.connected()) {
    // Says what it still has to say, a goodbye for example, and is not heard any more.
    one.flush();
    one.hang_up();
  }
  if (one.line != Neighbour::kNoLine) {
    free_lines_.push_back(std::exchange(one.line, Neighbour::kNoLine));
  }
  if (one.in() < 0) {
    std::erase(listed_, &one);
    neighbours_.erase(one.address().instance);
  }
}

std::string ShmNetwork::neighbours_text() const {
  uint32_t hidden = 0;
  for (const auto& [instance, one] : neighbours_) {
    hidden += one->cards() != nullptr && one->cards()->pid() == 0;
  }
  std::string text = std::to_string(neighbours_.size());
  if (hidden != 0) {
    text += "; in another pid namespace, where procfs proves nothing: " + std::to_string(hidden);
  }
  return text;
}

std::vector<std::shared_ptr<Neighbour>> ShmNetwork::everybody() const {
  std::vector<std::shared_ptr<Neighbour>> all;
  for (const auto& [instance, one] : neighbours_) {
    if (one->cards() != nullptr && one->has_pages && !one->gone()) all.push_back(one);
  }
  return all;
}

void ShmNetwork::block_unused(uint64_t block) {
  for (const auto& [instance, one] : neighbours_) {
    if (one->shown.erase(block) != 0) one->send(BlockGone{block});
  }
}

Result<std::pair<uint32_t, uint64_t>> ShmNetwork::take_permit() {
  if (free_permits_.empty() && next_permit_ == Front::kPaths) {
    return fail(Errc::kExhausted, "shm paths");
  }
  uint32_t place = next_permit_;
  if (free_permits_.empty()) {
    free_permits_.reserve(++next_permit_);  // giving it back cannot fail
  } else {
    place = free_permits_.back();
    free_permits_.pop_back();
  }
  return std::pair(place, next_permit_value_++);
}

void ShmNetwork::find_reach(Neighbour& from) {
  if (!from.heard_of()) return;
  if (from.puller().by_process(from.cards()->pid(), from.beacon)) {
    from.reach = Neighbour::Reach::kYes;
  } else {
    from.reach = Neighbour::Reach::kAsked;
    reach(from);
    from.send(NeedMemory{});
  }
}

std::string ShmNetwork::reach_text() const {
  uint32_t process = 0, file = 0, bounced = 0;
  for (const auto& [instance, one] : neighbours_) {
    process += one->puller().way() == Puller::Way::kProcess;
    file += one->puller().way() == Puller::Way::kMemFile;
    bounced += one->reach == Neighbour::Reach::kNo;
  }
  return "process_vm_readv from " + std::to_string(process) + ", memory file from " +
         std::to_string(file) + ", bounced by " + std::to_string(bounced);
}

// Links

Result<uint32_t> ShmNetwork::open_link(std::span<const std::byte> address) {
  auto to = neighbour(address);
  if (!to) return to.error();
  ++(*to)->links;
  reach(**to);
  // A name is used once: who does not have it now, or has it and is somebody else, stays so.
  if (const Error obstacle = (*to)->obstacle();
      obstacle.code == Errc::kPermission || obstacle.code == Errc::kNotFound) {
    --(*to)->links;
    let_go(**to);
    return fail(Errc::kUnreachable, obstacle.what, obstacle.native);
  }
  const uint32_t link = next_link_++;
  if ((*to)->mourned) lost_.push_back(link);
  links_.emplace(link, *std::move(to));
  return link;
}

void ShmNetwork::close_link(uint32_t link) noexcept {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  const std::shared_ptr<Neighbour> to = std::move(found->second);
  links_.erase(found);
  --to->links;
  let_go(*to);
}

bool ShmNetwork::send(uint32_t link, std::span<const std::byte> datagram) noexcept {
  const auto found = links_.find(link);
  if (found == links_.end() || datagram.size() > kControlBytesMax) return false;
  if (!reach(*found->second)) return false;
  static const std::vector<std::byte> kHead = encode(Frame(Datagram{}));
  return found->second->send_now(kHead, datagram);
}

uint32_t ShmNetwork::receive(std::span<std::byte> out) noexcept {
  // Turns that copy are long: a few of them, and a death is noticed late.
  bool long_turn = false, found = false;
  for (const auto& rail : rails_) {
    long_turn |= rail->copied_much();
    found |= rail->found();
  }
  ++calls_;
  const bool slept = (front().bell.load(std::memory_order_relaxed) & 1) != 0;
  if (slept || long_turn || calls_ % kCallsPerLook == 0) look_if_due(slept);
  if (mail_.empty() && (!found || calls_ % kCallsPerMail == 0)) {
    for (Neighbour* const one : listed_) {
      if (one->has_mail()) expect_mail(neighbours_.find(one->address().instance)->second);
    }
  }
  return mail_.empty() ? 0 : next_mail(out);
}

/// Memory shows nearly everything; for the rest receive() is called now and then all the same.
OpenNetwork::PendingWork ShmNetwork::pending_work() noexcept {
  const bool slept = (front().bell.load(std::memory_order_relaxed) & 1) != 0;
  PendingWork stir{.rails = false, .control = slept || !mail_.empty() || !lost_.empty()};
  for (const auto& rail : rails_) {
    stir.rails |= rail->pending_work();
    stir.control |= rail->copied_much();
  }
  for (const Neighbour* const one : listed_) stir.control |= one->may_have_mail();
  if (++calls_unlooked_ >= kCallsPerLook) {
    stir.control = true;
    calls_ |= kCallsPerLook - 1;  // so that the next receive() looks at the clock
  }
  return stir;
}

void ShmNetwork::look_if_due(bool slept) {
  calls_unlooked_ = 0;
  if (slept) front().bell.fetch_add(1, std::memory_order_relaxed);
  const int64_t now = now_ns();
  if (!slept && now < next_look_ns_) return;
  next_look_ns_ = now + kLookNs;
  look_around();
  if (!slept) populate_some();
}

uint32_t ShmNetwork::next_mail(std::span<std::byte> out) {
  while (!mail_.empty()) {
    const std::shared_ptr<Neighbour> from = std::move(mail_.front());
    mail_.pop_front();
    from->expected = false;
    const uint32_t size = read_mail(*from, out);
    if (size == 0) continue;
    expect_mail(from);  // at the end: one that talks much does not keep the others waiting
    return size;
  }
  return 0;
}

void ShmNetwork::expect_mail(const std::shared_ptr<Neighbour>& from) {
  if (!std::exchange(from->expected, true)) mail_.push_back(from);
}

/// The next datagram of a line; what comes before it is acted on. 0: the line is empty, or it was
/// the others' turn.
uint32_t ShmNetwork::read_mail(Neighbour& from, std::span<std::byte> out) {
  for (uint32_t frames = 0; from.in() >= 0; ++frames) {
    if (frames == kFramesPerCall) {
      from.look_again();
      return 0;
    }
    const int socket = from.in();
    Received received = receive_frame(socket, buffer_);
    if (received.kind == Received::Kind::kNothing) return 0;
    Result<Frame> frame = fail(Errc::kClosed, "shm line");
    if (received.kind == Received::Kind::kFrame) {
      frame =
          decode_frame(std::span(buffer_).first(received.size_bytes), received.descriptor_count);
    }
    // Without its descriptors it means nothing. What waits for them ends by its deadline.
    if (!frame && received.cut) continue;
    // One that cannot be understood ends the line as hanging up does.
    if (!frame || std::holds_alternative<Greeting>(*frame)) {
      by_socket_.erase(socket);
      from.line_ended();
      ++looks_;
      let_go(from);
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

void ShmNetwork::handle(Neighbour& from, const Frame& frame, std::span<UniqueFd> descriptors) {
  if (const auto* ring = std::get_if<RingReady>(&frame)) {
    if (ring->lane < rails_.size()) {
      rails_[ring->lane]->ring_ready(from, *ring, std::move(descriptors[0]));
    }
  } else if (const auto* need = std::get_if<NeedBlock>(&frame)) {
    // Only whoever was let in by the core has a path, and only a path leads to memory.
    const SharedPages::Location place =
        from.paths == 0 ? SharedPages::Location{} : keys_.block(need->block);
    if (place.file != nullptr) {
      from.shown.insert(need->block);
      from.has_pages = true;
    }
    reach(from);
    from.send(Block{need->block, place.block_bytes}, place.file);
  } else if (const auto* block = std::get_if<Block>(&frame)) {
    from.block_came(*block, std::move(descriptors[0]));
  } else if (const auto* gone = std::get_if<BlockGone>(&frame)) {
    from.block_gone(gone->block);
  } else if (std::holds_alternative<NeedMemory>(frame)) {
    if (own_memory_ == nullptr && from.paths != 0) {
      if (UniqueFd memory = open_own_memory()) {
        own_memory_ = std::make_shared<const UniqueFd>(std::move(memory));
      }
    }
    reach(from);
    from.send(OwnMemory{}, from.paths == 0 ? nullptr : own_memory_);
  } else if (std::holds_alternative<OwnMemory>(frame)) {
    if (from.reach != Neighbour::Reach::kAsked) return;
    const bool yes =
        descriptors[0] && from.puller().by_memory(std::move(descriptors[0]), from.beacon);
    from.reach = yes ? Neighbour::Reach::kYes : Neighbour::Reach::kNo;
    for (const auto& rail : rails_) rail->show_rings(from);
  }
}

// What no memory shows

void ShmNetwork::look_around() {
  ++looks_;
  if (!listening_) listening_ = watch(events_.get(), listener_.get());
  look_at_events();
  std::vector<std::shared_ptr<Neighbour>> unneeded;
  for (const auto& [instance, one] : neighbours_) {
    one->look_for_death();
    // Its last words are read before it is mourned.
    if (one->over() && one->has_mail()) {
      expect_mail(one);
      continue;
    }
    if (one->over() && !std::exchange(one->mourned, true)) {
      for (const auto& [link, to] : links_) {
        if (to == one) lost_.push_back(link);
      }
    }
    if (one->mourned) {  // a greeting that was on its way may have come behind the news
      by_socket_.erase(one->in());
      one->line_ended();
    }
    if (one->over() && one->paths == 0 && one->heard_of()) one->forget();
    const bool needed = one->links != 0 || one->paths != 0;
    if (needed && !one->gone()) {
      if (reach(*one)) one->flush();
    } else if (!needed && one->in() < 0) {
      unneeded.push_back(one);
    }
  }
  for (const auto& one : unneeded) let_go(*one);
}

/// Of one neighbour, and not when somebody has just woken up for something else.
void ShmNetwork::populate_some() noexcept {
  for (const auto& [instance, one] : neighbours_) {
    if (one->populate_some()) return;
  }
}

void ShmNetwork::look_at_events() {
  std::array<epoll_event, kEventsMax> events{};
  const int count = ::epoll_wait(events_.get(), events.data(), kEventsMax, 0);
  for (int i = 0; i < count; ++i) {
    const int socket = events[static_cast<size_t>(i)].data.fd;
    if (socket == listener_.get()) {
      let_in();
    } else if (socket == timer_.get()) {
      uint64_t ticks = 0;
      (void)!::read(socket, &ticks, sizeof(ticks));  // it only has to stop being readable
    } else if (const auto line = by_socket_.find(socket); line != by_socket_.end()) {
      const auto from = neighbours_.find(line->second);
      if (from != neighbours_.end()) expect_mail(from->second);
    } else if (strangers_.contains(socket)) {
      greet(socket);
    }
  }
}

void ShmNetwork::let_in() {
  for (uint32_t i = 0; i < kLetInPerLook; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      // Out of descriptors: it stays readable, and nobody could sleep.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED && listening_) {
        listening_ = ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr) != 0;
      }
      return;
    }
    const auto who = credentials(socket.get());
    if (!who || who->user != address_.user) continue;  // of another user: hung up
    if (strangers_.size() >= kStrangersMax) strangers_.erase(strangers_.begin());
    const int number = socket.get();
    if (!watch(events_.get(), number)) continue;
    strangers_[number] = {std::move(socket), *who};
    greet(number);
  }
}

/// The first frame of somebody who connected.
void ShmNetwork::greet(int socket) {
  const auto stranger = strangers_.find(socket);
  Received received = receive_frame(socket, buffer_);
  if (received.kind == Received::Kind::kNothing) return;
  Stranger one = std::move(stranger->second);
  strangers_.erase(stranger);
  if (received.kind == Received::Kind::kEnd) return;
  const auto frame =
      decode_frame(std::span(buffer_).first(received.size_bytes), received.descriptor_count);
  if (!frame || !std::holds_alternative<Greeting>(*frame)) return;
  const auto& greeting = std::get<Greeting>(*frame);
  const auto from = neighbour(greeting.from);
  if (!from) return;
  const int before = (*from)->in();
  if (!(*from)->greeted(std::move(one.socket), greeting, one.who, received.descriptors)) {
    let_go(**from);
    return;
  }
  by_socket_.erase(before);
  by_socket_[socket] = greeting.from.instance;
  expect_mail(*from);
  for (const auto& rail : rails_) rail->show_rings(**from);
}

bool ShmNetwork::take_lost(uint32_t& link) noexcept {
  if (lost_.empty()) return false;
  link = lost_.back();
  lost_.pop_back();
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

bool ShmNetwork::arm() noexcept {
  const auto work = [this] {
    return !mail_.empty() || !lost_.empty() ||
           std::any_of(rails_.begin(), rails_.end(),
                       [](const auto& rail) { return rail->has_work(); });
  };
  if (work()) return false;
  Front& own = front();
  const uint64_t bell = own.bell.load(std::memory_order_relaxed);
  if ((bell & 1) == 0) own.bell.store(bell + 1, std::memory_order_relaxed);  // ordered by the fence
  // Whoever publishes from here on sees the bell, or the look behind sees what was published.
  const bool fenced = neighbours_.empty() || heavy_fence();
  if (work()) return false;
  const bool proofs = std::any_of(rails_.begin(), rails_.end(),
                                  [](const auto& rail) { return rail->has_proofs_awaited(); });
  // Without the fence a wake may be missed: the sleep is short then.
  const bool brief = proofs || !fenced;
  const bool quiet = neighbours_.empty() && listening_;
  set_timer(quiet ? 0 : brief ? kBriefSleepNs : kSleepNs);
  return true;
}

}  // namespace fabric::shm
