#pragma once

#include <string>

#include <fabric/kv_layout.h>

namespace fabric::tool {

/// The ranks of one side from a JSON file (docs/kv.md, "Layouts and plans"). Two forms:
///
/// - {"ranks": [...]}: each rank with the fields of kv::Layout, as an engine writes it.
/// - the model, the tensor-parallel size and the pipeline stages: dense caches of all ranks.
///
/// Throws BadField or std::runtime_error.
kv::Side read_side(const std::string& file_name);

}  // namespace fabric::tool
