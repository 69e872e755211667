#include "providers/verbs/library.h"

#include <dlfcn.h>

#include <utility>

#include "base/check.h"

namespace fabric::verbs {

namespace {

constexpr const char* kNotInstalled = "verbs: libibverbs is not installed";

struct Loaded {
  Library table{};
  const char* error = nullptr;
};

template <class F>
bool find(void* handle, const char* name, F*& out) {
  out = reinterpret_cast<F*>(::dlsym(handle, name));
  return out != nullptr;
}

bool find_all(void* handle, Library& t) {
  find(handle, "ibv_reg_dmabuf_mr", t.reg_dmabuf_mr);
  return find(handle, "ibv_get_device_list", t.get_device_list) &&
         find(handle, "ibv_free_device_list", t.free_device_list) &&
         find(handle, "ibv_get_device_name", t.get_device_name) &&
         find(handle, "ibv_open_device", t.open_device) &&
         find(handle, "ibv_close_device", t.close_device) &&
         find(handle, "ibv_query_device", t.query_device) &&
         find(handle, "_ibv_query_gid_table", t.query_gid_table) &&
         find(handle, "ibv_alloc_pd", t.alloc_pd) && find(handle, "ibv_dealloc_pd", t.dealloc_pd) &&
         find(handle, "ibv_reg_mr_iova2", t.reg_mr_iova2) &&
         find(handle, "ibv_dereg_mr", t.dereg_mr) &&
         find(handle, "ibv_create_comp_channel", t.create_comp_channel) &&
         find(handle, "ibv_destroy_comp_channel", t.destroy_comp_channel) &&
         find(handle, "ibv_create_cq", t.create_cq) &&
         find(handle, "ibv_destroy_cq", t.destroy_cq) &&
         find(handle, "ibv_get_cq_event", t.get_cq_event) &&
         find(handle, "ibv_ack_cq_events", t.ack_cq_events) &&
         find(handle, "ibv_create_qp", t.create_qp) && find(handle, "ibv_modify_qp", t.modify_qp) &&
         find(handle, "ibv_destroy_qp", t.destroy_qp) &&
         find(handle, "ibv_get_async_event", t.get_async_event) &&
         find(handle, "ibv_ack_async_event", t.ack_async_event);
}

/// Never unloaded: the device drivers it loads may have started threads.
Loaded& loaded() {
  static Loaded once = [] {
    Loaded all;
    void* handle = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      all.error = kNotInstalled;
    } else if (!find_all(handle, all.table)) {
      all.error = "verbs: libibverbs is too old (rdma-core 32 is needed)";
    }
    return all;
  }();
  return once;
}

}  // namespace

Result<const Library*> load_library() {
  const Loaded& all = loaded();
  if (all.error != nullptr) return fail(Errc::kUnsupported, all.error);
  return &all.table;
}

const Library& library() noexcept {
  FABRIC_DCHECK(loaded().error == nullptr);
  return loaded().table;
}

Library exchange_library_for_tests(const Library& table) noexcept {
  Loaded& all = loaded();
  // An empty table means that the library was not there.
  all.error = table.get_device_list == nullptr ? kNotInstalled : nullptr;
  return std::exchange(all.table, table);
}

}  // namespace fabric::verbs
