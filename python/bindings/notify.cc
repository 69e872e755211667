// <fabric/notify.h>: events, inboxes, flags, callbacks. Batches are in batch.cc.

#include <algorithm>
#include <array>

#include "callback.h"
#include "record.h"

namespace fabric_python {

namespace {

thread_local bool t_in_callback = false;

/// Runs on the engine's callback thread, or in the turn of an inline engine.
void run_callback(void* context, const fabric::Event& event) {
  if (Py_IsInitialized() == 0) return;
  const nb::gil_scoped_acquire gil;
  const SharedCallback box = static_cast<CallbackBox*>(context)->shared_from_this();
  const bool outer = t_in_callback;
  t_in_callback = true;
  try {
    box->function(copy_event(event));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(box->function);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    PyErr_WriteUnraisable(box->function.ptr());
  }
  t_in_callback = outer;
  if (box->once) box->self.reset();
}

/// Resolves futures for events of an inbox in one pass. `table[tag]` is the future, or None for a
/// tag whose events go to `other`; a tag that was served goes to `free`.
uint32_t resolve_futures(PyInbox& self, nb::list table, nb::list free, nb::object other) {
  static PyObject* const kSetResult = PyUnicode_InternFromString("set_result");
  static PyObject* const kSetException = PyUnicode_InternFromString("set_exception");
  static PyObject* const kDone = PyUnicode_InternFromString("done");
  fabric::Inbox& inbox = self.get();
  const auto use = self.use_alone();
  std::array<fabric::Event, 64> events;
  uint32_t all = 0;
  for (uint32_t n = inbox.poll(events); n > 0; n = inbox.poll(events)) {
    all += n;
    for (const fabric::Event& event : std::span(events).first(n)) {
      const bool known = event.tag < table.size() && event.kind == fabric::EventKind::kDone;
      nb::object future = known ? nb::object(table[event.tag]) : nb::none();
      if (future.is_none()) {
        other(copy_event(event));
        continue;
      }
      table[event.tag] = nb::none();
      free.append(event.tag);
      const auto call = [&](PyObject* name, PyObject* argument) {
        return nb::steal(PyObject_CallMethodObjArgs(future.ptr(), name, argument, nullptr));
      };
      if (call(kDone, nullptr).is(nb::handle(Py_True))) continue;  // cancelled by its task
      const bool good = event.code == fabric::Errc::kOk;
      const nb::object argument = good ? nb::object(nb::int_(event.value)) : error_of(event);
      if (!call(good ? kSetResult : kSetException, argument.ptr()).is_valid()) {
        throw nb::python_error();
      }
    }
    if (n < events.size()) break;
  }
  return all;
}

nb::list poll(PyInbox& self, uint32_t max) {
  fabric::Inbox& inbox = self.get();
  const auto use = self.use_alone();
  nb::list out;
  std::array<fabric::Event, 64> events;
  while (max > 0) {
    const auto room = std::span(events).first(std::min<size_t>(max, events.size()));
    const uint32_t n = inbox.poll(room);
    for (const fabric::Event& event : room.first(n)) out.append(copy_event(event));
    max -= n;
    if (n < room.size()) break;
  }
  return out;
}

void bind_event(nb::module_& m) {
  using fabric::EventKind;
  nb::enum_<EventKind>(m, "EventKind")
      .value("DONE", EventKind::kDone)
      .value("MESSAGE", EventKind::kMessage)
      .value("WATCH", EventKind::kWatch)
      .value("PEER", EventKind::kPeer)
      .value("RAIL", EventKind::kRail)
      .value("ROOM", EventKind::kRoom)
      .value("FENCE_PROVED", EventKind::kFenceProved)
      .value("UNHANDLED", EventKind::kUnhandled);
  nb::class_<PyEvent>(m, "Event", "The report of anything asynchronous. Immutable.")
      .def_prop_ro("kind", [](const PyEvent& self) { return self.event.kind; })
      .def_prop_ro("code", [](const PyEvent& self) { return self.event.code; })
      .def_prop_ro("remote", [](const PyEvent& self) { return self.event.remote; })
      .def_prop_ro("rail", [](const PyEvent& self) { return self.event.rail; })
      .def_prop_ro("parts_failed", [](const PyEvent& self) { return self.event.parts_failed; })
      .def_prop_ro("first_failed", [](const PyEvent& self) { return self.event.first_failed; })
      .def_prop_ro("tag", [](const PyEvent& self) { return self.event.tag; })
      .def_prop_ro("op", [](const PyEvent& self) { return self.event.op; })
      .def_prop_ro("peer", [](const PyEvent& self) { return self.event.peer; })
      .def_prop_ro("value", [](const PyEvent& self) { return self.event.value; })
      .def_prop_ro(
          "previous", [](const PyEvent& self) { return self.event.previous; },
          "WATCH: the value before; UNHANDLED without an op: the name that expired.")
      .def_prop_ro("parts_unknown", [](const PyEvent& self) { return self.event.parts_unknown; })
      .def_prop_ro("previous_state",
                   [](const PyEvent& self) {
                     return self.event.kind == EventKind::kPeer
                                ? std::optional(self.event.previous_state)
                                : std::nullopt;
                   })
      .def_prop_ro(
          "data",
          [](const PyEvent& self) {
            return self.data.is_valid() ? self.data : nb::object(nb::bytes("", 0));
          },
          nb::for_getter(nb::sig("def data(self) -> bytes")), "The bytes of a message.")
      .def_prop_ro(
          "error",
          [](const PyEvent& self) {
            return self.event.code == fabric::Errc::kOk ? nb::object(nb::none())
                                                        : error_of(self.event);
          },
          nb::for_getter(nb::sig("def error(self) -> fabric_lib._errors.FabricError | None")),
          "The exception that a blocking call would have raised.")
      .def("__repr__", [](const PyEvent& self) {
        return std::string("Event(") + to_string(self.event.kind) + ", " +
               to_string(self.event.code) + ", tag=" + std::to_string(self.event.tag) +
               ", value=" + std::to_string(self.event.value) + ")";
      });
}

void bind_inbox(nb::module_& m) {
  nb::class_<PyInbox>(m, "Inbox", "A bounded queue of events that one thread reads.")
      .def("poll", &poll, "max"_a = 64, nb::sig("def poll(self, max: int = 64) -> list[Event]"))
      .def(
          "wait",
          [](PyInbox& self, TimeoutArg timeout) {
            fabric::Inbox& inbox = self.get();
            const auto use = self.use_alone();
            unwrap(wait_in_slices(self.context(), timeout.get(),
                                  [&](fabric::Timeout slice) { return inbox.wait(slice); }));
          },
          "timeout"_a.none() = nb::none(), "Blocks until there is an event.")
      .def(
          "fd", [](PyInbox& self) { return unwrap(self.get().fd()); },
          "Readable while the queue is not empty, for epoll and asyncio.")
      .def("resolve", &resolve_futures, "table"_a, "free"_a, "other"_a,
           nb::sig("def resolve(self, table: list[typing.Any], free: list[int], other: "
                   "collections.abc.Callable[[Event], None]) -> int"),
           "Resolves the futures of fabric_lib.aio.")
      .def("close", [](PyInbox& self) { self.close(); })
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Inbox"))
      .def(
          "__exit__", [](PyInbox& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace

bool in_callback() noexcept { return t_in_callback; }

PyEvent copy_event(const fabric::Event& event) {
  PyEvent copy{event, {}};
  if (event.size_bytes > 0 && event.data != nullptr) {
    copy.data = nb::bytes(event.data, event.size_bytes);
  }
  copy.event.data = nullptr;
  return copy;
}

nb::object error_of(const fabric::Event& event) {
  std::string what = std::string("operation: ") + to_string(event.code);
  if (event.parts_failed > 0) {
    what += ", " + std::to_string(event.parts_failed) + " parts failed, the first is number " +
            std::to_string(event.first_failed) + ", " + to_string(event.remote);
  }
  return make_error(event.code, what, 0, "");
}

NotifyArg::NotifyArg(nb::handle argument, uint64_t tag, bool once, const char* name) {
  if (argument.is_none()) return;
  PyNotify* notify = nullptr;
  if (nb::try_cast(argument, notify) && notify != nullptr) {
    read(notify->target, notify->tag, notify->value, once, name);
  } else {
    read(argument, tag, 1, once, name);
  }
}

void NotifyArg::read(nb::handle argument, uint64_t tag, uint32_t value, bool once,
                     const char* name) {
  PyInbox* inbox = nullptr;
  PyFlag* flag = nullptr;
  if (nb::try_cast(argument, inbox) && inbox != nullptr) {
    notify_ = fabric::Notify::inbox(inbox->get(), tag);
  } else if (nb::try_cast(argument, flag) && flag != nullptr) {
    notify_ = fabric::Notify::flag(flag->get(), value);
  } else if (PyCallable_Check(argument.ptr()) != 0) {
    callback_ = std::make_shared<CallbackBox>();
    callback_->function = nb::borrow(argument);
    callback_->once = once;
    // Before the submit: the call may come before it returns.
    if (once) callback_->self = callback_;
    notify_ = fabric::Notify::call(&run_callback, callback_.get(), tag);
  } else {
    throw nb::type_error((std::string(name) +
                          ": expected an Inbox, a Flag, a Notify or a "
                          "function of one Event, got " +
                          nb::type_name(argument.type()).c_str())
                             .c_str());
  }
}

void NotifyArg::accepted() noexcept { callback_.reset(); }

void bind_notify(nb::module_& m) {
  bind_event(m);
  bind_inbox(m);
  nb::class_<PyFlag>(m, "Flag", "A 32-bit word that the engine sets and any thread polls.")
      .def("load", [](PyFlag& self) { return self.get().load(); })
      .def(
          "store", [](PyFlag& self, uint32_t value) { self.get().store(value); }, "value"_a);
  nb::class_<PyNotify>(m, "Notify", "Where a completion is reported.")
      .def_static(
          "inbox",
          [](nb::object inbox, uint64_t tag) {
            return PyNotify{inbox, tag, 1};
          },
          "inbox"_a, "tag"_a = 0, nb::sig("def inbox(inbox: Inbox, tag: int = 0) -> Notify"))
      .def_static(
          "flag",
          [](nb::object flag, uint32_t value) {
            return PyNotify{flag, 0, value};
          },
          "flag"_a, "value"_a = 1, nb::sig("def flag(flag: Flag, value: int = 1) -> Notify"))
      .def_static(
          "call",
          [](nb::object function, uint64_t tag) {
            return PyNotify{function, tag, 1};
          },
          "function"_a, "tag"_a = 0,
          nb::sig("def call(function: collections.abc.Callable[[Event], None], tag: int = 0) -> "
                  "Notify"));
}

}  // namespace fabric_python
