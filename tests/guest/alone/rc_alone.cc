// Reliable connections without this library: four at once, each way on both rails, with writes
// whose immediates are consecutive numbers. A correct device delivers each of them once and in
// order. SoftRoCE does not when the cable's delay exceeds its acknowledgement timeout
// (docs/verbs.md):
//
//   rc_alone TIMEOUT_CODE RETRIES SECONDS
//
// Ends with 1 when an immediate came twice or was left out.

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kInFlight = 64, kSlotBytes = 32768, kReceives = 2048;
constexpr uint8_t kGid = 1;  // of tests/guest/inside.sh: IPv4, RoCE v2
constexpr uint32_t kFirstPacket = 77;

struct Settings {
  uint8_t timeout_code, retries;
  std::chrono::seconds time;
};

[[noreturn]] void fail(const char* call) {
  std::perror(call);
  std::_Exit(2);
}

/// One end. Nothing is released: the process exits with it.
struct End {
  explicit End(const char* device) : bytes(size_t{kInFlight} * kSlotBytes) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    for (int i = 0; i < count; ++i) {
      if (std::strcmp(ibv_get_device_name(list[i]), device) == 0)
        context = ibv_open_device(list[i]);
    }
    if (context == nullptr) fail(device);
    ibv_pd* pd = ibv_alloc_pd(context);
    memory = ibv_reg_mr(pd, bytes.data(), bytes.size(),
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    queue = ibv_create_cq(context, 8192, nullptr, nullptr, 0);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = queue;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {.max_send_wr = 256,
                  .max_recv_wr = kReceives,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = 0};
    qp = ibv_create_qp(pd, &wanted);
    if (qp == nullptr || ibv_query_gid(context, 1, kGid, &gid) != 0) fail("ibv_create_qp");
  }

  void connect(const End& far, const Settings& settings) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    int error = ibv_modify_qp(qp, &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = far.qp->qp_num;
    attr.rq_psn = kFirstPacket;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh = {
        .dgid = far.gid, .flow_label = 0, .sgid_index = kGid, .hop_limit = 64, .traffic_class = 0};
    error |= ibv_modify_qp(qp, &attr,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = settings.timeout_code;
    attr.retry_cnt = settings.retries;
    attr.rnr_retry = 7;
    attr.sq_psn = kFirstPacket;
    error |= ibv_modify_qp(qp, &attr,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (error != 0) fail("ibv_modify_qp");
  }

  void post_receive() {
    ibv_recv_wr request{};
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(qp, &request, &bad) != 0) fail("ibv_post_recv");
  }

  ibv_context* context = nullptr;
  ibv_mr* memory = nullptr;
  ibv_cq* queue = nullptr;
  ibv_qp* qp = nullptr;
  ibv_gid gid{};
  std::vector<std::byte> bytes;
};

struct ImmCounts {
  uint32_t taken = 0, twice = 0, left_out = 0;
};

ImmCounts receive(End& end, const std::atomic<bool>& over) {
  ImmCounts counts;
  uint32_t next = 0;
  std::array<ibv_wc, 32> done;
  while (!over.load(std::memory_order_relaxed)) {
    const int count = ibv_poll_cq(end.queue, done.size(), done.data());
    for (int i = 0; i < count; ++i) {
      const ibv_wc& one = done[static_cast<size_t>(i)];
      if (one.status != IBV_WC_SUCCESS) continue;  // the connection has ended
      const uint32_t number = ntohl(one.imm_data);
      ++counts.taken;
      counts.twice += number < next;
      counts.left_out += number > next;
      next = std::max(next, number + 1);
      end.post_receive();
    }
    if (count == 0) std::this_thread::sleep_for(200us);
  }
  return counts;
}

void post(End& from, const End& to, uint32_t number) {
  constexpr uint32_t kSizes[] = {0, 64, 4096, kSlotBytes};
  const uint64_t slot = uint64_t{number % kInFlight} * kSlotBytes;
  ibv_sge source{reinterpret_cast<uint64_t>(from.memory->addr) + slot,
                 kSizes[(number * 2654435761u) >> 30], from.memory->lkey};
  ibv_send_wr request{};
  ibv_send_wr* bad = nullptr;
  request.wr_id = number;
  request.sg_list = &source;
  request.num_sge = source.length != 0;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.imm_data = htonl(number);
  request.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(to.memory->addr) + slot;
  request.wr.rdma.rkey = to.memory->rkey;
  if (ibv_post_send(from.qp, &request, &bad) != 0) fail("ibv_post_send");
}

/// True: each came once.
bool run(const char* from_device, const char* to_device, const Settings& settings) {
  End from(from_device), to(to_device);
  from.connect(to, settings);
  to.connect(from, settings);
  for (uint32_t i = 0; i < kReceives; ++i) to.post_receive();
  std::atomic<bool> over{false};
  ImmCounts counts;
  std::thread receiver([&] { counts = receive(to, over); });
  const auto end = Clock::now() + settings.time;
  uint32_t posted = 0, acknowledged = 0;
  int status = IBV_WC_SUCCESS;
  while (Clock::now() < end && status == IBV_WC_SUCCESS) {
    while (posted - acknowledged < kInFlight) post(from, to, posted++);
    std::array<ibv_wc, 32> done;
    const int count = ibv_poll_cq(from.queue, done.size(), done.data());
    for (int i = 0; i < count && status == IBV_WC_SUCCESS; ++i) {
      status = done[static_cast<size_t>(i)].status;
      if (status == IBV_WC_SUCCESS) ++acknowledged;
    }
    if (count == 0) std::this_thread::sleep_for(200us);
  }
  std::this_thread::sleep_for(1s);
  over = true;
  receiver.join();
  std::printf("%s to %s: %u posted, %u taken, %u twice, %u left out; %s\n", from_device, to_device,
              posted, counts.taken, counts.twice, counts.left_out,
              ibv_wc_status_str(static_cast<ibv_wc_status>(status)));
  return counts.twice == 0 && counts.left_out == 0;
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) {
    std::fputs("rc_alone TIMEOUT_CODE RETRIES SECONDS\n", stderr);
    return 2;
  }
  const Settings settings{static_cast<uint8_t>(std::stoi(words[1])),
                          static_cast<uint8_t>(std::stoi(words[2])),
                          std::chrono::seconds(std::stoi(words[3]))};
  constexpr const char* kDirections[][2] = {
      {"xa0", "xb0"}, {"xb0", "xa0"}, {"xa1", "xb1"}, {"xb1", "xa1"}};
  std::atomic<bool> good{true};
  std::vector<std::thread> threads;
  for (const auto& direction : kDirections) {
    threads.emplace_back([&] {
      if (!run(direction[0], direction[1], settings)) good = false;
    });
  }
  for (std::thread& direction : threads) direction.join();
  return good ? 0 : 1;
}
