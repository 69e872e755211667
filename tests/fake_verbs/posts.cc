#include <cerrno>

#include <algorithm>

#include "fake_verbs/fake_nics.h"

// The calls that a driver serves without the kernel: posting, polling, arming.

namespace fabric::test {

using namespace fake;

struct FakeUserDriver {
  /// With a thread domain a driver takes no lock, so concurrent calls would corrupt its queues.
  class SingleThreadCheck {
   public:
    explicit SingleThreadCheck(Qp& qp) : qp_(of(qp.pd)->one_thread ? &qp : nullptr) {
      if (qp_ == nullptr) return;
      // Relaxed: it must not add ordering that the network forgot.
      concurrent_ = qp_->busy.exchange(true, std::memory_order_relaxed);
      ++qp_->unlocked;
    }
    ~SingleThreadCheck() {
      if (qp_ != nullptr) qp_->busy.store(false, std::memory_order_relaxed);  // as above
    }
    bool concurrent() const { return concurrent_; }

   private:
    Qp* const qp_;
    bool concurrent_ = false;
  };

  static int post_send(ibv_qp* named, ibv_send_wr* first, ibv_send_wr** bad) {
    FakeNics& all = *FakeNics::current();
    Qp& qp = *of(named);
    const SingleThreadCheck alone(qp);
    const std::lock_guard lock(all.mutex_);
    if (alone.concurrent()) all.violate("two threads post to a queue pair of one thread domain");
    FakeNics::Failure how{};
    const int asked = all.failing(FakeNics::Call::kPostSend, *qp.owner->device, &how);
    for (ibv_send_wr* one = first; one != nullptr; one = one->next, --how.taken) {
      const int error = asked != 0 && how.taken == 0 ? asked : take_send(all, qp, *one);
      if (error == 0) continue;
      if (!how.silent) *bad = one;
      all.moved_.notify_all();
      return error;
    }
    all.moved_.notify_all();
    return 0;
  }

  static int take_send(FakeNics& all, Qp& qp, ibv_send_wr& wr) {
    if (qp.destroyed) {
      all.violate("a request is posted to a destroyed queue pair");
      return EINVAL;
    }
    if (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_ERR) {
      all.violate("a request is posted before the queue pair is ready");
      return EINVAL;
    }
    if (qp.posted - qp.released >= qp.send_max) {
      all.violate("the send queue is full");
      return ENOMEM;
    }
    const bool carried = (wr.send_flags & IBV_SEND_INLINE) != 0;
    Request made{.index = qp.posted, .wr = wr};
    if (wr.num_sge > 1 ||
        (wr.opcode != IBV_WR_RDMA_WRITE && wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM)) {
      all.violate("an unexpected opcode or more than one SGE");
      return EINVAL;
    }
    if (wr.num_sge == 1) made.source = wr.sg_list[0];
    made.length = made.source.length;
    if (carried && made.length > qp.inline_max) {
      all.violate("more inline bytes than the queue pair allows");
      return EINVAL;
    }
    if (carried) {
      const auto* from = reinterpret_cast<const std::byte*>(made.source.addr);
      made.carried.assign(from, from + made.length);
    } else if (made.length != 0) {
      look_up(all, qp, made);
    }
    corrupt_rkey(all, qp, made);
    made.packets = std::max(1u, (made.length + qp.packet_bytes - 1) / qp.packet_bytes);
    made.first_packet = qp.packets_made;
    qp.packets_made += made.packets;
    ++qp.posted;
    qp.requests.push_back(std::move(made));
    return 0;
  }

  /// An unknown lkey completes with a protection error when the request is transmitted.
  static void look_up(FakeNics& all, Qp& qp, Request& made) {
    Mr* const mr = all.find_key(*of(qp.pd), made.source.lkey);
    if (mr == nullptr || made.source.addr < mr->iova || made.length > mr->length ||
        made.source.addr - mr->iova > mr->length - made.length) {
      return;
    }
    made.mr = mr;
    ++mr->users;
  }

  static void corrupt_rkey(FakeNics& all, Qp& qp, Request& made) {
    if (made.length == 0 || qp.owner->device->host != all.corrupt_from_) return;
    const Device* far = all.find(qp.far_gid);
    if (far == nullptr || far->host != all.corrupt_to_) return;
    made.wr.wr.rdma.rkey ^= 0x5a;
    all.corrupt_from_ = all.corrupt_to_ = FakeNics::kAny;
  }

  static int post_recv(ibv_qp* named, ibv_recv_wr* first, ibv_recv_wr** bad) {
    FakeNics& all = *FakeNics::current();
    Qp& qp = *of(named);
    const SingleThreadCheck alone(qp);
    const std::lock_guard lock(all.mutex_);
    if (alone.concurrent()) all.violate("two threads post to a queue pair of one thread domain");
    FakeNics::Failure how{};
    const int asked = all.failing(FakeNics::Call::kPostReceive, *qp.owner->device, &how);
    for (ibv_recv_wr* one = first; one != nullptr; one = one->next, --how.taken) {
      int error = asked != 0 && how.taken == 0 ? asked : 0;
      if (error == 0 && (qp.destroyed || qp.state == IBV_QPS_RESET)) {
        all.violate("a receive is posted to a queue pair that is destroyed or in RESET");
        error = EINVAL;
      }
      if (error == 0 && qp.receives_posted - qp.receives_polled >= qp.receive_max) {
        all.violate("the receive queue is full");
        error = ENOMEM;
      }
      if (error != 0) {
        if (!how.silent) *bad = one;
        return error;
      }
      const bool after_error = qp.state == IBV_QPS_ERR && !all.options_.flushes_after_error;
      (after_error ? qp.receives_after_error : qp.receives).push_back(one->wr_id);
      ++qp.receives_posted;
    }
    all.moved_.notify_all();
    return 0;
  }

  static int poll_cq(ibv_cq* named, int most, ibv_wc* out) {
    FakeNics& all = *FakeNics::current();
    const std::lock_guard lock(all.mutex_);
    Cq& cq = *of(named);
    std::string& undrained = of(cq.context)->undrained;
    if (!undrained.empty() && !all.undrained_allowed_) all.violate(undrained);
    undrained.clear();
    if (of(cq.context)->device->fatal) return 0;
    int count = 0;
    for (; count < most && !cq.entries.empty(); ++count) {
      const Completion& one = cq.entries.front();
      out[count] = one.wc;
      if (one.receive) {
        ++one.qp->receives_polled;
      } else {
        one.qp->released = one.index + 1;
      }
      cq.entries.pop_front();
    }
    return count;
  }

  static int req_notify_cq(ibv_cq* named, int) {
    FakeNics& all = *FakeNics::current();
    const std::lock_guard lock(all.mutex_);
    of(named)->armed = true;
    return 0;
  }
};

void FakeVerbsTable::fill(Context& context) {
  fill_kernel(context);
  ibv_context_ops& ops = context.context.ops;
  ops.post_send = FakeUserDriver::post_send;
  ops.post_recv = FakeUserDriver::post_recv;
  ops.poll_cq = FakeUserDriver::poll_cq;
  ops.req_notify_cq = FakeUserDriver::req_notify_cq;
}

}  // namespace fabric::test
