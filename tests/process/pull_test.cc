#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "providers/shm/pull.h"

// Reading a process that does not cooperate, dies, calls exec(), is not dumpable, or has another
// beacon.

namespace fabric::shm::pull_test {
namespace {

using Method = Puller::Method;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPages = 64;
constexpr uint64_t kSize = kPages * kPage;
constexpr uint64_t kHole = 20;  ///< the page that a source unmaps on request

std::byte byte_at(uint64_t place) { return static_cast<std::byte>(place * 131 + place / kPage); }

void die_with_parent() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(60);
}

void send_file(int line, int file) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof(room);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &file, sizeof(int));
  }
  (void)!::sendmsg(line, &message, MSG_NOSIGNAL);
}

UniqueFd receive_file(int line) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  if (::recvmsg(line, &message, MSG_CMSG_CLOEXEC) != 1) return {};
  const cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (head == nullptr) return {};
  int file = -1;
  std::memcpy(&file, CMSG_DATA(head), sizeof(int));
  return UniqueFd(file);
}

/// A child with its own bytes at addresses where the parent has other bytes.
class Source {
 public:
  /// `then` runs in the child after its memory file was opened, before the test continues.
  explicit Source(const std::function<void()>& then = {}) {
    bytes_ = static_cast<std::byte*>(
        ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    static uint64_t sources = 0;
    Rng rng(++sources);
    for (std::byte& byte : lit_) byte = static_cast<std::byte>(rng.next());
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    socket_.reset(ends[0]);
    pid_ = ::fork();
    if (pid_ == 0) {
      die_with_parent();
      beacon_ = lit_;
      for (uint64_t i = 0; i < kSize; ++i) bytes_[i] = byte_at(i);
      const UniqueFd own = open_own_memory();
      if (then) then();
      send_file(ends[1], own.get());
      obey(ends[1]);
    }
    ::close(ends[1]);
    memory_ = receive_file(socket_.get());
  }
  ~Source() {
    end();
    ::munmap(bytes_, kSize);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  int32_t pid() const { return pid_; }
  Beacon beacon() const { return {reinterpret_cast<uint64_t>(beacon_.data()), lit_}; }
  UniqueFd memory() const { return UniqueFd(::fcntl(memory_.get(), F_DUPFD_CLOEXEC, 0)); }
  uint64_t at(uint64_t place) const { return reinterpret_cast<uint64_t>(bytes_) + place; }

  /// h: unmaps a page. b: overwrites the beacon. d: becomes non-dumpable. x: calls exec().
  void request(char what) {
    EXPECT_EQ(::send(socket_.get(), &what, 1, MSG_NOSIGNAL), 1);
    char answer = 0;
    // exec() closes the socket.
    EXPECT_EQ(::recv(socket_.get(), &answer, 1, 0), what == 'x' ? 0 : 1);
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);  // dead, and a zombie
  }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  [[noreturn]] void obey(int line) {
    for (char what = 0; ::recv(line, &what, 1, 0) == 1;) {
      if (what == 'h') ::munmap(bytes_ + kHole * kPage, kPage);
      if (what == 'b') beacon_.fill(std::byte{0});
      if (what == 'd') ::prctl(PR_SET_DUMPABLE, 0);
      if (what == 'x') ::execl("/bin/sleep", "sleep", "60", nullptr);
      (void)!::send(line, &what, 1, MSG_NOSIGNAL);
    }
    ::_exit(0);
  }

  static inline std::array<std::byte, Beacon::kBytes> beacon_{};
  std::array<std::byte, Beacon::kBytes> lit_{};
  std::byte* bytes_ = nullptr;
  pid_t pid_ = -1;
  UniqueFd socket_{}, memory_{};
};

Puller puller(const Source& source, Method method) {
  Puller out;
  const bool ok = method == Method::kProcessVm ? out.try_process(source.pid(), source.beacon())
                                               : out.try_mem_file(source.memory(), source.beacon());
  EXPECT_TRUE(ok) << to_string(method) << ": " << out.last_error().what << out.last_error().native;
  EXPECT_EQ(out.method(), method);
  return out;
}

class Pull : public testing::TestWithParam<Method> {
 protected:
  void SetUp() override { ::alarm(60); }
  void TearDown() override { ::alarm(0); }

