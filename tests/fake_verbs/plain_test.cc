#include "fake_verbs/fake_nic_setup.h"

// Fake NICs without faults.

namespace fabric::test::plain_test {
namespace {

TEST(VerbsPlain, WritesArriveWithThreads) {
  FakeNicSetup setup({.rails = 2});
  CheckedWrites writes(setup[0], setup[1], {.count = 256, .bytes = 20000});
  writes.submit();
  ASSERT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
  writes.expect_delivered();
  setup.expect_service();
}

TEST(VerbsPlain, WritesArriveStepByStep) {
  FakeNicSetup setup({.rails = 2, .threads = false});
  CheckedWrites writes(setup[0], setup[1], {.count = 256, .bytes = 20000});
  writes.submit();
  ASSERT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
  writes.expect_delivered();
  setup.expect_service();
}

}  // namespace
}  // namespace fabric::test::plain_test
