// An ignored failure surfaces later, far from its cause.
// refused: unused-result|nodiscard
#include <fabric/engine.h>

void push(fabric::Engine& engine, const fabric::Write& write) {
#ifdef FABRIC_MISUSE
  engine.submit(write);
#else
  static_cast<void>(engine.submit(write));
#endif
}
