#include <iterator>

#include "base/bytes.h"
#include "providers/self/handles.h"

namespace fabric::self {

SelfRail::Path* SelfRail::find(uint32_t path) noexcept {
  const auto at = paths_.find(path);
  return at == paths_.end() ? nullptr : &at->second;
}

Result<uint32_t> SelfRail::open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                                     std::vector<std::byte>& hello) {
  if (const Result<void> own = check_address(peer, engine_id_); !own) return own.error();
  if (remote_rail != 0) return fail(Errc::kInvalidArgument, "remote_rail");
  ByteWriter writer;
  writer.u64(engine_id_);
  writer.u32(next_path_);
  paths_.emplace(next_path_, Path{});
  hello = writer.take();
  return next_path_++;
}

Result<uint32_t> SelfRail::accept_path(std::span<const std::byte> hello,
                                       std::vector<std::byte>& answer) {
  ByteReader reader(hello);
  reader.require(reader.u64() == engine_id_);
  const uint32_t number = reader.u32();
  reader.require(reader.remaining() == 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "self hello");
  Path* const path = find(number);
  if (path == nullptr || path->closing) return fail(Errc::kNotFound, "self path");
  path->accepted = true;
  answer.assign(hello.begin(), hello.end());
  return number;
}

Result<void> SelfRail::start_path(uint32_t path, std::span<const std::byte> answer) {
  ByteReader reader(answer);
  reader.require(reader.u64() == engine_id_);
  reader.require(reader.u32() == path && reader.remaining() == 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "self answer");
  Path* const found = find(path);
  if (found == nullptr || !found->accepted) return fail(Errc::kNotFound, "self path");
  found->started = true;
  return {};
}

void SelfRail::close_path(uint32_t path, bool inbound) noexcept {
  Path* const found = find(path);
  if (found == nullptr) return;
  if (inbound && found->accepted && !found->in_closing) {
    found->in_closing = true;
    ++closing_;
  }
  // Without the target's end the sender's end breaks, as it would on a network.
  if (!found->closing) {
    found->closing = true;
    ++closing_;
  }
}

uint32_t SelfRail::poll_paths(std::span<RailEvent> out) noexcept {
  uint32_t n = 0;
  for (auto at = paths_.begin(); closing_ != 0 && n < out.size() && at != paths_.end();) {
    auto& [number, path] = *at;
    if (path.closing && !path.down && path.queued == 0) {
      out[n++] = {.kind = RailEvent::Kind::kPathDown, .path = number};
      path.down = true;
      --closing_;
    }
    // After the sender's end: no queued write can be counted any more.
    if (path.in_closing && !path.in_down && path.down && n < out.size()) {
      out[n++] = {
          .kind = RailEvent::Kind::kPathDown, .inbound = 1, .path = number, .value = path.counted};
      path.in_down = true;
      --closing_;
    }
    const bool finished = path.down && path.in_down == path.accepted && path.queued == 0;
    at = finished ? paths_.erase(at) : std::next(at);
  }
  return n;
}

}  // namespace fabric::self
