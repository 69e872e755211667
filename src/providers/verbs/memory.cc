#include <cerrno>

#include "providers/verbs/handles.h"

// Memory regions and rkeys. The IOVA of a region is its address modulo 1 GiB: then base and rkey
// fit into the 64 bits of an rkey, and huge pages keep their alignment.

namespace fabric::verbs {

namespace {

Error registration_failed(int error) {
  if (error == ENOMEM || error == EAGAIN) {
    return fail(Errc::kExhausted, "ibv_reg_mr (locked memory: ulimit -l)", error);
  }
  if (error == EPERM || error == EACCES) return fail(Errc::kPermission, "ibv_reg_mr", error);
  if (error == EIO || error == ENODEV) return fail(Errc::kRailLost, "ibv_reg_mr", error);
  if (error == EOPNOTSUPP) return fail(Errc::kUnsupported, "ibv_reg_mr", error);
  return fail(Errc::kInvalidArgument, "memory.address", error);
}

}  // namespace

Result<uint64_t> VerbsRail::register_memory(const Memory& memory,
                                            std::vector<std::byte>& wire_rkey) {
  const Library& lib = library();
  const auto address = reinterpret_cast<uint64_t>(memory.address);
  const bool dmabuf = memory.dmabuf_fd >= 0;
  if (dmabuf && !device_->takes_dmabuf()) return fail(Errc::kUnsupported, "memory.dmabuf_fd");
  const uint64_t base = (dmabuf ? memory.dmabuf_offset : address) & WireKey::kBaseMax;
  int access = IBV_ACCESS_RELAXED_ORDERING;
  if (memory.remote_write) access |= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  errno = 0;
  ibv_mr* mr = dmabuf ? lib.reg_dmabuf_mr(device_->memory_domain(), memory.dmabuf_offset,
                                          memory.size_bytes, base, memory.dmabuf_fd, access)
                      : lib.reg_mr_iova2(device_->memory_domain(), memory.address,
                                         memory.size_bytes, base, static_cast<unsigned>(access));
  // After a fatal device error registration succeeds without an MR: the engine uses other rails.
  if (mr == nullptr && is_dead()) mr = &dead_device_mr_;
  if (mr == nullptr) return registration_failed(errno);
  uint64_t slot = 0;
  {
    const std::lock_guard lock(memory_mutex_);
    if (memory_free_.empty() && memory_.size() == kMemoryMax) {
      if (mr != &dead_device_mr_) lib.dereg_mr(mr);
      return fail(Errc::kExhausted, "verbs: registrations");
    }
    if (memory_free_.empty()) {
      memory_free_.push_back(static_cast<uint32_t>(memory_.size()));
      memory_.push_back(nullptr);
    }
    slot = memory_free_.back();
    memory_free_.pop_back();
    memory_[slot] = mr;
    shifts_[slot] = address - base;
  }
  wire_rkey = encode(WireKey{mr->rkey, static_cast<uint32_t>(base)});
  const bool readable = memory.kind == MemoryKind::kHost;
  return uint64_t{mr->lkey} | slot << 32 | (readable ? kReadable : 0);
}

/// Once ibv_dereg_mr() has returned, the device accepts no more writes to this memory: that proves
/// the fence. The core has notified all importers before, so no correct peer breaks its connection
/// on the invalid rkey.
void VerbsRail::deregister_memory(uint64_t lkey, uint32_t cookie) noexcept {
  const uint32_t slot = memory_slot(lkey);
  ibv_mr* mr = nullptr;
  {
    const std::lock_guard lock(memory_mutex_);
    if (slot < memory_.size()) mr = std::exchange(memory_[slot], nullptr);
  }
  if (mr == nullptr) return;
  const int error = mr == &dead_device_mr_ ? 0 : library().dereg_mr(mr);
  // EIO of a dead device: the kernel has already removed the region.
  if (error != 0 && !(error == EIO && is_dead())) {
    // No proof: the region stays registered, and the memory stays in quarantine.
    const std::lock_guard lock(memory_mutex_);
    memory_[slot] = mr;
    return;
  }
  {
    const std::lock_guard lock(memory_mutex_);
    memory_free_.push_back(slot);
  }
  job_results_->put({.kind = JobResult::Kind::kFenced, .cookie = cookie});
}

Result<uint64_t> VerbsRail::import_rkey(std::span<const std::byte> wire_rkey) {
  const auto key = decode_key(wire_rkey);
  if (!key) return key.error();
  return key->packed();
}

}  // namespace fabric::verbs
