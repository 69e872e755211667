#include "harness/dump.h"

#include <nlohmann/json.hpp>

namespace fabric::test {
namespace {

uint64_t number(const Engine& engine, const char* section, const std::string& name) {
  return nlohmann::json::parse(engine.dump_json()).at(section).at(name).get<uint64_t>();
}

}  // namespace

uint64_t held(const Engine& engine, const std::string& what) {
  return number(engine, "held", what);
}

uint64_t protocol_counter(const Engine& engine, const std::string& what) {
  return number(engine, "protocol_counters", what);
}

bool dumped_count_is_final(const Engine& engine, size_t peer) {
  const auto dump = nlohmann::json::parse(engine.dump_json());
  return dump.at("peers").at(peer).at("count_is_final").get<bool>();
}

}  // namespace fabric::test
