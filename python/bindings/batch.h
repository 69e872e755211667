#pragma once

#include "native.h"

namespace fabric_python {

/// The Python class Batch. As a context manager it waits when it is left, or cancels and waits when
/// an exception leaves it.
struct PyBatch {
  std::weak_ptr<EngineBox> engine;
  Held<fabric::Batch> held;
  fabric::BatchId id;

  PyBatch(const SharedEngine& box, fabric::Batch&& batch)
      : engine(box), held(box->context, std::move(batch)), id(held.get().id()) {}
  void wait(fabric::Timeout timeout);
  void cancel();
};

}  // namespace fabric_python
