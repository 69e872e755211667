#include "rounds.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "exercise.h"
#include "failed.h"
#include "side.h"

namespace fabric::tool::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr uint32_t kProtocol = 1;
/// Filling and looking at much memory takes time, at a byte a nanosecond even on a bad day.
double patience(uint64_t bytes) { return kPatienceSeconds + static_cast<double>(bytes) * 1e-9; }

uint64_t number(const nlohmann::json& message, const char* name) {
  if (!message.contains(name) || !message[name].is_number_unsigned()) {
    throw Failed(fmt::format("what came is no message of fabric bench: no {}", name));
  }
  return message[name].get<uint64_t>();
}

double percentile(std::vector<uint32_t>& values, double part) {
  const auto at = static_cast<size_t>(static_cast<double>(values.size() - 1) * part);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

/// Bytes of the largest size, by `bytes_of`.
template <class BytesOf>
uint64_t most_bytes(const Plan& plan, BytesOf bytes_of) {
  uint64_t most = 0;
  for (const uint64_t size : plan.sizes) most = std::max(most, bytes_of(shape_of(plan, size)));
  return most;
}

/// The sender of a run.
class Conductor {
 public:
  Conductor(const Plan& plan, Line& line, Report& report)
      : side_(plan, line, 1,
              most_bytes(plan, [&](const Shape& shape) { return sender_bytes(plan, shape); })),
        report_(report) {
    Port& port = side_.first();
    line.send({{"hello", "fabric bench"},
               {"protocol", kProtocol},
               {"version", version()},
               {"plan", to_json(plan)},
               {"offer", need(port.engine.offer(port.memory, port.counter.key()), "offer")}});
    const nlohmann::json reply = side_.receive(patience(port.bytes.size()));
    const auto offers = reply.find("offers");
    const size_t expected = plan.verb == Verb::kScatter ? plan.targets : 1;
    if (offers == reply.end() || !offers->is_array() || offers->size() != expected) {
      throw Failed("what came is no message of fabric bench: no offers");
    }
    for (const nlohmann::json& offer : *offers) {
      if (!offer.is_string()) throw Failed("what came is no message of fabric bench: no offer");
      side_.offers.push_back(need(port.engine.accept(offer.get<std::string>()), "accept"));
    }
    port.other = side_.offers.front();
  }

  bool run() {
    bool right = true;
    for (const uint64_t size : side_.plan().sizes) {
      const Case one = side_.plan().verb == Verb::kIdle ? idle_case(size) : timed_case(size);
      report_.add(one);
      right = right && one.verified;
    }
    side_.line().send({{"bye", true}});
    return right;
  }

 private:
  Case timed_case(uint64_t size) {
    const auto exercise = make_exercise(side_, size);
    Case result{.size = size};
    const uint64_t operations = calibrate(*exercise, result.verified);
    for (uint32_t i = 0; i < side_.plan().repetitions && result.verified; ++i) {
      report_.progress(size, i + 1);
      result.repetitions.push_back(round(*exercise, operations, result.verified));
    }
    // Wrong already while warming up: then that is what there is to tell.
    if (result.repetitions.empty()) result.repetitions.push_back(last_);
    return result;
  }

  /// How many operations take as long as a repetition shall. It warms up as well.
  uint64_t calibrate(Exercise& exercise, bool& verified) {
    const Shape& shape = exercise.shape();
    last_ = round(exercise, 1, verified);  // connects; its time says nothing
    const uint64_t bytes = shape.stride * shape.counts;
    // Every place once: pages that a process has never touched cost it a fault each.
    last_ = round(exercise, (shape.source_bytes() + bytes - 1) / bytes, verified);
    uint64_t operations = std::clamp<uint64_t>((4u << 20) / bytes, 1, 1000);
    for (uint32_t tries = 0; tries < 12 && verified; ++tries) {
      last_ = round(exercise, operations, verified);
      const double factor = side_.plan().seconds / std::max(last_.seconds, 1e-7);
      const auto wanted = static_cast<uint64_t>(static_cast<double>(operations) * factor);
      // The first rounds are cold and short: not to be trusted by more than a factor of ten.
      if (factor < 4) return std::clamp<uint64_t>(wanted, 1, kOperationsMax);
      operations = std::min(operations * 10, std::max<uint64_t>(wanted, 1));
    }
    return operations;
  }

  Repetition round(Exercise& exercise, uint64_t operations, bool& verified) {
    begin(exercise, operations);
    const double cpu = cpu_seconds();
    const auto start = Clock::now();
    exercise.send(operations);
    Repetition out{.seconds = std::chrono::duration<double>(Clock::now() - start).count(),
                   .counts = operations * exercise.shape().counts};
    out.sender_cpu = cpu_seconds() - cpu;
    out.bytes = out.counts * exercise.shape().size;
    exercise.send_trips();
    side_.settle();
    end(exercise, out, verified);
    if (!exercise.halves.empty()) {
      out.half_p50 = percentile(exercise.halves, 0.50);
      out.half_p99 = percentile(exercise.halves, 0.99);
    }
    return out;
  }

  /// One write, so that the engines know each other, then nothing for a while.
  Case idle_case(uint64_t size) {
    const auto exercise = make_exercise(side_, size);
    Case result{.size = size};
    (void)round(*exercise, 1, result.verified);
    for (uint32_t i = 0; i < side_.plan().repetitions; ++i) {
      report_.progress(size, i + 1);
      begin(*exercise, 0);
      const double cpu = cpu_seconds();
      const auto start = Clock::now();
      std::this_thread::sleep_for(std::chrono::duration<double>(side_.plan().seconds));
      Repetition out{.seconds = std::chrono::duration<double>(Clock::now() - start).count()};
      out.sender_cpu = cpu_seconds() - cpu;
      side_.line().send({{"stop", true}});
      end(*exercise, out, result.verified);
      result.repetitions.push_back(out);
    }
    return result;
  }

  void begin(Exercise& exercise, uint64_t operations) {
    exercise.fill_source(++round_);
    side_.line().send(
        {{"round", round_}, {"size", exercise.shape().size}, {"operations", operations}});
    (void)number(side_.receive(patience(side_.first().bytes.size())), "ready");
  }

  void end(Exercise& exercise, Repetition& out, bool& verified) {
    const nlohmann::json reply = side_.receive(patience(exercise.shape().source_bytes()));
    verified = verified && number(reply, "verified") == 1 && exercise.verify_echo(round_);
    out.receiver_cpu = static_cast<double>(number(reply, "cpu_ns")) * 1e-9;
  }

  static constexpr uint64_t kOperationsMax = 1ull << 36;

  Side side_;
  Report& report_;
  uint64_t round_ = 0;
  Repetition last_{};  ///< of warming up
};

/// The receiver of a run.
class Follower {
 public:
  Follower(const Plan& plan, Line& line, const std::string& offer)
      : side_(plan, line, plan.verb == Verb::kScatter ? plan.targets : 1,
              most_bytes(plan, [&](const Shape& shape) { return receiver_bytes(plan, shape); })) {
    Json offers = Json::array();
    for (Port& port : side_.ports()) {
      offers.push_back(need(port.engine.offer(port.memory, port.counter.key()), "offer"));
    }
    side_.first().other = need(side_.first().engine.accept(offer), "accept");
    line.send({{"offers", offers}});
  }

  void run() {
    const double longest = side_.plan().seconds + patience(side_.first().bytes.size());
    for (;;) {
      const nlohmann::json order = side_.receive(longest);
      if (order.contains("bye")) return;
      const uint64_t size = number(order, "size"), operations = number(order, "operations");
      if (exercise_ == nullptr || exercise_->shape().size != size) {
        const auto& sizes = side_.plan().sizes;
        if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) {
          throw Failed("the other side asks for a size that is not in its plan");
        }
        exercise_.reset();  // first: two of them cannot listen
        exercise_ = make_exercise(side_, size);
      }
      round(number(order, "round"), operations);
    }
  }

 private:
  void round(uint64_t number_of_it, uint64_t operations) {
    exercise_->ready_target(number_of_it);
    side_.line().send({{"ready", 1u}});
    const double cpu = cpu_seconds();
    if (operations > 0) {
      exercise_->receive(operations);
    } else {
      (void)side_.receive(side_.plan().seconds + kPatienceSeconds);
    }
    const double used = cpu_seconds() - cpu;
    if (operations > 0) exercise_->receive_trips();
    side_.settle();
    const bool right = operations == 0 || exercise_->verify(number_of_it, operations);
    side_.line().send(
        {{"verified", right ? 1u : 0u}, {"cpu_ns", static_cast<uint64_t>(used * 1e9)}});
  }

  Side side_;
  std::unique_ptr<Exercise> exercise_;
};

