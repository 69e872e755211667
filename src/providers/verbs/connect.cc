#include <algorithm>
#include <cerrno>

#include "providers/verbs/handles.h"

// Paths from open_path() to the moment when they carry something.

namespace fabric::verbs {

std::shared_ptr<CompletionQueue> VerbsRail::find_queue(uint32_t places) const {
  const auto found = std::find_if(queues_.begin(), queues_.end(), [&](const auto& one) {
    return !one->overrun && one->size - one->taken >= places;
  });
  return found == queues_.end() ? nullptr : *found;
}

/// Orders what is missing. Every queue pair has places on its completion queue for all that it can
/// ever have outstanding; when they are used up, another queue is made.
void VerbsRail::fill_stock(Direction direction) {
  Stock& stock = stock_[static_cast<size_t>(direction)];
  const uint32_t places = QueuePair::places(direction, device_->options());
  while (stock.ready.size() + stock.ordered < Stock::kSize + stock.expected) {
    auto queue = find_queue(places);
    if (queue == nullptr && stock.ordered != 0) return;  // that one may bring a queue along
    if (queue != nullptr) queue->taken += places;
    ++stock.ordered;
    offload([queue, places, direction, device = device_, box = mailbox_] {
      Mail mail{.kind = Mail::Kind::kSpare, .direction = direction, .queue = queue};
      if (queue == nullptr) {
        if (auto made = CompletionQueue::make(device, places)) mail.queue = *std::move(made);
        if (mail.queue != nullptr) mail.queue->taken = places;
      }
      if (mail.queue != nullptr) {
        if (auto made = QueuePair::make(mail.queue, direction)) mail.pair = *std::move(made);
      }
      box->put(std::move(mail));
    });
  }
}

void VerbsRail::stocked(const Mail& mail) {
  Stock& stock = stock_[static_cast<size_t>(mail.direction)];
  --stock.ordered;
  if (mail.queue == nullptr) return;
  const bool known = std::find(queues_.begin(), queues_.end(), mail.queue) != queues_.end();
  if (!known) queues_.push_back(mail.queue);
  if (mail.pair != nullptr) {
    stock.ready.push_back(mail.pair);
    if (mail.queue->overrun) drop_stock();
  } else {
    // Whoever needs one asks the kernel again, and hears why not.
    mail.queue->taken -= QueuePair::places(mail.direction, device_->options());
  }
}

/// Those on a completion queue that overran: nobody would ever hear of what they do.
void VerbsRail::drop_stock() {
  for (const Direction direction : {Direction::kOut, Direction::kIn}) {
    auto& ready = stock_[static_cast<size_t>(direction)].ready;
    const auto gone = std::stable_partition(
        ready.begin(), ready.end(), [](const auto& pair) { return !pair->queue()->overrun; });
    for (auto it = gone; it != ready.end(); ++it) release(*it, direction);
    ready.erase(gone, ready.end());
  }
}

void VerbsRail::expect_peer(bool comes) {
  for (const Direction direction : {Direction::kOut, Direction::kIn}) {
    Stock& stock = stock_[static_cast<size_t>(direction)];
    if (comes && stock.expected < Stock::kExpectedMax) ++stock.expected;
    if (!comes && stock.expected > 0) --stock.expected;
    fill_stock(direction);
  }
}

/// From the stock. When more paths are opened at once than peers were announced it runs out, and
/// the turn waits for the kernel.
Result<std::shared_ptr<QueuePair>> VerbsRail::take_pair(Direction direction) {
  Stock& stock = stock_[static_cast<size_t>(direction)];
  if (stock.expected != 0) --stock.expected;
  if (!stock.ready.empty()) {
    auto pair = std::move(stock.ready.back());
    stock.ready.pop_back();
    fill_stock(direction);
    return pair;
  }
  const uint32_t places = QueuePair::places(direction, device_->options());
  auto queue = find_queue(places);
  if (queue == nullptr) {
    auto made = CompletionQueue::make(device_, places);
    if (!made) return made.error();
    queue = queues_.emplace_back(*std::move(made));
  }
  auto pair = QueuePair::make(queue, direction);
  if (pair) queue->taken += places;
  fill_stock(direction);  // also when an order of it has failed meanwhile
  return pair;
}

Endpoint VerbsRail::own_end(const QueuePair& pair, uint64_t nonce, uint32_t packet) const {
  const ibv_port_attr& port = device_->state().attributes;
  const bool ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  return {.nonce = nonce,
          .queue_pair = pair.number(),
          .packet = packet,
          .gid = device_->gid().bytes,
          .lid = port.lid,
          .mtu = device_->mtu(),
          .grh = ethernet || device_->options().gid_index >= 0};
}

/// Two calls into the kernel, which talks to the card: outside the turn. Whom it did not find the
/// last time it looks for in a line apart.
void VerbsRail::connect_later(const std::shared_ptr<QueuePair>& pair, Direction direction,
                              uint32_t path, const Near& near, const Endpoint& far,
                              uint32_t packet) {
  const auto connect = [pair, box = mailbox_, direction, path, near, far, packet] {
    Mail mail{.kind = Mail::Kind::kConnected, .direction = direction, .path = path, .far = far.gid};
    mail.error = pair->connect(near, far, packet);
    box->put(std::move(mail));
  };
  offload(connect, unfound_.contains(far.gid) ? Line::kConnectUnfound : Line::kConnect);
}

Result<uint32_t> VerbsRail::open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                                      std::vector<std::byte>& hello) {
  const auto address = decode_address(peer);
  if (!address) return address.error();
  if (remote_rail >= address->rails) return fail(Errc::kInvalidArgument, "remote_rail");
  auto pair = take_pair(Direction::kOut);
  if (!pair) return pair.error();
  OutPath* path = out_.add();
  if (path == nullptr) {
    release(*pair, Direction::kOut);
    return fail(Errc::kExhausted, "verbs: paths");
  }
  const uint32_t depth = device_->options().send_depth;
  path->mask = std::bit_ceil(depth) - 1;
  path->cookies = std::make_unique<uint32_t[]>(path->mask + 1);
  path->pair = *std::move(pair);
  path->nonce = driver_.entropy() | 1;
  path->packet = static_cast<uint32_t>(driver_.entropy()) & kNumberMax;
  path->near = device_->near();
  hello = encode(PathHello{.from = instance_,
                           .to = address->instance,
                           .to_rail = static_cast<uint8_t>(remote_rail),
                           .end = own_end(*path->pair, path->nonce, path->packet)});
  return path->id;
}

