#include "guest/host_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include <gtest/gtest.h>

#include <fabric/fabric.h>

#include "guest/stream.h"

namespace fabric::test {
namespace {

void say(int to, std::string line) {
  line += '\n';
  if (::write(to, line.data(), line.size()) != static_cast<ssize_t>(line.size())) ::_exit(1);
}

/// Empty: nobody is there any more.
std::string hear(int from) {
  std::string line;
  for (char c = 0; ::read(from, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

/// What the child does. Its words are all that anybody sees of it.
void serve(int from, int to, uint64_t engine_id) {
  if (hear(from) != "open") return;
  Config config = guest_config('b');
  config.log_sink = {};
  config.engine_id = engine_id;
  auto engine = Engine::open(config);
  if (!engine) return say(to, std::string("no engine: ") + engine.error().what);
  auto region = engine->allocate({.size_bytes = Party::kBytes});
  auto counter = engine->make_counter();
  if (!region || !counter) return say(to, "no region or counter");
  say(to, *engine->offer(*region, counter->key()));
  for (std::string question; !(question = hear(from)).empty();) {
    if (question == "count") {
      say(to, std::to_string(counter->count()));
    } else {
      const auto value = static_cast<std::byte>(std::stoul(question.substr(6)));
      say(to, std::to_string(std::ranges::count(region->bytes(), value)));
    }
  }
}

}  // namespace

Party::Party(uint64_t engine_id) {
  int down[2], up[2];
  EXPECT_TRUE(::pipe2(down, O_CLOEXEC) == 0 && ::pipe2(up, O_CLOEXEC) == 0);
  std::fflush(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(down[1]);
    ::close(up[0]);
    serve(down[0], up[1], engine_id);
    ::_exit(0);
  }
  ::close(down[0]);
  ::close(up[1]);
  to_ = down[1];
  from_ = up[0];
}

std::string Party::ask(const std::string& question) {
  say(to_, question);
  const std::string answer = hear(from_);
  EXPECT_FALSE(answer.empty()) << "the other process is gone";
  return answer.empty() ? "0" : answer;
}

uint64_t Party::count_of(uint64_t at_least) {
  for (int looks = 0; looks < 1000 && count() < at_least; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return count();
}

void Party::stop() {
  ::kill(pid_, SIGSTOP);
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
}

void Party::go_on() { ::kill(pid_, SIGCONT); }

void Party::kill() {
  ::kill(pid_, SIGKILL);
  end();
}

void Party::end() {
  if (pid_ <= 0) return;
  ::close(to_);
  ::close(from_);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace fabric::test
