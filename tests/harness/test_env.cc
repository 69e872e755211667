#include "harness/test_env.h"

#include <gtest/gtest.h>

namespace fabric::test {

namespace {
void missing(const char* capability) {
  ADD_FAILURE() << "the case declares a capability that its environment lacks: " << capability;
}
}  // namespace

void FaultInjector::cut(uint32_t, uint32_t, Phase) { missing("cuts"); }
void FaultInjector::lose_rail(uint32_t, uint32_t, Phase) { missing("lost_rails"); }
void FaultInjector::break_path(uint32_t, uint32_t, uint32_t, Side) { missing("broken_paths"); }
void FaultInjector::kill(uint32_t) { missing("kills"); }
void FaultInjector::stop(uint32_t, Phase) { missing("stops"); }
void FaultInjector::lose_acks(uint32_t, uint32_t, Phase) { missing("lost_acks"); }
void FaultInjector::not_ready(uint32_t, Phase) { missing("not_ready"); }
void FaultInjector::wrong_rkey(uint32_t, uint32_t) { missing("wrong_rkeys"); }
void FaultInjector::duplicate(uint32_t, uint32_t, Phase) { missing("duplicates"); }
void FaultInjector::delay_proofs(uint32_t, Nanos) { missing("late_proofs"); }

FaultInjector& TestEnv::faults() {
  static FaultInjector none;
  return none;
}

}  // namespace fabric::test
