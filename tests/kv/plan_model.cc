#include "kv/plan_model.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

namespace fabric::kv::test {
namespace {

constexpr uint32_t kCanary = 0xdeadbeef;

struct HeadRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

HeadRange heads_here(uint32_t total, uint32_t rank, uint32_t size) {
  if (total >= size) return {rank * (total / size), total / size};
  return {rank / (size / total), 1};
}

/// The value of an element, by what it is and not by where it is.
uint32_t tag(std::initializer_list<uint32_t> parts) {
  uint32_t hash = 2166136261;
  for (const uint32_t part : parts) {
    hash = (hash ^ part) * 16777619;
    hash ^= hash >> 15;
  }
  return hash == kCanary ? 1 : hash;
}

uint32_t tag_of(const std::string& name) {
  uint32_t hash = 7;
  for (const char c : name) hash = hash * 31 + static_cast<uint8_t>(c);
  return hash;
}

RankWords make_memory(const Layout& layout) {
  RankWords out;
  for (const uint64_t bytes : layout.region_bytes) {
    out.emplace_back((bytes + kWordBytes - 1) / kWordBytes, kCanary);
  }
  return out;
}

/// Where one tensor of one layer and page begins, and what it is.
struct PageOfTensor {
  const Layout& layout;
  const CacheGroup& group;
  const Tensor& tensor;
  uint32_t layer = 0;
  uint32_t region = 0;
  uint64_t begin = 0;
  uint32_t first_token = 0;  ///< of the prompt
};

/// Calls visit(byte offset, token of the prompt, value) for each word of the page.
template <class Visit>
void visit_page(const PageOfTensor& page, Visit&& visit) {
  const Tensor& tensor = page.tensor;
  const uint32_t name = tag_of(page.group.name + "/" + tensor.name);
  if (page.group.kind == GroupKind::kState) {
    for (const StateBlock& block : tensor.blocks) {
      const HeadRange groups =
          block.sharded_axis == 0
              ? heads_here(block.lengths[0], page.layout.tp_rank, page.layout.tp_size)
              : HeadRange{0, block.lengths[0]};
      for (uint32_t g = 0; g < groups.count; ++g) {
        for (uint32_t w = 0; w < block.lengths[1]; ++w) {
          for (uint32_t r = 0; r < block.lengths[2]; ++r) {
            visit(page.begin + block.offset_bytes + g * block.strides_bytes[0] +
                      w * block.strides_bytes[1] + r * block.strides_bytes[2],
                  0u, tag({page.layer, name, tag_of(block.name), groups.first + g, w, r}));
          }
        }
      }
    }
    return;
  }
  const HeadRange heads =
      tensor.sharding == Sharding::kReplicated
          ? HeadRange{0, tensor.heads_total}
          : heads_here(tensor.heads_total, page.layout.tp_rank, page.layout.tp_size);
  for (uint32_t p = 0; p < tensor.parts; ++p) {
    for (uint32_t h = 0; h < heads.count; ++h) {
      for (uint32_t t = 0; t < page.group.page_tokens; ++t) {
        for (uint32_t e = 0; e < tensor.head_size; ++e) {
          visit(page.begin + p * tensor.part_stride_bytes + h * tensor.head_stride_bytes +
                    t * tensor.token_stride_bytes + uint64_t{e} * tensor.element_bytes,
                page.first_token + t,
                tag({page.layer, name, p, heads.first + h, page.first_token + t, e}));
        }
      }
    }
  }
}

/// All pages of a request on one rank.
template <class Visit>
void visit_request(const Layout& layout, const CacheGroup& group,
                   const std::vector<uint32_t>& pages, Visit&& visit) {
  for (const Tensor& tensor : group.tensors) {
    for (uint32_t n = 0; n < group.layers.size(); ++n) {
      uint32_t region = tensor.region;
      uint64_t begin = tensor.offset_bytes + n * tensor.layer_stride_bytes;
      if (!tensor.locations.empty()) {
        region = tensor.locations[n].region;
        begin = tensor.locations[n].offset_bytes;
      }
      for (uint32_t i = 0; i < pages.size(); ++i) {
        const PageOfTensor page{layout,
                                group,
                                tensor,
                                group.layers[n],
                                region,
                                begin + pages[i] * tensor.page_stride_bytes,
                                i * group.page_tokens};
        visit_page(page, [&](uint64_t offset, uint32_t token, uint32_t value) {
          visit(region, offset, token, value);
        });
      }
    }
  }
}

const CacheGroup* group_of(const Layout& layout, const std::string& name) {
  for (const CacheGroup& group : layout.groups) {
    if (group.name == name) return &group;
  }
  return nullptr;
}

/// The tokens that must arrive, by the words of the documents: whole units of those that the
/// decoder lacks and the window covers.
std::pair<uint32_t, uint32_t> expected_tokens(const GroupPlan& group, uint32_t prompt,
                                              uint32_t cached) {
  if (group.kind == GroupKind::kState) return {0, cached == prompt ? 0 : 1};
  if (cached == prompt) return {0, 0};
  const uint32_t unit = std::gcd(group.source_page_tokens, group.target_page_tokens);
  uint32_t first = cached;
  if (group.kind == GroupKind::kWindow && prompt > group.window_tokens) {
    first = std::max(first, prompt - group.window_tokens);
  }
  return {first / unit * unit, (prompt + unit - 1) / unit * unit};
}

/// Plays the network for one plan and request.
class Transfer {
 public:
  Transfer(const TransferPlan& plan, const Side& prefill, const Side& decode,
           const ModelRequest& request)
      : plan_(plan), prefill_(prefill), decode_(decode), request_(request) {
    for (const Layout& layout : prefill.ranks) memory_.sources.push_back(make_memory(layout));
    for (const Layout& layout : decode.ranks) memory_.targets.push_back(make_memory(layout));
    written_.resize(decode.ranks.size(), 0);
    fill_sources();
  }

