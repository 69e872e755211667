#include "base/bytes.h"
#include "providers/sim/world.h"

// Paths. A nonce from each end identifies a connection, so that a message of an old connection is
// never taken for the new one.

namespace fabric::sim {
namespace {

constexpr uint32_t kAddressMagic = 0x414d4953;  // "SIMA"
constexpr uint32_t kHelloMagic = 0x484d4953;    // "SIMH"
constexpr uint32_t kAnswerMagic = 0x524d4953;   // "SIMR"

}  // namespace

std::vector<std::byte> Wire::address(const NetworkAttachment& attachment) const {
  ByteWriter writer(OpenNetwork::kAddressBytesMax);
  writer.u32(kAddressMagic);
  writer.u64(id);
  writer.u32(attachment.node);
  writer.u32(attachment.network);
  writer.u32(attachment.number);
  return writer.take();
}

/// The attachment number in an address. The attachment may be closed; that shows when it is used.
Result<uint32_t> Wire::reach(const NetworkAttachment& attachment,
                             std::span<const std::byte> address) const {
  ByteReader reader(address);
  reader.require(reader.u32() == kAddressMagic);
  const uint64_t world = reader.u64();
  const uint32_t node = reader.u32();
  const uint32_t network = reader.u32();
  const uint32_t number = reader.u32();
  reader.require(reader.remaining() == 0 && number != 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "sim: address");
  if (world != id || node >= nodes_.size() || network >= nodes_[node].networks.size() ||
      nodes_[node].networks[network].name !=
          nodes_[attachment.node].networks[attachment.network].name) {
    return fail(Errc::kUnreachable, "sim: address");
  }
  if (number > attachments_.size()) return fail(Errc::kUnreachable, "sim: address");
  const NetworkAttachment* far = attachments_[number - 1].get();
  if (far != nullptr && (far->node != node || far->network != network)) {
    return fail(Errc::kUnreachable, "sim: address");
  }
  return number;
}

Result<uint32_t> Wire::open_path(NetworkAttachment& attachment, uint32_t rail,
                                 std::span<const std::byte> peer, uint32_t remote_rail,
                                 std::vector<std::byte>& hello) {
  const auto number = reach(attachment, peer);
  if (!number) return number.error();
  const NetworkAttachment* far = find_attachment(*number);
  if (remote_rail >= (far == nullptr ? kRailsMax : far->rails.size())) {
    return fail(Errc::kInvalidArgument, "remote_rail");
  }
  auto& paths = attachment.rails[rail].out;
  const uint32_t made = paths.add();
  OutPath& path = *paths.find(made);
  path.to = {*number, remote_rail, 0};
  path.nonce = key_rng_.next();

  ByteWriter writer;
  writer.u32(kHelloMagic);
  writer.u32(attachment.number);
  writer.u32(rail);
  writer.u32(made);
  writer.u32(path.to.attachment);
  writer.u32(path.to.rail);
  writer.u64(path.nonce);
  hello = writer.take();
  return made;
}

Result<uint32_t> Wire::accept_path(NetworkAttachment& attachment, uint32_t rail,
                                   std::span<const std::byte> hello,
                                   std::vector<std::byte>& answer) {
  ByteReader reader(hello);
  reader.require(reader.u32() == kHelloMagic);
  PathRef from;
  from.attachment = reader.u32();
  from.rail = reader.u32();
  from.path = reader.u32();
  reader.require(reader.u32() == attachment.number);
  reader.require(reader.u32() == rail);
  const uint64_t hello_nonce = reader.u64();
  reader.require(reader.remaining() == 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "sim: hello");

  RailState& state = attachment.rails[rail];
  Accepted& accepted = state.accepted[{from.attachment, hello_nonce}];
  if (accepted.path == 0) {
    accepted = {state.in.add(), key_rng_.next()};
    InPath& path = *state.in.find(accepted.path);
    path.from = from;
    path.hello_nonce = hello_nonce;
    path.nonce = accepted.nonce;
  } else if (state.in.find(accepted.path) == nullptr) {
    // It has been reported down already, and will not be reported again.
    return fail(Errc::kClosed, "sim: hello");
  }
  ByteWriter writer;
  writer.u32(kAnswerMagic);
  writer.u64(hello_nonce);
  writer.u32(accepted.path);
  writer.u64(accepted.nonce);
  answer = writer.take();
  return accepted.path;
}

Result<void> Wire::start_path(RailState& rail, uint32_t number, std::span<const std::byte> answer) {
  if (!rail.out.known(number)) return fail(Errc::kNotFound, "path");
  OutPath* found = rail.out.find(number);
  if (found == nullptr) return fail(Errc::kClosed, "path");
  OutPath& path = *found;
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
  const int64_t down_ns = now_ns_ + kTeardownNs + nodes_[rail.nic->node].faults.late_proof_ns;
  if (inbound) {
    InPath* path = rail.in.find(at.path);
    if (path == nullptr || path->down) return;
    // A connectionless NIC has nothing to tear down: it still accepts packets with a valid rkey.
    path->down = true;
    return schedule(down_ns, SimEventKind::kInDown, 0, at);
  }
  OutPath* path = rail.out.find(at.path);
  if (path == nullptr) return;
  if (path->state == OutPath::State::kClosing || path->state == OutPath::State::kDown) return;
  path->state = OutPath::State::kClosing;
  schedule(down_ns, SimEventKind::kOutDown, 0, at);
}

void Wire::out_down(const PathRef& at) {
  OutPath* path = find_out(at);
  if (path != nullptr && path->state == OutPath::State::kClosing) {
    break_path(*path, at, Remote::kUnknown);
  }
}

/// Completes every write of a sender's end. `started`: the remote state to report for writes that
/// have packets in flight.
void Wire::break_path(OutPath& path, const PathRef& at, Remote started) {
  path.state = OutPath::State::kDown;
  while (path.first != kNone) {
    const Flight& flight = flights_[path.first];
    const bool unknown = flight.started || path.undrained;
    complete(path.first, Errc::kRailLost, unknown ? started : Remote::kNotDelivered);
  }
  forget_lost(path);
  report_hidden(at);
  RailEvent down;
  down.kind = RailEvent::Kind::kPathDown;
  down.code = Errc::kRailLost;
  down.path = at.path;
  report(at, down);
}

void Wire::in_down(const PathRef& at) {
  const InPath* path = find_in(at);
  if (path == nullptr) return;
  RailEvent down;
  down.kind = RailEvent::Kind::kPathDown;
  down.code = Errc::kRailLost;
  down.inbound = 1;
  down.path = at.path;
  down.value = path->received;
  if (path->undrained) down.remote = Remote::kUnknown;
  report(at, down);
}

/// Erases an end whose kPathDown its engine has polled. A retransmitted hello may still arrive, so
/// the hello is remembered for a while.
void Wire::forget_end(RailState& rail, uint32_t number, bool inbound) {
  if (!inbound) {
    rail.out.erase(number);
    return;
  }
  const InPath* path = rail.in.find(number);
  if (path == nullptr) return;
  rail.closed_hellos.push({path->from.attachment, path->hello_nonce});
  rail.in.erase(number);
  if (rail.closed_hellos.size() > kClosedHellosMax) rail.accepted.erase(rail.closed_hellos.pop());
}

}  // namespace fabric::sim
