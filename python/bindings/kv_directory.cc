// <fabric/kv_directory.h>: which prefillers there are.

#include <fabric/kv_directory.h>

#include "engine.h"
#include "kv_member.h"
#include "record.h"

namespace fabric_python {

namespace {

namespace kv = fabric::kv;
using PyEmbedded = PyMember<std::unique_ptr<kv::EmbeddedDirectory>>;
using PyStatic = std::unique_ptr<kv::Directory>;

std::vector<std::byte> bytes_of(nb::handle value, const char* name) {
  if (!nb::isinstance<nb::bytes>(value)) {
    throw nb::type_error((std::string(name) + ": expected bytes").c_str());
  }
  const auto bytes = span_of(nb::cast<nb::bytes>(value));
  return {bytes.begin(), bytes.end()};
}

void bind_members(nb::module_& m) {
  using kv::Member;
  nb::enum_<kv::Role>(m, "Role")
      .value("PREFILL", kv::Role::kPrefill)
      .value("DECODE", kv::Role::kDecode)
      .value("ROUTER", kv::Role::kRouter);
  Record<Member>(m, "Member", "One engine as a directory lists it.")
      .field("engine_id", "int", &Member::engine_id)
      .field("incarnation", "int", &Member::incarnation)
      .custom(
          "address", "bytes", nullptr, [](const Member& self) { return to_bytes(self.address); },
          [](Member& self, nb::handle value) { self.address = bytes_of(value, "Member.address"); })
      .field("layout_hash", "int", &Member::layout_hash)
      .field("capacity", "int", &Member::capacity)
      .field("load", "int", &Member::load)
      .field("role", "Role", &Member::role)
      .field("label", "str", &Member::label)
      .python()
      .def(
          "to_text", [](const Member& self) { return unwrap(kv::to_text(self)); },
          "One word of text, for command lines and files.")
      .def_static(
          "from_text", [](std::string_view text) { return unwrap(kv::member_from_text(text)); },
          "text"_a);
  Record<kv::View>(m, "View", "What a directory knows.")
      .field("revision", "int", &kv::View::revision)
      .field("stale", "bool", &kv::View::stale)
      .field("members", "tuple[Member, ...]", &kv::View::members,
             "collections.abc.Sequence[Member]");
  using kv::Change;
  nb::enum_<Change::Kind>(m, "ChangeKind")
      .value("JOINED", Change::Kind::kJoined)
      .value("CHANGED", Change::Kind::kChanged)
      .value("LEFT", Change::Kind::kLeft);
  Record<Change>(m, "Change", "One difference between two views.", false)
      .field("kind", "ChangeKind", &Change::kind)
      .field("restarted", "bool", &Change::restarted)
      .field("member", "Member", &Change::member);
  m.def("changes", &kv::changes, "before"_a, "after"_a);
  m.def(
      "describe",
      [](const PyEngine& engine) {
        fabric::Engine& open = engine.get();
        return unwrap(without_gil([&] { return kv::describe(open); }));
      },
      "engine"_a, "A member that describes this engine.");
}

void bind_static(nb::module_& m) {
  nb::class_<PyStatic>(m, "StaticDirectory", "A list that never changes.")
      .def(
          "__init__",
          [](PyStatic* self, const std::vector<kv::Member>& members) {
            auto made = kv::make_static_directory(members);
            if (!made) raise(made.error());
            new (self) PyStatic(std::move(*made));
          },
          "members"_a)
      .def("poll", [](PyStatic& self) { return self->poll(); })
      .def("members", [](PyStatic& self) { return self->members(); })
      .def("fd", [](PyStatic& self) { return unwrap(self->fd()); });
}

void bind_embedded_options(nb::module_& m) {
  using kv::EmbeddedOptions;
  using kv::EmbeddedStats;
  Record<EmbeddedOptions>(m, "EmbeddedOptions", "Membership without a server.")
      .custom(
          "seeds", "tuple[bytes, ...]", "collections.abc.Sequence[bytes]",
          [](const EmbeddedOptions& self) {
            nb::list seeds;
            for (const auto& seed : self.seeds) seeds.append(to_bytes(seed));
            return nb::tuple(seeds);
          },
          [](EmbeddedOptions& self, nb::handle value) {
            self.seeds.clear();
            for (nb::handle seed : nb::iter(value)) {
              self.seeds.push_back(bytes_of(seed, "EmbeddedOptions.seeds"));
            }
          })
      .field("serve", "bool", &EmbeddedOptions::serve)
      .field("watch", "bool", &EmbeddedOptions::watch)
      .field("channel", "int", &EmbeddedOptions::channel)
      .field("members_max", "int", &EmbeddedOptions::members_max)
      .field("watchers_max", "int", &EmbeddedOptions::watchers_max)
      .field("retry", "float", &EmbeddedOptions::retry, kSecondsText)
      .field("retry_max", "float", &EmbeddedOptions::retry_max, kSecondsText)
      .field("refresh", "float", &EmbeddedOptions::refresh, kSecondsText)
      .field("warm_up", "float", &EmbeddedOptions::warm_up, kSecondsText)
      .field("jitter_seed", "int", &EmbeddedOptions::jitter_seed);
  Record<EmbeddedStats>(m, "EmbeddedStats", "What an embedded directory holds.", false)
      .field("seeds_connected", "int", &EmbeddedStats::seeds_connected)
      .field("announced", "int", &EmbeddedStats::announced)
      .field("members", "int", &EmbeddedStats::members)
      .field("watchers", "int", &EmbeddedStats::watchers)
      .field("reconnects", "int", &EmbeddedStats::reconnects)
      .field("bad_messages", "int", &EmbeddedStats::bad_messages)
      .field("members_refused", "int", &EmbeddedStats::members_refused)
      .field("watchers_refused", "int", &EmbeddedStats::watchers_refused)
      .field("views_sent", "int", &EmbeddedStats::views_sent)
      .field("members_unsent", "int", &EmbeddedStats::members_unsent);
}

void construct_embedded(PyEmbedded* self, const PyEngine& engine,
                        const kv::EmbeddedOptions* given) {
  const kv::EmbeddedOptions options = given == nullptr ? kv::EmbeddedOptions{} : *given;
  fabric::Engine& open = engine.get();
  auto directory = without_gil([&] { return kv::EmbeddedDirectory::open(open, options); });
  if (!directory) raise(directory.error());
  using Member = KvMember<std::unique_ptr<kv::EmbeddedDirectory>>;
  new (self) PyEmbedded{{engine.box->context,
                         std::make_unique<Member>(Member{engine.box, {}, std::move(*directory)})}};
}

void bind_embedded(nb::module_& m) {
  nb::class_<PyEmbedded>(m, "EmbeddedDirectory",
                         "Members announce themselves to seeds over the engine's sessions.")
      .def("__init__", &construct_embedded, "engine"_a, "options"_a.none() = nb::none(),
           nb::sig("def __init__(self, engine: fabric_lib._native.Engine, options: "
                   "EmbeddedOptions | None = None) -> None"))
      .def(
          "announce",
          [](PyEmbedded& self, const kv::Member& member) { unwrap(self.get()->announce(member)); },
          "member"_a)
      .def("leave", [](PyEmbedded& self) { unwrap(self.get()->leave()); })
      .def(
          "poll", [](PyEmbedded& self) { return self.get()->poll(); },
          "True when the view has changed since the last poll(). Never blocks.")
      .def("members", [](PyEmbedded& self) { return self.get()->members(); })
      .def("fd", [](PyEmbedded& self) { return unwrap(self.get()->fd()); })
      .def("stats", [](PyEmbedded& self) { return self.get()->stats(); })
      .def("close", [](PyEmbedded& self) { self.held.close(); });
}

}  // namespace

void bind_kv_directory(nb::module_& m) {
  bind_members(m);
  bind_static(m);
  bind_embedded_options(m);
  bind_embedded(m);
}

}  // namespace fabric_python
