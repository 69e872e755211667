#include "base/bytes.h"
#include "providers/sim/world.h"

// Paths. A nonce from each end names a connection, so that what belongs to an old one is never
// taken for the new one.

namespace fabric::sim {
namespace {

constexpr uint32_t kAddressMagic = 0x414d4953;  // "SIMA"
constexpr uint32_t kHelloMagic = 0x484d4953;    // "SIMH"
constexpr uint32_t kAnswerMagic = 0x524d4953;   // "SIMR"

}  // namespace

std::vector<std::byte> Wire::address(const Port& port) const {
  ByteWriter writer(OpenNetwork::kAddressBytesMax);
  writer.u32(kAddressMagic);
  writer.u64(id);
  writer.u32(port.node);
  writer.u32(port.network);
  writer.u32(port.number);
  return writer.take();
}

/// The port behind an address. Whether anybody is there only shows when it is used.
Result<uint32_t> Wire::reach(const Port& port, std::span<const std::byte> address) const {
  ByteReader reader(address);
  reader.require(reader.u32() == kAddressMagic);
  const uint64_t world = reader.u64();
  const uint32_t node = reader.u32();
  const uint32_t network = reader.u32();
  const uint32_t number = reader.u32();
  reader.require(reader.remaining() == 0 && number != 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "sim: address");
  if (world != id || node >= nodes_.size() || network >= nodes_[node].networks.size() ||
      nodes_[node].networks[network].name != nodes_[port.node].networks[port.network].name) {
    return fail(Errc::kUnreachable, "sim: address");
  }
  if (number > ports_.size()) return fail(Errc::kUnreachable, "sim: address");
  const Port* far = ports_[number - 1].get();
  if (far != nullptr && (far->node != node || far->network != network)) {
    return fail(Errc::kUnreachable, "sim: address");
  }
  return number;
}

Result<uint32_t> Wire::open_path(Port& port, uint32_t rail, std::span<const std::byte> peer,
                                 uint32_t remote_rail, std::vector<std::byte>& hello) {
  const auto number = reach(port, peer);
  if (!number) return number.error();
  const Port* far = find_port(*number);
  if (remote_rail >= (far == nullptr ? kRailsMax : far->rails.size())) {
    return fail(Errc::kInvalidArgument, "remote_rail");
  }
  auto& paths = port.rails[rail].out;
  OutPath& path = paths.emplace_back();
  path.to = {*number, remote_rail, 0};
  path.nonce = key_rng_.next();

  ByteWriter writer;
  writer.u32(kHelloMagic);
  writer.u32(port.number);
  writer.u32(rail);
  writer.u32(static_cast<uint32_t>(paths.size()));
  writer.u32(path.to.port);
  writer.u32(path.to.rail);
  writer.u64(path.nonce);
  hello = writer.take();
  return static_cast<uint32_t>(paths.size());
}

Result<uint32_t> Wire::accept_path(Port& port, uint32_t rail, std::span<const std::byte> hello,
                                   std::vector<std::byte>& answer) {
  ByteReader reader(hello);
  reader.require(reader.u32() == kHelloMagic);
  PathRef from;
  from.port = reader.u32();
  from.rail = reader.u32();
  from.path = reader.u32();
  reader.require(reader.u32() == port.number);
  reader.require(reader.u32() == rail);
  const uint64_t hello_nonce = reader.u64();
  reader.require(reader.remaining() == 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "sim: hello");

  RailState& state = port.rails[rail];
  uint32_t& number = state.accepted[{from.port, hello_nonce}];
  if (number == 0) {
    InPath& path = state.in.emplace_back();
    path.from = from;
    path.hello_nonce = hello_nonce;
    path.nonce = key_rng_.next();
    number = static_cast<uint32_t>(state.in.size());
  }
  ByteWriter writer;
  writer.u32(kAnswerMagic);
  writer.u64(hello_nonce);
  writer.u32(number);
  writer.u64(state.in[number - 1].nonce);
  answer = writer.take();
  return number;
}

Result<void> Wire::start_path(RailState& rail, uint32_t number, std::span<const std::byte> answer) {
  if (number - 1 >= rail.out.size()) return fail(Errc::kNotFound, "path");
  OutPath& path = rail.out[number - 1];
  ByteReader reader(answer);
  reader.require(reader.u32() == kAnswerMagic);
  reader.require(reader.u64() == path.nonce);
  const uint32_t far_path = reader.u32();
  const uint64_t far_nonce = reader.u64();
  reader.require(reader.remaining() == 0 && far_path != 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "sim: answer");
  if (path.state == OutPath::State::kStarted) {
    if (path.to.path == far_path && path.to_nonce == far_nonce) return {};
    return fail(Errc::kBadFormat, "sim: another answer");
  }
  if (path.state != OutPath::State::kOpened) return fail(Errc::kClosed, "path");
  path.to.path = far_path;
  path.to_nonce = far_nonce;
  path.state = OutPath::State::kStarted;
  return {};
}

void Wire::close_path(RailState& rail, const PathRef& at, bool inbound) {
  if (inbound) {
    if (at.path - 1 >= rail.in.size() || rail.in[at.path - 1].down) return;
    // A connection-less NIC has nothing to tear down: it keeps taking what carries a good key.
    rail.in[at.path - 1].down = true;
    schedule(now_ns_ + kTeardownNs, EventKind::kInDown, 0, at);
    return;
  }
  if (at.path - 1 >= rail.out.size()) return;
  OutPath& path = rail.out[at.path - 1];
  if (path.state == OutPath::State::kClosing || path.state == OutPath::State::kDown) return;
  path.state = OutPath::State::kClosing;
  schedule(now_ns_ + kTeardownNs, EventKind::kOutDown, 0, at);
}

void Wire::out_down(const PathRef& at) {
  OutPath* path = find_out(at);
  if (path != nullptr && path->state == OutPath::State::kClosing) {
    break_path(*path, at, Remote::kUnknown);
  }
}

void Wire::path_timed_out(const PathRef& at) {
  OutPath* path = find_out(at);
  if (path != nullptr && path->state == OutPath::State::kStarted) {
    break_path(*path, at, Remote::kUnknown);
  }
}

/// Ends everything on a sender's end. `left` is what is known of the writes that are on their way.
void Wire::break_path(OutPath& path, const PathRef& at, Remote left) {
  path.state = OutPath::State::kDown;
  while (path.first != kNone) {
    const Flight& flight = flights_[path.first];
    end(path.first, Errc::kRailLost, flight.left ? left : Remote::kNotDelivered);
  }
  WireEvent down;
  down.kind = WireEvent::Kind::kPathDown;
  down.code = Errc::kRailLost;
  down.path = at.path;
  report(at, down);
}

void Wire::in_down(const PathRef& at) {
  const InPath* path = find_in(at);
  if (path == nullptr) return;
  WireEvent down;
  down.kind = WireEvent::Kind::kPathDown;
  down.code = Errc::kRailLost;
  down.inbound = 1;
  down.path = at.path;
  down.value = path->taken;
  report(at, down);
}

}  // namespace fabric::sim
