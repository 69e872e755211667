#pragma once

#include "command_line.h"

namespace fabric::tool {

// One function for each command of `fabric`, in the file or folder of its name.
Command bench_command();
Command info_command();
Command kv_command();
Command sim_command();
Command version_command();
/// `root` is what the scripts complete; it must outlive the command.
Command completion_command(const Command& root);

}  // namespace fabric::tool
