#include "providers/verbs/device.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>

#include <fabric/caps.h>

namespace fabric::verbs {

namespace {

constexpr uint32_t kGidsMax = 256;
constexpr uint8_t kPortsMax = 8;

Errc code_of(int error) noexcept {
  if (error == EPERM || error == EACCES) return Errc::kPermission;
  if (error == EIO || error == ENODEV || error == ENXIO) return Errc::kRailLost;
  // Only shortages that pass: the caller retries on kExhausted.
  const bool room = error == ENOMEM || error == EAGAIN || error == ENOSPC || error == EMFILE ||
                    error == ENFILE || error == EBUSY;
  return room ? Errc::kExhausted : Errc::kUnsupported;
}

bool query_port(ibv_context* context, uint8_t port, ibv_port_attr& out) {
  out = {};
  verbs_context* full = verbs_get_ctx(context);
  // Present in every library that has the other calls we need.
  if (full == nullptr || full->sz < sizeof(verbs_context) - offsetof(verbs_context, query_port)) {
    return false;
  }
  return full->query_port != nullptr && full->query_port(context, port, &out, sizeof(out)) == 0;
}

std::vector<Gid> query_gids(ibv_context* context, uint8_t port) {
  std::array<ibv_gid_entry, kGidsMax> entries{};
  const ssize_t count =
      library().query_gid_table(context, entries.data(), entries.size(), 0, sizeof(entries[0]));
  std::vector<Gid> out;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    // sgid_index of an address handle has eight bits.
    if (entry.port_num != port || entry.gid_index > UINT8_MAX) continue;
    Gid gid{.index = entry.gid_index};
    std::copy(std::begin(entry.gid.raw), std::end(entry.gid.raw), gid.bytes.begin());
    gid.type = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidType::kRoceV2
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidType::kRoceV1
                                                        : GidType::kInfiniband;
    out.push_back(gid);
  }
  return out;
}

/// Probes with an invalid descriptor: a driver that supports the call fails with EBADF, one that
/// does not with another error.
bool knows_dmabuf(ibv_pd* pd) {
  if (library().reg_dmabuf_mr == nullptr) return false;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  ibv_mr* mr = library().reg_dmabuf_mr(pd, 0, page, 0, -1, 0);
  if (mr == nullptr) return errno == EBADF;
  library().dereg_mr(mr);
  return true;
}

bool set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

Device::Device(ibv_context* context, std::string name, uint8_t port, const Options& options)
    : context_(context), name_(std::move(name)), port_(port), options_(options) {}

Device::~Device() {
  const Library& lib = library();
  if (channel_ != nullptr) lib.destroy_comp_channel(channel_);
  if (parent_ != nullptr) lib.dealloc_pd(parent_);
  if (td_ != nullptr) ibv_dealloc_td(td_);
  if (pd_ != nullptr) lib.dealloc_pd(pd_);
  lib.close_device(context_);
}

Result<std::shared_ptr<Device>> Device::open(ibv_device* device, uint8_t port,
                                             const Options& options) {
  const Library& lib = library();
  if (device->transport_type != IBV_TRANSPORT_IB) {
    return fail(Errc::kUnsupported, "verbs: the device has no reliable connections");
  }
  errno = 0;
  ibv_context* context = lib.open_device(device);
  if (context == nullptr) return fail(code_of(errno), "ibv_open_device", errno);
  const std::shared_ptr<Device> made(
      new Device(context, lib.get_device_name(device), port, options));
  if (auto ok = made->query(); !ok) return ok.error();
  if (auto ok = made->make_domains(); !ok) return ok.error();
  return made;
}

Result<void> Device::query() {
  if (const int error = library().query_device(context_, &limits_); error != 0) {
    return fail(code_of(error), "ibv_query_device", error);
  }
  auto state = query_port_state(nullptr);
  if (!state) return state.error();
  set_state(*std::move(state));
  if (options_.pkey_index >= limits_.max_pkeys) {
    return fail(Errc::kInvalidArgument, "pkey_index");
  }
  const auto most = static_cast<uint32_t>(std::max(limits_.max_qp_wr, 0));
  if (options_.send_depth >= most) return fail(Errc::kInvalidArgument, "send_depth");
  if (options_.receive_depth >= most) return fail(Errc::kInvalidArgument, "receive_depth");
  return {};
}

Result<PortState> Device::query_port_state(const Gid* now) const {
  PortState state;
  if (!query_port(context_, port_, state.attributes)) {
    return fail(Errc::kUnsupported, "ibv_query_port");
  }
  const std::vector<Gid> table = query_gids(context_, port_);
  const auto chosen = now == nullptr ? choose_gid(table, options_.gid_index)
                                     : choose_gid_again(table, options_.gid_index, *now);
  if (!chosen && now == nullptr) return chosen.error();
  state.gid = chosen ? *chosen : *now;  // no acceptable GID now: keep the old one
  state.gids = rank_gids(table);
  return state;
}

Result<void> Device::make_domains() {
  const Library& lib = library();
  errno = 0;
  pd_ = lib.alloc_pd(context_);
  if (pd_ == nullptr) return fail(code_of(errno), "ibv_alloc_pd", errno);
  ibv_td_init_attr thread{};
  td_ = ibv_alloc_td(context_, &thread);
  if (td_ != nullptr) {
    ibv_parent_domain_init_attr both{};
    both.pd = pd_;
    both.td = td_;
    parent_ = ibv_alloc_parent_domain(context_, &both);
  }
  errno = 0;
  channel_ = lib.create_comp_channel(context_);
  if (channel_ == nullptr) return fail(code_of(errno), "ibv_create_comp_channel", errno);
  if (!set_nonblocking(channel_->fd) || !set_nonblocking(context_->async_fd)) {
    return fail(Errc::kUnsupported, "fcntl", errno);
  }
  dmabuf_ = knows_dmabuf(pd_);
  return {};
}

uint32_t Device::memory_kinds() const noexcept {
  uint32_t kinds = kind_bit(MemoryKind::kHost);
  if (dmabuf_) kinds |= kind_bit(MemoryKind::kCuda) | kind_bit(MemoryKind::kRocm);
  // With this module ibv_reg_mr() takes CUDA pointers.
  if (::access("/sys/module/nvidia_peermem", F_OK) == 0) kinds |= kind_bit(MemoryKind::kCuda);
  return kinds;
}

uint8_t Device::mtu() const noexcept {
  const auto active = static_cast<uint8_t>(std::clamp<int>(state_.attributes.active_mtu, 1, 5));
  if (options_.mtu_bytes == 0) return active;
  return std::min(active, static_cast<uint8_t>(std::countr_zero(options_.mtu_bytes) - 7));
}

std::vector<std::pair<std::string, std::string>> Device::facts() const {
  std::string others;
  for (const Gid& gid : state_.gids) {
    if (gid.index == state_.gid.index) continue;
    others += (others.empty() ? "" : ", ") + to_text(gid);
  }
  const bool ethernet = state_.attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  std::vector<std::pair<std::string, std::string>> facts{
      {"port", std::to_string(port_) + (ethernet ? ", Ethernet" : ", InfiniBand")},
      {"gid", to_text(state_.gid)},
      {"other gids", others.empty() ? "none" : others},
      {"mtu", std::to_string(128u << mtu())},
      {"thread domain", parent_ != nullptr ? "yes" : "no"},
      {"dma-buf", dmabuf_ ? "yes" : "no"},
      {"retries", std::to_string(options_.retry_count) + ", timeout code " +
                      std::to_string(options_.timeout_code)},
      {"receives on a path", std::to_string(options_.receive_depth)}};
  if (!nearness_.empty()) facts.emplace_back("near", nearness_);
  return facts;
}

namespace {

/// The devices of the host, as long as it exists.
class DeviceList {
 public:
  static Result<DeviceList> read() {
    int count = 0;
    errno = 0;
    ibv_device** list = library().get_device_list(&count);
    if (list == nullptr) return fail(Errc::kUnsupported, "verbs: the kernel has no RDMA", errno);
    return DeviceList(list, static_cast<size_t>(count));
  }
  std::span<ibv_device*> all() const { return {owner_.get(), count_}; }
  /// Null: there is no such device.
  ibv_device* find(std::string_view name) const {
    const auto found = std::find_if(all().begin(), all().end(), [&](ibv_device* device) {
      return name == library().get_device_name(device);
    });
    return found == all().end() ? nullptr : *found;
  }

