#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fake_verbs/fake_nics.h"

// The exported functions of libibverbs, for fake NICs. Calls that the kernel or a NIC would refuse
// are refused and recorded as violations.

namespace fabric::test {

using namespace fake;

namespace {

using Call = FakeNics::Call;

FakeNics& nics() { return *FakeNics::current(); }

/// Failure of a call that returns a pointer: null, and errno.
template <class T>
T* refuse(int error) {
  errno = error;
  return nullptr;
}

constexpr unsigned kAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;

}  // namespace

struct FakeKernel {
  // ---- Devices

  static ibv_device** get_device_list(int* count) {
    FakeNics& all = nics();
    auto** list = new ibv_device*[all.devices_.size() + 1];
    for (size_t i = 0; i < all.devices_.size(); ++i) list[i] = all.devices_[i].get();
    list[all.devices_.size()] = nullptr;
    *count = static_cast<int>(all.devices_.size());
    return list;
  }
  static void free_device_list(ibv_device** list) { delete[] list; }
  static const char* get_device_name(ibv_device* device) { return device->name; }

  static ibv_context* open_device(ibv_device* named) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    auto* const device = static_cast<Device*>(named);
    if (const int error = all.failing(Call::kOpen, *device)) return refuse<ibv_context>(error);
    auto* const made = new Context();
    made->device = device;
    made->async.reset(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
    made->sz = sizeof(verbs_context);
    made->context.device = device;
    made->context.async_fd = made->async.get();
    made->context.cmd_fd = -1;
    made->context.num_comp_vectors = 1;
    made->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    FakeVerbsTable::fill(*made);
    device->contexts.insert(made);
    return &made->context;
  }
  static int close_device(ibv_context* context) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    Context* const gone = of(context);
    if (gone->pds + gone->tds + gone->channels + gone->cqs + gone->qps + gone->mrs != 0) {
      all.violate(std::string(gone->device->name) + " is closed while objects of it exist");
    }
    gone->device->contexts.erase(gone);
    delete gone;
    return 0;
  }
  static int query_device(ibv_context*, ibv_device_attr* out) {
    const FakeNicOptions& options = nics().options_;
    *out = {};
    out->max_qp_wr = options.requests_max;
    out->max_cqe = options.cqe_max;
    out->max_pkeys = 4;
    out->phys_port_cnt = 1;
    return 0;
  }
  static int query_port(ibv_context* context, uint8_t port, ibv_port_attr* out, size_t) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    if (port != 1) return EINVAL;
    *out = {};
    out->state = of(context)->device->up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    out->active_mtu = out->max_mtu = all.options_.mtu;
    out->link_layer = IBV_LINK_LAYER_ETHERNET;
    out->max_msg_sz = 1u << 30;
    out->gid_tbl_len = 2;
    return 0;
  }
  /// The first is link-local: the network must not choose it.
  static ssize_t query_gid_table(ibv_context* context, ibv_gid_entry* out, size_t most, uint32_t,
                                 size_t) {
    if (most < 2) return -EINVAL;
    out[0] = out[1] = {};
    out[0].gid.raw[0] = 0xfe;
    out[0].gid.raw[1] = 0x80;
    out[0].gid.raw[15] = 1;
    out[1].gid_index = of(context)->device->gid_index;
    const auto& gid = of(context)->device->gid;
    std::copy(gid.begin(), gid.end(), std::begin(out[1].gid.raw));
    for (uint32_t i = 0; i < 2; ++i) {
      out[i].port_num = 1;
      out[i].gid_type = IBV_GID_TYPE_ROCE_V2;
    }
    return 2;
  }

  // ---- Domains

  static ibv_pd* alloc_pd(ibv_context* context) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    Context* const owner = of(context);
    if (const int error = all.failing(Call::kAllocPd, *owner->device)) return refuse<ibv_pd>(error);
    auto* const made = new Pd();
    made->context = context;
    made->root = made;
    ++owner->pds;
    return made;
  }
  static int dealloc_pd(ibv_pd* pd) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    Pd* const gone = of(pd);
    if (gone->users != 0) {
      all.violate("a protection domain is deallocated in use");
      return EBUSY;
    }
    if (gone->root != gone) --gone->root->users;
    --of(gone->context)->pds;
    delete gone;
    return 0;
  }
  static ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr*) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    if (!all.options_.thread_domains) return refuse<ibv_td>(EOPNOTSUPP);
    auto* const made = new Td();
    made->context = context;
    ++of(context)->tds;
    return made;
  }
  static int dealloc_td(ibv_td* td) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    auto* const gone = static_cast<Td*>(td);
    --of(gone->context)->tds;
    delete gone;
    return 0;
  }
  static ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* wanted) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    auto* const made = new Pd();
    made->context = context;
    made->root = of(wanted->pd);
    made->one_thread = wanted->td != nullptr;
    ++made->root->users;
    ++of(context)->pds;
    return made;
  }

  // ---- Memory

  static ibv_mr* add(FakeNics& all, ibv_pd* pd, std::unique_ptr<Mr> made, unsigned access) {
    if (of(pd)->root != of(pd)) all.violate("memory is registered in a parent domain");
    if ((access & ~kAccess) != 0) all.violate("unexpected access flags");
    if ((access & IBV_ACCESS_REMOTE_WRITE) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
      all.violate("REMOTE_WRITE access without LOCAL_WRITE");
      return refuse<ibv_mr>(EINVAL);
    }
    made->context = pd->context;
    made->pd = pd;
    made->access = access;
    all.keys_ += 0x100;
    made->lkey = made->rkey = all.keys_;
    ++of(pd)->users;
    ++of(pd->context)->mrs;
    Mr* const out = made.get();
    all.mrs_[out->lkey] = std::move(made);
    return out;
  }
  static ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned access) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    const Device& device = *of(pd->context)->device;
    if (const int error = all.failing(Call::kRegister, device)) return refuse<ibv_mr>(error);
    if ((iova ^ reinterpret_cast<uint64_t>(address)) % 4096 != 0) {
      all.violate("IOVA and address have different page offsets");
    }
    auto made = std::make_unique<Mr>();
    made->addr = address;
    made->length = length;
    made->iova = iova;
    made->bytes = static_cast<std::byte*>(address);
    return add(all, pd, std::move(made), access);
  }
  static ibv_mr* reg_dmabuf(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                            int access) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    if (!all.options_.dmabuf) return refuse<ibv_mr>(EOPNOTSUPP);
    if (fd < 0) return refuse<ibv_mr>(EBADF);
    const Device& device = *of(pd->context)->device;
    if (const int error = all.failing(Call::kRegister, device)) return refuse<ibv_mr>(error);
    if ((iova ^ offset) % 4096 != 0) all.violate("IOVA and DMA-BUF have different page offsets");
    auto made = std::make_unique<Mr>();
    const uint64_t page = offset & ~uint64_t{4095};
    made->mapped_bytes = length + (offset - page);
    made->mapped = ::mmap(nullptr, made->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                          static_cast<off_t>(page));
    if (made->mapped == MAP_FAILED) return refuse<ibv_mr>(EINVAL);
    made->length = length;
    made->iova = iova;
    made->bytes = static_cast<std::byte*>(made->mapped) + (offset - page);
    return add(all, pd, std::move(made), static_cast<unsigned>(access));
  }
  static int dereg_mr(ibv_mr* mr) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    Mr* const gone = of(mr);
    Context& owner = *of(mr->context);
    const int error = all.failing(Call::kDeregister, *owner.device);
    if (error != 0) return error;
    if (gone->users != 0) {
      owner.undrained = "memory is deregistered while requests read it";
      for (auto& [serial, qp] : all.qps_) {
        for (Request& request : qp->requests) {
          if (request.mr == gone) request.mr = nullptr;
        }
      }
    }
    if (gone->mapped != nullptr) ::munmap(gone->mapped, gone->mapped_bytes);
    --of(gone->pd)->users;
    --owner.mrs;
    const bool fatal = owner.device->fatal;
    all.mrs_.erase(gone->lkey);
    return fatal ? EIO : 0;  // the kernel has removed it already
  }

  // ---- Completion queues

  static ibv_comp_channel* create_channel(ibv_context* context) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    const Device& device = *of(context)->device;
    if (const int error = all.failing(Call::kCreateChannel, device)) {
      return refuse<ibv_comp_channel>(error);
    }
    auto* const made = new Channel();
    made->context = context;
    made->fd = ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    ++of(context)->channels;
    return made;
  }
  static int destroy_channel(ibv_comp_channel* channel) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    auto* const gone = static_cast<Channel*>(channel);
    if (gone->users != 0) {
      all.violate("a channel is destroyed in use");
      return EBUSY;
    }
    ::close(gone->fd);
    --of(gone->context)->channels;
    delete gone;
    return 0;
  }
  static ibv_cq* create_cq(ibv_context* context, int cqe, void* user, ibv_comp_channel* channel,
                           int) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    if (const int error = all.failing(Call::kCreateCq, *of(context)->device)) {
      return refuse<ibv_cq>(error);
    }
    if (cqe < 1 || cqe > all.options_.cqe_max) {
      all.violate("the size of a completion queue is out of range");
      return refuse<ibv_cq>(EINVAL);
    }
    auto* const made = new Cq();
    made->context = context;
    made->channel = channel;
    made->cq_context = user;
    made->cqe = cqe;
    if (channel != nullptr) ++static_cast<Channel*>(channel)->users;
    ++of(context)->cqs;
    return made;
  }
  static int destroy_cq(ibv_cq* cq) {
    FakeNics& all = nics();
    std::unique_lock lock(all.mutex_);
    Cq* const gone = of(cq);
    if (gone->users != 0) {
      all.violate("a completion queue is destroyed in use");
      return EBUSY;
    }
    auto* const channel = static_cast<Channel*>(gone->channel);
    if (channel != nullptr) {
      // Unread events are removed with the queue.
      gone->cq_events_raised -= std::erase(channel->events, cq);
      --channel->users;
    }
    std::erase_if(of(gone->context)->events,
                  [&](const AsyncEvent& event) { return event.element == cq; });
    all.moved_.wait(lock, [&] {
      return gone->cq_events_acked == gone->cq_events_raised &&
             gone->events_acked == gone->events_got;
    });
    --of(gone->context)->cqs;
    delete gone;
    return 0;
  }
  static int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** user) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    auto* const at = static_cast<Channel*>(channel);
    eventfd_t count = 0;
    if ((::fcntl(at->fd, F_GETFL) & O_NONBLOCK) == 0) {
      all.violate("a blocking completion channel is read");
    } else if (::eventfd_read(at->fd, &count) == 0 && !at->events.empty()) {
      *cq = at->events.front();
      *user = at->events.front()->cq_context;
      at->events.pop_front();
      return 0;
    }
    errno = EAGAIN;
    return -1;
  }
  static void ack_cq_events(ibv_cq* cq, unsigned count) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    of(cq)->cq_events_acked += count;
    all.moved_.notify_all();
  }

  // ---- Queue pairs

  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    Context* const owner = of(pd->context);
    if (const int error = all.failing(Call::kCreateQp, *owner->device)) {
      return refuse<ibv_qp>(error);
    }
    const ibv_qp_cap& cap = wanted->cap;
    const auto most = static_cast<uint32_t>(all.options_.requests_max);
    if (cap.max_inline_data > all.options_.inline_max || cap.max_send_wr > most ||
        cap.max_recv_wr > most) {
      return refuse<ibv_qp>(EINVAL);
    }
    auto made = std::make_unique<Qp>();
    made->context = pd->context;
    made->pd = pd;
    made->owner = owner;
    made->send_cq = wanted->send_cq;
    made->recv_cq = wanted->recv_cq;
    made->qp_type = wanted->qp_type;
    made->state = IBV_QPS_RESET;
    made->send_max = cap.max_send_wr;
    made->receive_max = cap.max_recv_wr;
    made->inline_max = cap.max_inline_data;
    // The lowest free number, so that numbers are reused as soon as possible.
    made->qp_num = 17;
    while (all.find(*owner->device, made->qp_num) != nullptr) ++made->qp_num;
    made->serial = ++all.serials_;
    ++of(pd)->users;
    ++of(wanted->send_cq)->users;
    ++owner->qps;
    Qp* const out = made.get();
    all.qps_[out->serial] = std::move(made);
    return out;
  }
  static int destroy_qp(ibv_qp* named) {
    FakeNics& all = nics();
    std::unique_lock lock(all.mutex_);
    Qp& qp = *of(named);
    if (qp.destroyed) {
      all.violate("a queue pair is destroyed twice");
      return EINVAL;
    }
    Cq& cq = *of(qp.send_cq);
    const auto left = std::ranges::count(cq.entries, &qp, &Completion::qp);
    const bool connected = qp.far_number != 0;
    if (connected && !cq.overrun &&
        (left != 0 || !qp.requests.empty() || !qp.receives.empty() ||
         !qp.receives_after_error.empty())) {
      qp.owner->undrained = "a queue pair is destroyed before it is drained";
    }
    if (!all.options_.keeps_completions) {
      all.deleted_ += static_cast<uint64_t>(left);
      std::erase_if(cq.entries, [&](const Completion& one) { return one.qp == &qp; });
    }
    for (const Request& request : qp.requests) {
      if (request.mr != nullptr) --request.mr->users;
    }
    qp.requests.clear();
    qp.destroyed = true;
    std::erase_if(qp.owner->events,
                  [&](const AsyncEvent& event) { return event.element == named; });
    const auto at = all.qps_.find(qp.serial);
    all.destroyed_qps_.push_back(std::move(at->second));
    all.qps_.erase(at);
    // As in libibverbs: wait until all events of it are acknowledged.
    all.moved_.wait(lock, [&] { return qp.events_acked == qp.events_got; });
    --of(qp.pd)->users;
    --cq.users;
    --qp.owner->qps;
    return 0;
  }
  static int modify_qp(ibv_qp* named, ibv_qp_attr* wanted, int mask) {
    FakeNics& all = nics();
    std::unique_lock lock(all.mutex_);
    Qp& qp = *of(named);
    const Device& device = *qp.owner->device;
    all.moved_.notify_all();
    if (qp.destroyed || (mask & IBV_QP_STATE) == 0) {
      all.violate("ibv_modify_qp() on a destroyed queue pair, or without IBV_QP_STATE");
      return EINVAL;
    }
    switch (wanted->qp_state) {
      case IBV_QPS_INIT:
        return to_init(all, qp, *wanted, mask);
      case IBV_QPS_RTR:
        return finds(all, lock, *wanted) ? to_receive(all, qp, *wanted, mask) : ETIMEDOUT;
      case IBV_QPS_RTS:
        return to_send(all, qp, *wanted, mask);
      case IBV_QPS_ERR:
        break;
      default:
        all.violate("an unexpected queue pair state");
        return EINVAL;
    }
    if (const int error = all.failing(Call::kToError, device)) return error;
    if (device.lands_first) all.land_all(*qp.owner->device);
    all.to_error(qp);
    return 0;
  }
  static bool lacks(FakeNics& all, const Qp& qp, ibv_qp_state before, int mask, int needed) {
    const bool wrong = qp.state != before || mask != (needed | IBV_QP_STATE);
    // In the error state it failed by itself before the call: no violation.
    if (wrong && qp.state != IBV_QPS_ERR) all.violate("an invalid change of state");
    return wrong;
  }
  static int to_init(FakeNics& all, Qp& qp, const ibv_qp_attr& wanted, int mask) {
    if (const int error = all.failing(Call::kToInit, *qp.owner->device)) return error;
    constexpr int kNeeded = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    if (lacks(all, qp, IBV_QPS_RESET, mask, kNeeded)) return EINVAL;
    qp.access = static_cast<unsigned>(wanted.qp_access_flags);
    qp.settings.pkey_index = wanted.pkey_index;
    qp.state = IBV_QPS_INIT;
    return 0;
  }
  /// Whether the kernel resolves the neighbour's address; blocks while it is hidden.
  static bool finds(FakeNics& all, std::unique_lock<std::mutex>& lock, const ibv_qp_attr& wanted) {
    verbs::GidBytes gid{};
    const auto& raw = wanted.ah_attr.grh.dgid.raw;
    std::copy(std::begin(raw), std::end(raw), gid.begin());
    const Device* far = all.find(gid);
    if (far == nullptr || !all.hidden_neighbours_.contains({far->host, far->rail})) return true;
    ++all.neighbour_searches_;
    all.moved_.notify_all();
    const uint64_t begun = all.searches_timed_out_;
    const auto timed_out = [&] { return all.searches_timed_out_ != begun; };
    all.moved_.wait(lock, [&] {
      return timed_out() || !all.hidden_neighbours_.contains({far->host, far->rail});
    });
    if (!timed_out()) --all.neighbour_searches_;
    return false;
  }
  static int to_receive(FakeNics& all, Qp& qp, const ibv_qp_attr& wanted, int mask) {
    if (const int error = all.failing(Call::kToReceive, *qp.owner->device)) return error;
    constexpr int kNeeded = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if (lacks(all, qp, IBV_QPS_INIT, mask, kNeeded)) return EINVAL;
    const ibv_ah_attr& to = wanted.ah_attr;
    if (to.is_global == 0 || to.port_num != 1) all.violate("RoCE without a global address");
    if (wanted.path_mtu > all.options_.mtu) all.violate("the path MTU exceeds the port's");
    if (to.grh.sgid_index != qp.owner->device->gid_index) return EINVAL;  // an empty entry
    std::copy(std::begin(to.grh.dgid.raw), std::end(to.grh.dgid.raw), qp.far_gid.begin());
    qp.far_number = wanted.dest_qp_num;
    qp.expected = wanted.rq_psn;
    qp.packet_bytes = 128u << wanted.path_mtu;
    qp.settings.mtu = wanted.path_mtu;
    qp.settings.service_level = to.sl;
    qp.settings.traffic_class = to.grh.traffic_class;
    qp.settings.gid_index = to.grh.sgid_index;
    qp.settings.rnr_timer = wanted.min_rnr_timer;
    qp.state = IBV_QPS_RTR;
    return 0;
  }
  static int to_send(FakeNics& all, Qp& qp, const ibv_qp_attr& wanted, int mask) {
    if (const int error = all.failing(Call::kToSend, *qp.owner->device)) return error;
    constexpr int kNeeded = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC;
    if (lacks(all, qp, IBV_QPS_RTR, mask, kNeeded)) return EINVAL;
    if (wanted.retry_cnt > 6 || wanted.timeout == 0) all.violate("infinite retries");
    qp.first_number = qp.settings.first_packet = wanted.sq_psn;
    qp.settings.timeout = wanted.timeout;
    qp.settings.retries = wanted.retry_cnt;
    qp.settings.rnr_retries = wanted.rnr_retry;
    qp.retries_left = wanted.retry_cnt;
    qp.rnr_left = wanted.rnr_retry;
    qp.state = IBV_QPS_RTS;
    return 0;
  }

  // ---- Asynchronous events

  static int get_async_event(ibv_context* context, ibv_async_event* out) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    Context& at = *of(context);
    eventfd_t count = 0;
    if ((::fcntl(at.async.get(), F_GETFL) & O_NONBLOCK) == 0) {
      all.violate("a blocking async_fd is read");
    } else if (!at.events.empty()) {
      ::eventfd_read(at.async.get(), &count);
      const AsyncEvent event = at.events.front();
      at.events.pop_front();
      *out = {};
      out->event_type = event.type;
      if (event.type == IBV_EVENT_CQ_ERR) {
        out->element.cq = static_cast<ibv_cq*>(event.element);
        ++of(out->element.cq)->events_got;
      } else if (event.element != nullptr) {
        out->element.qp = static_cast<ibv_qp*>(event.element);
        ++of(out->element.qp)->events_got;
      } else {
        out->element.port_num = 1;
      }
      return 0;
    }
    // Consume the eventfd count of an event that was removed with its queue pair.
    ::eventfd_read(at.async.get(), &count);
    errno = EAGAIN;
    return -1;
  }
  static void ack_async_event(ibv_async_event* event) {
    FakeNics& all = nics();
    const std::lock_guard lock(all.mutex_);
    all.moved_.notify_all();
    switch (event->event_type) {
      case IBV_EVENT_CQ_ERR:
        ++of(event->element.cq)->events_acked;
        return;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_COMM_EST:
      case IBV_EVENT_SQ_DRAINED:
      case IBV_EVENT_PATH_MIG:
      case IBV_EVENT_QP_LAST_WQE_REACHED:
        ++of(event->element.qp)->events_acked;
        return;
      default:
        return;
    }
  }
};

