#include "fuzz/shm_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "providers/shm/open.h"

namespace fabric::fuzz {

using namespace fabric::shm;

// Nodes

ShmNode::ShmNode(StepDriver& driver, std::string directory) : driver_(driver) {
  const Network spec{.provider = "shm", .options = Options{.directory = std::move(directory)}};
  auto opened = shm::open(spec, {.driver = &driver, .engine_id = 1, .wake = [] {}});
  FABRIC_CHECK(opened.has_value(), "the shm network does not open");
  network_ = *std::move(opened);
  datagram_.resize(network_->control_bytes_max());
}

Address ShmNode::address() const { return *decode_address(network_->address()); }

void ShmNode::turn() {
  driver_.pass(2'000'000);
  // The sockets are read only every 16 calls.
  for (uint32_t call = 0; call < 16; ++call) {
    const uint32_t size = network_->receive(datagram_);
    if (size != 0) {
      datagrams.emplace_back(datagram_.begin(), datagram_.begin() + static_cast<ptrdiff_t>(size));
    }
  }
  uint32_t link = 0;
  while (network_->take_lost(link)) {
  }
  std::vector<RailEvent> out(poll_room);
  const uint32_t n = rail().poll(out);
  for (RailEvent event : std::span(out).first(n)) {
    // Splits merged completions and immediates.
    const bool run =
        event.kind == RailEvent::Kind::kCompletion || event.kind == RailEvent::Kind::kImm;
    const uint64_t more = run ? std::exchange(event.value, 0) : 0;
    reported += run ? 1 : 0;
    events.push_back(event);
    for (uint64_t i = 0; i < more; ++i) {
      if (event.kind == RailEvent::Kind::kCompletion) ++event.cookie;
      events.push_back(event);
    }
  }
}

uint32_t ShmNode::count(RailEvent::Kind kind, uint32_t path) const {
  return static_cast<uint32_t>(std::ranges::count_if(
      events, [&](const RailEvent& event) { return event.kind == kind && event.path == path; }));
}

const RailEvent* ShmNode::completion(uint32_t cookie) const {
  const auto found = std::ranges::find_if(events, [&](const RailEvent& event) {
    return event.kind == RailEvent::Kind::kCompletion && event.cookie == cookie;
  });
  return found == events.end() ? nullptr : &*found;
}

const RailEvent* ShmNode::fenced(uint32_t cookie) const {
  const auto found = std::ranges::find_if(events, [&](const RailEvent& event) {
    return event.kind == RailEvent::Kind::kFenced && event.cookie == cookie;
  });
  return found == events.end() ? nullptr : &*found;
}

// Honest traffic

ShmTraffic::ShmTraffic(ShmNode& from, ShmNode& to, TargetKind kind)
    : from_(from), to_(to), target_(plain_) {
  if (kind == TargetKind::kMapped) {
    pages_ = *SharedPages::allocate(kBytes, false);
    target_ = {static_cast<std::byte*>(pages_->address()), kBytes};
  }
  std::vector<std::byte> hello, answer, rkey;
  const auto local = from.rail().register_memory({source_.data(), source_.size()}, rkey);
  const auto target = to.rail().register_memory({target_.data(), target_.size()}, rkey);
  FABRIC_CHECK(local.has_value() && target.has_value());
  lkey_ = *local;
  target_lkey_ = *target;
  rkey_ = *from.rail().import_rkey(rkey);
  out_ = *from.rail().open_path(to.network().address(), 0, hello);
  in_ = *to.rail().accept_path(hello, answer);
  FABRIC_CHECK(from.rail().start_path(out_, answer).has_value());
}

ShmTraffic::~ShmTraffic() {
  from_.rail().close_path(out_, false);
  to_.rail().close_path(in_, true);
}

bool ShmTraffic::write() {
  if (written_ != 0 && from_.count(RailEvent::Kind::kCompletion, out_) != written_) return false;
  for (uint64_t i = 0; i < kBytes; ++i) {
    source_[i] = static_cast<std::byte>((i ^ i >> 8) + written_ * 7 + 1);
  }
  const WriteOp op{.source = reinterpret_cast<uint64_t>(source_.data()),
                   .size_bytes = kBytes,
                   .lkey = lkey_,
                   .rkey = rkey_,
                   .cookie = 0xc0000000 | written_,
                   .path = out_,
                   .imm = written_,
                   .has_imm = 1};
  if (from_.rail().post({&op, 1}) != 1) return false;
  ++written_;
  return true;
}

bool ShmTraffic::exact() const {
  const auto good = std::ranges::count_if(from_.events, [&](const RailEvent& event) {
    return event.kind == RailEvent::Kind::kCompletion && event.path == out_ &&
           event.code == Errc::kOk && event.remote == Remote::kDelivered;
  });
  return good == written_ && from_.count(RailEvent::Kind::kCompletion, out_) == written_ &&
         to_.count(RailEvent::Kind::kImm, in_) == written_ &&
         (written_ == 0 || std::ranges::equal(source_, target_));
}

// The hostile process

UniqueFd make_descriptor(Passed kind, uint64_t right_bytes) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  switch (kind) {
    case Passed::kPipe: {
      int ends[2] = {-1, -1};
      FABRIC_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
      ::close(ends[1]);
      return UniqueFd(ends[0]);
    }
    case Passed::kFile:
      return UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    case Passed::kDirectory:
      return UniqueFd(::open("/", O_RDONLY | O_CLOEXEC));
    case Passed::kSocket:
      return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    default:
      break;
  }
  UniqueFd made(::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const uint64_t bytes = kind == Passed::kSmall   ? right_bytes / 2
                         : kind == Passed::kLarge ? right_bytes * 2
                                                  : right_bytes;
  FABRIC_CHECK(made && ::ftruncate(made.get(), static_cast<off_t>(bytes)) == 0);
  const int seals = kind == Passed::kReadOnly ? kSeals | F_SEAL_WRITE : kSeals;
  if (kind != Passed::kUnsealed) FABRIC_CHECK(::fcntl(made.get(), F_ADD_SEALS, seals) == 0);
  return made;
}

HostileProcess::HostileProcess(uint64_t instance) {
  address_ = *own_address();
  address_.instance = instance - (static_cast<uint64_t>(::getpid()) << 16);  // unique per process
  listener_ = *listen_at(address_);
  header_ = *make_memory(sizeof(SharedHeader), PeerAccess::kReadOnly);
  slots_ = *make_memory(sizeof(WriterSlotTable), PeerAccess::kReadOnly);
}

bool HostileProcess::connect(const Address& victim) {
  auto connection = connect_to(victim);
  if (!connection) return false;
  out_ = *std::move(connection);
  return true;
}

bool HostileProcess::connect_unchecked(const Address& victim) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const int length = std::snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "fabric-%016llx",
                                   static_cast<unsigned long long>(victim.instance));
  out_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto bytes = offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length);
  return ::connect(out_.get(), reinterpret_cast<const sockaddr*>(&name),
                   static_cast<socklen_t>(bytes)) == 0;
}

