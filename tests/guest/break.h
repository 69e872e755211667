#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "guest/conformance/interposer.h"

// The ways in which a rail between hosts A and B breaks while both write to each other: at the
// links, at either end of its paths, by an event of a NIC, and several of them in sequence.

namespace fabric::test {

enum class Break : uint8_t {
  kPort,
  kTargetsWithEvent,
  kSenders,
  kTargets,
  kBothEnds,
  kAcksLost,
  kAcksLostThenTargets,
  kAcksLateThenSenders,
  kLossyThenSenders,
  kMangledThenSenders,
  kRefused,
  kOwnLink,
  kOtherLink,
  kBothLinks,
  kDataLost,
  kOtherDataLost,
  kBothLost,
  kMangled,
};
constexpr uint32_t kBreaks = 18;

/// All of them in a random order, and then again in another; with FABRICLIB_TEST_BREAK=K kind K
/// alone.
class BreakDeck {
 public:
  explicit BreakDeck(Rng& rng);
  Break next();
  size_t size() const { return all_.size(); }
  Break operator[](size_t index) const { return all_[index]; }

 private:
  Rng& rng_;
  std::vector<Break> all_, left_;
};

/// One break, from what is done to the rail before to the end of it.
class RailBreak {
 public:
  struct BreakPlan {
    Break kind{};
    char rail = '0';
    /// A long cable still delivers when its other end is dead, and the report about that goes by
    /// the short one: a target that reports too early is caught.
    bool is_long = false;
    /// NICs that are slow to stop receiving, and to deliver completions.
    bool is_slow = false;
    /// Both ports have the bands of set_control_netem() already: RoCE breaks, control does not.
    bool has_bands = false;
  };
  /// Of this kind, with rail, cables and NICs at random.
  static BreakPlan random(Break kind, Rng& rng);
  /// With everything that makes an early report wrong.
  static BreakPlan hard(Break kind, Rng& rng);

  explicit RailBreak(const BreakPlan& plan);

  /// `wait` lets the writes go on for a while, `refuse` has a NIC refuse one each way.
  void strike(Rng& rng, const std::function<void(std::chrono::nanoseconds)>& wait,
              const std::function<void()>& refuse);
  /// The rail can carry again. What takes the kernel a while may still be under way.
  void mend() const;

  std::string describe() const;
  /// There were paths whose ends it could break, if it is of that kind.
  bool has_hit() const { return ends_ != 0; }
  /// Whether it is noticed at once, and not after the retries of a NIC.
  bool is_sudden() const;
  /// A host whose rails are all down fails its writes: a second break must leave it one.
  static bool leave_a_rail(Break one, Break other);

 private:
  void lose(char host) const;
  void lose_acks(bool lost) const;
  void break_ends(VerbsInterposer::End end);
  std::string port(char host) const { return {host, plan_.rail}; }
  std::string far_port(char host) const { return {'s', host, plan_.rail}; }
  uint32_t rail() const { return static_cast<uint32_t>(plan_.rail - '0'); }

  const BreakPlan plan_;
  uint32_t ends_ = 1;  ///< that were broken, if it breaks ends
};

}  // namespace fabric::test
