#include <string>

#include "roles.h"

namespace demo {

namespace {

void forward(void* context, const fabric::LogRecord& record) {
  std::string text(record.text);
  for (const fabric::LogField& field : record.fields) {
    text.append(" ").append(field.key).append("=").append(field.value);
  }
  static_cast<const ControlSocket*>(context)->send({.kind = MessageHeader::Kind::kWarning}, text);
}

}  // namespace

fabric::Engine open_engine(const ControlSocket& control, const RoleOptions& options,
                           std::string role) {
  fabric::Config config;
  config.networks = {{.provider = "shm", .options = fabric::shm::Options{.lanes = options.lanes}}};
  config.peer_timeout = options.peer_timeout;
  config.app_info = std::move(role);
  config.log_sink = {&forward, const_cast<ControlSocket*>(&control)};
  return need(fabric::Engine::open(config), "open");
}

}  // namespace demo
