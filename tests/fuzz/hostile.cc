#include "fuzz/hostile.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "control/descriptor.h"
#include "core/counter_word.h"
#include "providers/sim/open.h"

namespace fabric::fuzz {

namespace {

constexpr size_t kRemembered = 16;

template <class T>
T& remember(std::deque<T>& list, T value) {
  list.push_front(std::move(value));
  if (list.size() > kRemembered) list.pop_back();
  return list.front();
}

/// Codes that the format knows, kOk most of the time.
Errc code_of(uint8_t byte) {
  constexpr Errc kCodes[] = {Errc::kOk,       Errc::kOk,       Errc::kOk,          Errc::kExhausted,
                             Errc::kPeerLost, Errc::kRailLost, Errc::kUnsupported, Errc::kTimeout};
  return kCodes[byte % 8];
}

}  // namespace

Hostile::Hostile(const World& world, uint32_t node, uint64_t engine_id, std::string key, bool knows)
    : world_(world), key_(std::move(key)), knows_(knows), memory_(kMemoryBytes) {
  Network spec{.provider = "sim", .name = "sim"};
  spec.devices = {sim::world_token(*world.impl, node)};
  OpenContext context;
  context.driver = &world.impl->world_driver;
  network_ = *sim::open(spec, context);
  link_ = *network_->open_link(world.engine.networks.at(0).address);
  const Memory memory{.address = memory_.data(), .size_bytes = memory_.size()};
  lkey_ = *network_->rail(0).register_memory(memory, wire_rkey_);
  hello_ = {.address = {.engine_id = engine_id, .incarnation = 7},
            .to_incarnation = world.engine.incarnation,
            .message_bytes_max = 1024,
            .message_credits = 4,
            .timeout_max_ns = 1'000'000'000,
            .drain_ns = 200'000'000,
            .lost_ns = 500'000'000};
  hello_.address.networks = {{.provider = "sim",
                              .name = "sim",
                              .rails = 1,
                              .fence = FenceKind::kLocal,
                              .memory_kinds = 1,
                              .address = network_->address()}};
}

Bytes Hostile::desc() const {
  control::RegionDesc desc{.owner_engine = address().engine_id,
                           .owner_incarnation = address().incarnation,
                           .region = RegionId(1, 1),
                           .size_bytes = kMemoryBytes};
  desc.networks = {{.network = "sim", .rail_keys = {wire_rkey_}}};
  return *control::encode(desc);
}

// ---- Send ---------------------------------------------------------------------------------------

void Hostile::post(Bytes datagram) {
  // Dropped when too much is in flight.
  if (!datagram.empty()) network_->send(link_, datagram);
  remember(sent_, std::move(datagram));
}

void Hostile::send(MessageType type, const Bytes& body) {
  post(control::encode_frame(header_of(type, {}), body, key_));
}

control::Header Hostile::header_of(MessageType type, const FuzzAction& action) {
  control::Header header{
      .type = type, .to_session = engine_session_, .from_session = session_, .ack = taken_};
  if (control::is_numbered(type)) header.seq = next_seq_;
  const uint8_t twist = action.twist & 15;
  switch (twist) {
    case Twist::kOldSession:
      header.to_session = old_engine_session_;
      break;
    case Twist::kNoSession:
      header.to_session = 0;
      break;
    case Twist::kGuessedSession:
      header.to_session = engine_session_ + action.b - 128;
      break;
    case Twist::kOldSender:
      header.from_session = old_session_;
      break;
    case Twist::kNoSender:
      header.from_session = 0;
      break;
    case Twist::kSameNumber:
      if (header.seq > 1) --header.seq;
      break;
    case Twist::kFarNumber:
      if (header.seq != 0) header.seq += action.b >= 128 ? UINT64_MAX - 1000 : action.b;
      break;
    case Twist::kAcksAll:
      header.ack = action.b % 2 == 0 ? UINT64_MAX : taken_ + action.b;
      header.ack_bits = UINT64_MAX;
      break;
    default:
      break;
  }
  if (header.seq == next_seq_ && header.seq != 0) ++next_seq_;
  return header;
}

void Hostile::send_twisted(MessageType type, const FuzzAction& action, Hostile& other) {
  const uint8_t twist = action.twist >> 4;
  const uint32_t times = twist == Twist::kFlood ? 2 + action.n % 70u : 1;
  for (uint32_t i = 0; i < times; ++i) {
    FuzzAction each = action;
    each.n = static_cast<uint16_t>(action.n + i);
    Bytes body = body_of(type, each);
    if (twist == Twist::kCutBody)
      body.resize(body.size() - std::min<size_t>(body.size(), action.b));
    if (twist == Twist::kLongBody) body.resize(body.size() + action.b);
    if (twist == Twist::kFlipped && !body.empty()) {
      body[action.n % body.size()] ^= static_cast<std::byte>(action.b | 1);
    }
    Bytes datagram = control::encode_frame(header_of(type, action), body, key_);
    if (twist == Twist::kCutFrame) datagram.resize(action.b % datagram.size());
    (twist == Twist::kOtherPort ? other : *this).post(std::move(datagram));
  }
}

/// The reference of a request that was received; high values of `a` give another number.
uint32_t Hostile::ref_for(MessageType question, const FuzzAction& action) const {
  if (action.a >= 0xe0) return action.n;
  uint8_t skip = action.a % 16;
  const bool any = action.a >= 0xc0;
  const Asked* found = nullptr;
  for (const Asked& asked : asked_) {
    if (!any && asked.type != question) continue;
    found = &asked;
    if (skip-- == 0) break;
  }
  return found == nullptr ? action.a : found->ref;
}

/// A counter key that it learned, or a guess that fails.
uint32_t Hostile::key_for(const FuzzAction& action) const {
  if (action.a < 0x80 && !learned_.empty()) return learned_[action.a % learned_.size()].wire();
  const CounterKey guess = CounterKey::from_wire(action.n);
  return std::ranges::find(world_.secrets, guess) == world_.secrets.end() ? action.n : 0;
}

Bytes Hostile::hello_body(const FuzzAction& action) const {
  control::Hello hello = hello_;
  control::NetworkSection& section = hello.address.networks[0];
  const int64_t time_ns = int64_t{action.n} << action.a % 48;
  switch (action.b % 16) {
    case 1:
      hello.lost_ns = time_ns;
      break;
    case 2:
      hello.timeout_max_ns = hello.drain_ns = time_ns;
      break;
    case 3:
      hello.message_credits = action.n;
      break;
    case 4:
      hello.message_bytes_max = action.n;
      break;
    case 5:
      hello.to_incarnation += action.n;
      break;
    case 6:
      hello.address.networks.clear();
      break;
    case 7:  // answers go to the honest peer
      section.address = world_.honest.networks[0].address;
      break;
    case 8:
      section.rails = static_cast<uint8_t>(1 + action.n % kRailsMax);
      break;
    case 9:
      hello.is_inline = true;
      break;
    case 10:
      hello.app_info.assign(action.n % (control::kAppInfoBytesMax + 1), 'x');
      break;
    case 11:
      section.address.resize(action.n % (OpenNetwork::kAddressBytesMax + 1));
      break;
    case 12:
      hello.address.engine_id = world_.engine.engine_id;
      break;
    case 13:
      section.name = "other";
      break;
    case 14:
      hello.address.networks.resize(1 + action.n % control::kNetworksMax, section);
      break;
    case 15:
      section.memory_kinds = action.n;
      break;
    default:
      break;
  }
  return control::encode(hello);
}

Hostile::Path* Hostile::make_path(uint32_t remote_rail) {
  Path path{.ref = next_ref_++};
  const auto opened =
      network_->rail(0).open_path(world_.engine.networks[0].address, remote_rail, path.hello);
  if (!opened) return nullptr;
  path.number = *opened;
  return &remember(paths_, std::move(path));
}

void Hostile::open_path() {
  const Path* path = make_path(0);
  FABRIC_CHECK(path != nullptr);
  control::PathOpen open{.ref = path->ref, .provider = "sim", .network = "sim"};
  open.hello = path->hello;
  send(MessageType::kPathOpen, control::encode(open));
}

Bytes Hostile::path_body(MessageType type, const FuzzAction& action) {
  if (type == MessageType::kPathClose) {
    const bool own = action.a < 0x80 && !paths_.empty();
    const uint32_t ref =
        own ? paths_[action.a % paths_.size()].ref : ref_for(MessageType::kPathOpen, action);
    return control::encode(control::PathClose{.ref = ref});
  }
  if (type == MessageType::kPathDrained) {
    const uint64_t taken = action.b >= 128 ? UINT64_MAX - action.n : action.n;
    return control::encode(control::PathDrained{.ref = ref_for(MessageType::kPathOpen, action),
                                                .exact = action.b % 2 == 0,
                                                .imms_received = taken});
  }
  if (type == MessageType::kPathAnswer) {
    control::PathAnswer answer{.ref = ref_for(MessageType::kPathOpen, action)};
    answer.code = code_of(action.b);
    const auto asked = std::ranges::find(asked_, answer.ref, &Asked::ref);
    const bool real = action.b < 128 && asked != asked_.end() && !asked->hello.empty();
    // Otherwise bytes that the network did not produce.
    if (!real || !network_->rail(0).accept_path(asked->hello, answer.answer)) {
      answer.answer.assign(action.n % 64, std::byte{1});
    }
    return control::encode(answer);
  }
  return path_open_body(action);
}

Bytes Hostile::path_open_body(const FuzzAction& action) {
  control::PathOpen open{.ref = next_ref_, .provider = "sim", .network = "sim"};
  const bool again = action.b % 8 == 1 && !paths_.empty();
  const Path* path = again ? &paths_[action.a % paths_.size()] : make_path(action.b >= 128);
  if (path != nullptr) open.hello = path->hello;
  if (path != nullptr && !again) open.ref = path->ref;
  if (action.b % 8 == 2) open.hello.assign(action.n % 64, std::byte{1});
  if (action.b % 8 == 3) open.provider = open.network = "self";
  if (action.b % 8 == 4) open.rail = action.n % kRailsMax;
  if (action.b % 8 == 5) open.remote_rail = action.n % kRailsMax;
  if (action.b % 8 == 6) open.ref = action.n;
  if (action.b % 8 == 7 && accomplice_ != nullptr && !accomplice_->paths_.empty()) {
    open.hello = accomplice_->paths_[action.a % accomplice_->paths_.size()].hello;
  }
  return control::encode(open);
}

Bytes Hostile::answer_body(MessageType type, const FuzzAction& action) {
  const auto done = [&](MessageType question) {
    return control::encode(
        control::Done{.ref = ref_for(question, action), .code = code_of(action.b)});
  };
  switch (type) {
    case MessageType::kMessageDone:
      return done(MessageType::kMessage);
    case MessageType::kRegionRevoked:
      return done(MessageType::kRevokeRegion);
    case MessageType::kKeyRevoked:
      return done(MessageType::kRevokeKey);
    case MessageType::kFenced:
      return done(MessageType::kFence);
    default:
      break;
  }
  control::ResolvedNames names{.ref = ref_for(MessageType::kResolve, action)};
  names.code = code_of(action.b);
  if (names.code == Errc::kOk) names.keys.assign(1 + action.n % 16, action.n);
  return control::encode(names);
}

Bytes Hostile::body_of(MessageType type, const FuzzAction& action) {
  switch (type) {
    case MessageType::kHello:
    case MessageType::kWelcome:
      return hello_body(action);
    case MessageType::kReject:
      return control::encode(
          control::Reject{.code = code_of(action.b), .incarnation = world_.engine.incarnation});
    case MessageType::kBye:
      return control::encode(control::Bye{.code = code_of(action.b)});
    case MessageType::kPing:
      return control::encode(control::Ping{.stamp = action.n});
    case MessageType::kPong:
      return control::encode(control::Ping{.stamp = action.b < 128 ? stamp_ : stamp_ + action.n});
    case MessageType::kPathOpen:
    case MessageType::kPathAnswer:
    case MessageType::kPathDrained:
    case MessageType::kPathClose:
      return path_body(type, action);
    case MessageType::kMessage: {
      const Bytes text(size_t{action.a} * 20, std::byte{7});
      return control::encode(control::UserMessage{
          .ref = action.n, .channel = static_cast<uint16_t>(action.b % 4), .bytes = text});
    }
    case MessageType::kMessagePart: {
      // In steps that a correct sender takes, so that some messages become whole.
      const Bytes text(action.b >= 0xf0 ? 0 : size_t{16} << 10, std::byte{7});
      const uint32_t offset = (action.n % 5u) << 14;
      const auto size = std::min<size_t>(text.size(), 70'000 - offset);
      return control::encode(control::MessagePart{.ref = action.a % 4u,
                                                  .channel = static_cast<uint16_t>(action.b % 4),
                                                  .total_bytes = 70'000,
                                                  .offset = offset,
                                                  .bytes = std::span(text).first(size)});
    }
    case MessageType::kResolve: {
      control::ResolveNames names{.ref = action.n};
      names.names.resize(action.a >= 0xf0 ? control::kNamesPerMessageMax : 1 + action.a % 8);
      for (size_t i = 0; i < names.names.size(); ++i) names.names[i] = action.b + i;
      return control::encode(names);
    }
    case MessageType::kRevokeRegion:
      return control::encode(control::RevokeRegion{
          .ref = action.n, .region = RegionId(1 + action.a % 2u, 1), .grant = action.b % 2u});
    case MessageType::kFence:
      return control::encode(control::FenceRequest{.ref = action.n});
    case MessageType::kRevokeKey:
      return control::encode(control::RevokeKey{.ref = action.n, .key = key_for(action)});
    case MessageType::kAbortKey:
      return control::encode(control::AbortKey{.key = key_for(action), .code = code_of(action.b)});
    case MessageType::kReady:
    case MessageType::kAck:
      return {};
    default:
      if (std::ranges::find(kFrameKinds, type) == kFrameKinds.end() - 1) return {};
      return answer_body(type, action);
  }
}

void Hostile::replay(const FuzzAction& action, Hostile& other) {
  const auto& from = action.what % 2 == 0 ? sent_ : other.sent_;
  if (from.empty()) return;
  Bytes datagram = from[action.a % from.size()];
  if (datagram.empty()) return;
  if (action.twist % 4 == 1) datagram.resize(action.n % datagram.size());
  if (action.twist % 4 == 2) datagram[action.n % datagram.size()] ^= std::byte{1};
  if (action.twist % 4 == 3) datagram.resize(datagram.size() + action.b);
  post(std::move(datagram));
}

void Hostile::become(const FuzzAction& action, const Hostile& other) {
  constexpr uint64_t kNext = uint64_t{1} << 32;
  control::Address& self = hello_.address;
  const uint64_t before = std::exchange(old_session_, session_);
  session_ += kNext;
  switch (static_cast<Become>(action.what % 8)) {
    case Become::kEarlierSession:
      session_ = before;
      break;
    case Become::kNextIncarnation:
      ++self.incarnation;
      break;
    case Become::kEarlierIncarnation:
      if (self.incarnation > 1) --self.incarnation;
      break;
    case Become::kTheOther:
      take_name(other.address().engine_id);
      break;
    case Become::kOtherPeer:
      take_name(0x70000000 + action.n % 16);
      break;
    case Become::kTheEngine:
      take_name(world_.engine.engine_id);
      break;
    case Become::kHonest:
      take_name(world_.honest.engine_id);
      break;
    case Become::kNextSession:
      break;
  }
  next_seq_ = 1;
  taken_ = 0;
}

/// The members of a job trust each other: a peer with the job key does not impersonate the honest
/// peer, also when it takes the id of the other hostile peer.
void Hostile::take_name(uint64_t engine_id) {
  if (knows_ && engine_id == world_.honest.engine_id) return;
  hello_.address.engine_id = engine_id;
}

// ---- Receive ------------------------------------------------------------------------------------

void Hostile::read(uint8_t answers) {
  Bytes datagram(network_->control_bytes_max());
  while (const uint32_t size = network_->receive(datagram)) {
    const auto frame = control::decode_frame(std::span(datagram).first(size), key_);
    if (frame) receive(*frame, answers);
  }
  RailEvent event;
  while (network_->rail(0).poll({&event, 1}) > 0) {
    if (event.kind != RailEvent::Kind::kPathDown || event.inbound != 0) continue;
    std::erase_if(paths_, [&](const Path& path) { return path.number == event.path; });
  }
}

void Hostile::receive(const control::Frame& frame, uint8_t answers) {
  if (frame.header.from_session > engine_session_) {
    old_engine_session_ = std::exchange(engine_session_, frame.header.from_session);
    next_seq_ = 1;
    taken_ = 0;
  }
  if (frame.header.type == MessageType::kHello && (answers & Answers::kWelcomes) != 0) {
    send(MessageType::kWelcome, control::encode(hello_));
  }
  if (frame.header.type == MessageType::kWelcome && (answers & Answers::kWelcomes) != 0) {
    send(MessageType::kReady);
  }
  if (frame.header.type == MessageType::kPing) {
    stamp_ = control::decode_ping(frame.body)->stamp;
    if ((answers & Answers::kPong) != 0) {
      send(MessageType::kPong, control::encode(control::Ping{.stamp = stamp_}));
    }
  }
  if (frame.header.seq == 0) return;
  if (frame.header.seq == taken_ + 1) {  // a frame that comes too early is sent again
    ++taken_;
    receive_numbered(frame, answers);
  }
  if ((answers & Answers::kAck) != 0) send(MessageType::kAck);
}

void Hostile::receive_numbered(const control::Frame& frame, uint8_t answers) {
  Asked question{.type = frame.header.type};
  switch (frame.header.type) {
    case MessageType::kPathOpen: {
      const auto open = control::decode_path_open(frame.body);
      question.ref = open->ref;
      question.hello = open->hello;
      break;
    }
    case MessageType::kMessage:
      question.ref = control::decode_user_message(frame.body)->ref;
      break;
    case MessageType::kResolve: {
      const auto resolve = control::decode_resolve(frame.body);
      question.ref = resolve->ref;
      question.names = static_cast<uint32_t>(resolve->names.size());
      break;
    }
    case MessageType::kRevokeRegion:
      question.ref = control::decode_revoke_region(frame.body)->ref;
      break;
    case MessageType::kRevokeKey:
      question.ref = control::decode_revoke_key(frame.body)->ref;
      break;
    case MessageType::kFence:
      question.ref = control::decode_fence(frame.body)->ref;
      break;
    case MessageType::kPathAnswer:
      return start_path(*control::decode_path_answer(frame.body));
    case MessageType::kResolved: {
      const auto names = control::decode_resolved(frame.body);
      for (const uint32_t key : names->keys) {
        if (learned_.size() < kRemembered) learned_.push_back(CounterKey::from_wire(key));
      }
      return;
    }
    default:
      return;
  }
  answer(remember(asked_, std::move(question)), answers);
}

void Hostile::answer(const Asked& question, uint8_t answers) {
  const auto done = [&](MessageType type, uint8_t mask) {
    if ((answers & mask) == 0) return;
    send(type, control::encode(control::Done{.ref = question.ref}));
  };
  switch (question.type) {
    case MessageType::kMessage:
      return done(MessageType::kMessageDone, Answers::kTakes);
    case MessageType::kRevokeRegion:
      return done(MessageType::kRegionRevoked, Answers::kRevokes);
    case MessageType::kRevokeKey:
      return done(MessageType::kKeyRevoked, Answers::kRevokes);
    case MessageType::kFence:
      return done(MessageType::kFenced, Answers::kFences);
    case MessageType::kPathOpen: {
      if ((answers & Answers::kLetsIn) == 0) return;
      control::PathAnswer in{.ref = question.ref};
      in.code = network_->rail(0).accept_path(question.hello, in.answer).error().code;
      return send(MessageType::kPathAnswer, control::encode(in));
    }
    default:
      break;
  }
  if ((answers & Answers::kResolves) == 0) return;
  control::ResolvedNames names{.ref = question.ref};
  for (uint32_t i = 0; i < question.names; ++i) names.keys.push_back(100 + i);
  send(MessageType::kResolved, control::encode(names));
}

void Hostile::start_path(const control::PathAnswer& answer) {
  if (answer.code != Errc::kOk) return;
  const auto path = std::ranges::find(paths_, answer.ref, &Path::ref);
  if (path == paths_.end() || path->started) return;
  path->started = network_->rail(0).start_path(path->number, answer.answer).has_value();
  paths_started_ += path->started;
}

void Hostile::write(const FuzzAction& action, std::span<const std::byte> wire_rkey,
                    CounterKey count_on) {
  std::vector<const Path*> open;
  for (const Path& path : paths_) {
    if (path.started) open.push_back(&path);
  }
  const auto remote = network_->rail(0).import_rkey(wire_rkey);
  if (open.empty() || !remote) return;
  std::ranges::fill(memory_, static_cast<std::byte>(action.n | 1));
  WriteOp op;
  op.source = reinterpret_cast<uintptr_t>(memory_.data());
  op.target = action.b * 16u;
  op.size_bytes = action.a * 4u;
  op.lkey = lkey_;
  op.rkey = action.twist % 8 == 7 ? *remote ^ 256 : *remote;
  op.path = open[action.who / 2 % open.size()]->number;
  const bool own = action.what % 4 < 2 || learned_.empty();
  op.has_imm = action.what % 4 != 0;
  op.imm = core::make_imm(own ? count_on : learned_[action.n % learned_.size()],
                          1 + action.twist % kRailsMax);
  if (network_->rail(0).post({&op, 1}) == 1) counted_ += own && op.has_imm != 0;
}

}  // namespace fabric::fuzz