verbs::Library FakeVerbsTable::table() {
  using K = FakeKernel;
  return {.get_device_list = K::get_device_list,
          .free_device_list = K::free_device_list,
          .get_device_name = K::get_device_name,
          .open_device = K::open_device,
          .close_device = K::close_device,
          .query_device = K::query_device,
          .query_gid_table = K::query_gid_table,
          .alloc_pd = K::alloc_pd,
          .dealloc_pd = K::dealloc_pd,
          .reg_mr_iova2 = K::reg_mr,
          .reg_dmabuf_mr = K::reg_dmabuf,
          .dereg_mr = K::dereg_mr,
          .create_comp_channel = K::create_channel,
          .destroy_comp_channel = K::destroy_channel,
          .create_cq = K::create_cq,
          .destroy_cq = K::destroy_cq,
          .get_cq_event = K::get_cq_event,
          .ack_cq_events = K::ack_cq_events,
          .create_qp = K::create_qp,
          .modify_qp = K::modify_qp,
          .destroy_qp = K::destroy_qp,
          .get_async_event = K::get_async_event,
          .ack_async_event = K::ack_async_event};
}

void FakeVerbsTable::fill_kernel(Context& context) {
  context.query_port = FakeKernel::query_port;
  context.alloc_td = FakeKernel::alloc_td;
  context.dealloc_td = FakeKernel::dealloc_td;
  context.alloc_parent_domain = FakeKernel::alloc_parent_domain;
}

}  // namespace fabric::test