  std::string run(Rng& rng) {
    std::vector<TokenRange> chunks;
    for (uint32_t from = 0; from < request_.tokens.prompt_tokens;) {
      const auto left = request_.tokens.prompt_tokens - from;
      const auto size = static_cast<uint32_t>(rng.between(1, left));
      chunks.push_back({from, from + size});
      from += size;
    }
    for (const PairPlan& pair : plan_.pairs) {
      std::map<uint32_t, uint64_t> sent;
      for (const TokenRange chunk : chunks) {
        if (std::string wrong = push(pair, chunk, sent); !wrong.empty()) return wrong;
      }
      if (std::string wrong = scatter_records(pair); !wrong.empty()) return wrong;
      if (std::string wrong = compare_counts(pair, sent); !wrong.empty()) return wrong;
    }
    return compare_all(true);
  }

  std::string run(const std::function<void(ModelMemory&)>& move) {
    move(memory_);
    return compare_all(false);
  }

 private:
  std::string compare_all(bool bytes_were_counted) {
    for (uint32_t rank = 0; rank < decode_.ranks.size(); ++rank) {
      if (std::string wrong = compare(rank, bytes_were_counted); !wrong.empty()) return wrong;
    }
    return "";
  }

  void fill_sources() {
    for (uint32_t rank = 0; rank < prefill_.ranks.size(); ++rank) {
      for (uint32_t g = 0; g < plan_.groups.size(); ++g) {
        const CacheGroup* group = group_of(prefill_.ranks[rank], plan_.groups[g].name);
        if (group == nullptr) continue;
        visit_request(prefill_.ranks[rank], *group, request_.source_pages[g],
                      [&](uint32_t region, uint64_t offset, uint32_t, uint32_t value) {
                        sources_[rank].at(region).at(offset / kWordBytes) = value;
                      });
      }
    }
  }

  /// One chunk of one pair, as the comment of kv_plan.h says.
  std::string push(const PairPlan& pair, TokenRange chunk, std::map<uint32_t, uint64_t>& sent) {
    for (const PairGroup& group : pair.groups) {
      const auto range = chunk_units(plan_, group.group, request_.tokens, chunk);
      if (!range) return range.error().what;
      std::vector<UnitIndices> lists;
      for (uint32_t n = 0; n < group.lists.size(); ++n) {
        const auto indices =
            unit_indices(plan_, pair, group, n, *range, request_.tokens.seed,
                         {request_.source_pages[group.group], request_.target_pages[group.group]});
        if (!indices) return indices.error().what;
        if (indices->units.size() !=
            dealt_units(pair, group.lists[n], *range, request_.tokens.seed)) {
          return "dealt_units() differs from unit_indices()";
        }
        lists.push_back(*indices);
      }
      for (const LayerSlices& layer : group.layers) {
        for (const PageSlice& slice : slices_of(group, layer)) {
          if (!write(pair, slice, lists[slice.list], sent[layer.layer])) return "out of bounds";
        }
        for (const StagedWrite& staged : staged_of(group, layer)) {
          const std::string wrong =
              stage(pair, group, staged, lists[staged.list], sent[layer.layer]);
          if (!wrong.empty()) return wrong;
        }
      }
    }
    return "";
  }