void HostileProcess::disconnect() {
  out_.reset();
  in_.clear();
}

bool HostileProcess::send(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  if (!out_) return false;
  // Not by send_frame(), which limits what can be sent.
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char room[CMSG_SPACE(16 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = room;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(control), descriptors.data(), descriptors.size_bytes());
  }
  if (::sendmsg(out_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return false;
  header().frames_sent[0].fetch_add(1,
                                    std::memory_order_release);  // pairs with ShmPeer::has_frames()
  return true;
}

bool HostileProcess::greet(const Address* as, uint32_t connection) {
  const Greeting greeting{.from = as == nullptr ? address_ : *as,
                          .connection = connection,
                          .membarrier = true,
                          .counts_arrivals = counts_arrivals,
                          .beacon = beacon};
  const int descriptors[] = {slots_.fd.get(), header_.fd.get()};
  return send(Frame(greeting), descriptors);
}

uint32_t HostileProcess::receive() {
  for (;;) {
    UniqueFd more(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!more) break;
    in_.push_back(std::move(more));
  }
  uint32_t received_frames = 0;
  std::vector<std::byte> buffer(256u << 10);
  for (const UniqueFd& connection : in_) {
    for (;;) {
      Received received = receive_frame(connection.get(), buffer);
      if (received.kind != Received::Kind::kFrame) break;
      ++received_frames;
      const auto frame =
          decode_frame(std::span(buffer).first(received.size_bytes), received.descriptor_count);
      FABRIC_CHECK(frame.has_value(), "an honest network sent an invalid frame");
      if (std::holds_alternative<Greeting>(*frame)) ++greetings;
      if (std::holds_alternative<Wake>(*frame)) ++wakes;
      if (std::holds_alternative<Arrivals>(*frame)) {
        auto mapped = map_foreign(received.descriptors[0].get(), sizeof(ArrivalCount),
                                  PeerAccess::kReadWrite);
        FABRIC_CHECK(mapped.has_value());
        arrivals.push_back(*std::move(mapped));
      }
      if (const auto* block = std::get_if<BlockReply>(&*frame)) blocks.push_back(*block);
      if (const auto* ring = std::get_if<RingReady>(&*frame)) {
        auto mapped =
            map_foreign(received.descriptors[0].get(), sizeof(Ring), PeerAccess::kReadWrite);
        FABRIC_CHECK(mapped.has_value());
        ready.push_back(*ring);
        rings.push_back(*std::move(mapped));
      }
    }
  }
  return received_frames;
}

bool HostileProcess::show_ring(uint32_t lane, uint32_t path, bool can_pull) {
  auto made = make_memory(sizeof(Ring), PeerAccess::kReadWrite);
  if (!made) return false;
  const int descriptor = made->fd.get();
  header().path_epochs[0].store(1, std::memory_order_release);  // the epoch in the frame below
  own_rings.push_back(*std::move(made));
  return send(Frame(RingReady{.lane = lane, .path = path, .epoch = 1, .can_pull = can_pull}),
              {&descriptor, 1});
}

Footprint footprint() {
  Footprint found;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir("/proc/self/fd"), &::closedir);
  while (listing && ::readdir(listing.get()) != nullptr) ++found.descriptors;
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(::fopen("/proc/self/maps", "re"), &::fclose);
  char line[512];
  while (maps && std::fgets(line, sizeof(line), maps.get()) != nullptr) {
    found.mappings += std::strstr(line, "memfd:") != nullptr;
  }
  return found;
}

}  // namespace fabric::fuzz
