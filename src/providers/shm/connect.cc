#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "providers/shm/handles.h"

// Paths: open, accept, start, close, and how their ends are proved and reported.

namespace fabric::shm {

namespace {

constexpr uint32_t kEndedMax = 256;  ///< ends of a neighbour that are remembered
constexpr uint32_t kPatience = 50;   ///< looks, a millisecond or more each, for orders under way

/// A record with an id that was not used for a long time; null when there are too many.
template <class Path>
Path* take(std::vector<std::unique_ptr<Path>>& paths, std::vector<uint32_t>& free,
           uint32_t& serial) {
  if (free.empty()) {
    if (paths.size() >> kSlotBits != 0) return nullptr;
    free.reserve(paths.size() + 1);  // giving it back cannot fail
    paths.push_back(std::make_unique<Path>());
    free.push_back(static_cast<uint32_t>(paths.size() - 1));
  }
  const uint32_t slot = free.back();
  free.pop_back();
  *paths[slot] = Path{};
  paths[slot]->id = ++serial << kSlotBits | slot;
  paths[slot]->live = true;
  return paths[slot].get();
}

}  // namespace

Result<uint32_t> ShmRail::open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                                    std::vector<std::byte>& hello) {
  if (remote_rail >= kRailsMax) return fail(Errc::kInvalidArgument, "remote_rail");
  auto to = network_.neighbour(peer);
  if (!to) return to.error();
  OutPath* const path = take(out_, out_free_, serial_);
  if (path == nullptr) return fail(Errc::kExhausted, "shm paths");
  path->to = *std::move(to);
  ++path->to->paths;
  hello = encode(PathHello{.from = network_.own_address(), .lane = lane_, .path = path->id});
  return path->id;
}

Result<uint32_t> ShmRail::accept_path(std::span<const std::byte> hello,
                                      std::vector<std::byte>& answer) {
  auto asked = decode_hello(hello);
  if (!asked) return asked.error();
  if (asked->lane >= kRailsMax) return fail(Errc::kBadFormat, "shm hello");
  auto from = network_.neighbour(asked->from);
  if (!from) return from.error();
  const auto name = std::pair(asked->lane, asked->path);
  const auto& over = (*from)->ended_paths;
  if (std::find(over.begin(), over.end(), name) != over.end()) {
    network_.let_go(**from);
    return fail(Errc::kClosed, "shm path");
  }
  ByteWriter writer;
  writer.u8(1);
  answer = writer.take();
  for (const auto& path : in_) {
    const bool same = path->live && path->from == *from && path->lane == asked->lane &&
                      path->number == asked->path;
    if (same) return path->id;
  }
  auto memory = make_memory(sizeof(Ring), Peers::kMayWrite);
  if (!memory) return memory.error();
  auto permit = network_.take_permit();
  if (!permit) return permit.error();
  watched_.reserve(in_.size() + 1);
  InPath* const path = take(in_, in_free_, serial_);
  if (path == nullptr) {
    network_.free_permit(permit->first);
    return fail(Errc::kExhausted, "shm paths");
  }
  path->from = *std::move(from);
  ++path->from->paths;
  path->lane = asked->lane;
  path->number = asked->path;
  path->memory = *std::move(memory);
  path->ring = path->memory.mapping.as<Ring>();
  std::tie(path->permit, path->permit_value) = *permit;
  network_.front().paths[path->permit].store(path->permit_value, std::memory_order_release);
  watched_.push_back(path);
  show_ring(*path);
  return path->id;
}

Result<void> ShmRail::start_path(uint32_t path, std::span<const std::byte> answer) {
  ByteReader reader(answer);
  reader.require(reader.u8() == 1 && reader.remaining() == 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "shm answer");
  OutPath* const found = out_path(path);
  if (found == nullptr) return fail(Errc::kNotFound, "shm path");
  found->started = true;
  found->open = found->ring != nullptr && !found->closing;
  return {};
}

/// Once it is known how the sender's memory can be read. Until then its pieces wait.
void ShmRail::show_ring(InPath& path) {
  Neighbour& from = *path.from;
  if (from.reach == Neighbour::Reach::kUntried) network_.find_reach(from);
  const bool known = from.reach == Neighbour::Reach::kYes || from.reach == Neighbour::Reach::kNo;
  if (path.shown || path.closing || !known) return;
  // The mapping is all that this side needs.
  auto ring = std::make_shared<const UniqueFd>(std::move(path.memory.fd));
  path.shown = true;
  from.send(RingReady{.lane = path.lane,
                      .path = path.number,
                      .permit = path.permit,
                      .permit_value = path.permit_value,
                      .pulls = from.reach == Neighbour::Reach::kYes},
            std::move(ring));
}

void ShmRail::show_rings(Neighbour& to) {
  for (const auto& path : in_) {
    if (path->live && path->from.get() == &to) show_ring(*path);
  }
}

void ShmRail::ring_ready(Neighbour& from, const RingReady& frame, UniqueFd ring) {
  OutPath* const path = out_path(frame.path);
  const bool awaited = path != nullptr && path->to.get() == &from && path->ring == nullptr;
  if (!awaited || frame.permit >= Front::kPaths || path->closing) return;
  auto memory = map_foreign(ring.get(), sizeof(Ring), Peers::kMayWrite);
  if (!memory) return break_out(*path, Errc::kRailLost);
  path->memory = *std::move(memory);
  path->ring = path->memory.as<Ring>();
  path->pulls = frame.pulls;
  path->guard.path = &from.their_front()->paths[frame.permit];
  path->guard.path_value = frame.permit_value;
  path->open = path->started;
}

