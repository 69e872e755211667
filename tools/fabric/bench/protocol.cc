#include "protocol.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench_error.h"
#include "side.h"
#include "workload.h"

namespace fabric::tool::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr uint32_t kProtocol = 2;
/// Filling and checking memory takes at most a nanosecond a byte, even on a slow machine.
double reply_timeout(uint64_t bytes) { return kIdleSecondsMax + static_cast<double>(bytes) * 1e-9; }

nlohmann::json receive_from(Side& side, double seconds) {
  return side.socket().receive(seconds, side.idle());
}

uint64_t number(const nlohmann::json& message, const char* name) {
  if (!message.contains(name) || !message[name].is_number_unsigned()) {
    throw BenchError(fmt::format("invalid message: no {}", name));
  }
  return message[name].get<uint64_t>();
}

double percentile(std::vector<uint32_t>& values, double part) {
  const auto at = static_cast<size_t>(static_cast<double>(values.size() - 1) * part);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

/// The most bytes that any size of the plan needs, by `bytes_of`.
template <class BytesOf>
uint64_t most_bytes(const BenchPlan& plan, BytesOf bytes_of) {
  uint64_t most = 0;
  for (const uint64_t size : plan.sizes) most = std::max(most, bytes_of(layout_of(plan, size)));
  return most;
}

/// The sender of a run: exchanges offers, then starts the rounds and measures them.
class SenderRun {
 public:
  SenderRun(const BenchPlan& plan, JsonSocket& socket, Report& report)
      : side_(plan, socket, 1,
              most_bytes(plan, [&](const Layout& layout) { return sender_bytes(plan, layout); })),
        report_(report) {
    BenchEngine& local = side_.first();
    socket.send({{"hello", "fabric bench"},
                 {"protocol", kProtocol},
                 {"version", version()},
                 {"plan", to_json(plan)},
                 {"offer", need(local.engine.offer(local.memory, local.counter.key()), "offer")}});
    const nlohmann::json reply = receive_from(side_, reply_timeout(local.bytes.size()));
    const auto offers = reply.find("offers");
    const size_t expected = plan.benchmark == Benchmark::kScatter ? plan.targets : 1;
    if (offers == reply.end() || !offers->is_array() || offers->size() != expected) {
      throw BenchError("invalid message: no offers");
    }
    for (const nlohmann::json& offer : *offers) {
      if (!offer.is_string()) throw BenchError("invalid message: no offer");
      side_.offers.push_back(need(local.engine.accept(offer.get<std::string>()), "accept"));
    }
    local.remote = side_.offers.front();
  }

  bool run() {
    bool correct = true;
    for (const uint64_t size : side_.plan().sizes) {
      const Case one =
          side_.plan().benchmark == Benchmark::kIdle ? idle_case(size) : timed_case(size);
      report_.add(one);
      correct = correct && one.verified;
    }
    side_.socket().send({{"bye", true}});
    return correct;
  }

 private:
  Case timed_case(uint64_t size) {
    const auto workload = make_workload(side_, size);
    Case result{.size = size};
    const uint64_t operations = calibrate(*workload, result.verified);
    for (uint32_t i = 0; i < side_.plan().repetitions && result.verified; ++i) {
      report_.progress(size, i + 1);
      result.repetitions.push_back(round(*workload, operations, result.verified));
    }
    // Wrong bytes in the warm-up already: report that round.
    if (result.repetitions.empty()) result.repetitions.push_back(last_);
    return result;
  }

  /// Warms up, and returns how many operations take as long as a repetition should.
  uint64_t calibrate(Workload& workload, bool& verified) {
    const Layout& layout = workload.layout();
    last_ = round(workload, 1, verified);  // connects: not representative
    const uint64_t bytes = layout.stride * layout.counts;
    // Every slot once, so that no page fault is measured.
    last_ = round(workload, (layout.source_bytes() + bytes - 1) / bytes, verified);
    uint64_t operations = std::clamp<uint64_t>((4u << 20) / bytes, 1, 1000);
    for (uint32_t tries = 0; tries < 12 && verified; ++tries) {
      last_ = round(workload, operations, verified);
      const double factor = side_.plan().seconds / std::max(last_.seconds, 1e-7);
      const auto wanted = static_cast<uint64_t>(static_cast<double>(operations) * factor);
      // The first rounds are short and run with cold caches: extrapolate by at most a factor of
      // ten.
      if (factor < 4) return std::clamp<uint64_t>(wanted, 1, kOperationsMax);
      operations = std::min(operations * 10, std::max<uint64_t>(wanted, 1));
    }
    return operations;
  }

  Repetition round(Workload& workload, uint64_t operations, bool& verified) {
    begin(workload, operations);
    const double cpu = cpu_seconds();
    const auto start = Clock::now();
    workload.send(operations);
    Repetition out{.seconds = std::chrono::duration<double>(Clock::now() - start).count(),
                   .counts = operations * workload.layout().counts};
    out.sender_cpu = cpu_seconds() - cpu;
    out.bytes = out.counts * workload.layout().size;
    workload.send_trips();
    side_.count_arrived_imms();
    end(workload, out, verified);
    if (!workload.half_trips_ns.empty()) {
      out.half_p50 = percentile(workload.half_trips_ns, 0.50);
      out.half_p99 = percentile(workload.half_trips_ns, 0.99);
    }
    if (!workload.word_to_post_ns.empty()) {
      out.word_p50 = percentile(workload.word_to_post_ns, 0.50);
      out.word_p99 = percentile(workload.word_to_post_ns, 0.99);
    }
    return out;
  }

  /// One write, which connects the engines, then sleeps: the CPU time is that of idle engines.
  Case idle_case(uint64_t size) {
    const auto workload = make_workload(side_, size);
    Case result{.size = size};
    (void)round(*workload, 1, result.verified);
    for (uint32_t i = 0; i < side_.plan().repetitions; ++i) {
      report_.progress(size, i + 1);
      begin(*workload, 0);
      const double cpu = cpu_seconds();
      const auto start = Clock::now();
      std::this_thread::sleep_for(std::chrono::duration<double>(side_.plan().seconds));
      Repetition out{.seconds = std::chrono::duration<double>(Clock::now() - start).count()};
      out.sender_cpu = cpu_seconds() - cpu;
      side_.socket().send({{"stop", true}});
      end(*workload, out, result.verified);
      result.repetitions.push_back(out);
    }
    return result;
  }

  void begin(Workload& workload, uint64_t operations) {
    workload.fill_source(++round_);
    side_.socket().send(
        {{"round", round_}, {"size", workload.layout().size}, {"operations", operations}});
    (void)number(receive_from(side_, reply_timeout(side_.first().bytes.size())), "ready");
  }

  void end(Workload& workload, Repetition& out, bool& verified) {
    const nlohmann::json reply =
        receive_from(side_, reply_timeout(workload.layout().source_bytes()));
    verified = verified && number(reply, "verified") == 1 && workload.verify_echo(round_);
    out.receiver_cpu = static_cast<double>(number(reply, "cpu_ns")) * 1e-9;
  }

  static constexpr uint64_t kOperationsMax = 1ull << 36;

  Side side_;
  Report& report_;
  uint64_t round_ = 0;
  Repetition last_{};  ///< the last round of the warm-up
};

/// The receiver of a run: follows the sender's rounds and checks the bytes after each.
class ReceiverRun {
 public:
  ReceiverRun(const BenchPlan& plan, JsonSocket& socket, const std::string& offer)
      : side_(
            plan, socket, plan.benchmark == Benchmark::kScatter ? plan.targets : 1,
            most_bytes(plan, [&](const Layout& layout) { return receiver_bytes(plan, layout); })) {
    Json offers = Json::array();
    for (BenchEngine& local : side_.engines()) {
      offers.push_back(need(local.engine.offer(local.memory, local.counter.key()), "offer"));
    }
    side_.first().remote = need(side_.first().engine.accept(offer), "accept");
    socket.send({{"offers", offers}});
  }

  void run() {
    const double longest = side_.plan().seconds + reply_timeout(side_.first().bytes.size());
    for (;;) {
      const nlohmann::json command = receive_from(side_, longest);
      if (command.contains("bye")) return;
      const uint64_t size = number(command, "size"), operations = number(command, "operations");
      if (workload_ == nullptr || workload_->layout().size != size) {
        const auto& sizes = side_.plan().sizes;
        if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) {
          throw BenchError("the other side asks for a size that is not in its plan");
        }
        workload_.reset();  // first: a channel has one listener
        workload_ = make_workload(side_, size);
      }
      round(number(command, "round"), operations);
    }
  }

 private:
  void round(uint64_t number_of_it, uint64_t operations) {
    workload_->ready_target(number_of_it);
    side_.socket().send({{"ready", 1u}});
    const double cpu = cpu_seconds();
    if (operations > 0) {
      workload_->receive(operations);
    } else {
      (void)receive_from(side_, side_.plan().seconds + kIdleSecondsMax);
    }
    const double used = cpu_seconds() - cpu;
    if (operations > 0) workload_->receive_trips();
    side_.count_arrived_imms();
    const bool correct = operations == 0 || workload_->verify(number_of_it, operations);
    side_.socket().send(
        {{"verified", correct ? 1u : 0u}, {"cpu_ns", static_cast<uint64_t>(used * 1e9)}});
  }

  Side side_;
  std::unique_ptr<Workload> workload_;
};