 private:
  DeviceList(ibv_device** list, size_t count)
      : owner_(list, library().free_device_list), count_(count) {}
  std::unique_ptr<ibv_device*[], void (*)(ibv_device**)> owner_;
  size_t count_ = 0;
};

using Devices = std::vector<std::shared_ptr<Device>>;

Result<Devices> open_named(const DeviceList& list, const PortSelection& which,
                           const Options& options) {
  Devices out;
  for (const PortName& wanted : which.ports) {
    ibv_device* found = list.find(wanted.device);
    if (found == nullptr) return fail(Errc::kUnsupported, "verbs: no such device");
    auto device = Device::open(found, wanted.port, options);
    if (!device) return device.error();
    if (out.size() < which.most) out.push_back(*std::move(device));
  }
  return out;
}

Result<Devices> open_active(std::span<ibv_device* const> devices, const PortSelection& which,
                            const Options& options) {
  Devices out;
  Error why = fail(Errc::kUnsupported, "verbs: there is no device");
  for (ibv_device* device : devices) {
    for (uint8_t port = 1; port <= kPortsMax && out.size() < which.most; ++port) {
      auto opened = Device::open(device, port, options);
      if (!opened && port > 1) break;  // no more ports
      if (!opened) {
        why = opened.error();
      } else if ((*opened)->active()) {
        out.push_back(*std::move(opened));
      } else {
        why = fail(Errc::kUnsupported, "verbs: no port is active");
      }
    }
  }
  if (out.empty()) return why;
  return out;
}

}  // namespace

Result<std::vector<std::string>> device_names() {
  const auto list = DeviceList::read();
  if (!list) return list.error();
  std::vector<std::string> names;
  for (ibv_device* device : list->all()) names.emplace_back(library().get_device_name(device));
  return names;
}

Result<std::vector<std::shared_ptr<Device>>> open_devices(const PortSelection& which,
                                                          const Options& options) {
  const auto list = DeviceList::read();
  if (!list) return list.error();
  if (!which.ports.empty()) return open_named(*list, which, options);
  if (which.devices.empty()) return open_active(list->all(), which, options);
  std::vector<ibv_device*> chosen;
  for (const std::string& name : which.devices) {
    ibv_device* found = list->find(name);
    if (found == nullptr) return fail(Errc::kUnsupported, "verbs: no such device");
    chosen.push_back(found);
  }
  return open_active(chosen, which, options);
}

// ---- Completion queues --------------------------------------------------------------------------

Result<std::shared_ptr<CompletionQueue>> CompletionQueue::make(std::shared_ptr<Device> device,
                                                               uint32_t least) {
  // Large, because every queue is polled in every turn; small devices have less.
  constexpr uint32_t kUsual = 16383;
  const auto most = static_cast<uint32_t>(std::max(device->limits().max_cqe, 0));
  if (least > most) return fail(Errc::kInvalidArgument, "receive_depth");
  const int size = static_cast<int>(std::clamp(kUsual, least, most));
  const std::shared_ptr<CompletionQueue> made(new CompletionQueue(std::move(device)));
  errno = 0;
  made->cq =
      library().create_cq(made->device->context(), size, made.get(), made->device->channel(), 0);
  if (made->cq == nullptr) return fail(code_of(errno), "ibv_create_cq", errno);
  made->size = static_cast<uint32_t>(size);
  return made;
}

CompletionQueue::~CompletionQueue() {
  if (cq != nullptr) library().destroy_cq(cq);
}

// ---- Queue pairs --------------------------------------------------------------------------------

Result<std::shared_ptr<QueuePair>> QueuePair::make(std::shared_ptr<CompletionQueue> queue,
                                                   Direction direction) {
  const Device& device = *queue->device;
  const bool out = direction == Direction::kOut;
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = queue->cq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = out ? cqes(direction, device.options()) : 1;
  wanted.cap.max_recv_wr = out ? 1 : cqes(direction, device.options());
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  wanted.cap.max_inline_data = out ? device.options().inline_bytes : 0;
  const std::shared_ptr<QueuePair> made(new QueuePair(std::move(queue), direction));
  errno = 0;
  made->qp_ = library().create_qp(device.path_domain(), &wanted);
  if (made->qp_ == nullptr && wanted.cap.max_inline_data != 0) {
    wanted.cap.max_inline_data = 0;  // the device supports less, or none
    made->qp_ = library().create_qp(device.path_domain(), &wanted);
  }
  if (made->qp_ == nullptr) return fail(code_of(errno), "ibv_create_qp", errno);
  made->number_ = made->qp_->qp_num;
  made->inline_bytes_ = std::min(wanted.cap.max_inline_data, device.options().inline_bytes);
  if (const int error = made->to_init(); error != 0) {
    return fail(code_of(error), "ibv_modify_qp", error);
  }
  return made;
}

int QueuePair::to_init() noexcept {
  const Device& device = *queue_->device;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = static_cast<uint16_t>(device.options().pkey_index);
  attr.port_num = device.port();
  // An outbound QP grants no remote access: its peer only receives.
  if (direction_ == Direction::kIn) attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  return library().modify_qp(qp_, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int QueuePair::connect(const LocalEnd& local, const Endpoint& remote_end, uint32_t psn) noexcept {
  if (abandoned_.load(std::memory_order_relaxed)) return ECANCELED;
  const int error = to_receive(local, remote_end);
  if (error != 0 || direction_ == Direction::kIn) return error;
  return to_send(psn);
}

int QueuePair::to_receive(const LocalEnd& local, const Endpoint& remote_end) noexcept {
  const Device& device = *queue_->device;
  const Options& options = device.options();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = static_cast<ibv_mtu>(std::min(remote_end.mtu, local.mtu));
  attr.dest_qp_num = remote_end.queue_pair;
  attr.rq_psn = remote_end.psn;
  attr.min_rnr_timer = static_cast<uint8_t>(options.rnr_timer);
  attr.ah_attr.port_num = device.port();
  attr.ah_attr.sl = static_cast<uint8_t>(options.service_level);
  attr.ah_attr.dlid = remote_end.lid;
  if (remote_end.grh) {
    attr.ah_attr.is_global = 1;
    std::copy(remote_end.gid.begin(), remote_end.gid.end(), std::begin(attr.ah_attr.grh.dgid.raw));
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(local.gid_index);
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.traffic_class = static_cast<uint8_t>(options.traffic_class);
  }
  return library().modify_qp(qp_, &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int QueuePair::to_send(uint32_t psn) noexcept {
  const Options& options = queue_->device->options();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = static_cast<uint8_t>(options.timeout_code);
  attr.retry_cnt = static_cast<uint8_t>(options.retry_count);
  attr.rnr_retry = static_cast<uint8_t>(options.rnr_retry);
  attr.sq_psn = psn;
  return library().modify_qp(qp_, &attr,
                             IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int QueuePair::to_error() noexcept {
  if (qp_ == nullptr) return 0;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  return library().modify_qp(qp_, &attr, IBV_QP_STATE);
}

void QueuePair::destroy() noexcept {
  if (qp_ == nullptr) return;
  library().destroy_qp(qp_);
  qp_ = nullptr;
}

}  // namespace fabric::verbs
