#include "model_options.h"

#include <array>
#include <bit>
#include <span>

#include <fabric/layout.h>

#include "matrix.h"

namespace transformer {

namespace {

using fabric::Errc;

/// Bounds memory and time of what a command line may ask for.
constexpr uint32_t kSizeMax = 1u << 14;

struct Bound {
  uint32_t value;
  uint32_t multiple;
  const char* what;
};

}  // namespace

fabric::Result<void> check(const ModelOptions& options) {
  constexpr uint32_t kColumns = Matrix::kPanelColumns;
  const std::array bounds{
      Bound{options.layers, 1, "layers: 1 to 16384"},
      Bound{options.width, kColumns, "width: a multiple of 8 up to 16384"},
      Bound{options.query_heads, 1, "query_heads: 1 to 16384"},
      Bound{options.kv_heads, 1, "kv_heads: 1 to 16384"},
      Bound{options.head_size, kColumns, "head_size: a multiple of 8 up to 16384"},
      Bound{options.latent_size, kColumns, "latent_size: a multiple of 8 up to 16384"},
      Bound{options.rotary_size, kColumns, "rotary_size: a multiple of 8 up to 16384"},
      Bound{options.hidden, kColumns, "hidden: a multiple of 8 up to 16384"},
      Bound{options.vocabulary, kColumns, "vocabulary: a multiple of 8 up to 16384"},
      Bound{options.positions, 1, "positions: 1 to 16384"},
  };
  for (const Bound& bound : bounds) {
    if (bound.value == 0 || bound.value > kSizeMax || bound.value % bound.multiple != 0) {
      return fabric::fail(Errc::kInvalidArgument, bound.what);
    }
  }
  if (options.query_heads % options.kv_heads != 0) {
    return fabric::fail(Errc::kInvalidArgument, "query_heads: a multiple of kv_heads");
  }
  const bool latent = options.attention == Attention::kLatent;
  if (!std::has_single_bit(latent ? options.rotary_size : options.head_size)) {
    return fabric::fail(Errc::kInvalidArgument, "head_size or rotary_size: a power of two");
  }
  return {};
}

uint64_t model_hash(const ModelOptions& options) {
  const std::array<uint64_t, 12> numbers{
      static_cast<uint64_t>(options.attention),
      options.layers,
      options.width,
      options.query_heads,
      options.kv_heads,
      options.head_size,
      options.latent_size,
      options.rotary_size,
      options.hidden,
      options.vocabulary,
      options.positions,
      options.seed,
  };
  // Byte by byte, so that machines of either byte order agree.
  std::array<std::byte, numbers.size() * 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(numbers[i / 8] >> (8 * (i % 8)));
  }
  return fabric::layout::hash_bytes(bytes);
}

}  // namespace transformer
