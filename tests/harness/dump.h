#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <fabric/engine.h>

// Numbers from Engine::dump_json(). Only dump.cc includes the JSON library.

namespace fabric::test {

/// Of "held", what the engine has allocated or pinned: "prepared_lists", "arena_bytes".
uint64_t held(const Engine& engine, const std::string& what);
/// Of "protocol_counters", how often a protocol step was taken
/// (core/protocol_counters.h).
uint64_t protocol_counter(const Engine& engine, const std::string& what);
/// The "count_is_final" of a peer, by its position in the dump.
bool dumped_count_is_final(const Engine& engine, size_t peer);

}  // namespace fabric::test
