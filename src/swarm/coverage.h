#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fabric::swarm {

/// How often everything that can happen has happened. What is known and never came stays at zero
/// and is shown, because a check of what never happens proves nothing.
class Coverage {
 public:
  Coverage();  ///< knows faults, codes, ends and actions

  void add(std::string_view section, std::string_view name, uint64_t times = 1);
  /// Takes over what an engine tells of itself ("protocol_counters" of its dump).
  void add_protocol_counters(const std::string& dump_json);
  void merge(const Coverage& other);

  std::vector<std::string> missing() const;  ///< "section: name"
  std::string table() const;                 ///< of what happened
  const std::map<std::string, std::map<std::string, uint64_t>>& sections() const noexcept {
    return sections_;
  }

 private:
  std::map<std::string, std::map<std::string, uint64_t>> sections_;
};

}  // namespace fabric::swarm
