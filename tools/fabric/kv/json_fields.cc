#include "json_fields.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace fabric::tool {
namespace {

uint64_t to_number(const nlohmann::json& value, const std::string& path, uint64_t most) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > most) {
    throw BadField(path, fmt::format("{} is no whole number from 0 to {}", value.dump(), most));
  }
  return value.get<uint64_t>();
}

}  // namespace

JsonFields::JsonFields(const nlohmann::json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    throw BadField(path_, fmt::format("is {}, not an object", object.type_name()));
  }
}

std::string JsonFields::path_of(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

const nlohmann::json& JsonFields::any(const std::string& name) {
  known_.insert(name);
  const auto found = object_.find(name);
  if (found == object_.end()) throw BadField(path_of(name), "is missing");
  return *found;
}

bool JsonFields::has(const std::string& name) const { return object_.contains(name); }

uint64_t JsonFields::number(const std::string& name, uint64_t most) {
  return to_number(any(name), path_of(name), most);
}

uint64_t JsonFields::number(const std::string& name, uint64_t most, uint64_t otherwise) {
  return has(name) ? number(name, most) : otherwise;
}

bool JsonFields::flag(const std::string& name, bool otherwise) {
  if (!has(name)) return otherwise;
  const nlohmann::json& value = any(name);
  if (!value.is_boolean()) throw BadField(path_of(name), value.dump() + " is not true or false");
  return value.get<bool>();
}

std::string JsonFields::text(const std::string& name) {
  const nlohmann::json& value = any(name);
  if (!value.is_string()) throw BadField(path_of(name), value.dump() + " is no text");
  return value.get<std::string>();
}

uint32_t JsonFields::choice(const std::string& name, const std::vector<std::string>& choices) {
  const std::string found = text(name);
  const auto at = std::find(choices.begin(), choices.end(), found);
  if (at == choices.end()) {
    throw BadField(path_of(name),
                   fmt::format("\"{}\" is none of {}", found, fmt::join(choices, ", ")));
  }
  return static_cast<uint32_t>(at - choices.begin());
}

uint32_t JsonFields::choice(const std::string& name, const std::vector<std::string>& choices,
                            uint32_t otherwise) {
  return has(name) ? choice(name, choices) : otherwise;
}

std::vector<uint64_t> JsonFields::numbers(const std::string& name, uint64_t most) {
  const nlohmann::json& value = any(name);
  if (!value.is_array()) throw BadField(path_of(name), "is no list of numbers");
  std::vector<uint64_t> out;
  for (const nlohmann::json& one : value) {
    out.push_back(to_number(one, fmt::format("{}[{}]", path_of(name), out.size()), most));
  }
  return out;
}

std::vector<uint32_t> JsonFields::numbers32(const std::string& name) {
  const std::vector<uint64_t> wide = numbers(name, UINT32_MAX);
  return std::vector<uint32_t>(wide.begin(), wide.end());
}

std::vector<JsonFields> JsonFields::objects(const std::string& name) {
  const nlohmann::json& value = any(name);
  if (!value.is_array()) throw BadField(path_of(name), "is no list of objects");
  std::vector<JsonFields> out;
  for (const nlohmann::json& one : value) {
    out.emplace_back(one, fmt::format("{}[{}]", path_of(name), out.size()));
  }
  return out;
}

void JsonFields::end() const {
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name)) {
      throw BadField(path_of(name),
                     fmt::format("is unknown; known are {}", fmt::join(known_, ", ")));
    }
  }
}

}  // namespace fabric::tool
