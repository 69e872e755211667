#include "workloads/kv/plan_match.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "workloads/kv/plan_refusal.h"

namespace fabric::kv::planner {

const CacheGroup* find_cache_group(const Layout& layout, std::string_view name) {
  for (const CacheGroup& group : layout.groups) {
    if (group.name == name) return &group;
  }
  return nullptr;
}

const Tensor* find_tensor(const CacheGroup& group, std::string_view name) {
  for (const Tensor& tensor : group.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

namespace {

std::string rank_text(const char* side, const Layout& layout) {
  return fmt::format("{} rank (pp {}, tp {})", side, layout.pp_rank, layout.tp_rank);
}

/// A rank's group, and the reference group that it must match.
struct GroupPair {
  const CacheGroup* a = nullptr;
  const CacheGroup* b = nullptr;
  std::string a_text{};
  std::string b_text{};
};

class Matcher {
 public:
  Matcher(const Side& prefill, const Side& decode, Refusal* refusal)
      : prefill_(prefill), decode_(decode), refusal_(refusal) {}

  Result<MatchedSides> run() {
    if (auto done = check_side("prefill", prefill_); !done) return done.error();
    if (auto done = check_side("decode", decode_); !done) return done.error();
    MatchedSides out{.model_hash = decode_.ranks[0].model_hash};
    for (const Side* side : {&prefill_, &decode_}) {
      const char* name = side == &prefill_ ? "prefill" : "decode";
      for (const Layout& layout : side->ranks) {
        if (layout.model_hash == out.model_hash) continue;
        return refuse(
            refusal_, RefusalCode::kModelDiffers,
            fmt::format("{} has model_hash {:#x}, {} has {:#x}", rank_text(name, layout),
                        layout.model_hash, rank_text("decode", decode_.ranks[0]), out.model_hash),
            "serve the same model, revision and static scales on both sides");
      }
    }
    std::set<std::string> names;
    for (const Layout& layout : decode_.ranks) {
      for (const CacheGroup& group : layout.groups) names.insert(group.name);
    }
    for (const std::string& name : names) {
      auto group = match_group(name);
      if (!group) return group.error();
      out.groups.push_back(*std::move(group));
    }
    if (auto done = no_other_groups(names); !done) return done.error();
    return out;
  }

 private:
  Result<void> check_side(const char* name, const Side& side) {
    if (side.ranks.empty()) {
      return refuse(refusal_, RefusalCode::kBadLayout, fmt::format("{} side: no ranks", name),
                    "give at least one layout");
    }
    if (side.ranks.size() > kSideRanksMax) {
      return refuse(
          refusal_, RefusalCode::kTooLarge,
          fmt::format("{} side: {} ranks, the limit is {}", name, side.ranks.size(), kSideRanksMax),
          "plan for fewer ranks at a time");
    }
    const Layout& first = side.ranks[0];
    for (const Layout& layout : side.ranks) {
      if (auto valid = check(layout, refusal_); !valid) {
        if (refusal_ != nullptr) {
          refusal_->reason = fmt::format("{}: {}", rank_text(name, layout), refusal_->reason);
        }
        return valid;
      }
      if (layout.tp_size != first.tp_size || layout.pp_size != first.pp_size) {
        return refuse(refusal_, RefusalCode::kBadLayout,
                      fmt::format("{} has tp_size {} and pp_size {}, the first rank {} and {}",
                                  rank_text(name, layout), layout.tp_size, layout.pp_size,
                                  first.tp_size, first.pp_size),
                      "give the ranks of one deployment");
      }
    }
    for (size_t n = 1; n < side.ranks.size(); ++n) {
      const Layout& before = side.ranks[n - 1];
      const Layout& now = side.ranks[n];
      if (std::pair(before.pp_rank, before.tp_rank) < std::pair(now.pp_rank, now.tp_rank)) continue;
      return refuse(refusal_, RefusalCode::kSideOrder,
                    fmt::format("{} comes after {}", rank_text(name, now), rank_text(name, before)),
                    "order the ranks by (pp_rank, tp_rank), each once");
    }
    return {};
  }

  /// False: the decode side lists only some of its ranks, and may lack groups that the others have.
  bool decode_is_complete() const {
    return decode_.ranks.size() == uint64_t{decode_.ranks[0].tp_size} * decode_.ranks[0].pp_size;
  }

  Result<void> no_other_groups(const std::set<std::string>& names) {
    if (!decode_is_complete()) return {};
    for (const Layout& layout : prefill_.ranks) {
      for (const CacheGroup& group : layout.groups) {
        if (names.contains(group.name)) continue;
        return refuse(refusal_, RefusalCode::kGroupsDiffer,
                      fmt::format("{} has group \"{}\", no decode rank has it",
                                  rank_text("prefill", layout), group.name),
                      "give the groups of both sides the same names");
      }
    }
    return {};
  }

  Result<GroupPlan> match_group(const std::string& name) {
    // The first rank of each side that has the group; all others must agree with it.
    const Layout* first[2] = {};
    const CacheGroup* group[2] = {};
    const Side* const sides[2] = {&prefill_, &decode_};
    const char* const side_names[2] = {"prefill", "decode"};
    for (int s = 0; s < 2; ++s) {
      for (const Layout& layout : sides[s]->ranks) {
        const CacheGroup* found = find_cache_group(layout, name);
        if (found == nullptr) continue;
        if (group[s] == nullptr) {
          first[s] = &layout;
          group[s] = found;
          continue;
        }
        const GroupPair pair{found, group[s], rank_text(side_names[s], layout),
                             rank_text(side_names[s], *first[s])};
        if (auto done = same_group(pair); !done) return done.error();
        if (auto done = same_within_side(pair); !done) return done.error();
      }
    }
    if (group[0] == nullptr) {
      return refuse(refusal_, RefusalCode::kGroupsDiffer,
                    fmt::format("{} has group \"{}\", no prefill rank has it",
                                rank_text("decode", *first[1]), name),
                    "give the groups of both sides the same names");
    }
    const GroupPair pair{group[0], group[1], rank_text("prefill", *first[0]),
                         rank_text("decode", *first[1])};
    if (auto done = same_group(pair); !done) return done.error();
    if (auto done = match_layers(name); !done) return done.error();
    GroupPlan out{.name = name,
                  .kind = group[0]->kind,
                  .window_tokens = group[0]->window_tokens,
                  .unit_tokens = std::gcd(group[0]->page_tokens, group[1]->page_tokens),
                  .source_page_tokens = group[0]->page_tokens,
                  .target_page_tokens = group[1]->page_tokens};
    for (const Tensor& tensor : group[1]->tensors) out.tensors.push_back(tensor.name);
    std::sort(out.tensors.begin(), out.tensors.end());
    return out;
  }

  template <class A, class B>
  Error differs(RefusalCode code, const GroupPair& pair, std::string_view field, const A& a,
                const B& b, std::string remedy) {
    return refuse(refusal_, code,
                  fmt::format("group \"{}\": {} is {} on {} and {} on {}", pair.a->name, field, a,
                              pair.a_text, b, pair.b_text),
                  std::move(remedy));
  }

  Result<void> same_group(const GroupPair& pair) {
    if (pair.a->kind != pair.b->kind) {
      return differs(RefusalCode::kGroupsDiffer, pair, "kind", to_string(pair.a->kind),
                     to_string(pair.b->kind), "pair groups of one kind");
    }
    if (pair.a->window_tokens != pair.b->window_tokens) {
      return differs(RefusalCode::kGroupsDiffer, pair, "window_tokens", pair.a->window_tokens,
                     pair.b->window_tokens, "the window belongs to the model: correct one of them");
    }
    const auto with_parts = [](const CacheGroup& group) {
      return std::any_of(group.tensors.begin(), group.tensors.end(),
                         [](const Tensor& tensor) { return tensor.parts == 2; });
    };
    if (with_parts(*pair.a) != with_parts(*pair.b)) {
      return differs(RefusalCode::kKvApartTogether, pair, "K and V",
                     with_parts(*pair.a) ? "in one tensor" : "in two tensors",
                     with_parts(*pair.b) ? "in one tensor" : "in two tensors",
                     "store K and V the same way on both sides");
    }
    if (pair.a->tensors.size() != pair.b->tensors.size()) {
      return differs(RefusalCode::kTensorsDiffer, pair, "the number of tensors",
                     pair.a->tensors.size(), pair.b->tensors.size(),
                     "list the same tensors on both sides, by the same names");
    }
    for (const Tensor& a : pair.a->tensors) {
      const Tensor* b = find_tensor(*pair.b, a.name);
      if (b == nullptr) {
        return refuse(refusal_, RefusalCode::kTensorsDiffer,
                      fmt::format("group \"{}\": {} has tensor \"{}\", {} has not", pair.a->name,
                                  pair.a_text, a.name, pair.b_text),
                      "list the same tensors on both sides, by the same names");
      }
      if (auto done = same_tensor(pair, a, *b); !done) return done;
    }
    return {};
  }

  /// What may differ between the sides, but not between the ranks of one: replicas are counted by
  /// the tensor-parallel size, so a rank that holds more or less than the others would be wrong.
  Result<void> same_within_side(const GroupPair& pair) {
    if (pair.a->page_tokens != pair.b->page_tokens) {
      return differs(RefusalCode::kShapeDiffers, pair, "page_tokens", pair.a->page_tokens,
                     pair.b->page_tokens, "use one page size on all ranks of a side");
    }
    for (const Tensor& a : pair.a->tensors) {
      const Tensor& b = *find_tensor(*pair.b, a.name);
      bool same = a.sharding == b.sharding;
      for (const StateBlock& one : a.blocks) {
        const auto other = find_block(b, one.name);
        same = same && one.sharded_axis == other->sharded_axis;
      }
      if (same) continue;
      return refuse(refusal_, RefusalCode::kShapeDiffers,
                    fmt::format("group \"{}\": tensor \"{}\" is sharded differently on {} and {}",
                                pair.a->name, a.name, pair.a_text, pair.b_text),
                    "shard a tensor the same way on all ranks of a side");
    }
    return {};
  }

  static std::vector<StateBlock>::const_iterator find_block(const Tensor& tensor,
                                                            std::string_view name) {
    return std::find_if(tensor.blocks.begin(), tensor.blocks.end(),
                        [&](const StateBlock& block) { return block.name == name; });
  }

  Result<void> same_tensor(const GroupPair& pair, const Tensor& a, const Tensor& b) {
    const auto field = [&](std::string_view name) {
      return fmt::format("{} of tensor \"{}\"", name, a.name);
    };
    const char* const types = "store the cache in one type on both sides: nothing converts it";
    if (a.dtype != b.dtype) {
      return differs(RefusalCode::kDtypeDiffers, pair, field("dtype"), a.dtype, b.dtype, types);
    }
    if (a.element_bytes != b.element_bytes) {
      return differs(RefusalCode::kDtypeDiffers, pair, field("element_bytes"), a.element_bytes,
                     b.element_bytes, types);
    }
    const char* const shapes = "describe the same model on both sides";
    for (const auto& [name, x, y] : {std::tuple("heads_total", a.heads_total, b.heads_total),
                                     std::tuple("head_size", a.head_size, b.head_size),
                                     std::tuple("parts", a.parts, b.parts)}) {
      if (x != y) return differs(RefusalCode::kShapeDiffers, pair, field(name), x, y, shapes);
    }
    if (a.opaque_page_bytes != b.opaque_page_bytes) {
      return differs(RefusalCode::kOpaquePageDiffers, pair, field("opaque_page_bytes"),
                     a.opaque_page_bytes, b.opaque_page_bytes,
                     "use the same page layout on both sides, or keep scales in a tensor of their "
                     "own");
    }
    return same_blocks(pair, a, b);
  }

  Result<void> same_blocks(const GroupPair& pair, const Tensor& a, const Tensor& b) {
    const char* const remedy = "describe the same state blocks on both sides, by the same names";
    if (a.blocks.size() != b.blocks.size()) {
      return differs(RefusalCode::kTensorsDiffer, pair,
                     fmt::format("the number of blocks of tensor \"{}\"", a.name), a.blocks.size(),
                     b.blocks.size(), remedy);
    }
    for (const StateBlock& one : a.blocks) {
      const auto other = find_block(b, one.name);
      if (other == b.blocks.end()) {
        return refuse(
            refusal_, RefusalCode::kTensorsDiffer,
            fmt::format("group \"{}\": tensor \"{}\" of {} has block \"{}\", of {} it has "
                        "not",
                        pair.a->name, a.name, pair.a_text, one.name, pair.b_text),
            remedy);
      }
      if (one.lengths != other->lengths) {
        return differs(RefusalCode::kShapeDiffers, pair,
                       fmt::format("lengths of block \"{}\" of tensor \"{}\"", one.name, a.name),
                       lengths_text(one), lengths_text(*other), remedy);
      }
    }
    return {};
  }

  static std::string lengths_text(const StateBlock& block) {
    std::string out = "[";
    for (const uint32_t length : block.lengths) {
      out += (out.size() > 1 ? ", " : "") + std::to_string(length);
    }
    return out + "]";
  }

  /// Every layer that a decode rank has is on all tensor-parallel ranks of one prefill stage.
  Result<void> match_layers(const std::string& name) {
    std::map<uint32_t, std::vector<const Layout*>> holders;
    for (const Layout& layout : prefill_.ranks) {
      const CacheGroup* group = find_cache_group(layout, name);
      if (group == nullptr) continue;
      for (const uint32_t layer : group->layers) holders[layer].push_back(&layout);
    }
    std::set<uint32_t> wanted;
    for (const Layout& layout : decode_.ranks) {
      const CacheGroup* group = find_cache_group(layout, name);
      if (group == nullptr) continue;
      for (const uint32_t layer : group->layers) {
        wanted.insert(layer);
        if (holders.contains(layer)) continue;
        return refuse(refusal_, RefusalCode::kLayersDiffer,
                      fmt::format("group \"{}\": {} has layer {}, no prefill rank has it", name,
                                  rank_text("decode", layout), layer),
                      "use global layer ids, and give all pipeline stages of the prefill side");
      }
    }
    for (const auto& [layer, ranks] : holders) {
      if (auto done = complete_holders(name, layer, ranks); !done) return done;
      if (wanted.contains(layer) || !decode_is_complete()) continue;
      return refuse(refusal_, RefusalCode::kLayersDiffer,
                    fmt::format("group \"{}\": {} has layer {}, no decode rank has it", name,
                                rank_text("prefill", *ranks[0]), layer),
                    "use global layer ids, and the same layers on both sides");
    }
    return {};
  }

  Result<void> complete_holders(const std::string& name, uint32_t layer,
                                const std::vector<const Layout*>& ranks) {
    for (uint32_t n = 0; n < ranks.size(); ++n) {
      if (ranks[n]->pp_rank != ranks[0]->pp_rank) {
        return refuse(refusal_, RefusalCode::kLayersDiffer,
                      fmt::format("group \"{}\": layer {} is in pipeline stages {} and {}", name,
                                  layer, ranks[0]->pp_rank, ranks[n]->pp_rank),
                      "give each layer to one stage of the prefill side");
      }
      if (ranks[n]->tp_rank == n) continue;
      return missing_rank(name, layer, ranks[0]->pp_rank, n);
    }
    if (ranks.size() == ranks[0]->tp_size) return {};
    return missing_rank(name, layer, ranks[0]->pp_rank, static_cast<uint32_t>(ranks.size()));
  }

  Error missing_rank(const std::string& name, uint32_t layer, uint32_t pp_rank, uint32_t tp_rank) {
    return refuse(refusal_, RefusalCode::kRankMissing,
                  fmt::format("group \"{}\": no prefill rank (pp {}, tp {}) has layer {}", name,
                              pp_rank, tp_rank, layer),
                  "give all tensor-parallel ranks of the prefill side, each with the same layers");
  }

  const Side& prefill_;
  const Side& decode_;
  Refusal* refusal_;
};

}  // namespace

Result<MatchedSides> match_sides(const Side& prefill, const Side& decode, Refusal* refusal) {
  return Matcher(prefill, decode, refusal).run();
}

}  // namespace fabric::kv::planner
