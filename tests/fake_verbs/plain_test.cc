#include "card/stage.h"

// Cards on which nothing goes wrong.

namespace fabric::test {
namespace {

TEST(CardPlain, WritesArriveWithThreads) {
  Stage stage({.rails = 2});
  Writes writes(stage[0], stage[1], {.count = 256, .bytes = 20000});
  writes.submit();
  ASSERT_TRUE(stage.until([&] { return writes.ended(); })) << stage[0].dump();
  writes.expect_delivered();
  stage.expect_service();
}

TEST(CardPlain, WritesArriveStepByStep) {
  Stage stage({.rails = 2, .threads = false});
  Writes writes(stage[0], stage[1], {.count = 256, .bytes = 20000});
  writes.submit();
  ASSERT_TRUE(stage.until([&] { return writes.ended(); })) << stage[0].dump();
  writes.expect_delivered();
  stage.expect_service();
}

}  // namespace
}  // namespace fabric::test