  Errc pull(Puller& from, uint64_t source, uint64_t bytes) {
    const Extent extent{source, target.data(), bytes};
    return from.read({&extent, 1}).error().code;
  }
  bool arrived(uint64_t place, uint64_t bytes) const {
    for (uint64_t i = 0; i < bytes; ++i) {
      if (target[i] != byte_at(place + i)) return false;
    }
    return true;
  }

  std::vector<std::byte> target = std::vector<std::byte>(kSize);
};

INSTANTIATE_TEST_SUITE_P(Ways, Pull, testing::Values(Method::kProcessVm, Method::kMemFile),
                         [](const auto& method) {
                           return method.param == Method::kProcessVm ? "Process" : "MemFile";
                         });

TEST_P(Pull, ReadsTheBytesOfTheSource) {
  const Source source;
  Puller from = puller(source, GetParam());
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, kPage, kPage + 1, kSize}) {
    ASSERT_EQ(pull(from, source.at(0), size), Errc::kOk);
    EXPECT_TRUE(arrived(0, size)) << size;
  }
  ASSERT_EQ(pull(from, source.at(kPage - 3), 7), Errc::kOk);
  EXPECT_TRUE(arrived(kPage - 3, 7));
  EXPECT_TRUE(from.read({}));
}

TEST_P(Pull, ManyExtentsAreReadTogetherEachToItsTarget) {
  const Source source;
  Puller from = puller(source, GetParam());
  // More than two calls take, of odd sizes.
  const uint64_t count = 2 * Puller::kExtentsMax + 3;
  const uint64_t size = kSize / count;
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t from_end = count - 1 - i;
    extents.push_back(
        {source.at(from_end * size), target.data() + from_end * size, i % 50 == 7 ? 0 : size});
  }
  ASSERT_TRUE(from.read(extents));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t place = (count - 1 - i) * size;
    for (uint64_t b = 0; b < size; ++b) {
      const std::byte want = i % 50 == 7 ? std::byte{0} : byte_at(place + b);
      ASSERT_EQ(target[place + b], want) << i;
    }
  }
}

TEST_P(Pull, AdjacentExtentsMayHaveScatteredTargets) {
  const Source source;
  Puller from = puller(source, GetParam());
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < kPages; ++i) {
    // Three adjacent ones, then one from elsewhere.
    const uint64_t place = i % 4 == 3 ? kPages - 1 - i / 4 : i;
    extents.push_back({source.at(place * kPage), target.data() + (i * 5 % kPages) * kPage, kPage});
  }
  ASSERT_TRUE(from.read(extents));
  for (uint64_t i = 0; i < kPages; ++i) {
    const uint64_t place = i % 4 == 3 ? kPages - 1 - i / 4 : i;
    const std::byte* page = target.data() + (i * 5 % kPages) * kPage;
    for (uint64_t b = 0; b < kPage; ++b) ASSERT_EQ(page[b], byte_at(place * kPage + b)) << i;
  }
}

TEST_P(Pull, AMissingPageIsRefusedAndTheOthersAreRead) {
  Source source;
  Puller from = puller(source, GetParam());
  source.request('h');
  EXPECT_EQ(pull(from, source.at(kHole * kPage), kPage), Errc::kRemoteAccess);
  EXPECT_EQ(pull(from, source.at(kHole * kPage - 10), 20), Errc::kRemoteAccess);
  EXPECT_EQ(pull(from, source.at(0), kSize), Errc::kRemoteAccess);
  const Extent both[] = {{source.at(0), target.data(), kPage},
                         {source.at(kHole * kPage), target.data() + kPage, 1}};
  EXPECT_EQ(from.read(both).error().code, Errc::kRemoteAccess);
  ASSERT_EQ(pull(from, source.at((kHole + 1) * kPage), 5 * kPage), Errc::kOk);
  EXPECT_TRUE(arrived((kHole + 1) * kPage, 5 * kPage));
}

