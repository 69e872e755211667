#include "supervisor.h"

#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "model.h"

namespace demo {

namespace {

volatile std::sig_atomic_t interrupted = 0;

void on_signal(int number) { interrupted = number; }

Tone tone_of(const Receiver& receiver) {
  switch (receiver.stats.state) {
    case fabric::PeerState::kConnected:
      return Tone::kGood;
    case fabric::PeerState::kConnecting:
      return Tone::kPlain;
    case fabric::PeerState::kStalled:
      return Tone::kWarn;
    default:
      return Tone::kBad;
  }
}

bool exited_ok(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

}  // namespace

DemoSupervisor::DemoSupervisor(const RoleOptions& options, Screen& screen)
    : options_(options), screen_(screen), begun_ns_(now_ns()) {
  struct sigaction action {};
  action.sa_handler = &on_signal;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  source_ = std::make_unique<Child>("source", options_);
  refresh_ns_ = now_ns() + screen_.interval_ns();
  if (!run_until([this] { return source_is_up_; })) abort_demo("the source did not start");
}

uint32_t DemoSupervisor::start_receiver() {
  RoleOptions options = options_;
  options.receiver_id = static_cast<uint32_t>(receivers_.size() + 1);
  receivers_.push_back(std::make_unique<Receiver>());
  Receiver& receiver = *receivers_.back();
  receiver.name = "decode-" + std::to_string(options.receiver_id);
  receiver.child = std::make_unique<Child>("receiver", options);
  receiver.pid = receiver.child->pid();
  if (!run_until([&] { return !receiver.offer.empty(); })) {
    abort_demo(receiver.name + " did not start");
  }
  return options.receiver_id;
}

void DemoSupervisor::connect_source_to(uint32_t receiver_id) {
  source_->control().send({.kind = MessageHeader::Kind::kJoin, .receiver_id = receiver_id},
                          (*this)[receiver_id].offer);
}

void DemoSupervisor::pace(int64_t layer_ns, int64_t request_ns) {
  source_->control().send(
      {.kind = MessageHeader::Kind::kPace, .since_ns = layer_ns, .at_ns = request_ns});
}

bool DemoSupervisor::finish() {
  source_->control().send({.kind = MessageHeader::Kind::kDrain});
  bool good = run_until([this] { return drained_.kind == MessageHeader::Kind::kDrained; });
  const auto running = [](const auto& receiver) { return !receiver->killed; };
  for (const auto& receiver : receivers_) {
    if (running(receiver)) receiver->child->control().send({.kind = MessageHeader::Kind::kFinish});
  }
  good = run_until([&] {
           return std::ranges::all_of(receivers_,
                                      [&](const auto& r) { return !running(r) || r->finished; });
         }) &&
         good;
  source_->control().send({.kind = MessageHeader::Kind::kFinish});
  // Do not wait for a child that hangs: the destructors kill all of them.
  if (!good) return false;
  good = exited_ok(source_->reap());
  for (const auto& receiver : receivers_) {
    if (running(receiver)) good = exited_ok(receiver->child->reap()) && good;
  }
  return good;
}

void DemoSupervisor::run_for(int64_t ns) {
  const int64_t until_ns = now_ns() + ns;
  while (now_ns() < until_ns) poll_children(until_ns);
}

bool DemoSupervisor::run_until(const std::function<bool()>& done) {
  const int64_t until_ns = now_ns() + 30'000'000'000;
  while (!done()) {
    if (now_ns() >= until_ns) return false;
    poll_children(until_ns);
  }
  return true;
}

double DemoSupervisor::seconds() const { return static_cast<double>(now_ns() - begun_ns_) / 1e9; }

void DemoSupervisor::print_line(const char* format, ...) {
  char text[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  screen_.print_line("%4.1f s   %s", seconds(), text);
}

void DemoSupervisor::poll_children(int64_t until_ns) {
  std::vector<pollfd> fds{{source_->control().fd(), POLLIN, 0}};
  std::vector<Receiver*> senders{nullptr};
  for (const auto& receiver : receivers_) {
    if (receiver->killed || receiver->finished) continue;
    fds.push_back({receiver->child->control().fd(), POLLIN, 0});
    senders.push_back(receiver.get());
  }
  const int64_t left_ms = (std::min(until_ns, refresh_ns_) - now_ns()) / 1'000'000 + 1;
  const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(left_ms, 0)));
  if (interrupted != 0) abort_demo("interrupted");
  if (ready < 0 && errno != EINTR) abort_demo("poll");
  for (size_t i = 0; ready > 0 && i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    const std::string name = i == 0 ? "the source" : senders[i]->name;
    if (take_all(i == 0 ? *source_ : *senders[i]->child, name)) continue;
    if (i == 0 || !senders[i]->kill_requested) abort_demo(name + " has ended");
    senders[i]->killed = true;
  }
  if (now_ns() >= refresh_ns_) refresh();
}

/// False: the child has closed its socket.
bool DemoSupervisor::take_all(Child& child, const std::string& from) {
  while (const auto message = child.control().try_read()) {
    if (message->header.kind == MessageHeader::Kind::kClosed) return false;
    take(*message, from);
    if (message->header.kind == MessageHeader::Kind::kFinished) break;  // the last message
  }
  return true;
}

void DemoSupervisor::take(const Message& message, const std::string& from) {
  const MessageHeader& header = message.header;
  if (header.kind == MessageHeader::Kind::kReady) source_is_up_ = true;
  if (header.kind == MessageHeader::Kind::kDrained) drained_ = header;
  if (header.kind == MessageHeader::Kind::kWarning) {
    print_line("%s: %s", from.c_str(), message.text.c_str());
  }
  if (header.receiver_id == 0 || header.receiver_id > receivers_.size()) return;
  Receiver& receiver = (*this)[header.receiver_id];
  if (header.kind == MessageHeader::Kind::kOffer) receiver.offer = message.text;
  if (header.kind == MessageHeader::Kind::kDying) receiver.death_report = header;
  if (header.kind == MessageHeader::Kind::kFinished) receiver.finished = true;
  // State changes after the drain come from receivers that exit as planned.
  const bool drained = drained_.kind == MessageHeader::Kind::kDrained;
  if (!drained || header.kind != MessageHeader::Kind::kState) receiver.stats.take(header);
}

void DemoSupervisor::refresh() {
  const int64_t now = now_ns();
  refresh_ns_ = std::max(refresh_ns_ + screen_.interval_ns(), now);
  if (!receivers_.empty()) screen_.refresh(seconds(), rows(now - 1'000'000'000, now));
}

std::vector<Row> DemoSupervisor::rows(int64_t from_ns, int64_t to_ns) const {
  std::vector<Row> rows;
  for (const auto& receiver : receivers_) {
    const ReceiverStats& stats = receiver->stats;
    rows.push_back({.name = receiver->name,
                    .pid = receiver->pid,
                    .state = lower(to_string(stats.state)),
                    .tone = tone_of(*receiver),
                    .window = stats.window(from_ns, to_ns),
                    .requests = stats.requests_done,
                    .counted = stats.pages_counted,
                    .expected = stats.pages_expected,
                    .failed = stats.failures()});
  }
  return rows;
}

/// Kills the children, waits for them and exits.
void DemoSupervisor::abort_demo(const std::string& why) {
  screen_.leave();
  std::fflush(stdout);
  receivers_.clear();
  source_.reset();
  std::fprintf(stderr, "demo: %s\n", why.c_str());
  std::exit(interrupted != 0 ? 128 + interrupted : 1);
}

}  // namespace demo
