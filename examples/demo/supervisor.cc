#include "stage.h"

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
  switch (receiver.figures.state) {
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

bool ended_well(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

}  // namespace

Stage::Stage(const RoleOptions& options, Screen& screen)
    : options_(options), screen_(screen), begun_ns_(now_ns()) {
  struct sigaction action {};
  action.sa_handler = &on_signal;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  source_ = std::make_unique<Child>("source", options_);
  show_ns_ = now_ns() + screen_.interval_ns();
  if (!run_until([this] { return source_is_up_; })) give_up("the source does not start");
}

uint32_t Stage::start_receiver() {
  RoleOptions options = options_;
  options.who = static_cast<uint32_t>(receivers_.size() + 1);
  receivers_.push_back(std::make_unique<Receiver>());
  Receiver& receiver = *receivers_.back();
  receiver.name = "decode-" + std::to_string(options.who);
  receiver.child = std::make_unique<Child>("receiver", options);
  receiver.pid = receiver.child->pid();
  if (!run_until([&] { return !receiver.offer.empty(); })) {
    give_up(receiver.name + " does not start");
  }
  return options.who;
}

void Stage::introduce(uint32_t who) {
  source_->channel().send({.kind = Note::Kind::kJoin, .who = who}, (*this)[who].offer);
}

void Stage::pace(int64_t layer_ns, int64_t request_ns) {
  source_->channel().send({.kind = Note::Kind::kPace, .since_ns = layer_ns, .at_ns = request_ns});
}

bool Stage::finish() {
  source_->channel().send({.kind = Note::Kind::kDrain});
  bool good = run_until([this] { return drained_.kind == Note::Kind::kDrained; });
  const auto living = [](const auto& receiver) { return !receiver->killed; };
  for (const auto& receiver : receivers_) {
    if (living(receiver)) receiver->child->channel().send({.kind = Note::Kind::kFinish});
  }
  good = run_until([&] {
           return std::ranges::all_of(receivers_,
                                      [&](const auto& r) { return !living(r) || r->finished; });
         }) &&
         good;
  source_->channel().send({.kind = Note::Kind::kFinish});
  // A child that hangs would hold us for ever: good order has failed by then, and they are killed.
  if (!good) return false;
  good = ended_well(source_->reap());
  for (const auto& receiver : receivers_) {
    if (living(receiver)) good = ended_well(receiver->child->reap()) && good;
  }
  return good;
}

void Stage::run_for(int64_t ns) {
  const int64_t until_ns = now_ns() + ns;
  while (now_ns() < until_ns) listen(until_ns);
}

bool Stage::run_until(const std::function<bool()>& done) {
  const int64_t until_ns = now_ns() + 30'000'000'000;
  while (!done()) {
    if (now_ns() >= until_ns) return false;
    listen(until_ns);
  }
  return true;
}

double Stage::seconds() const { return static_cast<double>(now_ns() - begun_ns_) / 1e9; }

void Stage::say(const char* format, ...) {
  char text[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  screen_.say("%4.1f s   %s", seconds(), text);
}

void Stage::listen(int64_t until_ns) {
  std::vector<pollfd> fds{{source_->channel().fd(), POLLIN, 0}};
  std::vector<Receiver*> speakers{nullptr};
  for (const auto& receiver : receivers_) {
    if (receiver->killed || receiver->finished) continue;
    fds.push_back({receiver->child->channel().fd(), POLLIN, 0});
    speakers.push_back(receiver.get());
  }
  const int64_t left_ms = (std::min(until_ns, show_ns_) - now_ns()) / 1'000'000 + 1;
  const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(left_ms, 0)));
  if (interrupted != 0) give_up("interrupted");
  if (ready < 0 && errno != EINTR) give_up("poll");
  for (size_t i = 0; ready > 0 && i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    const std::string name = i == 0 ? "the source" : speakers[i]->name;
    if (take_all(i == 0 ? *source_ : *speakers[i]->child, name)) continue;
    if (i == 0 || !speakers[i]->doomed) give_up(name + " has ended");
    speakers[i]->killed = true;
  }
  if (now_ns() >= show_ns_) show();
}

/// False: it is gone.
bool Stage::take_all(Child& child, const std::string& from) {
  while (const auto letter = child.channel().try_read()) {
    if (letter->note.kind == Note::Kind::kClosed) return false;
    take(*letter, from);
    if (letter->note.kind == Note::Kind::kLeft) break;  // its last word
  }
  return true;
}

void Stage::take(const Letter& letter, const std::string& from) {
  const Note& note = letter.note;
  if (note.kind == Note::Kind::kUp) source_is_up_ = true;
  if (note.kind == Note::Kind::kDrained) drained_ = note;
  if (note.kind == Note::Kind::kSaid) {
    say("%s: %s", from.c_str(), letter.text.c_str());
  }
  if (note.who == 0 || note.who > receivers_.size()) return;
  Receiver& receiver = (*this)[note.who];
  if (note.kind == Note::Kind::kOffer) receiver.offer = letter.text;
  if (note.kind == Note::Kind::kDying) receiver.last_word = note;
  if (note.kind == Note::Kind::kLeft) receiver.finished = true;
  // Receivers that end when all is done are no news.
  const bool over = drained_.kind == Note::Kind::kDrained;
  if (!over || note.kind != Note::Kind::kState) receiver.figures.take(note);
}

void Stage::show() {
  const int64_t now = now_ns();
  show_ns_ = std::max(show_ns_ + screen_.interval_ns(), now);
  if (!receivers_.empty()) screen_.refresh(seconds(), rows(now - 1'000'000'000, now));
}

std::vector<Row> Stage::rows(int64_t from_ns, int64_t to_ns) const {
  std::vector<Row> rows;
  for (const auto& receiver : receivers_) {
    const Figures& figures = receiver->figures;
    rows.push_back({.name = receiver->name,
                    .pid = receiver->pid,
                    .state = lower(to_string(figures.state)),
                    .tone = tone_of(*receiver),
                    .window = figures.window(from_ns, to_ns),
                    .requests = figures.requests_done,
                    .counted = figures.pages_counted,
                    .expected = figures.pages_expected,
                    .failed = figures.failures()});
  }
  return rows;
}

/// The children are killed and waited for: members first, then the process.
void Stage::give_up(const std::string& why) {
  screen_.leave();
  std::fflush(stdout);
  receivers_.clear();
  source_.reset();
  std::fprintf(stderr, "demo: %s\n", why.c_str());
  std::exit(interrupted != 0 ? 128 + interrupted : 1);
}

}  // namespace demo