  bool write(const PairPlan& pair, const PageSlice& slice, const UnitIndices& at, uint64_t& sent) {
    const std::vector<uint32_t>& from = sources_[pair.source].at(slice.source_region);
    std::vector<uint32_t>& to = targets_[pair.target].at(slice.target_region);
    const uint64_t words = slice.bytes / kWordBytes;
    for (size_t n = 0; n < at.source.size(); ++n) {
      for (uint64_t j = 0; j < slice.inner_count; ++j) {
        const uint64_t source =
            (slice.source_offset_bytes + at.source[n] * slice.source_stride_bytes +
             j * slice.source_inner_stride_bytes) /
            kWordBytes;
        const uint64_t target =
            (slice.target_offset_bytes + at.target[n] * slice.target_stride_bytes +
             j * slice.target_inner_stride_bytes) /
            kWordBytes;
        if (source + words > from.size() || target + words > to.size()) return false;
        std::memcpy(to.data() + target, from.data() + source, slice.bytes);
        written_[pair.target] += slice.bytes;
        ++sent;
      }
    }
    return true;
  }

  /// Gathers units and puts them into their staging records, as the network would. The records stay
  /// until every chunk has been sent, so that two parts of a record in one place are noticed.
  std::string stage(const PairPlan& pair, const PairGroup& group, const StagedWrite& staged,
                    const UnitIndices& at, uint64_t& sent) {
    std::vector<std::span<const std::byte>> from;
    for (const auto& region : sources_[pair.source]) {
      from.push_back(std::as_bytes(std::span(region)));
    }
    const uint64_t record_bytes = group.lists[staged.list].staging_record_bytes;
    if (staged.record_offset_bytes + staged.bytes > record_bytes) {
      return "a staged write past its record";
    }
    for (size_t n = 0; n < at.source.size(); ++n) {
      std::vector<std::byte>& record = records_[{group.group, staged.list, at.units[n]}];
      record.resize(record_bytes);
      std::vector<std::byte> packed(staged.bytes);
      if (auto done = gather(staged, at.source[n], from, packed); !done) return done.error().what;
      std::copy(packed.begin(), packed.end(),
                record.begin() + static_cast<std::ptrdiff_t>(staged.record_offset_bytes));
      arrived_.push_back({&staged, at.target[n], &record});
      ++sent;
    }
    return "";
  }

  std::string scatter_records(const PairPlan& pair) {
    std::vector<std::span<std::byte>> to;
    for (auto& region : targets_[pair.target]) {
      to.push_back(std::as_writable_bytes(std::span(region)));
    }
    for (const Arrived& one : arrived_) {
      const auto packed =
          std::span(*one.record).subspan(one.write->record_offset_bytes, one.write->bytes);
      if (auto done = scatter(*one.write, one.index, packed, to); !done) return done.error().what;
      written_[pair.target] += one.write->bytes;
    }
    arrived_.clear();
    records_.clear();
    return "";
  }

  std::string compare_counts(const PairPlan& pair, const std::map<uint32_t, uint64_t>& sent) {
    const auto expected = counts(plan_, pair, request_.tokens);
    if (!expected) return expected.error().what;
    uint64_t total = 0;
    for (const LayerCount& layer : expected->layers) {
      const auto found = sent.find(layer.layer);
      const uint64_t got = found == sent.end() ? 0 : found->second;
      if (got != layer.count) {
        return fmt::format("pair {} -> {}: layer {} counts {}, sent {}", pair.source, pair.target,
                           layer.layer, layer.count, got);
      }
      total += got;
    }
    return total == expected->total ? "" : "the counts of the layers are not the total";
  }