TEST_P(Pull, UnmappedAddressesAreRefused) {
  const Source source;
  Puller from = puller(source, GetParam());
  for (const uint64_t address :
       {uint64_t{0}, uint64_t{8}, uint64_t{1} << 47, uint64_t{1} << 62, uint64_t{INT64_MAX} - 4,
        uint64_t{1} << 63, UINT64_MAX - 15, UINT64_MAX}) {
    EXPECT_EQ(pull(from, address, 16), Errc::kRemoteAccess) << std::hex << address;
  }
  EXPECT_EQ(pull(from, source.at(0), kPage), Errc::kOk);
}

TEST_P(Pull, OfADeadProcessFails) {
  Source source;
  Puller from = puller(source, GetParam());
  source.kill();
  EXPECT_EQ(pull(from, source.at(0), kPage), Errc::kPeerLost) << "a zombie";
  source.end();
  EXPECT_EQ(pull(from, source.at(0), kPage), Errc::kPeerLost);
}

TEST_P(Pull, OfAProcessThatCalledExecFails) {
  Source source;
  Puller from = puller(source, GetParam());
  source.request('x');
  EXPECT_EQ(pull(from, source.at(0), kPage), Errc::kPeerLost);
}

TEST_P(Pull, AProcessIsIdentifiedByItsBeacon) {
  const Source source, other;
  Puller from;
  const auto attempt = [&](const Source& which, const Beacon& beacon) {
    return GetParam() == Method::kProcessVm ? from.try_process(which.pid(), beacon)
                                            : from.try_mem_file(which.memory(), beacon);
  };
  EXPECT_FALSE(attempt(other, source.beacon())) << "the pid of another process";
  EXPECT_EQ(from.last_error().code, Errc::kPeerLost);
  Beacon wrong = source.beacon();
  wrong.value[15] ^= std::byte{1};
  EXPECT_FALSE(attempt(source, wrong));
  EXPECT_FALSE(attempt(source, {.address = 1, .value = wrong.value}));
  EXPECT_FALSE(attempt(source, {.address = UINT64_MAX - 3, .value = wrong.value}));
  EXPECT_EQ(from.method(), Method::kNone);
  EXPECT_EQ(pull(from, source.at(0), 1), Errc::kUnsupported);
  EXPECT_TRUE(attempt(source, source.beacon()));
  EXPECT_EQ(from.last_error().code, Errc::kOk);
  // A method that works stays when another attempt fails.
  EXPECT_FALSE(attempt(other, source.beacon()));
  EXPECT_EQ(pull(from, source.at(0), kPage), Errc::kOk);
  EXPECT_TRUE(arrived(0, kPage));
}

TEST(PullProcess, OfAnInvalidPidIsNotTried) {
  const Source source;
  Puller from;
  EXPECT_FALSE(from.try_process(0, source.beacon()));
  EXPECT_FALSE(from.try_process(-1, source.beacon()));
  EXPECT_EQ(from.last_error().code, Errc::kUnsupported);
}

TEST_F(Pull, OfAProcessWithAnotherBeaconFails) {
  Source source;
  Puller from = puller(source, Method::kProcessVm);
  source.request('b');
  EXPECT_EQ(pull(from, source.at(0), kPage), Errc::kPeerLost);
}

