#include "member.h"

#include <poll.h>

#include <array>
#include <utility>

namespace demo {

namespace kv = fabric::kv;

namespace {

constexpr uint64_t kReceived = UINT64_MAX;  ///< the tag of messages; others are requests
constexpr std::chrono::seconds kRetryMax{1};

void forward(void* context, const fabric::LogRecord& record) {
  std::string text(record.text);
  for (const fabric::LogField& field : record.fields) {
    text.append(" ").append(field.key).append("=").append(field.value);
  }
  static_cast<const ControlSocket*>(context)->send({.kind = MessageHeader::Kind::kWarning}, text);
}

/// Opens an engine whose warnings go to the parent, which owns the terminal.
fabric::Engine open_engine(const ControlSocket& control, const RoleOptions& options) {
  fabric::Config config;
  config.networks = {need(fabric::parse_network(options.network), "NETWORK")};
  config.peer_timeout = options.peer_timeout;
  config.lost_timeout = options.lost_timeout;
  config.app_info = options.name;
  config.log_sink = {&forward, const_cast<ControlSocket*>(&control)};
  return need(fabric::Engine::open(config), ("network " + options.network).c_str());
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

Member::Member(const ControlSocket& control, const RoleOptions& options, kv::Role role)
    : control_(control),
      name_(options.name),
      role_(role),
      engine_(open_engine(control, options)),
      inbox_(need(engine_.make_inbox(1024), "make_inbox")),
      listener_(need(engine_.listen(kServeChannel, fabric::Notify::inbox(inbox_, kReceived)),
                     "listen")) {}

void Member::serve_directory() {
  directory_ = need(kv::EmbeddedDirectory::open(engine_, {.serve = true}), "directory");
  send_address();
}

void Member::send_address() const {
  std::string text;
  for (const std::byte byte : engine_.address()) text.push_back(static_cast<char>(byte));
  control_.send({.kind = MessageHeader::Kind::kReady}, text);
}

void Member::join_directory(uint64_t layout_hash, uint32_t capacity) {
  send_address();
  const Message seed = control_.read();
  if (seed.header.kind != MessageHeader::Kind::kSeed) std::_Exit(1);  // the parent has died
  directory_ =
      need(kv::EmbeddedDirectory::open(
               engine_, {.seeds = {bytes_of(seed.text)}, .watch = false, .retry_max = kRetryMax}),
           "directory");
  kv::Member self = need(kv::describe(engine_), "describe");
  self.role = role_;
  self.label = name_;
  self.layout_hash = layout_hash;
  self.capacity = capacity;
  need(directory_->announce(self), "announce");
}

void Member::follow_router(const std::string& address) {
  need(directory_->set_seeds({bytes_of(address)}), "set_seeds");
}

void Member::leave_directory() { need(directory_->leave(), "leave"); }

Member::Arrivals Member::take_messages() {
  Arrivals out{.undelivered = std::exchange(undelivered_, {})};
  std::array<fabric::Event, 64> events;
  while (const uint32_t count = inbox_.poll(events)) {
    for (const fabric::Event& event : std::span(events).first(count)) {
      if (event.kind == fabric::EventKind::kDone) {
        if (event.code != fabric::Errc::kOk) out.undelivered.push_back(event.tag);
      } else if (auto message = decode_message(event.bytes())) {
        message->from = event.peer;
        out.messages.push_back(*std::move(message));
      }
    }
  }
  return out;
}

void Member::send(fabric::PeerId peer, const ServeMessage& message) {
  const auto bytes = encode(message);
  const auto sent =
      engine_.submit(fabric::Send{.peer = peer,
                                  .channel = kServeChannel,
                                  .bytes = bytes,
                                  .notify = fabric::Notify::inbox(inbox_, message.request)});
  // Usually a lost peer, which the caller treats like a message that did not arrive.
  if (!sent) undelivered_.push_back(message.request);
}

void Member::wait(std::span<const int> more_fds, int ms) {
  std::vector<pollfd> fds{{control_.fd(), POLLIN, 0},
                          {need(inbox_.fd(), "fd"), POLLIN, 0},
                          {need(directory_->fd(), "fd"), POLLIN, 0}};
  for (const int fd : more_fds) fds.push_back({fd, POLLIN, 0});
  ::poll(fds.data(), fds.size(), ms);
}

}  // namespace demo
