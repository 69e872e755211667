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

void write_line(int to, std::string line) {
  line += '\n';
  if (::write(to, line.data(), line.size()) != static_cast<ssize_t>(line.size())) ::_exit(1);
}

/// Empty: the other end is closed.
std::string read_line(int from) {
  std::string line;
  for (char c = 0; ::read(from, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

/// The child's loop: one line of output for each line of input.
void serve(int from, int to, uint64_t engine_id) {
  if (read_line(from) != "open") return;
  Config config = guest_config('b');
  config.log_sink = {};
  config.engine_id = engine_id;
  auto engine = Engine::open(config);
  if (!engine) return write_line(to, std::string("no engine: ") + engine.error().what);
  auto region = engine->allocate({.size_bytes = HostProcess::kBytes});
  auto counter = engine->make_counter();
  if (!region || !counter) return write_line(to, "no region or counter");
  write_line(to, *engine->offer(*region, counter->key()));
  for (std::string question; !(question = read_line(from)).empty();) {
    if (question == "count") {
      write_line(to, std::to_string(counter->count()));
    } else {
      const auto value = static_cast<std::byte>(std::stoul(question.substr(6)));
      write_line(to, std::to_string(std::ranges::count(region->bytes(), value)));
    }
  }
}

}  // namespace

HostProcess::HostProcess(uint64_t engine_id) {
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

std::string HostProcess::ask(const std::string& question) {
  write_line(to_, question);
  const std::string answer = read_line(from_);
  EXPECT_FALSE(answer.empty()) << "the other process has exited";
  return answer.empty() ? "0" : answer;
}

uint64_t HostProcess::count_of(uint64_t at_least) {
  for (int looks = 0; looks < 1000 && count() < at_least; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return count();
}

void HostProcess::stop() {
  ::kill(pid_, SIGSTOP);
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
}

void HostProcess::resume() { ::kill(pid_, SIGCONT); }

void HostProcess::kill() {
  ::kill(pid_, SIGKILL);
  end();
}

void HostProcess::end() {
  if (pid_ <= 0) return;
  ::close(to_);
  ::close(from_);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace fabric::test
