#include "swarm/swarm.h"

#include <algorithm>

#include "swarm/runner.h"

namespace fabric::swarm {

Outcome play(const Story& story) {
  Stage stage(story);
  stage.play();
  return {.violation = stage.verdict().first(),
          .coverage = stage.coverage(),
          .trace_hash = stage.trace_hash(),
          .operations = stage.ended(),
          .bytes_checked = stage.bytes_checked(),
          .virtual_time = stage.now()};
}

namespace {

/// Tries shorter stories and keeps each that still breaks the same promise.
class Shrinker {
 public:
  Shrinker(const Story& story, const Violation& violation, const Player& player, uint32_t tries_max)
      : best_{story, violation, 0}, player_(player), tries_max_(tries_max) {}

  Shrunk run() {
    for (bool shorter = true; shorter && left();) {
      shorter = false;
      shorter |= thin(&Story::deeds);
      shorter |= thin(&Story::troubles);
      shorter |= try_it([](Story& s) { s.world.drop_control = 0; });
      shorter |= try_it([](Story& s) { s.world.duplicate_control = 0; });
      shorter |= try_it([](Story& s) { s.world.reorder_control = 0; });
    }
    return best_;
  }

 private:
  bool left() const { return best_.tries < tries_max_; }

  bool keep(const Story& story) {
    if (!left()) return false;
    ++best_.tries;
    const Outcome outcome = player_(story);
    if (!outcome.violation || outcome.violation->invariant != best_.violation.invariant) {
      return false;
    }
    best_.story = story;
    best_.violation = *outcome.violation;
    return true;
  }

  template <class Change>
  bool try_it(Change change) {
    Story story = best_.story;
    change(story);
    const auto chance = [](const Story& s) {
      return s.world.drop_control + s.world.duplicate_control + s.world.reorder_control;
    };
    return chance(story) < chance(best_.story) && keep(story);
  }

  /// Takes out halves, then quarters, down to single ones, from the end to the beginning: the last
  /// ones come after the damage was done.
  template <class T>
  bool thin(std::vector<T> Story::*list) {
    bool shorter = false;
    for (size_t size = std::max<size_t>(1, (best_.story.*list).size() / 2);; size /= 2) {
      size_t end = (best_.story.*list).size();
      while (end > 0 && left()) {
        const size_t begin = end > size ? end - size : 0;
        Story story = best_.story;
        auto& items = story.*list;
        items.erase(items.begin() + static_cast<ptrdiff_t>(begin),
                    items.begin() + static_cast<ptrdiff_t>(end));
        shorter |= keep(story);
        end = begin;
      }
      if (size <= 1) return shorter;
    }
  }

  Shrunk best_;
  const Player& player_;
  uint32_t tries_max_;
};

}  // namespace

Shrunk shrink(const Story& story, const Violation& violation, const Player& player,
              uint32_t tries_max) {
  return Shrinker(story, violation, player, tries_max).run();
}

}  // namespace fabric::swarm
