#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fabric::swarm {

/// Counts how often each fault, action, code, event and protocol step occurred. Known names start
/// at zero and are reported as missing, because a check proves nothing about what never happens.
class Coverage {
 public:
  Coverage();  ///< with all known names at zero

  void add(std::string_view section, std::string_view name, uint64_t times = 1);
  /// Adds the engine's own counters: "protocol_counters" in its dump.
  void add_protocol_counters(const std::string& dump_json);
  void merge(const Coverage& other);

  std::vector<std::string> missing() const;  ///< "section: name"
  std::string table() const;                 ///< of names that are not zero
  const std::map<std::string, std::map<std::string, uint64_t>>& sections() const noexcept {
    return sections_;
  }

 private:
  std::map<std::string, std::map<std::string, uint64_t>> sections_;
};

}  // namespace fabric::swarm
