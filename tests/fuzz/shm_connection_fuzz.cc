#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "fuzz/fuzz_helpers.h"
#include "fuzz/shm_fixture.h"
#include "fuzz/shm_script.h"

// Three hostile processes of the same user against two honest networks. Whatever the three send on
// the sockets, pass as descriptors and store into shared memory: the traffic of the two is exact,
// every posted write completes once, and no resource is leaked.

namespace fabric::fuzz {
namespace {

using namespace fabric::shm;
using Kind = RailEvent::Kind;

/// Expands 32 bits to a 64-bit number of any magnitude.
uint64_t wide(uint32_t value) {
  const uint64_t low = value & 0x3fffffff;
  switch (value >> 30) {
    case 0:
      return low;
    case 1:
      return uint64_t{1} << (low % 64);
    case 2:
      return ~(low & 0xffff);
    default:
      return low * 0x9e3779b97f4a7c15;
  }
}

class ShmFuzzSession {
 public:
  void run(std::span<const std::byte> script) {
    for (ShmTraffic* one : traffic()) one->write();
    // The first to greet with a name owns it, so the honest networks connect first.
    expect_exact_traffic();
    for (size_t at = 0; at + kShmActionBytes <= script.size(); at += kShmActionBytes) {
      if (at / kShmActionBytes == kShmActionsMax) break;
      const auto byte = [&](size_t i) { return std::to_integer<uint8_t>(script[at + i]); };
      uint32_t value = 0;
      for (uint32_t i = 0; i < 4; ++i) value |= uint32_t{byte(4 + i)} << (8 * i);
      const auto verbs = static_cast<uint8_t>(ShmVerb::kCount);
      act({static_cast<ShmVerb>(byte(0) % verbs), byte(1), byte(2), byte(3), value});
    }
    expect_exact_traffic();
    expect_everything_completes();
  }

 private:
  static constexpr uint32_t kHostile = 3;
  static constexpr uint64_t kOpenBytes = 64u << 10;
  static constexpr uint32_t kOpenRkeys =
      4;  ///< memory that every peer may write to; indices 0 to 3

  std::array<ShmTraffic*, 4> traffic() { return {&in_, &in_pulled_, &out_, &out_pulled_}; }

  void act(const ShmAction& a);
  void send_frame(HostileProcess& one, const ShmAction& a);
  void greet(HostileProcess& one, const ShmAction& a);
  void show_rkey(HostileProcess& one, const ShmAction& a);
  void post(const ShmAction& a);
  void scribble_ring(HostileProcess& one, const ShmAction& a);
  static void scribble_header(HostileProcess& one, const ShmAction& a);
  static void scribble_slots(HostileProcess& one, const ShmAction& a);
  void path_in(HostileProcess& one, const ShmAction& a);
  void path_out(HostileProcess& one);
  void revoke(uint32_t index);
  void expect_exact_traffic();
  void expect_everything_completes();

  struct Path {
    uint32_t id;
    bool inbound;
    bool operator==(const Path&) const = default;
  };

  StepDriver driver_;
  ShmNode victim_{driver_}, honest_{driver_};
  // Registered first: the hostile processes can guess these rkeys.
  SharedPages pages_ = *SharedPages::allocate(kOpenBytes * kOpenRkeys / 2, false);
  std::vector<std::byte> plain_ = std::vector<std::byte>(kOpenBytes * kOpenRkeys / 2);
  std::array<uint64_t, kOpenRkeys> open_ = [this] {
    std::array<uint64_t, kOpenRkeys> rkeys{};
    for (uint32_t i = 0; i < kOpenRkeys; ++i) rkeys[i] = open(i);
    return rkeys;
  }();
  ShmTraffic in_{honest_, victim_, TargetKind::kMapped},
      in_pulled_{honest_, victim_, TargetKind::kPulled};
  ShmTraffic out_{victim_, honest_, TargetKind::kMapped},
      out_pulled_{victim_, honest_, TargetKind::kPulled};
  std::array<HostileProcess, kHostile> hostile_{
      HostileProcess(1), HostileProcess(uint64_t{1} << 40), HostileProcess(UINT64_MAX - 1)};
  std::vector<Path> paths_;
  std::vector<std::byte> source_ = std::vector<std::byte>(kOpenBytes);
  uint32_t posted_ = 0, revoked_ = 0;

