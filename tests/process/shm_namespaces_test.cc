#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "fuzz/shm_fixture.h"
#include "support/sanitizers.h"
#include "threads/engine_harness.h"

// Processes that are not like each other: of another user, of another job, and in containers. What
// can work works, and what cannot is refused with a reason.

namespace fabric::test::shm_namespaces_test {
namespace {

namespace fs = std::filesystem;
using Prepare = std::function<bool()>;

constexpr uint64_t kBytes = 256u << 10;
constexpr uid_t kNobody = 65534;

Config shm_config(std::string directory = {}) {
  Config config = engine_config();
  config.networks = {{.provider = "shm"}};
  if (!directory.empty())
    config.networks[0].options = shm::Options{.directory = std::move(directory)};
  config.lost_timeout = 20s;
  return config;
}

/// A child that exchanges lines with the test through two pipes, and exits with it.
class NamespaceChild {
 public:
  /// Runs `prepare`, which may enter other namespaces, then `body` in a second child: a new pid
  /// namespace applies only to the children of the process that unshared it.
  template <class Body>
  NamespaceChild(const Prepare& prepare, Body body) {
    int down[2], up[2];
    ::signal(SIGPIPE, SIG_IGN);  // from a child that has exited
    EXPECT_TRUE(::pipe2(down, O_CLOEXEC) == 0 && ::pipe2(up, O_CLOEXEC) == 0);
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(down[1]);  // so that it sees when the test closes its end
      ::close(up[0]);
      in_ = down[0];
      out_ = up[1];
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(60);
      if (!prepare()) {
        send(std::string("cannot: ") + std::strerror(errno));
        ::_exit(0);
      }
      const pid_t inner = ::fork();
      if (inner == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        body(*this);
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(inner, &status, 0);
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    ::close(down[0]);
    ::close(up[1]);
    in_ = up[0];
    out_ = down[1];
  }
  NamespaceChild(const NamespaceChild&) = delete;
  NamespaceChild& operator=(const NamespaceChild&) = delete;
  ~NamespaceChild() { end(); }

  void send(std::string line) const {
    line += '\n';
    const ssize_t written = ::write(out_, line.data(), line.size());
    // EPIPE: `prepare` failed and the child exited; receive() returns its message.
    EXPECT_TRUE(written == static_cast<ssize_t>(line.size()) || errno == EPIPE);
  }
  /// Empty: the child has exited.
  std::string receive() const {
    std::string line;
    for (char c = 0; ::read(in_, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  void kill() {
    ::kill(pid_, SIGKILL);  // which kills its own child as well
    end();
  }
  void end() {
    if (pid_ <= 0) return;
    ::close(out_);
    ::close(in_);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

std::string why(const Error& error) {
  return std::string(to_string(error.code)) + ": " + error.what;
}

/// Offers two regions, a mapped one and a pulled one. Sends whether the bytes are right.
void receive(NamespaceChild& test, const std::string& directory) {
  auto engine = Engine::open(shm_config(directory));
  if (!engine) return test.send(why(engine.error()));
  std::vector<std::byte> plain(kBytes);
  const auto mapped = engine->allocate({.size_bytes = kBytes});
  const auto fetched = engine->register_memory({plain.data(), plain.size()});
  auto counter = *engine->make_counter();
  test.send(*engine->offer(*mapped, counter.key()));
  test.send(*engine->offer(*fetched, counter.key()));
  if (test.receive() != "written") return;
  if (const auto counted = counter.wait(2, 20s); !counted) return test.send(why(counted.error()));
  const auto good = [](std::span<const std::byte> bytes) {
    return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{42}; });
  };
  test.send(good(mapped->bytes()) && good(plain) ? "exact" : "wrong bytes");
  test.receive();  // stays alive until the sender is done
}

/// Writes to both. Sends the result and the facts of the network.
void send(NamespaceChild& test, const std::string& directory) {
  const std::string offers[] = {test.receive(), test.receive()};
  auto engine = Engine::open(shm_config(directory));
  if (!engine) return test.send(why(engine.error()));
  const std::vector<std::byte> source(kBytes, std::byte{42});
  const auto region = engine->register_memory({const_cast<std::byte*>(source.data()), kBytes});
  auto batch = *engine->make_batch();
  for (const std::string& offer : offers) {
    const auto target = engine->accept(offer);
    if (!target) return test.send(why(target.error()));
    const auto op = engine->submit(Write{.source = region->at(0),
                                         .target = target->region.at(0),
                                         .size_bytes = kBytes,
                                         .imm = target->key,
                                         .batch = batch});
    if (!op) return test.send(why(op.error()));
  }
  if (const auto ended = engine->wait(batch, 20s); !ended) return test.send(why(ended.error()));
  test.send(batch.delivered() == 2 ? "written" : "not delivered");
  std::string facts;
  for (const RailStats& rail : engine->rail_stats()) {
    for (const auto& [name, value] : rail.facts) facts += name + "=" + value + " ";
  }
  test.send(facts);
}

/// The result of a receiver and a sender in different environments.
struct RunReport {
  std::string sent, facts, received;
};
RunReport meet(const Prepare& receiver, const Prepare& sender, const std::string& directory = {}) {
  RunReport report;
  NamespaceChild to(receiver, [&](NamespaceChild& test) { receive(test, directory); });
  NamespaceChild from(sender, [&](NamespaceChild& test) { send(test, directory); });
  for (uint32_t i = 0; i < 2; ++i) {
    const std::string offer = to.receive();
    if (offer.starts_with("cannot")) return {.sent = offer};
    from.send(offer);
  }
  report.sent = from.receive();
  if (report.sent != "written") return report;
  to.send("written");
  report.facts = from.receive();
  report.received = to.receive();
  return report;
}

bool stay() { return true; }

/// Other namespaces, as root or else below a user namespace with the same user in it.
bool leave(int namespaces) {
  if (::unshare(namespaces) == 0) return true;
  const std::string user = std::to_string(::geteuid());
  if (errno != EPERM || ::unshare(CLONE_NEWUSER | namespaces) != 0) return false;
  const UniqueFd map(::open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC));
  const std::string line = user + " " + user + " 1";
  return ::write(map.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

#define SKIP_IF_NOT_PERMITTED(report) \
  if ((report).sent.starts_with("cannot")) GTEST_SKIP() << "no namespaces here: " << (report).sent

/// A temporary directory.
class ShmDirectory : public testing::Test {
 protected:
  ShmDirectory() {
    std::string name = fs::temp_directory_path() / "fabric_spaces_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  ~ShmDirectory() override { fs::remove_all(directory_); }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_), {}));
  }
  std::string directory_;
};

// Containers

TEST(ShmSpaces, PeersWriteToEachOther) {
  const RunReport report = meet(stay, stay);
  EXPECT_EQ(report.sent, "written");
  EXPECT_EQ(report.received, "exact");
  EXPECT_EQ(report.facts.find("pid namespace"), std::string::npos) << report.facts;
}

TEST(ShmSpaces, AnotherPidNamespaceWorksAndTheFactsShowWhatIsMissing) {
  const Prepare away = [] { return leave(CLONE_NEWPID); };
  // The one inside does not see the other, and the other sees it by another number.
  const RunReport inside = meet(stay, away);
  SKIP_IF_NOT_PERMITTED(inside);
  EXPECT_EQ(inside.sent, "written");
  EXPECT_EQ(inside.received, "exact");
  EXPECT_NE(inside.facts.find("another pid namespace"), std::string::npos) << inside.facts;
  const RunReport outside = meet(away, stay);
  EXPECT_EQ(outside.sent, "written");
  EXPECT_EQ(outside.received, "exact");
  const RunReport both = meet(away, away);
  EXPECT_EQ(both.sent, "written");
  EXPECT_EQ(both.received, "exact");
}

TEST(ShmSpaces, AnotherNetworkNamespaceIsRefusedWithAHint) {
  const RunReport report = meet(stay, [] { return leave(CLONE_NEWNET); });
  SKIP_IF_NOT_PERMITTED(report);
  EXPECT_NE(report.sent.find("Unreachable"), std::string::npos) << report.sent;
  EXPECT_NE(report.sent.find("another network namespace"), std::string::npos) << report.sent;
  EXPECT_NE(report.sent.find("shm::Options::directory"), std::string::npos) << report.sent;
}

TEST_F(ShmDirectory, ASharedOneJoinsContainers) {
  const RunReport report =
      meet([] { return leave(CLONE_NEWNET | CLONE_NEWNS); },
           [] { return leave(CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWNS); }, directory_);
  SKIP_IF_NOT_PERMITTED(report);
  EXPECT_EQ(report.sent, "written");
  EXPECT_EQ(report.received, "exact");
  EXPECT_EQ(files(), 0u) << "a closed engine left a file";
}

TEST_F(ShmDirectory, OneThatIsNotSharedIsReported) {
  const Prepare hidden = [this] {
    return leave(CLONE_NEWNS) && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("none", directory_.c_str(), "tmpfs", 0, nullptr) == 0;
  };
  const RunReport report = meet(stay, hidden, directory_);
  SKIP_IF_NOT_PERMITTED(report);
  EXPECT_NE(report.sent.find("not in its directory as seen here"), std::string::npos)
      << report.sent;
}

// Files

TEST_F(ShmDirectory, FilesOfKilledEnginesAreRemovedByTheNext) {
  {
    NamespaceChild killed(stay, [&](NamespaceChild& test) { receive(test, directory_); });
    ASSERT_FALSE(killed.receive().empty());
    ASSERT_EQ(files(), 1u);
    killed.kill();
  }
  EXPECT_EQ(files(), 1u) << "no other engine was running to remove it";
  // The grandchild is killed by its own signal, which may take a moment.
  ASSERT_TRUE(eventually([&] {
    auto engine = Engine::open(shm_config(directory_));
    return engine.has_value() && files() == 1;
  }));
  EXPECT_EQ(files(), 0u);
}

TEST_F(ShmDirectory, AChildOfForkRemovesNothing) {
  if (!kForksWithThreads) GTEST_SKIP() << "the sanitizer's own locks stay held in a child";
  auto engine = std::make_unique<Engine>(*Engine::open(shm_config(directory_)));
  ASSERT_EQ(files(), 1u);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    engine.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(files(), 1u);
  engine.reset();
  EXPECT_EQ(files(), 0u);
}

TEST_F(ShmDirectory, OneThatCannotBeUsedIsAnErrorOfOpen) {
  const auto engine = Engine::open(shm_config(directory_ + "/nowhere"));
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, Errc::kPermission);
  EXPECT_NE(std::string(engine.error().what).find("directory"), std::string::npos);
}

// Other users

bool become_nobody() { return ::setresuid(kNobody, kNobody, kNobody) == 0; }

TEST(ShmUsers, AnotherUserIsRefusedWithAReason) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  for (const bool receiver : {false, true}) {
    const RunReport report = meet(receiver ? become_nobody : stay, receiver ? stay : become_nobody);
    EXPECT_NE(report.sent.find("the peer runs as another user"), std::string::npos) << report.sent;
  }
}

// An address can claim anything; the credentials of the socket decide.
TEST(ShmUsers, NoProcessListensInTheNameOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  const shm::Address address = [] {
    shm::Address made = *shm::own_address();
    made.instance = uint64_t{0xabc} << 32 | static_cast<uint32_t>(::getpid());
    return made;
  }();
  const NamespaceChild impostor(become_nobody, [&](NamespaceChild& test) {
    const auto listener = shm::listen_at(address);
    test.send(listener ? "listening" : "cannot");
    test.receive();
  });
  ASSERT_EQ(impostor.receive(), "listening");
  EXPECT_EQ(shm::connect_to(address).error().code, Errc::kPermission);
  fuzz::StepDriver driver;
  fuzz::ShmNode node(driver);
  const auto link = node.network().open_link(encode(address));
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().code, Errc::kUnreachable);
  EXPECT_NE(std::string(link.error().what).find("another user"), std::string::npos);
  impostor.send("end");
}

TEST(ShmUsers, NoProcessIsAcceptedWithTheAddressOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  fuzz::StepDriver driver;
  fuzz::ShmNode node(driver);
  const shm::Address address = node.address();
  const auto user = ::geteuid();
  const NamespaceChild impostor(become_nobody, [&](NamespaceChild& test) {
    // What connect_to() would refuse from its side is done by hand.
    fuzz::HostileProcess one(uint64_t{0xdef} << 32 | static_cast<uint32_t>(::getpid()));
    shm::Address claimed = one.address();
    claimed.user = user;
    if (!one.connect_unchecked(address) || !one.greet(&claimed)) return test.send("cannot");
    test.send("greeted");
    test.receive();
    test.send(one.send(shm::Frame(shm::Wake{})) ? "let in" : "refused");
  });
  ASSERT_EQ(impostor.receive(), "greeted");
  node.turns(4);
  impostor.send("looked");
  EXPECT_EQ(impostor.receive(), "refused");
}

// Other jobs

TEST(ShmJobs, AnotherJobKeyIsRefusedByTheCore) {
  const auto runtime = std::make_shared<InlineRuntime>();
  Config red = shm_config(), blue = shm_config();
  red.job_key = "red";
  blue.job_key = "blue";
  Engine one = *Engine::open(red, runtime), other = *Engine::open(blue, runtime);
  std::vector<Event> seen;
  Inbox inbox = *one.make_inbox(64);
  const Subscription subscription = *one.subscribe(Notify::inbox(inbox));
  const PeerId peer = *one.connect(other.address());
  const Nanos end = one.now() + 20s;
  while (one.peer_info(peer)->state < PeerState::kLost && one.now() < end) runtime->turn();
  EXPECT_EQ(one.peer_info(peer)->state, PeerState::kLost);
  runtime->turn();
  std::array<Event, 64> events;
  const uint32_t count = inbox.poll(events);
  ASSERT_GT(count, 0u);
  EXPECT_EQ(events[count - 1].code, Errc::kWrongJob);
  EXPECT_TRUE(other.peers().empty());
}

}  // namespace
}  // namespace fabric::test::shm_namespaces_test
