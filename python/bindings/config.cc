// <fabric/config.h>, and the options of providers.

#include "config.h"

#include <nanobind/stl/variant.h>

#include <fabric/shm.h>
#include <fabric/verbs.h>

#include "record.h"

namespace fabric_python {

namespace {

using fabric::Config;
using fabric::Network;

const std::vector<const char*>* g_settings = nullptr;  // names of all fields, set once at import

/// Networks as objects, or in their text form.
std::vector<Network> networks_of(nb::handle value) {
  std::vector<Network> networks;
  if (nb::isinstance<nb::str>(value) || PySequence_Check(value.ptr()) == 0) {
    throw nb::type_error("networks: expected a sequence of Network or str");
  }
  for (nb::handle item : nb::iter(value)) {
    if (nb::isinstance<nb::str>(item)) {
      networks.push_back(unwrap(fabric::parse_network(nb::cast<std::string>(item))));
    } else if (nb::isinstance<Network>(item)) {
      networks.push_back(nb::cast<Network>(item));
    } else {
      throw nb::type_error("networks: expected a sequence of Network or str");
    }
  }
  return networks;
}

void bind_network(nb::module_& m) {
  using Shm = fabric::shm::Options;
  using Verbs = fabric::verbs::Options;
  Record<Shm>(m, "ShmOptions", "Options of the same-host network.")
      .field("lanes", "int", &Shm::lanes)
      .field("directory", "str", &Shm::directory);
  Record<Verbs>(m, "VerbsOptions", "Options of the network over RDMA NICs.")
      .field("gid_index", "int", &Verbs::gid_index)
      .field("mtu_bytes", "int", &Verbs::mtu_bytes)
      .field("traffic_class", "int", &Verbs::traffic_class)
      .field("service_level", "int", &Verbs::service_level)
      .field("pkey_index", "int", &Verbs::pkey_index)
      .field("timeout_code", "int", &Verbs::timeout_code)
      .field("retry_count", "int", &Verbs::retry_count)
      .field("rnr_retry", "int", &Verbs::rnr_retry)
      .field("rnr_timer", "int", &Verbs::rnr_timer)
      .field("send_depth", "int", &Verbs::send_depth)
      .field("receive_depth", "int", &Verbs::receive_depth)
      .field("inline_bytes", "int", &Verbs::inline_bytes)
      .field("control_address", "str", &Verbs::control_address)
      .field("control_port", "int", &Verbs::control_port);
  Record<Network>(m, "Network", "A network that an engine may use.")
      .field("provider", "str", &Network::provider)
      .field("name", "str", &Network::name)
      .field("devices", "tuple[str, ...]", &Network::devices, "collections.abc.Sequence[str]")
      .field("near", "str", &Network::near)
      .field("rails_max", "int", &Network::rails_max)
      .field("stripe_bytes_min", "int", &Network::stripe_bytes_min)
      .field("required", "bool", &Network::required)
      .field("trusted", "bool", &Network::trusted)
      .field("options", "ShmOptions | VerbsOptions | None", &Network::options)
      .python()
      .def("__str__", [](const Network& self) { return fabric::to_string(self); });
  m.def(
      "parse_network", [](std::string_view text) { return unwrap(fabric::parse_network(text)); },
      "text"_a, "Reads the text form, as in FABRICLIB_NETWORKS: 'verbs mlx5_0', 'shm lanes=2'.");
}

}  // namespace

fabric::Config config_with(nb::handle base, const nb::kwargs& settings, const char* caller) {
  nb::object config = base.is_none() ? nb::cast(Config{}) : nb::cast(nb::cast<Config>(base));
  set_fields(config, caller, *g_settings, settings);
  return nb::cast<Config>(config);
}

void bind_config(nb::module_& m) {
  nb::enum_<fabric::LogLevel>(m, "LogLevel")
      .value("TRACE", fabric::LogLevel::kTrace)
      .value("DEBUG", fabric::LogLevel::kDebug)
      .value("INFO", fabric::LogLevel::kInfo)
      .value("WARNING", fabric::LogLevel::kWarning)
      .value("ERROR", fabric::LogLevel::kError)
      .value("OFF", fabric::LogLevel::kOff);
  bind_network(m);
  Record<Config> record(m, "Config", "Every setting of an engine; docs/configuration.md.");
  record
      .custom(
          "networks", "tuple[Network, ...]", "collections.abc.Sequence[Network | str]",
          [](const Config& self) { return to_python(self.networks); },
          [](Config& self, nb::handle value) { self.networks = networks_of(value); })
      .field("default_timeout", "float", &Config::default_timeout, kSecondsText)
      .field("drain_timeout", "float", &Config::drain_timeout, kSecondsText)
      .field("timeout_max", "float", &Config::timeout_max, kSecondsText)
      .field("peer_timeout", "float", &Config::peer_timeout, kSecondsText)
      .field("lost_timeout", "float", &Config::lost_timeout, kSecondsText)
      .field("retransmit", "float", &Config::retransmit, kSecondsText)
      .field("ops_max", "int", &Config::ops_max)
      .field("batches_max", "int", &Config::batches_max)
      .field("peers_max", "int", &Config::peers_max)
      .field("regions_max", "int", &Config::regions_max)
      .field("counters_max", "int", &Config::counters_max)
      .field("names_per_peer_max", "int", &Config::names_per_peer_max)
      .field("message_bytes_max", "int", &Config::message_bytes_max)
      .field("message_buffers", "int", &Config::message_buffers)
      .field("message_credits", "int", &Config::message_credits)
      .field("index_arena_bytes", "int", &Config::index_arena_bytes)
      .field("stripe_bytes_min", "int", &Config::stripe_bytes_min)
      .field("stripe_align", "int", &Config::stripe_align)
      .field("bulk_slice_bytes", "int", &Config::bulk_slice_bytes)
      .field("spin", "float", &Config::spin, kSecondsText)
      .field("worker_cpus", "tuple[int, ...]", &Config::worker_cpus,
             "collections.abc.Sequence[int]")
      .field("reroute", "bool", &Config::reroute)
      .field("engine_id", "int", &Config::engine_id)
      .field("app_info", "str", &Config::app_info)
      .field("job_key", "str", &Config::job_key)
      .field("log_level", "LogLevel", &Config::log_level);
  g_settings = record.fields();
}

}  // namespace fabric_python
