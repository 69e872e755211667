// <fabric/notify.h>: batches.

#include "batch.h"

#include "callback.h"
#include "record.h"

namespace fabric_python {

namespace {

SharedEngine engine_of(const PyBatch& batch) {
  SharedEngine engine = batch.engine.lock();
  if (engine == nullptr) raise(fabric::Errc::kClosed, "engine: it is gone");
  return engine;
}

std::vector<fabric::Failure> failures(PyBatch& self) {
  std::vector<fabric::Failure> all(fabric::Batch::kFailuresMax);
  all.resize(self.held.get().failures(all));
  return all;
}

void leave(PyBatch& self, nb::handle type) {
  if (type.is_none()) return self.wait({});
  self.cancel();
  try {
    self.wait({});
  } catch (nb::python_error& error) {
    // The exception that left the block says more than that its writes were cancelled.
    if (error.matches(PyExc_KeyboardInterrupt)) throw;
  }
}

}  // namespace

void PyBatch::wait(fabric::Timeout timeout) {
  const SharedEngine box = engine_of(*this);
  fabric::Batch& batch = held.get();
  unwrap(wait_in_slices(
      held.context(), timeout, [&](fabric::Timeout slice) { return box->engine->wait(id, slice); },
      [&] { return batch.pending() == 0; }));
}

void PyBatch::cancel() {
  held.get();
  unwrap(engine_of(*this)->engine->cancel(id));
}

void bind_batch(nb::module_& m) {
  Record<fabric::Failure>(m, "Failure", "One part of a batch that did not succeed.", false)
      .field("op", "OpId", &fabric::Failure::op)
      .field("peer", "PeerId", &fabric::Failure::peer)
      .field("part", "int", &fabric::Failure::part)
      .field("code", "Errc", &fabric::Failure::code)
      .field("remote", "Remote", &fabric::Failure::remote);
  nb::class_<PyBatch>(m, "Batch",
                      "Operations that are waited for, and cancelled, together.\n\n"
                      "with engine.batch() as batch: leaving waits, or cancels on an exception.")
      .def_prop_ro("pending", [](PyBatch& self) { return self.held.get().pending(); })
      .def_prop_ro("failed", [](PyBatch& self) { return self.held.get().failed(); })
      .def_prop_ro("delivered", [](PyBatch& self) { return self.held.get().delivered(); })
      .def_prop_ro("unknown", [](PyBatch& self) { return self.held.get().unknown(); })
      .def("failures", &failures, nb::sig("def failures(self) -> list[Failure]"),
           "The first 64 failures.")
      .def(
          "wait", [](PyBatch& self, TimeoutArg timeout) { self.wait(timeout.get()); },
          "timeout"_a.none() = nb::none(),
          "Blocks until nothing is pending. Raises the first failure.")
      .def("cancel", &PyBatch::cancel)
      .def(
          "seal",
          [](PyBatch& self, nb::handle notify, uint64_t tag) {
            NotifyArg to(notify, tag, true);
            unwrap(self.held.get().seal(to.get()));
            to.accepted();
          },
          "notify"_a, "tag"_a = 0,
          nb::sig("def seal(self, notify: Notify | Inbox | Flag | collections.abc.Callable[[Event],"
                  " None], tag: int = 0) -> None"),
          "Reports once, when nothing is pending.")
      .def("reset", [](PyBatch& self) { unwrap(self.held.get().reset()); })
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Batch"))
      .def(
          "__exit__",
          [](PyBatch& self, nb::handle type, nb::handle, nb::handle) { leave(self, type); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object) -> None"));
}

}  // namespace fabric_python