void serve(Benchmark benchmark, const std::vector<std::string>& devices, JsonSocket& socket) {
  const nlohmann::json hello = socket.receive(kIdleSecondsMax);
  if (!hello.contains("hello") || hello["hello"] != "fabric bench") {
    throw BenchError("invalid message: no hello");
  }
  if (number(hello, "protocol") != kProtocol) {
    throw BenchError("the two sides have different versions of fabric bench");
  }
  if (!hello.contains("plan") || !hello.contains("offer") || !hello["offer"].is_string()) {
    throw BenchError("invalid message: no plan");
  }
  BenchPlan plan = plan_from(hello["plan"]);
  if (plan.benchmark != benchmark) {
    throw BenchError(fmt::format("the sender asks for {}, the receiver for {}",
                                 to_string(plan.benchmark), to_string(benchmark)));
  }
  plan.devices = devices;
  ReceiverRun(plan, socket, hello["offer"].get<std::string>()).run();
}

/// Runs `work`; sends the other side the error if it fails, ignoring that the socket may be closed.
template <class Work>
auto report_errors(JsonSocket& socket, Work work) {
  try {
    return work();
  } catch (const BenchError& why) {
    try {
      socket.send({{"error", why.what()}});
    } catch (const BenchError&) {
    }
    throw;
  }
}

}  // namespace

bool run_sender(const BenchPlan& plan, JsonSocket& socket, Report& report) {
  return report_errors(socket, [&] { return SenderRun(plan, socket, report).run(); });
}

void run_receiver(Benchmark benchmark, const std::vector<std::string>& devices,
                  JsonSocket& socket) {
  report_errors(socket, [&] { serve(benchmark, devices, socket); });
}

}  // namespace fabric::tool::bench
