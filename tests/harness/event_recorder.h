#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include <fabric/engine.h>
#include <fabric/notify.h>

namespace fabric::test {

/// Records every event that it is notified of, in order.
///
/// Lifetime: outlives every engine that reports to it.
/// Threads: callbacks of one engine come from one thread. A test with threads of its own reads the
///   record once the engine is closed.
class EventRecorder {
 public:
  /// `clock` gives the time of each event.
  explicit EventRecorder(const Engine* clock = nullptr) : clock_(clock) {}
  EventRecorder(const EventRecorder&) = delete;
  EventRecorder& operator=(const EventRecorder&) = delete;

  Notify notify(uint64_t tag = 0) { return Notify::call<&EventRecorder::on>(this, tag); }

  void on(const Event& event) {
    if (event.kind == EventKind::kMessage) {
      messages.emplace_back(event.bytes().begin(), event.bytes().end());
    }
    events.push_back(event);
    events.back().data = nullptr;  // valid in the callback only
    times.push_back(clock_ == nullptr ? Nanos{} : clock_->now());
    if (then) then(event);
  }

  uint32_t count() const { return static_cast<uint32_t>(events.size()); }
  uint32_t count(uint64_t tag) const { return count_of(tag, &Event::tag); }
  uint32_t count(EventKind kind) const { return count_of(kind, &Event::kind); }
  uint32_t count(Errc code) const { return count_of(code, &Event::code); }

  /// The first event of this tag or kind; null when there is none.
  const Event* find(uint64_t tag) const { return find_of(tag, &Event::tag); }
  const Event* find(EventKind kind) const { return find_of(kind, &Event::kind); }

  /// When the event of that tag came. Fails the test when there is none.
  Nanos when(uint64_t tag) const;

  /// The states that a peer went through, in order.
  std::vector<PeerState> states(PeerId peer) const {
    std::vector<PeerState> states;
    for (const Event& event : events) {
      if (event.kind != EventKind::kPeer || event.peer != peer) continue;
      states.push_back(static_cast<PeerState>(event.value));
    }
    return states;
  }

  std::vector<Event> events;
  std::vector<std::vector<std::byte>> messages;  ///< the bytes of kMessage events, copied
  std::vector<Nanos> times;
  std::function<void(const Event&)> then;  ///< called inside the callback, after recording

 private:
  template <class Value, class Member>
  uint32_t count_of(const Value& value, Member member) const {
    return static_cast<uint32_t>(std::ranges::count(events, value, member));
  }
  template <class Value, class Member>
  const Event* find_of(const Value& value, Member member) const {
    const auto found = std::ranges::find(events, value, member);
    return found == events.end() ? nullptr : &*found;
  }

  const Engine* clock_;
};

}  // namespace fabric::test
