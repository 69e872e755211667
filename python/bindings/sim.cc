// <fabric/sim.h>: a simulated network, in virtual time on the calling thread, or in real time.

#include <fabric/sim.h>

#include "callback.h"
#include "config.h"
#include "engine.h"
#include "record.h"

namespace fabric_python {

namespace {

using fabric::sim::Arrival;
using fabric::sim::Chaos;
using fabric::sim::Fault;
using fabric::sim::Hook;
using fabric::sim::NicModel;
using fabric::sim::NodeNetwork;
using fabric::sim::World;
using fabric::sim::WorldOptions;

/// The Python class World. Virtual time: it and its engines belong to the thread that made it.
struct PyWorld {
  SharedContext context;
  std::shared_ptr<World> world;
  World& get() const {
    context->check();
    return *world;
  }
};

/// The Python class Hook. The function is destroyed under the GIL, as only Python code ends hooks.
struct PyHook {
  Hook hook;
};

/// A Python function that the simulation calls. What it raises goes to sys.unraisablehook: C++ code
/// of the simulation is between it and the caller.
template <class... Arguments>
std::function<void(Arguments...)> call_python(nb::object function) {
  auto shared =
      std::shared_ptr<nb::object>(new nb::object(std::move(function)), [](nb::object* held) {
        const nb::gil_scoped_acquire gil;
        delete held;
      });
  return [shared](Arguments... arguments) {
    const nb::gil_scoped_acquire gil;
    try {
      (*shared)(arguments...);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(*shared);
    }
  };
}

void construct_world(PyWorld* self, nb::handle options, const nb::kwargs& values) {
  nb::object chosen =
      nb::cast(options.is_none() ? WorldOptions{} : nb::cast<WorldOptions>(options));
  for (const auto& [key, value] : values) {
    if (!nb::hasattr(chosen, key)) {
      throw nb::type_error(
          (std::string("World: no option '") + nb::str(key).c_str() + "'").c_str());
    }
    nb::setattr(chosen, key, value);
  }
  const auto wanted = nb::cast<WorldOptions>(chosen);
  auto world = std::make_shared<World>(wanted);
  std::function<int64_t()> clock;
  if (!wanted.realtime) clock = [world] { return world->now().count(); };
  new (self) PyWorld{std::make_shared<Context>(!wanted.realtime, std::move(clock)), world};
}

nb::object open_engine(const PyWorld& self, uint32_t node, nb::handle config,
                       const nb::kwargs& settings) {
  const fabric::Config wanted = config_with(config, settings, "World.open");
  World& world = self.get();
  auto engine = without_gil([&] { return world.open(node, wanted); });
  if (!engine) raise(engine.error());
  std::function<int64_t()> clock;
  if (self.context->is_inline()) clock = [kept = self.world] { return kept->now().count(); };
  auto context = std::make_shared<Context>(self.context->is_inline(), std::move(clock));
  nb::object object = nb::inst_alloc(nb::type<PyEngine>());
  construct_engine(nb::inst_ptr<PyEngine>(object), std::move(context), std::move(*engine), wanted);
  nb::inst_mark_ready(object);
  return object;
}

bool run_until(const PyWorld& self, nb::object done, const SecondsArg& limit) {
  World& world = self.get();
  std::exception_ptr raised;
  uint32_t steps = 0;
  // The GIL stays with this thread: `done` is called in every step.
  const bool met = world.run_until(
      [&] {
        if (raised) return true;
        try {
          if (++steps % 1024 == 0 && PyErr_CheckSignals() != 0) throw nb::python_error();
          return nb::cast<bool>(nb::bool_(done()));
        } catch (...) {
          raised = std::current_exception();
          return true;
        }
      },
      limit.get("limit"));
  if (raised) std::rethrow_exception(raised);
  return met;
}

uint32_t add_node(const PyWorld& self, nb::handle rails, const NicModel* model) {
  std::vector<NodeNetwork> networks;
  if (nb::try_cast(rails, networks)) return self.get().add_node(std::move(networks));
  uint32_t count = 0;
  if (!nb::try_cast(rails, count)) {
    throw nb::type_error("rails: expected a number of NICs, or a sequence of NodeNetwork");
  }
  if (count == 0 || count > fabric::kRailsMax) {
    raise(fabric::Errc::kInvalidArgument, "rails: 1 to 8");
  }
  return self.get().add_node(count, model == nullptr ? NicModel{} : *model);
}

void bind_options(nb::module_& m) {
  Record<NicModel>(m, "NicModel", "Performance and guarantees of one simulated NIC.")
      .field("gbit_per_s", "float", &NicModel::gbit_per_s)
      .field("per_op", "float", &NicModel::per_op, kSecondsText)
      .field("per_post", "float", &NicModel::per_post, kSecondsText)
      .field("latency", "float", &NicModel::latency, kSecondsText)
      .field("jitter", "float", &NicModel::jitter, kSecondsText)
      .field("depth", "int", &NicModel::depth)
      .field("path_depth", "int", &NicModel::path_depth)
      .field("write_bytes_max", "int", &NicModel::write_bytes_max)
      .field("ordered", "bool", &NicModel::ordered)
      .field("slice_safe", "bool", &NicModel::slice_safe)
      .field("exact_replay", "bool", &NicModel::exact_replay)
      .field("maps_memory", "bool", &NicModel::maps_memory)
      .field("fence", "fabric_lib._native.FenceKind", &NicModel::fence)
      .python()
      .def_static("connectx7", &NicModel::connectx7)
      .def_static("efa_200g", &NicModel::efa_200g)
      .def_static("nvlink", &NicModel::nvlink);
  Record<NodeNetwork>(m, "NodeNetwork", "One network of a node.")
      .field("name", "str", &NodeNetwork::name)
      .field("rails", "int", &NodeNetwork::rails)
      .field("model", "NicModel", &NodeNetwork::model)
      .field("kinds", "tuple[fabric_lib._native.MemoryKind, ...]", &NodeNetwork::kinds,
             "collections.abc.Sequence[fabric_lib._native.MemoryKind]");
  Record<WorldOptions>(m, "WorldOptions", "How a World behaves.")
      .field("seed", "int", &WorldOptions::seed)
      .field("realtime", "bool", &WorldOptions::realtime)
      .field("drop_control", "float", &WorldOptions::drop_control)
      .field("duplicate_control", "float", &WorldOptions::duplicate_control)
      .field("reorder_control", "float", &WorldOptions::reorder_control)
      .field("carry_bytes", "bool", &WorldOptions::carry_bytes)
      .field("packet_bytes_max", "int", &WorldOptions::packet_bytes_max);
  Record<Chaos>(m, "Chaos", "Random faults, drawn from the seed.")
      .field("until", "float", &Chaos::until, kSecondsText)
      .field("gap", "float", &Chaos::gap, kSecondsText)
      .field("lasts", "float", &Chaos::lasts, kSecondsText)
      .field("kinds", "tuple[FaultKind, ...]", &Chaos::kinds,
             "collections.abc.Sequence[FaultKind]");
}

/// NIC_DOWN for kNicDown, from the library's own names ("NicDown").
void bind_fault_kinds(nb::module_& m) {
  nb::enum_<Fault::Kind> kinds(m, "FaultKind");
  for (uint32_t i = 0; i < Fault::kKinds; ++i) {
    const auto kind = static_cast<Fault::Kind>(i);
    std::string name;
    for (const char* c = to_string(kind); *c != 0; ++c) {
      const bool upper = *c >= 'A' && *c <= 'Z';
      if (*c == '-' || *c == ' ' || *c == '_') {
        name += '_';
        continue;
      }
      if (upper && !name.empty() && name.back() != '_') name += '_';
      name += upper ? *c : static_cast<char>(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    }
    kinds.value(keep_text(name), kind);
  }
}

using Time = const SecondsArg&;

void bind_faults(nb::module_& m) {
  bind_fault_kinds(m);
  Record<Fault> record(m, "Fault", "A fault; make it with one of the functions of this class.");
  record.field("kind", "FaultKind", &Fault::kind)
      .field("node", "int", &Fault::node)
      .field("other", "int", &Fault::other)
      .field("rail", "int", &Fault::rail)
      .field("network", "int", &Fault::network)
      .field("time", "float", &Fault::time, kSecondsText);
  const uint32_t all = Fault::kAllRails;
  record.python()
      .def_static("nic_down", &Fault::nic_down, "node"_a, "rail"_a)
      .def_static("nic_up", &Fault::nic_up, "node"_a, "rail"_a)
      .def_static("cut", &Fault::cut, "a"_a, "b"_a, "rail"_a = all)
      .def_static("heal", &Fault::heal, "a"_a, "b"_a, "rail"_a = all)
      .def_static("control_cut", &Fault::control_cut, "a"_a, "b"_a)
      .def_static("control_heal", &Fault::control_heal, "a"_a, "b"_a)
      .def_static("crash", &Fault::crash, "node"_a)
      .def_static("stop", &Fault::stop, "node"_a)
      .def_static("resume", &Fault::resume, "node"_a)
      .def_static(
          "slow", [](uint32_t n, Time t) { return Fault::slow(n, t.get("every")); }, "node"_a,
          "every"_a)
      .def_static(
          "delay", [](uint32_t n, Time t) { return Fault::delay(n, t.get("more")); }, "node"_a,
          "more"_a)
      .def_static("break_sender", &Fault::break_sender, "source"_a, "target"_a, "rail"_a)
      .def_static("break_target", &Fault::break_target, "source"_a, "target"_a, "rail"_a)
      .def_static("lose_acks", &Fault::lose_acks, "source"_a, "target"_a, "rail"_a = all)
      .def_static("keep_acks", &Fault::keep_acks, "source"_a, "target"_a, "rail"_a = all)
      .def_static("receiver_not_ready", &Fault::receiver_not_ready, "node"_a, "rail"_a = all)
      .def_static("receiver_ready", &Fault::receiver_ready, "node"_a, "rail"_a = all)
      .def_static(
          "late_counts", [](uint32_t n, Time t) { return Fault::late_counts(n, t.get("by")); },
          "node"_a, "by"_a)
      .def_static(
          "late_acks", [](uint32_t n, Time t) { return Fault::late_acks(n, t.get("by")); },
          "node"_a, "by"_a)
      .def_static(
          "swallow_counts",
          [](uint32_t n, uint32_t rail, Time t) {
            return Fault::swallow_counts(n, rail, t.get("time"));
          },
          "node"_a, "rail"_a, "time"_a)
      .def_static("overrun", &Fault::overrun, "node"_a, "rail"_a)
      .def_static("refuse_posts", &Fault::refuse_posts, "node"_a, "rail"_a = all)
      .def_static("take_posts", &Fault::take_posts, "node"_a, "rail"_a = all)
      .def_static("twice", &Fault::twice, "source"_a, "target"_a)
      .def_static("once", &Fault::once, "source"_a, "target"_a)
      .def_static("wrong_rkey", &Fault::wrong_rkey, "source"_a, "target"_a, "rail"_a)
      .def_static("right_rkey", &Fault::right_rkey, "source"_a, "target"_a, "rail"_a)
      .def_static(
          "late_proof", [](uint32_t n, Time t) { return Fault::late_proof(n, t.get("by")); },
          "node"_a, "by"_a)
      .def_static(
          "late_bytes", [](uint32_t n, Time t) { return Fault::late_bytes(n, t.get("by")); },
          "node"_a, "by"_a);
  m.def("opposite", &fabric::sim::opposite, "fault"_a, "The fault that undoes it, or None.");
}

void bind_world_running(nb::class_<PyWorld>& world) {
  world
      .def("run_until", &run_until, "done"_a, "limit"_a,
           nb::sig("def run_until(self, done: collections.abc.Callable[[], bool], limit: float | "
                   "datetime.timedelta) -> bool"),
           "Runs until done() is true, or for `limit`. Virtual time only.")
      .def(
          "run_for",
          [](const PyWorld& self, const SecondsArg& time) {
            World& world = self.get();
            const fabric::Nanos length = time.get("time");
            without_gil([&] { world.run_for(length); });
          },
          "time"_a)
      .def(
          "each_step",
          [](const PyWorld& self, nb::object function) {
            return PyHook{self.get().each_step(call_python<>(std::move(function)))};
          },
          "function"_a,
          nb::sig("def each_step(self, function: collections.abc.Callable[[], None]) -> Hook"))
      .def(
          "each_arrival",
          [](const PyWorld& self, nb::object function) {
            return PyHook{
                self.get().each_arrival(call_python<const Arrival&>(std::move(function)))};
          },
          "function"_a,
          nb::sig("def each_arrival(self, function: collections.abc.Callable[[Arrival], None]) -> "
                  "Hook"))
      .def(
          "now", [](const PyWorld& self) { return self.get().now(); }, "Seconds.")
      .def("now_ns", [](const PyWorld& self) { return self.get().now().count(); })
      .def("events", [](const PyWorld& self) { return self.get().events(); })
      .def("trace_hash", [](const PyWorld& self) { return self.get().trace_hash(); });
}

void bind_world(nb::module_& m) {
  nb::class_<PyHook>(m, "Hook", "A function that a World calls, until end().")
      .def("end", [](PyHook& self) { self.hook.end(); });
  nb::class_<Arrival>(m, "Arrival", "An immediate that a NIC delivers to its engine.")
      .def_ro("node", &Arrival::node)
      .def_ro("imm", &Arrival::imm);
  nb::class_<PyWorld> world(m, "World", "A simulated network that carries real bytes.");
  world
      .def("__init__", &construct_world, "options"_a.none() = nb::none(), "values"_a,
           nb::sig("def __init__(self, options: WorldOptions | None = None, *, seed: int = 1, "
                   "realtime: bool = False, drop_control: float = 0, duplicate_control: float = 0,"
                   " reorder_control: float = 0, carry_bytes: bool = True, packet_bytes_max: int = "
                   "65536) -> None"))
      .def("add_node", &add_node, "rails"_a = 1, "model"_a.none() = nb::none(),
           nb::sig("def add_node(self, rails: int | collections.abc.Sequence[NodeNetwork] = 1, "
                   "model: NicModel | None = None) -> int"),
           "A host with that many NICs on one network, or with these networks.")
      .def("open", &open_engine, "node"_a, "config"_a.none() = nb::none(), "settings"_a,
           nb::sig("def open(self, node: int, config: fabric_lib._native.Config | None = None, "
                   "**settings: typing.Unpack[fabric_lib._settings.Settings]) -> "
                   "fabric_lib._native.Engine"))
      .def(
          "at",
          [](const PyWorld& self, const SecondsArg& time, const Fault& fault) {
            unwrap(self.get().at(time.get("time"), fault));
          },
          "time"_a, "fault"_a, "Injects a fault at a time of the world's clock.")
      .def(
          "at_event",
          [](const PyWorld& self, uint64_t events, const Fault& fault) {
            unwrap(self.get().at_event(events, fault));
          },
          "events"_a, "fault"_a)
      .def(
          "chaos", [](const PyWorld& self, const Chaos& plan) { unwrap(self.get().chaos(plan)); },
          "plan"_a)
      .def(
          "faults", [](const PyWorld& self, Fault::Kind kind) { return self.get().faults(kind); },
          "kind"_a, "How many faults of the kind have been injected.");
  bind_world_running(world);
}

}  // namespace

void bind_sim(nb::module_& m) {
  bind_options(m);
  bind_faults(m);
  bind_world(m);
}

}  // namespace fabric_python
