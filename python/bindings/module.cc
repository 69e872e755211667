// The module fabric_lib._native.

#include "native.h"

NB_MODULE(_native, m) {
  using namespace fabric_python;
  m.doc() = "The native part of fabric_lib; see docs/python.md.";
  // Objects that are alive at exit are usual in Python programs: globals of an interactive session.
  nb::set_leak_warnings(false);
  bind_result(m);
  bind_types(m);
  bind_memory(m);
  bind_lists(m);
  bind_notify(m);
  bind_batch(m);
  bind_counter(m);
  bind_watcher(m);
  bind_peer(m);
  bind_stats(m);
  bind_config(m);
  bind_engine(m);
  nb::module_ sim = m.def_submodule("sim", "The simulated network; see fabric_lib.sim.");
  bind_sim(sim);
  nb::module_ kv = m.def_submodule("kv", "KV caches between engines; see fabric_lib.kv.");
  bind_kv_layout(kv);
  bind_kv_plan(kv);
  bind_kv(kv);
  bind_kv_prefiller(kv);
  bind_kv_directory(kv);
  bind_kv_router(kv);
}
