// The threaded runtime: four threads submit, the engine's threads move the bytes, and one loop
// reads all completions from an inbox. The network is simulated, in real time.

#include <array>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include <fabric/fabric.h>
#include <fabric/sim.h>

namespace {

using namespace std::chrono_literals;

constexpr uint32_t kThreads = 4;
constexpr uint32_t kWritesPerThread = 50;
constexpr uint64_t kBytes = 4096;
constexpr uint16_t kChannel = 1;
constexpr uint64_t kMessageTag = 1u << 20;  // above every number of a write

/// The value; prints the error and exits if there is none.
template <class T>
T need(fabric::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s: %s\n", to_string(result.error().code), result.error().what);
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// Reads the inbox until every write has completed and the message has arrived. True: all
/// succeeded.
bool read_all(fabric::Inbox& inbox) {
  std::vector<bool> ended(kThreads * kWritesPerThread, false);
  uint32_t writes = 0;
  bool message = false, good = true;
  std::array<fabric::Event, 32> events;
  while (writes < ended.size() || !message) {
    need(inbox.wait(10s));  // spins a little, then sleeps
    const uint32_t n = inbox.poll(events);
    for (const fabric::Event& event : std::span(events).first(n)) {
      if (event.kind == fabric::EventKind::kMessage) {
        // The bytes are valid until the next poll().
        const auto* text = reinterpret_cast<const char*>(event.data);
        std::printf("message: %.*s\n", static_cast<int>(event.size_bytes), text);
        message = true;
      } else if (event.kind == fabric::EventKind::kDone) {
        good = good && event.code == fabric::Errc::kOk && !ended[event.tag];
        ended[event.tag] = true;
        ++writes;
      }
    }
  }
  return good;
}

}  // namespace

int main() {
  fabric::sim::World world({.realtime = true});
  fabric::Engine alice = need(world.open(world.add_node(2)));
  fabric::Engine bob = need(world.open(world.add_node(2)));
  const auto source = need(alice.allocate({.size_bytes = kBytes}));
  const auto memory = need(bob.allocate({.size_bytes = kBytes * kThreads}));
  auto counter = need(bob.make_counter());
  const auto target = need(alice.accept(need(bob.offer(memory, counter.key()))));

  // One reader, and room for everything in flight: with a full inbox submit() fails.
  auto inbox = need(alice.make_inbox(512));
  const auto listening = need(alice.listen(kChannel, fabric::Notify::inbox(inbox, kMessageTag)));

  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < kWritesPerThread; ++i) {
        need(alice.submit(
            fabric::Write{.source = source.at(0),
                          .target = target.region.at(t * kBytes),
                          .size_bytes = kBytes,
                          .imm = target.key,
                          .notify = fabric::Notify::inbox(inbox, t * kWritesPerThread + i)}));
      }
    });
  }

  // Bob sleeps until all writes are in his memory, then sends a message.
  need(counter.wait(kThreads * kWritesPerThread, 10s));
  constexpr std::string_view kText = "Bob has counted all of them";
  need(bob.submit(fabric::Send{
      .peer = bob.peers().front(), .channel = kChannel, .bytes = std::as_bytes(std::span(kText))}));
  const bool good = read_all(inbox);
  for (std::thread& thread : threads) thread.join();
  std::printf("%u writes from %u threads, each reported once\n", kThreads * kWritesPerThread,
              kThreads);
  return good ? 0 : 1;
}