  uint64_t open(uint32_t index) {
    std::byte* const at =
        index < kOpenRkeys / 2 ? static_cast<std::byte*>(pages_.address()) : plain_.data();
    std::vector<std::byte> wire;
    const auto rkey = victim_.rail().register_memory(
        {at + index % (kOpenRkeys / 2) * kOpenBytes, kOpenBytes}, wire);
    FABRIC_CHECK(rkey.has_value());
    return *rkey;
  }
};

void ShmFuzzSession::act(const ShmAction& a) {
  HostileProcess& one = hostile_[a.who % kHostile];
  switch (a.verb) {
    case ShmVerb::kConnect:
      one.connect(victim_.address());
      return;
    case ShmVerb::kGreet:
      return greet(one, a);
    case ShmVerb::kSend:
      return send_frame(one, a);
    case ShmVerb::kFlood:
      for (uint32_t i = 0; i < uint32_t{a.n} + 1; ++i) send_frame(one, a);
      return;
    case ShmVerb::kDisconnect:
      return one.disconnect();
    case ShmVerb::kReceive:
      one.receive();
      return;
    case ShmVerb::kTurn:
      victim_.turns(a.n % 4 + 1);
      return honest_.turn();
    case ShmVerb::kTraffic:
      for (ShmTraffic* traffic : traffic()) traffic->write();
      return;
    case ShmVerb::kPathIn:
      return path_in(one, a);
    case ShmVerb::kPathOut:
      return path_out(one);
    case ShmVerb::kShowRing:
      if (!paths_.empty()) one.show_ring(0, paths_[a.what % paths_.size()].id, a.n % 2 != 0);
      return;
    case ShmVerb::kShowRkey:
      return show_rkey(one, a);
    case ShmVerb::kBlock: {
      const auto kind = static_cast<Passed>(a.what % static_cast<uint8_t>(Passed::kCount));
      const UniqueFd passed = make_descriptor(kind, 4096);
      const int descriptor = passed.get();
      one.send(Frame(BlockReply{a.n, wide(a.value)}), {&descriptor, 1});
      return;
    }
    case ShmVerb::kPost:
      return post(a);
    case ShmVerb::kScribbleRing:
      return scribble_ring(one, a);
    case ShmVerb::kScribbleHeader:
      return scribble_header(one, a);
    case ShmVerb::kScribbleSlots:
      return scribble_slots(one, a);
    case ShmVerb::kClosePath:
      if (!paths_.empty()) {
        const Path path = paths_[a.what % paths_.size()];
        victim_.rail().close_path(path.id, path.inbound);
      }
      return;
    case ShmVerb::kRevoke:
      return revoke(a.n % kOpenRkeys);
    case ShmVerb::kCount:
      return;
  }
}

void ShmFuzzSession::greet(HostileProcess& one, const ShmAction& a) {
  const Address names[] = {one.address(), honest_.address(), victim_.address(),
                           hostile_[(a.who + 1u) % kHostile].address()};
  const Address& name = names[a.what % 4];
  if (a.n == 0) {
    if ((a.what & 4) != 0) one.show_memory();
    one.greet(&name, static_cast<uint32_t>(wide(a.value)));
    return;
  }
  const auto kind = [](uint32_t n) {
    return static_cast<Passed>(n % static_cast<uint8_t>(Passed::kCount));
  };
  const UniqueFd slots = make_descriptor(kind(a.n & 15), sizeof(WriterSlotTable));
  const UniqueFd header = make_descriptor(kind(a.n >> 4), sizeof(SharedHeader));
  const int both[] = {slots.get(), header.get()};
  one.send(Frame(Greeting{.from = name, .connection = static_cast<uint32_t>(wide(a.value))}), both);
}

void ShmFuzzSession::send_frame(HostileProcess& one, const ShmAction& a) {
  const uint64_t number = wide(a.value);
  const auto small = static_cast<uint32_t>(number);
  const uint32_t path = paths_.empty() ? small : paths_[small % paths_.size()].id;
  const UniqueFd passed =
      make_descriptor(static_cast<Passed>(a.n / 8 % static_cast<uint8_t>(Passed::kCount)), 4096);
  const std::array<int, 7> descriptors = {passed.get(), passed.get(), passed.get(), passed.get(),
                                          passed.get(), passed.get(), passed.get()};
  const auto some = std::span(descriptors).first(a.n % 8);
  switch (a.what % 11) {
    case 0:
      return void(one.send(Frame(Greeting{.from = one.address(), .connection = small}), some));
    case 1:
      return void(one.send(encode(Frame(Datagram{})), some));
    case 2:
      return void(one.send(Frame(Wake{}), some));
    case 3:
      return void(
          one.send(Frame(RingReady{
                       .lane = a.what / 11u, .path = path, .epoch_index = small, .epoch = number}),
                   some));
    case 4:
      return void(one.send(Frame(BlockRequest{number}), some));
    case 5:
      return void(one.send(Frame(BlockReply{number, 4096}), some));
    case 6:
      return void(one.send(Frame(BlockReleased{number}), some));
    case 7:
      return void(one.send(Frame(MemoryRequest{}), some));
    case 8:
      return void(one.send(Frame(MemoryReply{}), some));
    case 9:
      return void(one.send(Frame(Arrivals{}), some));
    default: {
      std::vector<std::byte> noise(1 + small % 300, static_cast<std::byte>(a.what));
      noise[0] = static_cast<std::byte>(small >> 16);
      return void(one.send(noise, some));
    }
  }
}

void ShmFuzzSession::show_rkey(HostileProcess& one, const ShmAction& a) {
  RkeyEntry& entry = one.header().rkeys[a.n % 16];
  entry.block.store(a.n >> 4);
  entry.offset.store(a.what >= 64 ? wide(a.value) : 0);
  entry.size_bytes.store(wide(a.value));
  entry.kind.store(a.what % 4);
  entry.validity_epoch.store(1);
}

void ShmFuzzSession::path_in(HostileProcess& one, const ShmAction& a) {
  std::vector<std::byte> answer;
  const auto path = victim_.rail().accept_path(
      encode(PathHello{.from = one.address(), .lane = a.what, .path = a.n}), answer);
  if (!path) return;
  const Path made{*path, true};
  if (std::ranges::find(paths_, made) == paths_.end()) paths_.push_back(made);
}

void ShmFuzzSession::path_out(HostileProcess& one) {
  std::vector<std::byte> hello;
  const auto path = victim_.rail().open_path(encode(one.address()), 0, hello);
  if (!path) return;
  const std::byte answer[] = {std::byte{1}};
  FABRIC_CHECK(victim_.rail().start_path(*path, answer).has_value());
  paths_.push_back({*path, false});
}

void ShmFuzzSession::post(const ShmAction& a) {
  if (paths_.empty() || paths_[a.what % paths_.size()].inbound) return;
  const WriteOp op{.source = reinterpret_cast<uint64_t>(source_.data()),
                   .target = (a.n & 16) != 0 ? wide(a.value) : 0,
                   .size_bytes = a.value % kOpenBytes,
                   .rkey = uint64_t{1} << 32 | a.n % 16,
                   .cookie = posted_,
                   .path = paths_[a.what % paths_.size()].id,
                   .imm = a.value,
                   .has_imm = static_cast<uint8_t>(a.n >> 7)};
  posted_ += victim_.rail().post({&op, 1});
}

void ShmFuzzSession::scribble_ring(HostileProcess& one, const ShmAction& a) {
  // Its own rings and those that it received.
  const size_t rings = one.rings.size() + one.own_rings.size();
  if (rings == 0) return;
  const size_t which = a.what / 16 % rings;
  Ring& ring =
      *(which < one.rings.size() ? one.rings[which].as<Ring>()
                                 : one.own_rings[which - one.rings.size()].mapping.as<Ring>());
  const uint64_t value = wide(a.value);
  PullRequest& request = ring.pulls[a.n % Ring::kPulls];
  switch (a.what % 16) {
    case 0:
      return ring.imms_taken.store(value);
    case 1:
      return ring.imms[a.n].store(Ring::imm_word(a.n, a.value));
    case 2:
      return ring.imms[a.n].store(value);
    case 3:
      return request.word.store(
          PullRequest::word_of(a.n, static_cast<PullRequest::State>(a.value % 8)));
    case 4: {
      // Never the regions of the honest traffic: a valid rkey allows writing there.
      const uint64_t index = value & 0xffffffff;
      return request.rkey.store(uint64_t{1} << 32 | (index < 64 ? index % kOpenRkeys : index));
    }
    case 5:
      return request.target.store(value);
    case 6:
      return request.source.store((a.value & 1) != 0 ? value
                                                     : reinterpret_cast<uint64_t>(source_.data()));
    case 7:
      return request.size_bytes.store(value);
    case 8:
      return request.word.store(value);
    case 9:
      return request.flags.store(a.value);
    case 10:
      return ring.retired.store(a.value);
    case 11:
      return ring.pulls_taken.store(value);
    default:
      for (uint64_t at = 0; at < Ring::kPulls; ++at) {
        ring.pulls[at].word.store(
            PullRequest::word_of(at, static_cast<PullRequest::State>(a.value % 8)));
      }
      return;
  }
}

void ShmFuzzSession::scribble_header(HostileProcess& one, const ShmAction& a) {
  SharedHeader& header = one.header();
  const uint64_t value = wide(a.value);
  switch (a.what % 8) {
    case 0:
      return header.path_epochs[a.n % 2].store(value);
    case 1:
      return header.sleep_epoch.store(value);
    case 2:
      return header.frames_sent[0].store(static_cast<uint32_t>(value));
    case 3:
      return header.rkeys[a.n % 16].validity_epoch.store(value);
    case 4:
      return header.rkeys[a.n % 16].size_bytes.store(value);
    case 5:
      return header.rkeys[a.n % 16].offset.store(value);
    case 6:
      return header.rkeys[a.n % 16].block.store(value);
    default:
      return header.rkeys[a.n % 16].kind.store(a.value);
  }
}

void ShmFuzzSession::scribble_slots(HostileProcess& one, const ShmAction& a) {
  WriterSlotTable& slots = one.slots();
  WriterSlot& slot = slots.slot[a.n];
  switch (a.what % 4) {
    case 0:
      return slots.used.store(a.value);
    case 1:
      slot.section_seq.store(a.value);
      return slot.restartable.store(a.value >> 8);
    case 2:
      return slot.tid.store(a.value);
    default:
      std::memset(static_cast<void*>(&slot.liveness_mutex), static_cast<int>(a.value),
                  sizeof(slot.liveness_mutex));
      return;
  }
}

void ShmFuzzSession::revoke(uint32_t index) {
  victim_.rail().deregister_memory(open_[index], 1000 + revoked_++);
  // Its index is reused only after the proof.
}

void ShmFuzzSession::expect_exact_traffic() {
  for (uint32_t turn = 0; turn < 200; ++turn) {
    const auto all = traffic();
    if (std::ranges::all_of(all, [](const ShmTraffic* one) { return one->exact(); })) return;
    victim_.turn();
    honest_.turn();
  }
  FABRIC_CHECK(false, "honest traffic was blocked, or its bytes are wrong");
}

void ShmFuzzSession::expect_everything_completes() {
  for (HostileProcess& one : hostile_) {
    // Disconnects with no thread inside a section, so that outstanding proofs can complete.
    WriterSlotTable& slots = one.slots();
    for (uint32_t i = 0; i < 256; ++i) slots.slot[i].section_seq.store(0);
    one.disconnect();
  }
  for (const Path& path : paths_) victim_.rail().close_path(path.id, path.inbound);
  std::multiset<uint32_t> cookies;
  size_t looked = 0, down = 0, fenced = 0;
  for (uint32_t turn = 0; turn < 40; ++turn) {
    for (; looked < victim_.events.size(); ++looked) {
      const RailEvent& event = victim_.events[looked];
      down += event.kind == Kind::kPathDown;
      fenced += event.kind == Kind::kFenced;
      const bool written = event.kind == Kind::kCompletion && event.cookie < posted_;
      if (written) cookies.insert(event.cookie);
    }
    victim_.turn();
  }
  FABRIC_CHECK(down == paths_.size(), "a closed path was reported twice or never");
  FABRIC_CHECK(fenced == revoked_, "a fence was reported twice or never");
  for (uint32_t cookie = 0; cookie < posted_; ++cookie) {
    FABRIC_CHECK(cookies.count(cookie) == 1, "a write completed twice or never");
  }
}

}  // namespace
}  // namespace fabric::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fabric::fuzz;
  // The first run allocates what stays, such as the writer slots of the process.
  [[maybe_unused]] static const bool warm = [] {
    ShmFuzzSession().run({});
    return true;
  }();
  const Footprint before = footprint();
  ShmFuzzSession().run(input(data, size));
  FABRIC_CHECK(footprint() == before, "descriptors or mappings were leaked");
  return 0;
}