void ShmRail::close_path(uint32_t path, bool inbound) noexcept {
  if (!inbound) {
    if (OutPath* const found = out_path(path); found != nullptr) break_out(*found, Errc::kOk);
    return;
  }
  InPath* const found = in_path(path);
  if (found == nullptr || found->closing) return;
  found->closing = true;
  ++closing_in_;
  // From here on no section begins; those that have begun are waited for.
  network_.front().paths[found->permit].store(0, std::memory_order_release);
}

/// Nothing leaves by it any more. What waits ends with the next poll.
void ShmRail::break_out(OutPath& path, Errc code) noexcept {
  if (path.closing) return;
  path.closing = true;
  path.open = false;
  path.code = code;
  ++closing_out_;
  withdraw_orders(path);
}

/// What the target has not begun to fetch it will not fetch.
void ShmRail::withdraw_orders(OutPath& path) noexcept {
  take_back(path, Order::kPublished, Order::kWithdrawn);
}

void ShmRail::take_back(OutPath& path, Order::State from, Order::State to) noexcept {
  for (uint64_t position = path.orders_ended; position != path.orders; ++position) {
    uint64_t word = Order::word_of(position, from);
    // Pairs with begin_job() and finish_orders(), which exchange as well.
    path.ring->orders[position % Ring::kOrders].word.compare_exchange_strong(
        word, Order::word_of(position, to), std::memory_order_acq_rel, std::memory_order_relaxed);
  }
}

/// Now and then: ends that the other side has closed, and neighbours that are gone.
void ShmRail::look_at_paths() noexcept {
  looked_ = network_.looks();
  for (const auto& path : out_) {
    if (!path->live) continue;
    if (path->to->look_for_death()) {  // which shows before it hangs up
      break_out(*path, Errc::kPeerLost);
    } else if (path->to->left()) {
      break_out(*path, Errc::kRailLost);
    } else if (path->ring != nullptr &&
               path->ring->retired.load(std::memory_order_acquire) != 0) {  // pairs with retire()
      break_out(*path, Errc::kRailLost);
      // An order that was published behind the target's last look: nobody will look again.
      withdraw_orders(*path);
    }
    // A target that was stopped at an order would hold the end of its write for as long.
    if (path->closing && path->orders != path->orders_ended && ++path->patience == kPatience) {
      take_back(*path, Order::kTaken, Order::kAbandoned);
    }
  }
  for (const auto& path : in_) {
    if (!path->live) continue;
    if (path->from->gone()) path->lost = true;
    if (path->lost) close_path(path->id, true);
    if (!path->shown) show_ring(*path);
  }
}

uint32_t ShmRail::poll_out_ends(std::span<WireEvent> out) noexcept {
  uint32_t n = 0;
  for (const auto& path : out_) {
    if (n == out.size()) break;
    if (!path->live || !path->closing) continue;
    if (path->orders != path->orders_ended) collect_orders(*path);
    if (!path->quiet(told_)) continue;
    const bool gone = path->to->gone();
    out[n++] = {.kind = WireEvent::Kind::kPathDown,
                .code = gone ? Errc::kPeerLost : path->code,
                .path = path->id};
    --closing_out_;
    out_free_.push_back(slot_of(path->id));
    const std::shared_ptr<Neighbour> to = std::move(path->to);
    *path = OutPath{};
    --to->paths;
    network_.let_go(*to);
  }
  return n;
}

/// Whether nothing of its sender can be stored any more by this path.
bool ShmRail::in_end_proved(InPath& path) noexcept {
  if (path.proved) return true;
  Neighbour& from = *path.from;
  if (!path.shown || from.cards() == nullptr) return path.proved = true;
  if (!path.proof) {
    if (!heavy_fence()) return false;
    path.proof.emplace(*from.cards());
  }
  if (path.proof->proved(*from.cards(), fresh_look_)) {
    ++proved_by_[static_cast<size_t>(path.proof->by())];
  } else if (!fresh_look_ || !from.ended()) {
    return false;
  }
  return path.proved = true;
}

uint32_t ShmRail::poll_in_ends(std::span<WireEvent> out) noexcept {
  uint32_t n = 0;
  for (const auto& path : in_) {
    if (n == out.size()) break;
    if (!path->live || !path->closing || !in_end_proved(*path)) continue;
    std::erase(watched_, path.get());
    // What was committed had landed.
    n += take_counts(*path, out.subspan(n));
    if (n == out.size()) break;
    for (uint64_t at = path->orders; at != path->orders + Ring::kOrders; ++at) {
      Order& order = path->ring->orders[at % Ring::kOrders];
      uint64_t word = order.word.load(std::memory_order_acquire);
      if (word >> Order::kStateBits != at || word == 0) break;
      if (word == Order::word_of(at, Order::kWithdrawn)) continue;
      // Pairs with collect_orders(). If it is withdrawn in this moment, that is as good.
      order.word.compare_exchange_strong(word, Order::word_of(at, Order::kClosed),
                                         std::memory_order_acq_rel, std::memory_order_relaxed);
    }
    path->ring->retired.store(1, std::memory_order_release);  // pairs with look_at_paths()
    path->from->wake_if_asleep();
    out[n++] = {.kind = WireEvent::Kind::kPathDown,
                .code = path->from->gone() ? Errc::kPeerLost : Errc::kOk,
                .inbound = 1,
                .path = path->id,
                .value = path->immediates};
    --closing_in_;
    network_.free_permit(path->permit);
    in_free_.push_back(slot_of(path->id));
    const std::shared_ptr<Neighbour> from = std::move(path->from);
    if (from->ended_paths.size() == kEndedMax) from->ended_paths.pop_front();
    from->ended_paths.emplace_back(path->lane, path->number);
    *path = InPath{};
    --from->paths;
    network_.let_go(*from);
  }
  return n;
}

}  // namespace fabric::shm
