#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "explore/interleave.h"

namespace fabric::interleave {

struct NamedProgram {
  const char* name;
  MakeProgram make;
  int preemptions_max;
};
template <class S>
NamedProgram program(const char* name, int preemptions_max = -1) {
  return {name, [] { return std::make_unique<S>(); }, preemptions_max};
}

/// A weakening that no program detects, and why that is right.
struct Survivor {
  std::string_view mutant;
  std::string_view why;
};

/// Explores every program completely: none may fail.
void expect_sound(const std::vector<NamedProgram>& programs);

/// Weakens every operation that the programs use, one at a time, in every possible way. Each mutant
/// must be detected by a program or be among the survivors, and no survivor may be detected.
void expect_mutants_found(const std::vector<NamedProgram>& programs,
                          const std::vector<Survivor>& survivors);

}  // namespace fabric::interleave