  std::string compare(uint32_t rank, bool bytes_were_counted) {
    const Layout& layout = decode_.ranks[rank];
    uint64_t expected = 0;
    std::string wrong;
    for (uint32_t g = 0; g < plan_.groups.size() && wrong.empty(); ++g) {
      const CacheGroup* group = group_of(layout, plan_.groups[g].name);
      if (group == nullptr) continue;
      const uint32_t cached =
          request_.tokens.cached_tokens.empty() ? 0 : request_.tokens.cached_tokens[g];
      const auto [first, end] =
          expected_tokens(plan_.groups[g], request_.tokens.prompt_tokens, cached);
      const auto look = [&, first = first, end = end](uint32_t region, uint64_t offset,
                                                      uint32_t token, uint32_t value) {
        const uint32_t found = targets_[rank].at(region).at(offset / kWordBytes);
        const bool arrives = token >= first && token < end;
        expected += arrives ? 1 : 0;
        if (found == (arrives ? value : kCanary) || !wrong.empty()) return;
        wrong = fmt::format("decode rank {}: group {} token {} at {}+{}: {:#x}, not {:#x}", rank,
                            group->name, token, region, offset, found, arrives ? value : kCanary);
      };
      visit_request(layout, *group, request_.target_pages[g], look);
    }
    if (!wrong.empty()) return wrong;
    uint64_t changed = 0;
    for (const auto& region : targets_[rank]) {
      changed +=
          region.size() - static_cast<uint64_t>(std::count(region.begin(), region.end(), kCanary));
    }
    if (changed != expected) {
      return fmt::format("decode rank {}: {} words changed, {} expected", rank, changed, expected);
    }
    if (bytes_were_counted && written_[rank] != expected * kWordBytes) {
      return fmt::format("decode rank {}: {} bytes written, {} expected", rank, written_[rank],
                         expected * kWordBytes);
    }
    return "";
  }

  /// A staged write of one unit that is in its record.
  struct Arrived {
    const StagedWrite* write = nullptr;
    uint32_t index = 0;  ///< of the target
    const std::vector<std::byte>* record = nullptr;
  };

