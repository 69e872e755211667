#include "serve_message.h"

#include <cstring>

namespace demo {

namespace {

/// All processes are of one program on one kind of machine: numbers travel as they are in memory.
struct WireHeader {
  uint32_t kind = 0;
  uint32_t attempt = 0;
  uint64_t request = 0;
  uint32_t code = 0;
  uint32_t name_bytes = 0;
  uint32_t address_bytes = 0;
  uint32_t tokens = 0;
};
static_assert(sizeof(WireHeader) == 32);

void append(std::vector<std::byte>& out, const void* bytes, size_t size) {
  if (size == 0) return;
  out.resize(out.size() + size);
  std::memcpy(&out[out.size() - size], bytes, size);
}

}  // namespace

std::vector<std::byte> encode(const ServeMessage& message) {
  const WireHeader header{.kind = static_cast<uint32_t>(message.kind),
                          .attempt = message.attempt,
                          .request = message.request,
                          .code = message.code,
                          .name_bytes = static_cast<uint32_t>(message.prefiller.size()),
                          .address_bytes = static_cast<uint32_t>(message.address.size()),
                          .tokens = static_cast<uint32_t>(message.tokens.size())};
  std::vector<std::byte> out;
  append(out, &header, sizeof(header));
  append(out, message.prefiller.data(), message.prefiller.size());
  append(out, message.address.data(), message.address.size());
  append(out, message.tokens.data(), message.tokens.size() * sizeof(uint32_t));
  return out;
}

std::optional<ServeMessage> decode_message(std::span<const std::byte> bytes) {
  WireHeader header;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes = bytes.subspan(sizeof(header));
  const uint64_t rest =
      uint64_t{header.name_bytes} + header.address_bytes + uint64_t{header.tokens} * 4;
  if (header.kind < 1 || header.kind > static_cast<uint32_t>(ServeMessage::Kind::kLeaving) ||
      bytes.size() != rest) {
    return std::nullopt;
  }
  ServeMessage message{.kind = static_cast<ServeMessage::Kind>(header.kind),
                       .attempt = header.attempt,
                       .request = header.request,
                       .code = header.code};
  for (const std::byte c : bytes.first(header.name_bytes)) {
    message.prefiller.push_back(static_cast<char>(c));
  }
  const auto address = bytes.subspan(header.name_bytes, header.address_bytes);
  message.address.assign(address.begin(), address.end());
  message.tokens = decode_tokens(bytes.subspan(header.name_bytes + header.address_bytes));
  return message;
}

std::vector<std::byte> encode_tokens(std::span<const uint32_t> tokens) {
  const auto bytes = std::as_bytes(tokens);
  return {bytes.begin(), bytes.end()};
}

std::vector<uint32_t> decode_tokens(std::span<const std::byte> bytes) {
  std::vector<uint32_t> tokens(bytes.size() / sizeof(uint32_t));
  if (!tokens.empty()) std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(uint32_t));
  return tokens;
}

}  // namespace demo