TEST(PullMemFile, OfAnotherFileIsClosedUnread) {
  ::alarm(60);  // reading some of these would block forever
  const Source source;
  const Beacon beacon = source.beacon();
  const auto refused = [&](UniqueFd file, const char* what) {
    ASSERT_TRUE(file) << what;
    const int number = file.get();
    Puller from;
    EXPECT_FALSE(from.try_mem_file(std::move(file), beacon)) << what;
    EXPECT_EQ(from.last_error().code, Errc::kBadFormat) << what;
    EXPECT_EQ(::fcntl(number, F_GETFD), -1) << what << " is closed";
  };
  const auto open = [](const char* path) { return UniqueFd(::open(path, O_RDONLY | O_CLOEXEC)); };
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd other_end(ends[1]);
  refused(UniqueFd(ends[0]), "a pipe");
  refused(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), "a socket");
  refused(UniqueFd(::eventfd(0, EFD_CLOEXEC)), "an eventfd");
  refused(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)), "an epoll");
  refused(open("/proc/self/maps"), "another file of procfs");
  refused(open("/proc/self"), "a folder of procfs");
  refused(open("/dev/zero"), "a device");
  // A file that has the right bytes at the right place.
  UniqueFd forged(::memfd_create("mem", MFD_CLOEXEC));
  ASSERT_EQ(::pwrite(forged.get(), beacon.value.data(), beacon.value.size(),
                     static_cast<off_t>(beacon.address)),
            static_cast<ssize_t>(beacon.value.size()));
  refused(std::move(forged), "a forged one");
  // And one that has the right name.
  std::string folder = testing::TempDir() + "fabric_pull_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/mem";
  refused(UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)), "a plain file");
  ::unlink(path.c_str());
  ::rmdir(folder.c_str());
  Puller from;
  EXPECT_FALSE(from.try_mem_file({}, beacon));
  EXPECT_EQ(from.last_error().code, Errc::kUnsupported);
  ::alarm(0);
}

TEST(PullMemFile, CannotBeUsedToWrite) {
  const Source source;
  const UniqueFd memory = source.memory();
  const std::byte byte{};
  EXPECT_EQ(::pwrite(memory.get(), &byte, 1, static_cast<off_t>(source.at(0))), -1);
}

/// Runs `body` as an unprivileged user.
void without_privileges(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && (::setresgid(kNobody, kNobody, kNobody) != 0 ||
                             ::setresuid(kNobody, kNobody, kNobody) != 0)) {
      ::_exit(2);
    }
    die_with_parent();
    ::prctl(PR_SET_DUMPABLE, 1);  // cleared by the change of user
    body();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_P(Pull, NeedsNoPrivileges) {
  without_privileges([&] {
    const Source source;
    Puller from = puller(source, GetParam());
    EXPECT_EQ(pull(from, source.at(0), kSize), Errc::kOk);
    EXPECT_TRUE(arrived(0, kSize));
  });
}

TEST_F(Pull, OfANonDumpableProcessUsesTheFileThatItSent) {
  without_privileges([&] {
    const Source source([] { ::prctl(PR_SET_DUMPABLE, 0); });
    Puller from;
    EXPECT_FALSE(from.try_process(source.pid(), source.beacon()));
    EXPECT_EQ(from.last_error().code, Errc::kPermission);
    EXPECT_EQ(from.method(), Method::kNone);
    ASSERT_TRUE(from.try_mem_file(source.memory(), source.beacon()));
    EXPECT_EQ(from.method(), Method::kMemFile);
    EXPECT_EQ(pull(from, source.at(0), kSize), Errc::kOk);
    EXPECT_TRUE(arrived(0, kSize));
  });
}

TEST_F(Pull, OfAProcessThatBecomesNonDumpableIsDeniedAndMayUseTheFile) {
  without_privileges([&] {
    Source source;
    Puller from = puller(source, Method::kProcessVm);
    source.request('d');
    EXPECT_EQ(pull(from, source.at(0), kSize), Errc::kPermission);
    ASSERT_TRUE(from.try_mem_file(source.memory(), source.beacon()));
    EXPECT_EQ(pull(from, source.at(0), kSize), Errc::kOk);
    EXPECT_TRUE(arrived(0, kSize));
  });
}

TEST(PullMemFile, IsNotAvailableToANonDumpableProcess) {
  without_privileges([] {
    EXPECT_TRUE(open_own_memory());
    EXPECT_EQ(::prctl(PR_SET_DUMPABLE, 0), 0);
    EXPECT_FALSE(open_own_memory());
  });
}

}  // namespace
}  // namespace fabric::shm::pull_test
