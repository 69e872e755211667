#include "providers/verbs/nearest.h"

namespace fabric::verbs {

void log_left_out(const Network& spec, std::string_view device, std::string_view reason, Log& log) {
  FABRIC_LOG(log, kInfo, "verbs", "a NIC is left out", {"network", spec.name}, {"device", device},
             {"reason", reason});
}

Result<topology::NicChoice> nearest_devices(const Network& spec,
                                            std::span<const std::string> candidates, Log& log) {
  const topology::Machine machine = topology::read_machine(topology::sysfs_root());
  topology::NicChoice choice =
      choose_nics(machine, topology::this_process(), spec.near, candidates);
  if (!choice.problem.empty()) {
    // An optional network may ask for what only some machines have.
    if (spec.required) {
      FABRIC_LOG(log, kError, "verbs", "no NIC is chosen", {"network", spec.name},
                 {"reason", choice.problem});
    } else {
      FABRIC_LOG(log, kInfo, "verbs", "no NIC is chosen", {"network", spec.name},
                 {"reason", choice.problem});
    }
    return fail(Errc::kInvalidArgument, "networks.near");
  }
  std::string taken;
  for (const auto& nic : choice.taken) taken += (taken.empty() ? "" : " ") + nic.name;
  FABRIC_LOG(log, kInfo, "verbs", "the nearest NICs are taken", {"network", spec.name},
             {"near", choice.target}, {"devices", taken},
             {"distance", to_string(choice.taken[0].distance)});
  for (const auto& nic : choice.left_out) log_left_out(spec, nic.name, nic.reason, log);
  if (!choice.note.empty()) {
    FABRIC_LOG(log, kInfo, "verbs", "the GPU is numbered by the environment",
               {"network", spec.name}, {"note", choice.note});
  }
  if (!choice.warning.empty()) {
    FABRIC_LOG(log, kWarning, "verbs", "the nearest NICs may not be the ones that were meant",
               {"network", spec.name}, {"near", spec.near}, {"reason", choice.warning});
  }
  return choice;
}

}  // namespace fabric::verbs
