// <fabric/types.h>: handles, references, counter keys.

#include <nanobind/operators.h>

#include "record.h"

namespace fabric_python {

namespace {

template <class T>
nb::class_<T> bind_handle(nb::module_& m, const char* name, const char* doc) {
  return nb::class_<T>(m, name, doc)
      .def_prop_ro("slot", [](const T& self) { return self.slot; })
      .def_prop_ro("generation", [](const T& self) { return self.generation; })
      .def("__bool__", [](const T& self) { return static_cast<bool>(self); })
      .def(
          "__eq__", [](const T& self, const T& other) { return self == other; }, nb::arg("other"),
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const T& self) { return uint64_t{self.generation} << 32 | self.slot; })
      .def("__repr__", [name](const T& self) {
        return std::string(name) + "(" + std::to_string(self.slot) + ", " +
               std::to_string(self.generation) + ")";
      });
}

}  // namespace

void bind_types(nb::module_& m) {
  bind_handle<fabric::PeerId>(m, "PeerId", "One session with one incarnation of a remote engine.");
  bind_handle<fabric::OpId>(m, "OpId", "One accepted operation.");
  bind_handle<fabric::RegionId>(m, "RegionId", "Local registered memory.");
  bind_handle<fabric::GrantId>(m, "GrantId", "Access of one peer to a region.");

  nb::class_<fabric::LocalRef>(m, "LocalRef", "An offset in local registered memory.")
      .def_ro("region", &fabric::LocalRef::region)
      .def_ro("offset", &fabric::LocalRef::offset);
  nb::class_<fabric::RemoteRef>(m, "RemoteRef", "An offset in a peer's region.")
      .def_prop_ro("region", [](const fabric::RemoteRef& self) { return self.region; })
      .def_ro("offset", &fabric::RemoteRef::offset);
  bind_handle<fabric::RemoteRegion>(m, "RemoteRegion", "A peer's region after import_region().")
      .def("at", &fabric::RemoteRegion::at, "offset"_a);

  nb::class_<fabric::CounterKey>(m, "CounterKey", "Names a counter of the receiver.")
      .def_static("from_wire", &fabric::CounterKey::from_wire, "bits"_a)
      .def_prop_ro("wire", &fabric::CounterKey::wire, "Four bytes for a message to the writers.")
      .def("__bool__", [](const fabric::CounterKey& self) { return static_cast<bool>(self); })
      .def(
          "__eq__", [](fabric::CounterKey self, fabric::CounterKey other) { return self == other; },
          nb::arg("other"), nb::is_operator(),
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const fabric::CounterKey& self) { return self.wire(); })
      .def("__repr__", [](const fabric::CounterKey& self) {
        return "CounterKey(" + std::to_string(self.wire()) + ")";
      });

  nb::enum_<fabric::Remote>(m, "Remote", "What the sender knows about the target's bytes.")
      .value("DELIVERED", fabric::Remote::kDelivered)
      .value("NOT_DELIVERED", fabric::Remote::kNotDelivered)
      .value("UNKNOWN", fabric::Remote::kUnknown);
  nb::enum_<fabric::Priority>(m, "Priority")
      .value("NORMAL", fabric::Priority::kNormal)
      .value("URGENT", fabric::Priority::kUrgent)
      .value("BULK", fabric::Priority::kBulk);
}

}  // namespace fabric_python
