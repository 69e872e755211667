// Two processes on one host: the child writes into the parent's memory, and the parent waits until
// the write has been counted. Outside the library they only exchange a line of text, through a
// pipe.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include <fabric/fabric.h>

using namespace std::chrono_literals;

/// The value; prints the error and exits if there is none.
template <class T>
T need(fabric::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s: %s\n", to_string(result.error().code), result.error().what);
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

void receive(std::FILE* pipe) {
  auto engine = need(fabric::Engine::open({.networks = {{.provider = "shm"}}}));
  const auto memory = need(engine.allocate({.size_bytes = 64}));
  auto counter = need(engine.make_counter());
  std::fputs(need(engine.offer(memory, counter.key())).c_str(), pipe);
  std::fclose(pipe);           // the offer is sent: its holder may write here
  need(counter.wait(1, 10s));  // one write is in place, with all of its bytes
  std::printf("%d reads: %s\n", ::getpid(), reinterpret_cast<char*>(memory.bytes().data()));
}

void send(std::FILE* pipe) {
  char offer[4096] = "";
  if (std::fgets(offer, sizeof offer, pipe) == nullptr) std::exit(1);
  auto engine = need(fabric::Engine::open({.networks = {{.provider = "shm"}}}));
  const auto target = need(engine.accept(offer));
  const auto source = need(engine.allocate({.size_bytes = 64}));
  std::snprintf(reinterpret_cast<char*>(source.bytes().data()), 64, "hello from %d", ::getpid());
  auto batch = need(engine.make_batch());
  need(engine.submit(fabric::Write{.source = source.at(0),
                                   .target = target.region.at(0),
                                   .size_bytes = 64,
                                   .imm = target.key,
                                   .batch = batch}));
  need(engine.wait(batch, 10s));  // delivered: the source may be used again
}

int main() {
  int ends[2];
  if (::pipe(ends) != 0) return std::perror("pipe"), 1;
  const pid_t child = ::fork();  // before any engine is open: engines do not survive fork()
  ::close(ends[child == 0 ? 1 : 0]);
  child == 0 ? send(::fdopen(ends[0], "r")) : receive(::fdopen(ends[1], "w"));
  int status = 0;
  if (child > 0) ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
