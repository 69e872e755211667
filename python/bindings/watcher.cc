// <fabric/watcher.h>, and subscriptions of <fabric/engine.h>, which end in the same way.

#include "watcher.h"

namespace fabric_python {

void bind_watcher(nb::module_& m) {
  nb::class_<PyWatcher>(m, "Watcher", "Watches a 64-bit word; a change is reported as WATCH.")
      .def_prop_ro(
          "word",
          [](PyWatcher& self) { return reinterpret_cast<uintptr_t>(self.held().get().word()); },
          "The address of the word.")
      .def(
          "store", [](PyWatcher& self, uint64_t value) { self.held().get().store(value); },
          "value"_a, "Stores and wakes the engine.")
      .def("arm", [](PyWatcher& self) { self.held().get().arm(); })
      .def("disarm",
           [](PyWatcher& self) {
             fabric::Watcher& watcher = self.held().get();
             const auto use = self.held().use();
             without_gil([&] { watcher.disarm(); });
           })
      .def("close", [](PyWatcher& self) { self.held().close(); });
  nb::class_<PySubscription>(m, "Subscription", "Delivers events until it is closed.")
      .def("close", [](PySubscription& self) { self.held().close(); })
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Subscription"))
      .def(
          "__exit__", [](PySubscription& self, const nb::args&) { self.held().close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace fabric_python
