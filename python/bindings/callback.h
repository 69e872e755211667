#pragma once

// Python functions and inboxes as the destination of reports.

#include "native.h"

namespace fabric_python {

/// The Python class Event. Owns the bytes of a message, which the library lends only until the next
/// poll.
struct PyEvent {
  fabric::Event event{};
  nb::object data{};  ///< bytes, or null
};
PyEvent copy_event(const fabric::Event& event);
/// The exception of an event that failed.
nb::object error_of(const fabric::Event& event);

using PyInbox = Held<fabric::Inbox>;
using PyFlag = Held<fabric::Flag>;

/// A Python function that a Notify calls.
///
/// Lifetime: a callback of an operation deletes itself after its only call. One of a subscription
/// is owned by it, and by the call while it runs.
struct CallbackBox : std::enable_shared_from_this<CallbackBox> {
  nb::object function;
  bool once = false;
  std::shared_ptr<CallbackBox> self;  ///< once: until it was called
};
using SharedCallback = std::shared_ptr<CallbackBox>;

/// The Python class Notify.
struct PyNotify {
  nb::object target{};  ///< Inbox, Flag or callable
  uint64_t tag = 0;
  uint32_t value = 1;
};

/// A C++ Notify made from a Python argument: an Inbox, a Flag, a callable, a Notify or None.
class NotifyArg {
 public:
  /// Throws TypeError with `name`.
  NotifyArg(nb::handle argument, uint64_t tag, bool once, const char* name = "notify");
  NotifyArg(const NotifyArg&) = delete;
  ~NotifyArg() {
    if (callback_ != nullptr) callback_->self.reset();  // refused: it will not be called
  }
  const fabric::Notify& get() const noexcept { return notify_; }
  /// The operation was accepted: a callback lives until its call.
  void accepted() noexcept;
  SharedCallback callback() const { return callback_; }

 private:
  void read(nb::handle argument, uint64_t tag, uint32_t value, bool once, const char* name);
  fabric::Notify notify_{};
  SharedCallback callback_{};
};

}  // namespace fabric_python
