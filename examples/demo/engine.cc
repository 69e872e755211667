#include <string>

#include "roles.h"

namespace demo {

namespace {

void forward(void* context, const fabric::LogRecord& record) {
  std::string text(record.text);
  for (const fabric::LogField& field : record.fields) {
    text.append(" ").append(field.key).append("=").append(field.value);
  }
  static_cast<const Channel*>(context)->send({.kind = Note::Kind::kSaid}, text);
}

}  // namespace

fabric::Engine open_engine(const Channel& channel, const RoleOptions& options, std::string role) {
  fabric::Network network{.provider = "shm"};
  for (uint32_t i = 0; i < options.lanes; ++i) {
    network.devices.push_back("lane" + std::to_string(i));
  }
  fabric::Config config{.networks = {network}};
  config.peer_timeout = options.peer_timeout;
  config.app_info = std::move(role);
  config.log_sink = {&forward, const_cast<Channel*>(&channel)};
  return need(fabric::Engine::open(config), "open");
}

}  // namespace demo
