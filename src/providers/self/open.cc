#include "providers/self/open.h"

#include <algorithm>
#include <new>

#include "base/bytes.h"
#include "providers/self/handles.h"

namespace fabric::self {

Result<void> check_address(std::span<const std::byte> address, uint64_t engine_id) {
  ByteReader reader(address);
  const uint64_t id = reader.u64();
  reader.require(reader.remaining() == 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "self address");
  if (id != engine_id) return fail(Errc::kUnreachable, "self address of another engine");
  return {};
}

SelfNetwork::SelfNetwork(const OpenContext& context)
    : engine_id_(context.engine_id), rail_(context) {}

std::vector<std::byte> SelfNetwork::address() const {
  ByteWriter writer;
  writer.u64(engine_id_);
  return writer.take();
}

Result<uint32_t> SelfNetwork::open_link(std::span<const std::byte> address) {
  if (const Result<void> own = check_address(address, engine_id_); !own) return own.error();
  links_.insert(next_link_);
  return next_link_++;
}

void SelfNetwork::close_link(uint32_t link) noexcept { links_.erase(link); }

bool SelfNetwork::send(uint32_t link, std::span<const std::byte> datagram) noexcept {
  if (count_ == kDatagramsMax || links_.count(link) == 0) return false;
  if (datagram.empty() || datagram.size() > kControlBytesMax) return false;
  try {
    datagrams_[(head_ + count_) % kDatagramsMax].assign(datagram.begin(), datagram.end());
  } catch (const std::bad_alloc&) {
    return false;  // no room now, as when the queue is full
  }
  ++count_;
  return true;
}

uint32_t SelfNetwork::receive(std::span<std::byte> out) noexcept {
  if (count_ == 0) return 0;
  const std::vector<std::byte>& datagram = datagrams_[head_];
  // A buffer below control_bytes_max() truncates a datagram, as on every network.
  const size_t size = std::min(datagram.size(), out.size());
  std::copy_n(datagram.begin(), size, out.begin());
  head_ = (head_ + 1) % kDatagramsMax;
  --count_;
  return static_cast<uint32_t>(size);
}

bool SelfNetwork::arm() noexcept { return !pending_work(); }

Result<std::unique_ptr<OpenNetwork>> open(const Network&, const OpenContext& context) {
  return std::unique_ptr<OpenNetwork>(std::make_unique<SelfNetwork>(context));
}

}  // namespace fabric::self
