// <fabric/counter.h>: counters and groups of them.

#include "callback.h"

namespace fabric_python {

namespace {

using PyCounter = Held<fabric::Counter>;
using PyCounterGroup = Held<fabric::CounterGroup>;

constexpr const char* kExpect =
    "def expect(self, n: int, notify: Notify | Inbox | Flag | collections.abc.Callable[[Event], "
    "None], *, tag: int = 0, timeout: float | datetime.timedelta | None = None) -> OpId";
constexpr const char* kGroupExpect =
    "def expect(self, notify: Notify | Inbox | Flag | collections.abc.Callable[[Event], None], *, "
    "n: int | None = None, tag: int = 0, timeout: float | datetime.timedelta | None = None) -> "
    "OpId";

void bind_one(nb::module_& m) {
  nb::class_<PyCounter>(m, "Counter", "Counts the writes that arrived with its counter key.")
      .def_prop_ro("key", [](PyCounter& self) { return self.get().key(); })
      .def_prop_ro(
          "count", [](PyCounter& self) { return self.get().count(); },
          "A gauge: only an expectation proves that bytes are there.")
      .def(
          "try_take", [](PyCounter& self, uint64_t n) { return self.get().try_take(n); }, "n"_a)
      .def(
          "wait",
          [](PyCounter& self, uint64_t n, TimeoutArg timeout) {
            fabric::Counter& counter = self.get();
            unwrap(wait_in_slices(self.context(), timeout.get(),
                                  [&](fabric::Timeout slice) { return counter.wait(n, slice); }));
          },
          "n"_a, "timeout"_a.none() = nb::none(),
          "Blocks until n writes have arrived, and takes them.")
      .def(
          "expect",
          [](PyCounter& self, uint64_t n, nb::handle notify, uint64_t tag, TimeoutArg timeout) {
            NotifyArg to(notify, tag, true);
            const auto op = unwrap(self.get().expect(n, to.get(), timeout.get()));
            to.accepted();
            return op;
          },
          "n"_a, "notify"_a, nb::kw_only(), "tag"_a = 0, "timeout"_a.none() = nb::none(),
          nb::sig(kExpect))
      .def("disarm", [](PyCounter& self) { self.get().disarm(); })
      .def(
          "bind", [](PyCounter& self, fabric::PeerId peer) { unwrap(self.get().bind(peer)); },
          "peer"_a, "When the peer is lost, the expectation fails at once.")
      .def("release", [](PyCounter& self) { self.get().release(); })
      .def(
          "close",
          [](PyCounter& self, TimeoutArg timeout) {
            fabric::Counter& counter = self.get();
            const fabric::Timeout limit = timeout.get();
            return unwrap(without_gil([&] { return counter.close(limit); }));
          },
          "timeout"_a.none() = nb::none(),
          "Releases, and waits until no sender can use the key any more.");
}

void bind_group(nb::module_& m) {
  nb::class_<PyCounterGroup>(m, "CounterGroup",
                             "Counters that are waited for together, each with its peer.")
      .def(
          "add",
          [](PyCounterGroup& self, PyCounter& member, fabric::PeerId peer, uint64_t share) {
            unwrap(self.get().add(member.get(), peer, share));
          },
          "member"_a, "peer"_a, "share"_a = 1, nb::keep_alive<1, 2>())
      .def(
          "wait",
          [](PyCounterGroup& self, std::optional<uint64_t> n, TimeoutArg timeout) {
            fabric::CounterGroup& group = self.get();
            unwrap(wait_in_slices(self.context(), timeout.get(), [&](fabric::Timeout slice) {
              return n ? group.wait(*n, slice) : group.wait(slice);
            }));
          },
          "n"_a.none() = nb::none(), "timeout"_a.none() = nb::none(),
          "Blocks until every member that is not masked has its share.")
      .def(
          "expect",
          [](PyCounterGroup& self, nb::handle notify, std::optional<uint64_t> n, uint64_t tag,
             TimeoutArg timeout) {
            NotifyArg to(notify, tag, true);
            fabric::CounterGroup& group = self.get();
            const auto op = unwrap(n ? group.expect(*n, to.get(), timeout.get())
                                     : group.expect(to.get(), timeout.get()));
            to.accepted();
            return op;
          },
          "notify"_a, nb::kw_only(), "n"_a.none() = nb::none(), "tag"_a = 0,
          "timeout"_a.none() = nb::none(), nb::sig(kGroupExpect))
      .def("disarm", [](PyCounterGroup& self) { self.get().disarm(); })
      .def_prop_ro("count", [](PyCounterGroup& self) { return self.get().count(); })
      .def(
          "missing", [](PyCounterGroup& self) { return self.get().missing(); },
          "Peers whose share of the expectation is not here.")
      .def(
          "lost", [](PyCounterGroup& self) { return self.get().lost(); },
          "Peers because of which expectations fail until they are masked.")
      .def(
          "mask", [](PyCounterGroup& self, fabric::PeerId peer) { unwrap(self.get().mask(peer)); },
          "peer"_a);
}

}  // namespace

void bind_counter(nb::module_& m) {
  nb::enum_<fabric::Quiescence>(m, "Quiescence",
                                "Why no more writes can arrive under a counter key.")
      .value("PROVED", fabric::Quiescence::kProved)
      .value("QUARANTINED", fabric::Quiescence::kQuarantined);
  bind_one(m);
  bind_group(m);
}

}  // namespace fabric_python
