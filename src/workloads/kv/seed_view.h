#pragma once

#include <cstdint>
#include <map>

#include <fabric/kv_directory.h>

#include "workloads/kv/directory_messages.h"

namespace fabric::kv {

using MemberMap = std::map<uint64_t, Member>;

/// The view of one seed, from its messages in this session and before.
///
/// Pure: no engine, no time.
class SeedView {
 public:
  enum class Applied : uint8_t {
    kPart,     ///< more will follow
    kView,     ///< listed() is a view of the seed again
    kGap,      ///< does not continue what was received: ask for all of it
    kTooMany,  ///< more members than the limit: ignored
  };
  Applied apply(const ViewMessage& message, uint32_t members_max);
  /// The session has ended, or the seed does not answer in it.
  void interrupted();

  uint64_t have() const noexcept { return have_; }
  /// The view of this session is here, from a seed that has waited for its members.
  bool fresh() const noexcept { return complete_ && warmed_up_; }
  const MemberMap& listed() const noexcept { return listed_; }  ///< in this session
  const MemberMap& kept() const noexcept { return kept_; }      ///< before it; empty when fresh()

 private:
  MemberMap incoming_;  ///< of a view of which parts are missing
  MemberMap listed_, kept_;
  uint64_t have_ = 0;
  bool complete_ = false, warmed_up_ = false;
};

}  // namespace fabric::kv
