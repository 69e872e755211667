#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <fabric/export.h>
#include <fabric/kv_directory.h>
#include <fabric/result.h>

namespace fabric::kv {

struct RouterOptions {
  uint64_t seed = 1;  ///< the same calls with the same seed give the same picks
  /// How far above its share of the load a member may be for the sake of affinity: 0 balances
  /// strictly, 100 lets it have twice its share. At most 10,000.
  uint32_t slack_percent = 25;
};

struct PickRequest {
  /// Requests with the same prefix (its hash, a conversation's id) go to the same member while its
  /// load permits. Empty: by load alone.
  std::string_view prefix{};
  uint64_t layout_hash = 0;            ///< only members of this layout, or of layout 0; 0: any
  std::span<const uint64_t> except{};  ///< engine ids that were tried already
};

struct Pick {
  Member member{};
  bool preferred = false;  ///< the prefix's first choice among all that could be picked
};

/// Chooses a prefiller by load and prefix affinity: rendezvous hashing with bounded load. A member
/// that joins takes its share of the prefixes from all others, one that leaves gives back only its
/// own; no other prefix moves.
///
/// A load is what report() said last, plus one for each pick since then. Loads compare relative to
/// capacities.
///
/// Threads: one thread at a time.
class FABRIC_EXPORT Router {
 public:
  /// Fails with kInvalidArgument (slack_percent).
  static Result<Router> make(const RouterOptions& options = {});
  Router(Router&&) noexcept;
  Router& operator=(Router&&) noexcept;
  ~Router();

  /// The members to choose from. Loads are kept for members whose incarnation is the same.
  void update(const View& view);
  /// The load that an answer (ACCEPT, REFUSE) of that member carried. An answer also proves that it
  /// is there: it may be picked again after lost(). Unknown ids are ignored.
  void report(uint64_t engine_id, uint32_t load);
  /// The session with that member was lost, or it did not answer: it is not picked until it answers
  /// (report()), a later incarnation is listed, or it has left the view and joins again.
  void lost(uint64_t engine_id);

  /// Fails with kNotFound, and `what` says which: "no prefiller is listed", "no prefiller has this
  /// layout", "all prefillers are lost or excepted"; kExhausted "all prefillers are at capacity".
  Result<Pick> pick(const PickRequest& request = {});
  /// The load that pick() assumes; 0 for unknown ids.
  uint32_t load(uint64_t engine_id) const noexcept;

 private:
  struct Impl;
  explicit Router(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fabric::kv
