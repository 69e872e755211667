#pragma once

#include <CLI/CLI.hpp>

namespace fabric::tool {

// One function a verb, each in the file or folder of its name. It adds the verb to `app`;
// `exit_code` is what the process ends with when the verb was asked for.
void add_bench(CLI::App& app, int& exit_code);
void add_completion(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);
void add_sim(CLI::App& app, int& exit_code);
void add_version(CLI::App& app, int& exit_code);

}  // namespace fabric::tool