void serve(Verb verb, const std::vector<std::string>& devices, Line& line) {
  const nlohmann::json hello = line.receive(kPatienceSeconds);
  if (!hello.contains("hello") || hello["hello"] != "fabric bench") {
    throw Failed("what came is no message of fabric bench: no hello");
  }
  if (number(hello, "protocol") != kProtocol) {
    throw Failed("the two sides are of different versions of fabric bench");
  }
  if (!hello.contains("plan") || !hello.contains("offer") || !hello["offer"].is_string()) {
    throw Failed("what came is no message of fabric bench: no plan");
  }
  Plan plan = plan_from(hello["plan"]);
  if (plan.verb != verb) {
    throw Failed(fmt::format("the sender asks for {}, the receiver for {}", to_string(plan.verb),
                             to_string(verb)));
  }
  plan.devices = devices;
  Follower(plan, line, hello["offer"].get<std::string>()).run();
}

/// So that the other side can say why. It may have gone, then nobody asks.
template <class Work>
auto or_tell(Line& line, Work work) {
  try {
    return work();
  } catch (const Failed& why) {
    try {
      line.send({{"error", why.what()}});
    } catch (const Failed&) {
    }
    throw;
  }
}

}  // namespace

bool conduct(const Plan& plan, Line& line, Report& report) {
  return or_tell(line, [&] { return Conductor(plan, line, report).run(); });
}

void follow(Verb verb, const std::vector<std::string>& devices, Line& line) {
  or_tell(line, [&] { serve(verb, devices, line); });
}

}  // namespace fabric::tool::bench
