#pragma once

#include <infiniband/verbs.h>

#include <fabric/result.h>

namespace fabric::verbs {

/// The functions of libibverbs, loaded with dlopen() when the first network is opened, so that
/// programs linked to this library also run on machines without it. Functions that the header
/// defines inline (ibv_post_send, ibv_poll_cq) go through the device's own table and are called
/// directly.
struct Library {
  ibv_device** (*get_device_list)(int*);
  void (*free_device_list)(ibv_device**);
  const char* (*get_device_name)(ibv_device*);
  ibv_context* (*open_device)(ibv_device*);
  int (*close_device)(ibv_context*);
  int (*query_device)(ibv_context*, ibv_device_attr*);
  ssize_t (*query_gid_table)(ibv_context*, ibv_gid_entry*, size_t, uint32_t, size_t);
  ibv_pd* (*alloc_pd)(ibv_context*);
  int (*dealloc_pd)(ibv_pd*);
  ibv_mr* (*reg_mr_iova2)(ibv_pd*, void*, size_t, uint64_t, unsigned int);
  /// Null in libraries before rdma-core 34.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd*, uint64_t, size_t, uint64_t, int, int);
  int (*dereg_mr)(ibv_mr*);
  ibv_comp_channel* (*create_comp_channel)(ibv_context*);
  int (*destroy_comp_channel)(ibv_comp_channel*);
  ibv_cq* (*create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int);
  int (*destroy_cq)(ibv_cq*);
  int (*get_cq_event)(ibv_comp_channel*, ibv_cq**, void**);
  void (*ack_cq_events)(ibv_cq*, unsigned int);
  ibv_qp* (*create_qp)(ibv_pd*, ibv_qp_init_attr*);
  int (*modify_qp)(ibv_qp*, ibv_qp_attr*, int);
  int (*destroy_qp)(ibv_qp*);
  int (*get_async_event)(ibv_context*, ibv_async_event*);
  void (*ack_async_event)(ibv_async_event*);
};

/// Fails with kUnsupported: not installed, or too old. The result never changes within a process.
Result<const Library*> load_library();

/// For callers that hold an object of the library: it is loaded.
const Library& library() noexcept;

/// For tests that interpose on the calls or replace the library, which need not be installed then.
/// Returns the previous table. Only while no network is open.
Library exchange_library_for_tests(const Library& table) noexcept;

}  // namespace fabric::verbs
