#pragma once

// Memory of Python objects: what owns it, how it is registered, and how it is shown to numpy.

#include "native.h"

namespace fabric_python {

/// The host memory of a Python object, and what keeps it valid.
struct Borrowed {
  void* address = nullptr;
  uint64_t size_bytes = 0;
  bool read_only = false;
  nb::object owner{};
  std::shared_ptr<Py_buffer> view{};  ///< held: a bytearray cannot be resized, an mmap not closed
};

/// Takes numpy arrays and anything with the buffer protocol, tensors with data_ptr(), and objects
/// with __dlpack__. Throws with `name` for other objects, and for memory that is not contiguous,
/// not on the host, freed, or read-only when `writable`.
Borrowed borrow_memory(nb::handle object, bool writable, const char* name);

/// A registered region with the Python object that owns its bytes, and their end.
///
/// The owner is let go when the region is proved quiet. Without that proof it is leaked on purpose,
/// as the library leaks allocated pages: a peer may still write there.
struct Registered {
  std::weak_ptr<EngineBox> engine{};
  fabric::MemoryRegion region;
  Borrowed owner{};
  bool deregistered = false;

  Registered(const SharedEngine& engine_, fabric::MemoryRegion&& region_, Borrowed&& owner_)
      : engine(engine_), region(std::move(region_)), owner(std::move(owner_)) {}
  Registered(const Registered&) = delete;
  ~Registered();  ///< without the GIL, on a thread that may use the engine

 private:
  bool prove_quiet() noexcept;
};

class RegionBox {
 public:
  RegionBox(const SharedEngine& engine, fabric::MemoryRegion&& region, Borrowed&& owner,
            bool read_only);
  ~RegionBox();
  RegionBox(const RegionBox&) = delete;

  fabric::MemoryRegion& region() {
    context_->check();
    return registered_->region;
  }
  fabric::RegionId id() const noexcept { return id_; }
  fabric::MemoryRegion& unchecked() noexcept { return registered_->region; }
  Context& context() const { return *context_; }
  bool read_only() const noexcept { return read_only_; }
  /// Deregisters and waits for the proof. Throws when it does not come in time.
  void deregister(fabric::Timeout timeout);

 private:
  SharedContext context_;
  std::unique_ptr<Registered> registered_;
  const fabric::RegionId id_;
  const bool read_only_;
};

/// The Python class MemoryRegion.
struct PyRegion {
  std::shared_ptr<RegionBox> box;
};

}  // namespace fabric_python
