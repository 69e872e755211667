// <fabric/kv_router.h>: which prefiller takes a request.

#include <fabric/kv_router.h>

#include "record.h"

namespace fabric_python {

void bind_kv_router(nb::module_& m) {
  namespace kv = fabric::kv;
  Record<kv::Pick>(m, "Pick", "The prefiller that was chosen.", false)
      .field("member", "Member", &kv::Pick::member)
      .field("preferred", "bool", &kv::Pick::preferred);
  nb::class_<kv::Router>(m, "Router", "Chooses a prefiller by load and prefix affinity.")
      .def(
          "__init__",
          [](kv::Router* self, uint64_t seed, uint32_t slack_percent) {
            auto made = kv::Router::make({.seed = seed, .slack_percent = slack_percent});
            if (!made) raise(made.error());
            new (self) kv::Router(std::move(*made));
          },
          nb::kw_only(), "seed"_a = 1, "slack_percent"_a = 25)
      .def("update", &kv::Router::update, "view"_a)
      .def("report", &kv::Router::report, "engine_id"_a, "load"_a)
      .def("lost", &kv::Router::lost, "engine_id"_a)
      .def(
          "pick",
          [](kv::Router& self, std::string_view prefix, uint64_t layout_hash,
             const std::vector<uint64_t>& except) {
            return unwrap(
                self.pick({.prefix = prefix, .layout_hash = layout_hash, .except = except}));
          },
          nb::kw_only(), "prefix"_a = "", "layout_hash"_a = 0,
          "except_"_a = std::vector<uint64_t>{})
      .def("load", &kv::Router::load, "engine_id"_a);
}

}  // namespace fabric_python
