// A libibverbs without a NIC, for bench/instructions, which counts the instructions of a request up
// to the driver on machines without a device. It moves no bytes. Each write completes when it is
// posted, and its immediate consumes a receive of the remote queue pair, in the same process.
//
// It is loaded like the real one, by its name (libibverbs.so.1), and only by programs of bench.

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

namespace {

struct Queue {
  ibv_cq cq{};
  std::deque<ibv_wc> done{};
};

struct QueuePair {
  ibv_qp qp{};
  uint32_t far = 0;                 ///< the number of the other end
  std::deque<uint64_t> receives{};  ///< names
};

struct Nic {
  ibv_device device{};
  verbs_context opened{};
  std::vector<std::unique_ptr<QueuePair>> pairs{};  ///< by number
  uint32_t keys = 0;
};

Nic& nic() {
  static Nic one;
  return one;
}

Queue& queue_of(ibv_cq* cq) { return *static_cast<Queue*>(cq->cq_context); }

void complete(ibv_cq* cq, const ibv_qp& qp, uint64_t name, ibv_wc_opcode opcode, uint32_t imm) {
  ibv_wc wc{};
  wc.wr_id = name;
  wc.status = IBV_WC_SUCCESS;
  wc.opcode = opcode;
  wc.qp_num = qp.qp_num;
  wc.imm_data = imm;
  queue_of(cq).done.push_back(wc);
}

int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  auto& own = *reinterpret_cast<QueuePair*>(qp);
  for (ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) {
    if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
      QueuePair& far = *nic().pairs[own.far];
      if (far.receives.empty()) {
        *bad = wr;
        return ENOMEM;
      }
      complete(far.qp.recv_cq, far.qp, far.receives.front(), IBV_WC_RECV_RDMA_WITH_IMM,
               wr->imm_data);
      far.receives.pop_front();
    }
    if ((wr->send_flags & IBV_SEND_SIGNALED) != 0) {
      complete(qp->send_cq, *qp, wr->wr_id, IBV_WC_RDMA_WRITE, 0);
    }
  }
  return 0;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr**) {
  auto& own = *reinterpret_cast<QueuePair*>(qp);
  for (ibv_recv_wr* wr = first; wr != nullptr; wr = wr->next) own.receives.push_back(wr->wr_id);
  return 0;
}

int poll_cq(ibv_cq* cq, int most, ibv_wc* out) {
  auto& done = queue_of(cq).done;
  int n = 0;
  for (; n < most && !done.empty(); ++n) {
    out[n] = done.front();
    done.pop_front();
  }
  return n;
}

int req_notify(ibv_cq*, int) { return 0; }

int query_port(ibv_context*, uint8_t port, ibv_port_attr* out, size_t) {
  if (port != 1) return EINVAL;
  out->state = IBV_PORT_ACTIVE;
  out->active_mtu = out->max_mtu = IBV_MTU_4096;
  out->max_msg_sz = 1u << 30;
  out->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

}  // namespace

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  nic().device.transport_type = IBV_TRANSPORT_IB;
  std::strcpy(nic().device.name, "fake_nic");
  auto** list = new ibv_device* [2] { &nic().device, nullptr };
  *count = 1;
  return list;
}
void ibv_free_device_list(ibv_device** list) { delete[] list; }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }

ibv_context* ibv_open_device(ibv_device* device) {
  verbs_context& all = nic().opened;
  all.sz = sizeof(all);
  all.query_port = query_port;
  all.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  all.context.device = device;
  all.context.async_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  all.context.ops.post_send = post_send;
  all.context.ops.post_recv = post_recv;
  all.context.ops.poll_cq = poll_cq;
  all.context.ops.req_notify_cq = req_notify;
  return &all.context;
}
int ibv_close_device(ibv_context* context) { return close(context->async_fd); }

int ibv_query_device(ibv_context*, ibv_device_attr* out) {
  *out = {};
  out->max_qp_wr = 1 << 15;
  out->max_cqe = 1 << 20;
  out->max_pkeys = 1;
  return 0;
}
ssize_t _ibv_query_gid_table(ibv_context*, ibv_gid_entry* out, size_t, uint32_t, size_t) {
  constexpr std::array<uint8_t, 16> kLoopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1};
  out[0] = {};
  std::memcpy(out[0].gid.raw, kLoopback.data(), kLoopback.size());
  out[0].port_num = 1;
  out[0].gid_type = IBV_GID_TYPE_ROCE_V2;
  return 1;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* pd = new ibv_pd{};
  pd->context = context;
  return pd;
}
int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t bytes, uint64_t, unsigned) {
  auto* mr = new ibv_mr{};
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  mr->lkey = mr->rkey = ++nic().keys;
  return mr;
}
int ibv_dereg_mr(ibv_mr* mr) {
  delete mr;
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = new ibv_comp_channel{};
  channel->context = context;
  channel->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return channel;
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  const int rc = close(channel->fd);
  delete channel;
  return rc;
}
int ibv_get_cq_event(ibv_comp_channel*, ibv_cq**, void**) { return -1; }
void ibv_ack_cq_events(ibv_cq*, unsigned) {}
int ibv_get_async_event(ibv_context*, ibv_async_event*) { return -1; }
void ibv_ack_async_event(ibv_async_event*) {}

ibv_cq* ibv_create_cq(ibv_context* context, int size, void*, ibv_comp_channel* channel, int) {
  auto* queue = new Queue{};
  queue->cq.context = context;
  queue->cq.channel = channel;
  queue->cq.cqe = size;
  queue->cq.cq_context = queue;
  return &queue->cq;
}
int ibv_destroy_cq(ibv_cq* cq) {
  delete &queue_of(cq);
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  auto& pairs = nic().pairs;
  if (pairs.empty()) pairs.emplace_back();  // no number is 0
  auto& made = pairs.emplace_back(std::make_unique<QueuePair>());
  made->qp.context = pd->context;
  made->qp.send_cq = wanted->send_cq;
  made->qp.recv_cq = wanted->recv_cq;
  made->qp.qp_num = static_cast<uint32_t>(pairs.size() - 1);
  return &made->qp;
}
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  if ((mask & IBV_QP_DEST_QPN) != 0) reinterpret_cast<QueuePair*>(qp)->far = attr->dest_qp_num;
  return 0;
}
int ibv_destroy_qp(ibv_qp* qp) {
  nic().pairs[qp->qp_num].reset();
  return 0;
}

}  // extern "C"
