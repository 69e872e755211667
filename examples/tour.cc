// A short tour on the simulator: eight promises of the library, each shown and checked. Exits with
// 1 if one does not hold. `make tour` runs it.

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fabric/fabric.h>
#include <fabric/sim.h>

namespace {

using namespace std::chrono_literals;
using fabric::sim::NicModel;
using fabric::sim::World;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

// Printing and checking.

int checked = 0;
int failed = 0;

void heading(const char* title) {
  static int number = 0;
  std::printf("\n%d. %s\n", ++number, title);
}

[[gnu::format(printf, 2, 3)]] void check(bool holds, const char* format, ...) {
  ++checked;
  if (!holds) ++failed;
  std::printf("   %s  ", holds ? "[ok]" : "[FAILED]");
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("\n");
}

[[gnu::format(printf, 1, 2)]] void note(const char* format, ...) {
  std::printf("   ");
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("\n");
}

/// The value of a call that fails only if the tour itself is wrong.
template <class T>
T need(fabric::Result<T> result, const char* call) {
  if (!result) {
    std::printf("   [FAILED]  %s: %s (%s)\n", call, to_string(result.error().code),
                result.error().what);
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

double micros(fabric::Nanos time) { return static_cast<double>(time.count()) / 1e3; }

double gigabytes_per_second(uint64_t bytes, fabric::Nanos time) {
  return static_cast<double>(bytes) / static_cast<double>(time.count());
}

// Hosts.

/// An engine with memory to send from or to receive into.
struct SimHost {
  fabric::Engine engine;
  fabric::MemoryRegion memory;
};

SimHost make_host(World& world, uint32_t nics, const NicModel& model, uint64_t bytes) {
  auto engine = need(world.open(world.add_node(nics, model)), "open");
  auto memory = need(engine.allocate({.size_bytes = bytes}), "allocate");
  return {std::move(engine), std::move(memory)};
}

/// Bytes that depend on their offset, so that a misplaced byte is detected.
void fill(const SimHost& host, uint64_t salt) {
  const auto bytes = host.memory.bytes();
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>((i * 0x9e3779b97f4a7c15u + salt) >> 56);
  }
}

bool same_bytes(const SimHost& a, uint64_t a_offset, const SimHost& b, uint64_t b_offset,
                uint64_t size) {
  return std::ranges::equal(a.memory.bytes().subspan(a_offset, size),
                            b.memory.bytes().subspan(b_offset, size));
}

std::vector<std::byte> snapshot(const SimHost& host) {
  return {host.memory.bytes().begin(), host.memory.bytes().end()};
}

bool unchanged(const SimHost& host, const std::vector<std::byte>& before) {
  return std::ranges::equal(host.memory.bytes(), before);
}

/// Connects `sender` to `receiver`, opens every rail, and imports the receiver's memory.
fabric::RemoteRegion connect(World& world, SimHost& sender, const SimHost& receiver) {
  const auto peer =
      need(sender.engine.connect(receiver.engine.address(), {.warm = true}), "connect");
  world.run_for(1ms);
  const auto desc = need(receiver.memory.desc(), "desc");
  return need(sender.engine.import_region(peer, desc), "import_region");
}

fabric::PeerId only_peer(const SimHost& host) { return host.engine.peers().front(); }

/// How many NICs of a host have sent bytes.
uint32_t busy_nics(const SimHost& host) {
  const auto rails = host.engine.rail_stats();
  return static_cast<uint32_t>(std::ranges::count_if(
      rails, [](const auto& rail) { return rail.network == "sim" && rail.tx.bytes > 0; }));
}

// The eight parts.

void one_write_counts_once() {
  heading("One write, four NICs, one count");
  World world;
  SimHost sender = make_host(world, 4, NicModel::connectx7(), 64 * kMiB);
  SimHost receiver = make_host(world, 4, NicModel::connectx7(), 64 * kMiB);
  const auto target = connect(world, sender, receiver);
  const auto counter = need(receiver.engine.make_counter(), "make_counter");
  fill(sender, 1);

  const auto start = world.now();
  need(sender.engine.submit(fabric::Write{.source = sender.memory.at(0),
                                          .target = target.at(0),
                                          .size_bytes = 64 * kMiB,
                                          .imm = counter.key()}),
       "submit");
  world.run_until([&] { return counter.count() > 0; }, 1s);
  const auto took = world.now() - start;
  note("64 MiB, striped over 4 NICs of 400 Gb/s: %.0f us, %.0f GB/s (simulated).", micros(took),
       gigabytes_per_second(64 * kMiB, took));
  check(same_bytes(sender, 0, receiver, 0, 64 * kMiB),
        "when the count arrived, every byte was in place");
  world.run_for(1s);
  check(busy_nics(sender) == 4, "all 4 NICs carried a shard of it");
  check(counter.count() == 1, "4 shards arrived and the count is 1, also a second later");
}

/// Records the order in which pages become complete at the receiver.
class ArrivalOrder {
 public:
  ArrivalOrder(const SimHost& from, const SimHost& to, uint64_t page_bytes, uint32_t pages)
      : from_(from), to_(to), page_bytes_(page_bytes), seen_(pages, false) {}

  void update() {
    for (uint32_t page = 0; page < seen_.size(); ++page) {
      const uint64_t at = page * page_bytes_;
      if (seen_[page] || !same_bytes(from_, at, to_, at, page_bytes_)) continue;
      seen_[page] = true;
      ++arrived_;
      if (page < newest_) ++overtaken_;
      newest_ = std::max(newest_, page);
    }
  }
  uint32_t arrived() const { return arrived_; }
  uint32_t overtaken() const { return overtaken_; }  ///< pages that a later one overtook

 private:
  const SimHost& from_;
  const SimHost& to_;
  uint64_t page_bytes_;
  std::vector<bool> seen_;
  uint32_t arrived_ = 0, overtaken_ = 0, newest_ = 0;
};

void order_does_not_matter() {
  heading("A network that reorders: 1000 pages, one count each");
  constexpr uint32_t kPages = 1000;
  constexpr uint64_t kPageBytes = 4 * kKiB;
  World world;
  SimHost sender = make_host(world, 2, NicModel::efa_200g(), kPages * kPageBytes);
  SimHost receiver = make_host(world, 2, NicModel::efa_200g(), kPages * kPageBytes);
  const auto target = connect(world, sender, receiver);
  const auto counter = need(receiver.engine.make_counter(), "make_counter");
  fill(sender, 2);

  ArrivalOrder order(sender, receiver, kPageBytes, kPages);
  bool count_too_early = false;
  std::vector<uint32_t> pages(kPages);
  for (uint32_t i = 0; i < kPages; ++i) pages[i] = i;
  const auto start = world.now();
  need(sender.engine.submit(fabric::PagedWrite{.source = sender.memory.id(),
                                               .source_pages = {pages, kPageBytes},
                                               .target = target,
                                               .target_pages = {pages, kPageBytes},
                                               .page_bytes = kPageBytes,
                                               .imm = counter.key()}),
       "submit");
  const auto update_and_check = [&] {  // at every step of the world
    order.update();
    count_too_early = count_too_early || counter.count() > order.arrived();
    return counter.count() >= kPages;
  };
  world.run_until(update_and_check, 1s);
  note("1000 pages of 4 KiB over 2 NICs like EFA: %.0f us, %.1f GB/s (simulated).",
       micros(world.now() - start), gigabytes_per_second(kPages * kPageBytes, world.now() - start));
  check(order.overtaken() > 0, "%u pages were overtaken by a later one", order.overtaken());
  check(!count_too_early, "the count was never ahead of the bytes");
  check(counter.count() == kPages && order.arrived() == kPages,
        "finally 1000 counts, and every byte of every page is correct");
}

void two_halves_are_not_a_whole() {
  heading("Two halves are not a whole");
  World world;
  SimHost sender = make_host(world, 2, NicModel::connectx7(), 8 * kMiB);
  SimHost receiver = make_host(world, 2, NicModel::connectx7(), 8 * kMiB);
  const auto target = connect(world, sender, receiver);
  const auto shared = need(receiver.engine.make_counter(), "make_counter");
  const auto first = need(receiver.engine.make_counter(), "make_counter");
  const auto second = need(receiver.engine.make_counter(), "make_counter");
  const auto arrived = [&](uint64_t offset) {
    return same_bytes(sender, offset, receiver, offset, kMiB);
  };
  // A large write, unsplit, keeps one NIC busy: of the two writes that follow, only the shards on
  // the other NIC arrive at first.
  const auto submit_three = [&](uint64_t salt, fabric::CounterKey key_a, fabric::CounterKey key_b) {
    fill(sender, salt);
    const std::array writes = {fabric::Write{.source = sender.memory.at(0),
                                             .target = target.at(0),
                                             .size_bytes = 4 * kMiB,
                                             .unsplit = true},
                               fabric::Write{.source = sender.memory.at(4 * kMiB),
                                             .target = target.at(4 * kMiB),
                                             .size_bytes = kMiB,
                                             .imm = key_a},
                               fabric::Write{.source = sender.memory.at(5 * kMiB),
                                             .target = target.at(5 * kMiB),
                                             .size_bytes = kMiB,
                                             .imm = key_b}};
    need(sender.engine.submit(writes), "submit");
  };

  submit_three(3, shared.key(), shared.key());
  world.run_until([&] { return shared.count() == 1; }, 1s);
  note("Two writes of 1 MiB with one counter key, each striped over two NICs; one NIC is busy.");
  check(shared.count() == 1 && !arrived(4 * kMiB) && !arrived(5 * kMiB),
        "the count is 1, and neither write is complete: too early to read");
  world.run_until([&] { return shared.count() == 2; }, 1s);
  check(arrived(4 * kMiB) && arrived(5 * kMiB),
        "the count is 2, as many as were sent to the key: now both are complete");

  submit_three(4, first.key(), second.key());
  bool early_count = false;
  const auto update = [&] {  // at every step of the world
    early_count = early_count || (first.count() > 0 && !arrived(4 * kMiB)) ||
                  (second.count() > 0 && !arrived(5 * kMiB));
    return first.count() == 1 && second.count() == 1;
  };
  world.run_until(update, 1s);
  check(!early_count && arrived(4 * kMiB) && arrived(5 * kMiB),
        "with a key for each write, a count is 1 only when its write is complete");
}

void eight_against_three() {
  heading("Eight NICs against three");
  World world;
  SimHost large = make_host(world, 8, NicModel::connectx7(), 8 * kMiB);
  SimHost small = make_host(world, 3, NicModel::connectx7(), 8 * kMiB);
  const auto to_small = connect(world, large, small);
  const auto to_large = connect(world, small, large);
  const auto at_small = need(small.engine.make_counter(), "make_counter");
  const auto at_large = need(large.engine.make_counter(), "make_counter");
  // One byte more and one less than a power of two, one byte, and an empty write.
  const std::array<uint64_t, 4> sizes = {2 * kMiB + 1, 2 * kMiB - 1, 1, 0};

  const auto send = [&](SimHost& from, SimHost& to, fabric::RemoteRegion target,
                        const fabric::Counter& counter) {
    uint64_t offset = 0;
    for (const uint64_t size : sizes) {
      need(from.engine.submit(fabric::Write{.source = from.memory.at(offset),
                                            .target = target.at(offset),
                                            .size_bytes = size,
                                            .imm = counter.key()}),
           "submit");
      offset += size;
    }
    world.run_until([&] { return counter.count() == sizes.size(); }, 1s);
    return counter.count() == sizes.size() && same_bytes(from, 0, to, 0, offset);
  };
  const auto info = need(large.engine.peer_info(only_peer(large)), "peer_info");
  note("%u NICs here, %u there. Writes of 2 MiB + 1, 2 MiB - 1, 1 and 0 bytes, in both directions.",
       info.rails_here, info.rails_there);
  fill(large, 5);
  check(send(large, small, to_small, at_small), "8 to 3: 4 writes, 4 counts, every byte correct");
  check(busy_nics(large) == 8, "all 8 NICs sent");
  fill(small, 6);
  check(send(small, large, to_large, at_large), "3 to 8: 4 writes, 4 counts, every byte correct");
}

void one_of_four_is_closed() {
  heading("A scatter to four peers, one of them closed");
  World world;
  SimHost sender = make_host(world, 2, NicModel::connectx7(), 4 * kMiB);
  std::vector<SimHost> receivers;
  std::vector<fabric::Counter> counters;
  std::vector<fabric::ScatterTarget> targets;
  fill(sender, 7);
  for (uint64_t i = 0; i < 4; ++i) {
    receivers.push_back(make_host(world, 2, NicModel::connectx7(), kMiB));
    counters.push_back(need(receivers[i].engine.make_counter(), "make_counter"));
    targets.push_back({.target = connect(world, sender, receivers[i]).at(0),
                       .source_offset = i * kMiB,
                       .size_bytes = kMiB,
                       .imm = counters[i].key()});
  }
  const fabric::PeerId closed_peer = sender.engine.peers()[2];
  need(receivers[2].engine.close(), "close");

  const auto batch = need(sender.engine.make_batch(), "make_batch");
  need(sender.engine.submit(
           fabric::Scatter{.source = sender.memory.id(), .targets = targets, .batch = batch}),
       "submit");
  const auto end = sender.engine.wait(batch, 1s);
  note("The third host has closed its engine. One request, four targets.");
  check(!end && end.error().code == fabric::Errc::kPeerLost, "the request completes with %s",
        to_string(end.error().code));
  bool served = true;
  for (const uint64_t i : {0, 1, 3}) {
    served =
        served && counters[i].count() == 1 && same_bytes(sender, i * kMiB, receivers[i], 0, kMiB);
  }
  check(served && batch.delivered() == 3, "the other three have their bytes and their counts");
  fabric::Failure failure;
  const uint32_t failures = batch.failures({&failure, 1});
  check(failures == 1 && failure.part == 2 && failure.peer == closed_peer &&
            failure.remote == fabric::Remote::kNotDelivered && batch.unknown() == 0,
        "the failed part is identified: target %u of 4, %s, %s", failure.part + 1,
        to_string(failure.code), to_string(failure.remote));
}

void nothing_lands_after_a_cancel() {
  heading("After a cancel nothing lands");
  constexpr uint32_t kWrites = 64;
  World world;
  SimHost sender = make_host(world, 2, NicModel::connectx7(), kWrites * kMiB);
  SimHost receiver = make_host(world, 2, NicModel::connectx7(), kWrites * kMiB);
  const auto target = connect(world, sender, receiver);
  const auto counter = need(receiver.engine.make_counter(), "make_counter");
  const auto batch = need(sender.engine.make_batch(), "make_batch");
  fill(sender, 8);
  for (uint32_t i = 0; i < kWrites; ++i) {
    need(sender.engine.submit(fabric::Write{.source = sender.memory.at(i * kMiB),
                                            .target = target.at(i * kMiB),
                                            .size_bytes = kMiB,
                                            .imm = counter.key(),
                                            .priority = fabric::Priority::kBulk,
                                            .batch = batch}),
         "submit");
  }
  world.run_for(200us);
  need(sender.engine.cancel(batch), "cancel");
  const auto end = sender.engine.wait(batch, 1s);
  const uint64_t delivered = batch.delivered();
  note("64 writes of 1 MiB, cancelled after 200 us of simulated time.");
  check(!end && end.error().code == fabric::Errc::kCancelled && delivered > 0 &&
            delivered + batch.failed() == kWrites && batch.unknown() == 0,
        "%llu were delivered, %llu were not, none is unknown",
        static_cast<unsigned long long>(delivered),
        static_cast<unsigned long long>(batch.failed()));
  const auto before = snapshot(receiver);
  fill(sender, 9);  // The source may be reused: a late read of it would change the target.
  world.run_for(10s);
  check(unchanged(receiver, before), "10 simulated seconds later not one byte has changed");
  check(counter.count() == delivered, "the receiver has counted exactly those %llu",
        static_cast<unsigned long long>(counter.count()));
}

void memory_is_taken_back() {
  heading("Taking memory back from a peer that keeps writing");
  World world;
  SimHost writer = make_host(world, 2, NicModel::connectx7(), 8 * kMiB);
  SimHost owner = make_host(world, 2, NicModel::connectx7(), kMiB);
  const auto target = connect(world, writer, owner);
  const auto writes = need(writer.engine.make_batch(), "make_batch");
  fill(writer, 10);
  fabric::Errc refused = fabric::Errc::kOk;
  uint64_t turn = 0;
  const auto write_until = [&](const auto& done) {
    const auto step = [&] {
      while (refused == fabric::Errc::kOk && writes.pending() < 8) {
        const auto op =
            writer.engine.submit(fabric::Write{.source = writer.memory.at(turn++ % 8 * kMiB),
                                               .target = target.at(0),
                                               .size_bytes = kMiB,
                                               .batch = writes});
        refused = op.error().code;
      }
      return done();
    };
    return world.run_until(step, 1s);
  };
  write_until([&] { return writes.delivered() >= 100; });

  const auto deregistration = need(owner.engine.make_batch(), "make_batch");
  need(
      owner.engine.submit(fabric::Deregister{.region = owner.memory.id(), .batch = deregistration}),
      "submit");
  const bool ended = write_until([&] { return deregistration.pending() == 0; });
  const auto before = snapshot(owner);
  note("A peer overwrites 1 MiB over and over; after 100 times the owner deregisters it.");
  check(ended && deregistration.failed() == 0,
        "the deregistration succeeds: no write can land any more");
  write_until([] { return false; });
  check(unchanged(owner, before), "from then on not one byte changes");
  check(refused == fabric::Errc::kNotFound, "the writer's next submit is refused: %s",
        to_string(refused));
}

/// Runs 100 writes in a small world; returns its trace hash and final time.
std::pair<uint64_t, fabric::Nanos> busy_world(uint64_t seed) {
  World world({.seed = seed, .drop_control = 0.1});
  SimHost sender = make_host(world, 3, NicModel::efa_200g(), kMiB);
  SimHost receiver = make_host(world, 2, NicModel::efa_200g(), kMiB);
  const auto target = connect(world, sender, receiver);
  auto counter = need(receiver.engine.make_counter(), "make_counter");
  for (uint64_t i = 0; i < 100; ++i) {
    need(sender.engine.submit(fabric::Write{.source = sender.memory.at(0),
                                            .target = target.at(0),
                                            .size_bytes = i * 10 * kKiB,
                                            .imm = counter.key()}),
         "submit");
  }
  need(counter.wait(100, 10s), "wait");
  return {world.trace_hash(), world.now()};
}

void the_same_seed_is_the_same_run() {
  heading("The same seed is the same run");
  const auto [hash, time] = busy_world(42);
  const auto again = busy_world(42);
  const auto other = busy_world(43);
  note("100 writes on a network that reorders, with a tenth of the control messages lost.");
  check(again.first == hash && again.second == time,
        "seed 42, twice: trace %016llx, %.3f us, identical", static_cast<unsigned long long>(hash),
        micros(time));
  check(other.first != hash, "seed 43 is another run: trace %016llx",
        static_cast<unsigned long long>(other.first));
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a pipe gets each line at once
  std::printf("fabric-lib %s: a tour in eight parts.\n\n", fabric::version());
  std::printf(
      "Programs move bytes with one-sided writes. The receiver takes no part in a transfer:\n"
      "it counts arrivals. The network here is simulated: it carries real bytes, but its times\n"
      "are computed from a model of each NIC, not measured.\n");
  one_write_counts_once();
  order_does_not_matter();
  two_halves_are_not_a_whole();
  eight_against_three();
  one_of_four_is_closed();
  nothing_lands_after_a_cancel();
  memory_is_taken_back();
  the_same_seed_is_the_same_run();
  if (failed > 0) {
    std::printf("\n%d of %d checks FAILED.\n", failed, checked);
    return 1;
  }
  std::printf("\nAll %d checks passed. All promises: docs/contracts.md.\n", checked);
  return 0;
}