Result<uint32_t> VerbsRail::accept_path(std::span<const std::byte> bytes,
                                        std::vector<std::byte>& answer) {
  const auto hello = decode_hello(bytes);
  if (!hello) return hello.error();
  if (hello->to != instance_ || hello->to_rail != index_) {
    return fail(Errc::kBadFormat, "verbs: hello");
  }
  const std::pair name(hello->from, hello->end.nonce);
  if (const auto known = accepted_.find(name); known != accepted_.end()) {
    // It has been reported down, and whoever took it for open would wait for that in vain.
    if (in_.find(known->second.path) == nullptr) return fail(Errc::kClosed, "verbs: hello");
    answer = known->second.answer;
    return known->second.path;
  }
  auto pair = take_pair(Direction::kIn);
  if (!pair) return pair.error();
  InPath* path = in_.add();
  if (path == nullptr) {
    release(*pair, Direction::kIn);
    return fail(Errc::kExhausted, "verbs: paths");
  }
  path->pair = *std::move(pair);
  path->hello = name;
  if (!refill(*path)) {
    release(path->pair, Direction::kIn);
    in_.erase(path->id);
    return fail(Errc::kExhausted, "ibv_post_recv");
  }
  const uint64_t nonce = driver_.entropy() | 1;
  const uint32_t packet = static_cast<uint32_t>(driver_.entropy()) & kNumberMax;
  answer = encode(
      PathAnswer{.hello_nonce = hello->end.nonce, .end = own_end(*path->pair, nonce, packet)});
  accepted_[name] = {path->id, answer};
  // The answer may be there before this has happened. The first packets are lost then, and the
  // sender's card repeats them.
  path->connecting = true;
  connect_later(path->pair, Direction::kIn, path->id, device_->near(), hello->end, packet);
  return path->id;
}

Result<void> VerbsRail::start_path(uint32_t id, std::span<const std::byte> bytes) {
  OutPath* path = out_.find(id);
  if (path == nullptr) return fail(Errc::kNotFound, "path");
  const auto answer = decode_answer(bytes);
  if (!answer) return answer.error();
  if (answer->hello_nonce != path->nonce) return fail(Errc::kBadFormat, "verbs: answer");
  switch (path->state) {
    case OutPath::State::kOpened:
      break;
    case OutPath::State::kStarting:
    case OutPath::State::kReady:
      if (path->far == answer->end) return {};
      return fail(Errc::kBadFormat, "verbs: another answer");
    default:
      return fail(Errc::kClosed, "path");
  }
  path->far = answer->end;
  path->state = OutPath::State::kStarting;
  path->deadline_ns = driver_.now_ns() + kConnectNs + timed_ * kConnectEachNs;
  ++timed_;
  path->connecting = true;
  connect_later(path->pair, Direction::kOut, id, path->near, path->far, path->packet);
  return {};
}

void VerbsRail::found(const GidBytes& far, int error) {
  constexpr size_t kUnfoundMax = 1024;
  if (error == 0) {
    unfound_.erase(far);
  } else if (error != ECANCELED && unfound_.size() < kUnfoundMax) {
    unfound_.insert(far);
  }
}

/// The connection stands, or it never will.
void VerbsRail::connected(OutPath& path, int error) {
  path.connecting = false;
  if (error != 0) return break_out(path);
  path.state = OutPath::State::kReady;
  path.deadline_ns = kNeverNs;
  --timed_;
  const std::vector<WriteOp> held = std::exchange(path.held, {});
  post(held);  // no more than there is room for
}

/// What was decided meanwhile is done now.
void VerbsRail::connected(InPath& path, int error) {
  path.connecting = false;
  if (path.state == InPath::State::kBreaking) {
    return error_later(path.pair, Direction::kIn, path.id);
  }
  if (error != 0) break_in(path);
}

void VerbsRail::close_path(uint32_t id, bool inbound) noexcept {
  if (inbound) {
    if (InPath* path = in_.find(id)) break_in(*path);
  } else {
    if (OutPath* path = out_.find(id)) break_out(*path);
  }
}

}  // namespace fabric::verbs