  const TransferPlan& plan_;
  const Side& prefill_;
  const Side& decode_;
  const ModelRequest& request_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::vector<std::byte>>
      records_;  // of one pair, by group, list and unit
  std::vector<Arrived> arrived_;
  ModelMemory memory_;
  std::vector<RankWords>& sources_ = memory_.sources;
  std::vector<RankWords>& targets_ = memory_.targets;
  std::vector<uint64_t> written_;
};

std::vector<uint32_t> draw_pages(uint32_t count, uint32_t pool, Rng& rng) {
  std::vector<uint32_t> all(pool);
  std::iota(all.begin(), all.end(), 0);
  for (uint32_t n = 0; n < count; ++n) std::swap(all[n], all[rng.between(n, pool - 1)]);
  all.resize(count);
  return all;
}

const CacheGroup& first_group(const Side& side, const std::string& name) {
  for (const Layout& layout : side.ranks) {
    if (const CacheGroup* group = group_of(layout, name)) return *group;
  }
  std::abort();
}

/// Strides of the blocks of a state tensor on one rank: dense, then padded.
uint64_t place_state(Tensor& tensor, const TensorSpec& spec, uint32_t rank, uint32_t size) {
  std::vector<uint64_t> words;  // of one row of each block
  uint64_t row = 0;
  for (const StateSpec& block : spec.blocks) {
    const HeadRange here =
        block.sharded ? heads_here(block.groups, rank, size) : HeadRange{0, block.groups};
    words.push_back(uint64_t{here.count} * block.width);
    row += words.back();
  }
  uint64_t column = 0;
  for (size_t n = 0; n < spec.blocks.size(); ++n) {
    const StateSpec& block = spec.blocks[n];
    const uint64_t element = spec.rows_first ? kWordBytes : kWordBytes * block.rows;
    const uint64_t begin = spec.rows_first ? column : column * block.rows;
    tensor.blocks.push_back({.name = block.name,
                             .offset_bytes = begin * kWordBytes,
                             .lengths = {block.groups, block.width, block.rows},
                             .strides_bytes = {element * block.width, element,
                                               spec.rows_first ? row * kWordBytes : kWordBytes},
                             .sharded_axis = block.sharded ? 0 : StateBlock::kNotSharded});
    column += words[n];
  }
  return (row * spec.blocks[0].rows + spec.state_padding_words) * kWordBytes;
}

/// One tensor of a group, after what is in region 0 already or in regions of its own.
Tensor add_tensor(Layout& layout, const SideSpec& side, const CacheGroup& group,
                  const TensorSpec& spec) {
  Tensor tensor{.name = spec.name,
                .dtype = "u32",
                .element_bytes = kWordBytes,
                .offset_bytes = layout.region_bytes[0],
                .sharding = spec.sharding,
                .heads_total = spec.heads,
                .head_size = spec.head_size,
                .parts = spec.parts,
                .opaque_page_bytes = spec.opaque_page_bytes};
  const auto layers = static_cast<uint32_t>(group.layers.size());
  uint64_t bytes = 0;
  if (group.kind == GroupKind::kState) {
    tensor.heads_total = tensor.head_size = 0;
    tensor.page_stride_bytes = place_state(tensor, spec, layout.tp_rank, layout.tp_size);
    tensor.layer_stride_bytes = tensor.page_stride_bytes * group.pages;
    bytes = tensor.layer_stride_bytes * layers;
  } else {
    bytes = *place_tensor(tensor, {.order = side.order,
                                   .page_tokens = group.page_tokens,
                                   .tp_rank = layout.tp_rank,
                                   .tp_size = layout.tp_size,
                                   .pages = group.pages,
                                   .layers = layers,
                                   .layers_in_page = side.layers_in_page,
                                   .parts_in_page = side.parts_in_page,
                                   .page_align_bytes = side.page_align_bytes});
  }
  if (side.region_per_layer && !side.layers_in_page) {
    // Every layer in a region of its own, at another offset.
    for (uint32_t n = 0; n < layers; ++n) {
      const uint64_t offset = 4ull * (n + 1);
      tensor.locations.push_back({static_cast<uint32_t>(layout.region_bytes.size()), offset});
      layout.region_bytes.push_back(offset + bytes / layers);
    }
  } else {
    layout.region_bytes[0] += bytes;
  }
  return tensor;
}

Layout make_rank(const SideSpec& spec, uint32_t pp, uint32_t tp) {
  Layout layout{.model_hash = 7,
                .tp_rank = tp,
                .tp_size = spec.tp,
                .pp_rank = pp,
                .pp_size = spec.pp,
                .region_bytes = {0}};
  for (const GroupSpec& described : spec.groups) {
    CacheGroup group{.name = described.name,
                     .kind = described.kind,
                     .window_tokens = described.window,
                     .page_tokens = described.page_tokens,
                     .pages = described.pages};
    const size_t all = described.layers.size();
    for (size_t n = all * pp / spec.pp; n < all * (pp + 1) / spec.pp; ++n) {
      group.layers.push_back(described.layers[n]);
    }
    if (group.layers.empty()) continue;
    for (const TensorSpec& one : described.tensors) {
      group.tensors.push_back(add_tensor(layout, spec, group, one));
    }
    layout.groups.push_back(std::move(group));
  }
  if (layout.region_bytes[0] == 0) layout.region_bytes[0] = 1;
  return layout;
}

}  // namespace

Side make_side(const SideSpec& spec) {
  Side side;
  for (uint32_t pp = 0; pp < spec.pp; ++pp) {
    for (uint32_t tp = 0; tp < spec.tp; ++tp) side.ranks.push_back(make_rank(spec, pp, tp));
  }
  return side;
}

ModelRequest draw_request(const TransferPlan& plan, const Side& prefill, const Side& decode,
                          const RequestTokens& tokens, Rng& rng) {
  ModelRequest out{.tokens = tokens};
  const auto draw = [&](const GroupPlan& plan_group, const CacheGroup& group) {
    const uint32_t count = plan_group.kind == GroupKind::kState
                               ? 1
                               : (tokens.prompt_tokens + group.page_tokens - 1) / group.page_tokens;
    return draw_pages(count, group.pages, rng);
  };
  for (const GroupPlan& group : plan.groups) {
    out.source_pages.push_back(draw(group, first_group(prefill, group.name)));
    out.target_pages.push_back(draw(group, first_group(decode, group.name)));
  }
  return out;
}

std::string compare_with_model(const TransferPlan& plan, const Side& prefill, const Side& decode,
                               const ModelRequest& request, Rng& rng) {
  return Transfer(plan, prefill, decode, request).run(rng);
}

std::string compare_with_model(const TransferPlan& plan, const Side& prefill, const Side& decode,
                               const ModelRequest& request,
                               const std::function<void(ModelMemory&)>& move) {
  return Transfer(plan, prefill, decode, request).run(move);
}

}  // namespace fabric::kv::test
