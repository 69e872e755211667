#pragma once

#include <string>
#include <vector>

#include "topology/near.h"

namespace fabric::tool {

/// What one value of Network::near picks on a machine.
struct NearReport {
  std::string value{};
  topology::NicChoice choice{};
};

/// For `value`, or if it is empty for every network of FABRICLIB_NETWORKS that has one.
std::vector<NearReport> find_near(const topology::Machine& machine, const std::string& value);

/// The NICs that an engine with near=gpuN takes, for every GPU of the machine in the order of
/// Machine::gpus, whatever CUDA_VISIBLE_DEVICES says.
std::vector<std::vector<std::string>> nics_of_gpus(const topology::Machine& machine);

}  // namespace fabric::tool
