#pragma once

#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace fabric::tool {

/// A mistake in a JSON file: the path of the field, and what it should be.
struct BadField : std::runtime_error {
  BadField(const std::string& path, const std::string& why)
      : std::runtime_error((path.empty() ? "the file" : path) + ": " + why) {}
};

/// Reads the fields of one JSON object. Every call names the field, so that a missing or wrong one
/// is reported with its path; end() reports fields that were not asked for, which are misspelt.
///
/// Lifetime: borrows the JSON value.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string path);

  bool has(const std::string& name) const;
  /// A whole number, 0 to `most`.
  uint64_t number(const std::string& name, uint64_t most);
  uint64_t number(const std::string& name, uint64_t most, uint64_t otherwise);
  uint32_t number32(const std::string& name) {
    return static_cast<uint32_t>(number(name, UINT32_MAX));
  }
  uint32_t number32(const std::string& name, uint32_t otherwise) {
    return static_cast<uint32_t>(number(name, UINT32_MAX, otherwise));
  }
  bool flag(const std::string& name, bool otherwise);
  std::string text(const std::string& name);
  /// One of `choices`, and its position in them.
  uint32_t choice(const std::string& name, const std::vector<std::string>& choices);
  uint32_t choice(const std::string& name, const std::vector<std::string>& choices,
                  uint32_t otherwise);
  std::vector<uint64_t> numbers(const std::string& name, uint64_t most);
  std::vector<uint32_t> numbers32(const std::string& name);
  /// The objects of a list.
  std::vector<JsonFields> objects(const std::string& name);
  /// The field as it is, for those that have several forms.
  const nlohmann::json& any(const std::string& name);

  std::string path_of(const std::string& name) const;
  void end() const;

 private:
  const nlohmann::json& object_;
  std::string path_;
  std::set<std::string> known_{};
};

}  // namespace fabric::tool
