#include "workload.h"

namespace demo {

Workload make_workload(transformer::Attention attention) {
  Workload workload;
  workload.model.attention = attention;
  return workload;
}

std::vector<uint32_t> make_prompt(const Workload& workload, uint32_t number) {
  std::vector<uint32_t> tokens =
      transformer::random_tokens(workload.model, 1000 + number / kGroup, kCommonTokens);
  const std::vector<uint32_t> rest =
      transformer::random_tokens(workload.model, 2000 + number, 32 + number * 37 % 65);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

uint64_t cache_bytes(const Workload& workload, uint32_t tokens) {
  const transformer::ModelOptions& model = workload.model;
  const bool latent = model.attention == transformer::Attention::kLatent;
  const uint64_t elements = latent ? model.latent_size + model.rotary_size
                                   : uint64_t{2} * model.kv_heads * model.head_size;
  return 2 * elements * model.layers * tokens;
}

}  // namespace demo
