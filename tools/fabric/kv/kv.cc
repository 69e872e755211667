// fabric kv plan: what moves between two KV cache layouts, and how many counts that makes.

#include <exception>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fabric/kv_plan.h>

#include "commands.h"
#include "layout_file.h"
#include "plan_report.h"

namespace fabric::tool {
namespace {

struct Options {
  std::string prefill{};
  std::string decode{};
  std::string request{};
  uint32_t tokens = 16384;
  uint32_t cached = 0;
  bool staging = false;
  bool per_token_writes = false;
  bool json = false;
};

kv::Side side_of(const char* option, const std::string& file_name) {
  if (file_name.empty()) throw BadOption(option, "is required");
  try {
    return read_side(file_name);
  } catch (const std::exception& error) {
    throw BadOption(option, error.what());
  }
}

int print_refusal(kv::Refusal refusal, bool json) {
  if (refusal.code == kv::RefusalCode::kPerTokenWrites) {
    refusal.remedy += "; of this command: --staging";
  }
  if (json) {
    const nlohmann::ordered_json report{{"refusal",
                                         {{"code", to_string(refusal.code)},
                                          {"reason", refusal.reason},
                                          {"remedy", refusal.remedy}}}};
    fmt::print("{}\n", report.dump());
  } else {
    fmt::print("refused: {}\n  reason  {}\n  remedy  {}\n", to_string(refusal.code), refusal.reason,
               refusal.remedy);
  }
  return 1;
}

int run_plan(const Options& options) {
  const kv::Side prefill = side_of("--prefill", options.prefill);
  const kv::Side decode = side_of("--decode", options.decode);
  kv::Refusal refusal;
  const auto plan = kv::plan(
      prefill, decode, {.staging = options.staging, .per_token_writes = options.per_token_writes},
      &refusal);
  if (!plan) return print_refusal(refusal, options.json);
  kv::RequestTokens tokens{.prompt_tokens = options.tokens,
                           .seed = kv::request_seed(options.request)};
  for (const kv::GroupPlan& group : plan->groups) {
    // A state is the state of the whole prompt: a part of it helps nothing.
    const bool state = group.kind == kv::GroupKind::kState && options.cached != options.tokens;
    tokens.cached_tokens.push_back(state ? 0 : options.cached);
  }
  for (uint32_t g = 0; g < plan->groups.size(); ++g) {
    if (const auto units = request_units(*plan, g, tokens); !units) {
      const Error error = units.error();
      const bool prompt = options.tokens == 0 || options.tokens > kv::kPromptTokensMax;
      throw BadOption(prompt ? "--tokens" : "--cached",
                      fmt::format("{} ({})", error.what, error.native));
    }
  }
  if (options.json) {
    fmt::print("{}\n", plan_json(*plan, tokens).dump());
  } else {
    fmt::print("{}", plan_text(*plan, prefill, decode, tokens));
  }
  return 0;
}

}  // namespace

Command kv_command() {
  auto options = std::make_shared<Options>();
  Command plan{
      .name = "plan",
      .help = "Plan the transfer between two layouts, or explain why there is none",
      .footer =
          "Examples:\n"
          "  fabric kv plan --prefill prefill.json --decode decode.json\n"
          "  fabric kv plan --prefill prefill.json --decode decode.json --staging --json\n\n"
          "A file has the ranks of one side: docs/kv.md, \"Layouts and plans\".\n\n"
          "Exit code 0: there is a plan; 1: refused, with the reason;\n2: bad options.",
      .options = {{.name = "--prefill",
                   .help = "Layout of the prefill side, JSON",
                   .target = &options->prefill,
                   .value_name = "FILE"},
                  {.name = "--decode",
                   .help = "Layout of the decode side, JSON",
                   .target = &options->decode,
                   .value_name = "FILE"},
                  {.name = "--tokens",
                   .help = "Tokens of the prompt whose counts are printed",
                   .target = &options->tokens,
                   .show_default = true},
                  {.name = "--cached",
                   .help = "Tokens of it that the decoder has already",
                   .target = &options->cached,
                   .show_default = true},
                  {.name = "--request",
                   .help = "Id of the request: decides which holder of a replica sends what",
                   .target = &options->request,
                   .value_name = "TEXT"},
                  {.name = "--staging",
                   .help = "Gather and scatter where a plan would write token by token",
                   .target = &options->staging},
                  {.name = "--per-token-writes",
                   .help = "Write token by token there",
                   .target = &options->per_token_writes},
                  {.name = "--json", .help = "The whole plan as JSON", .target = &options->json}},
      .run = [options] { return run_plan(*options); }};
  return {.name = "kv",
          .help = "KV caches: plan transfers between layouts",
          .footer =
              "Examples:\n"
              "  fabric kv plan --prefill prefill.json --decode decode.json\n\n"
              "Exit code 0: there is a plan; 1: refused, with the reason;\n2: bad options.",
          .commands = {std::move(plan)}};
}

}  // namespace fabric::tool
