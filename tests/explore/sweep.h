#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "explore/interleave.h"

namespace fabric::interleave {

struct NamedScene {
  const char* name;
  MakeScene make;
  int preemptions_max;
};
template <class S>
NamedScene scene(const char* name, int preemptions_max = -1) {
  return {name, [] { return std::make_unique<S>(); }, preemptions_max};
}

/// A weakening that no scene can see, and why that is right.
struct Survivor {
  std::string_view mutant;
  std::string_view why;
};

/// Plays every scene to its end: none may fail.
void expect_sound(const std::vector<NamedScene>& scenes);

/// Weakens every operation that the scenes use, one at a time, in every way that there is. Each
/// mutant must be found by a scene or be among the survivors, and no survivor may be found.
void expect_mutants_found(const std::vector<NamedScene>& scenes,
                          const std::vector<Survivor>& survivors);

}  // namespace fabric::interleave
