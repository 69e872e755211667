#include "supervisor.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "clock.h"

namespace demo {

namespace {

using Kind = MessageHeader::Kind;

volatile std::sig_atomic_t interrupted = 0;

void on_signal(int number) { interrupted = number; }

const char* role_name(Process::Role role) {
  return role == Process::Role::kRouter      ? "router"
         : role == Process::Role::kPrefiller ? "prefiller"
                                             : "decoder";
}

Tone tone_of(const Process& process) {
  if (process.state == "serving") return Tone::kGood;
  return process.state == "killed" ? Tone::kBad : Tone::kWarn;
}

}  // namespace

Supervisor::Supervisor(const RoleOptions& options, Screen& screen)
    : options_(options), screen_(screen), begun_ns_(now_ns()) {
  struct sigaction action {};
  action.sa_handler = &on_signal;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  refresh_ns_ = now_ns() + screen_.interval_ns();
}

Supervisor::~Supervisor() = default;

Process& Supervisor::start(Process::Role role, const std::string& name) {
  processes_.push_back(std::make_unique<Process>());
  Process& process = *processes_.back();
  process.role = role;
  process.name = name;
  process.child = std::make_unique<Child>(std::vector<std::string>{
      "--role", role_name(role), name, options_.network,
      std::to_string(options_.peer_timeout.count()), std::to_string(options_.lost_timeout.count()),
      options_.attention == transformer::Attention::kLatent ? "mla" : "gqa"});
  process.pid = process.child->pid();
  if (!run_until([&] { return !process.address.empty(); })) abort_demo(name + " did not start");
  process.state = "serving";
  if (role != Process::Role::kRouter) {
    process.child->control().send({.kind = Kind::kSeed}, (*this)["router"].address);
  }
  return process;
}

Process* Supervisor::find(const std::string& name) {
  const auto at = std::ranges::find(processes_, name, [](const auto& p) { return p->name; });
  return at == processes_.end() ? nullptr : at->get();
}

Process& Supervisor::operator[](const std::string& name) {
  Process* process = find(name);
  if (process == nullptr) abort_demo("no process " + name);
  return *process;
}

bool Supervisor::kill(const std::string& name) {
  Process& process = (*this)[name];
  process.may_end = true;
  process.child->signal(SIGKILL);
  if (!run_until([&] { return process.ended; })) return false;
  std::erase_if(processes_, [&](const auto& each) { return each.get() == &process; });
  return true;
}

void Supervisor::run_for(int64_t ns) {
  const int64_t until_ns = now_ns() + ns;
  while (now_ns() < until_ns) poll_children(until_ns);
}

bool Supervisor::run_until(const std::function<bool()>& done) {
  const int64_t until_ns = now_ns() + 30'000'000'000;
  while (!done()) {
    if (now_ns() >= until_ns) return false;
    poll_children(until_ns);
  }
  return true;
}

double Supervisor::seconds() const { return static_cast<double>(now_ns() - begun_ns_) / 1e9; }

void Supervisor::note(const std::string& member, const std::string& text) {
  records_.events.push_back({.at_ns = now_ns(), .member = member, .text = text});
  screen_.print_line("%4.1f s   %s%s%s", seconds(), member.c_str(), member.empty() ? "" : " ",
                     text.c_str());
}

void Supervisor::poll_children(int64_t until_ns) {
  std::vector<pollfd> fds;
  std::vector<Process*> senders;
  for (const auto& process : processes_) {
    if (process->ended) continue;
    fds.push_back({process->child->control().fd(), POLLIN, 0});
    senders.push_back(process.get());
  }
  const int64_t left_ms = (std::min(until_ns, refresh_ns_) - now_ns()) / 1'000'000 + 1;
  const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(left_ms, 0)));
  if (interrupted != 0) abort_demo("interrupted");
  if (ready < 0 && errno != EINTR) abort_demo("poll");
  for (size_t i = 0; ready > 0 && i < fds.size(); ++i) {
    if (fds[i].revents == 0 || take_all(*senders[i])) continue;
    if (!senders[i]->may_end) abort_demo(senders[i]->name + " has ended");
    senders[i]->ended = true;
  }
  if (now_ns() >= refresh_ns_) refresh();
}

/// False: the child has closed its socket.
bool Supervisor::take_all(Process& process) {
  while (const auto message = process.child->control().try_read()) {
    if (message->header.kind == Kind::kClosed) return false;
    take(*message, process);
  }
  return true;
}

void Supervisor::take(const Message& message, Process& process) {
  const MessageHeader& header = message.header;
  records_.take(message, process.name);
  switch (header.kind) {
    case Kind::kReady:
      process.address = message.text;
      break;
    case Kind::kWarning:
      note(process.name, "warns: " + message.text);
      break;
    case Kind::kStatus:
      process.status = header;
      break;
    case Kind::kStopping:
      process.stopping = header;
      break;
    case Kind::kFinished:
      process.finished = header;
      process.may_end = true;
      break;
    case Kind::kIdle:
      idle_ = true;
      break;
    case Kind::kListed:
      // A member that was killed and forgotten leaves the directory later.
      if (Process* member = find(message.text)) member->listed = header.code != 0;
      note(message.text, header.code != 0 ? "joins the directory" : "leaves the directory");
      break;
    case Kind::kSentAgain:
      note("request " + std::to_string(header.request),
           "is sent again to " + message.text.substr(0, message.text.find(' ')) + ", for " +
               message.text.substr(message.text.find(' ') + 1));
      break;
    default:
      break;
  }
}

void Supervisor::refresh() {
  const int64_t now = now_ns();
  refresh_ns_ = std::max(refresh_ns_ + screen_.interval_ns(), now);
  if (processes_.size() < 5) return;
  screen_.refresh(seconds(), totals(now - 1'000'000'000, now), rows(now - 1'000'000'000, now));
}

std::vector<Row> Supervisor::rows(int64_t from_ns, int64_t to_ns) const {
  std::vector<Row> rows;
  for (const auto& process : processes_) {
    Row row{.name = process->name,
            .pid = process->pid,
            .state = process->state,
            .tone = tone_of(*process),
            .requests = process->status.wrong,
            .decodes = process->role == Process::Role::kDecoder,
            .pages = process->status.count,
            .free = process->status.extra,
            .flowing = process->status.code,
            .fenced = process->status.attempt};
    if (row.decodes) row.window = records_.window(process->name, from_ns, to_ns);
    if (process->role == Process::Role::kRouter) row.requests = records_.requests.size();
    rows.push_back(row);
  }
  return rows;
}

Totals Supervisor::totals(int64_t from_ns, int64_t to_ns) const {
  Totals totals{.submitted = records_.requests.size(),
                .answered = records_.answered(),
                .sent_again = records_.sent_again(),
                .window = records_.window({}, from_ns, to_ns)};
  for (const auto& process : processes_) totals.members += process->listed ? 1 : 0;
  return totals;
}

/// Kills the children, waits for them and exits.
void Supervisor::abort_demo(const std::string& why) {
  screen_.leave();
  std::fflush(stdout);
  processes_.clear();
  std::fprintf(stderr, "demo: %s\n", why.c_str());
  std::exit(interrupted != 0 ? 128 + interrupted : 1);
}

}  // namespace demo
