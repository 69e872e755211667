#include "providers/shm/socket.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace fabric::shm::shm_socket_test {
namespace {

namespace fs = std::filesystem;

/// A temporary directory.
class ShmSocket : public testing::Test {
 protected:
  ShmSocket() {
    std::string name = fs::temp_directory_path() / "fabric_socket_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  ~ShmSocket() override { fs::remove_all(directory_); }

  Address at(uint64_t instance, bool file = true) const {
    Address address = *own_address();
    address.instance = instance << 32 | static_cast<uint32_t>(::getpid());
    if (file) address.directory = directory_;
    return address;
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_), {}));
  }

  std::string directory_;
};

std::vector<std::byte> bytes(size_t count, uint8_t value = 1) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

TEST_F(ShmSocket, AnAddressNamesTheHostAndTheUser) {
  const auto one = own_address();
  ASSERT_TRUE(one);
  EXPECT_EQ(*one, *own_address());
  EXPECT_NE(one->host, Address{}.host);
  EXPECT_NE(one->net_namespace, 0u);
  EXPECT_EQ(one->user, ::geteuid());
}

TEST_F(ShmSocket, FramesKeepTheirBoundariesAndCarryTheirDescriptors) {
  for (const bool file : {false, true}) {
    const Address address = at(1, file);
    auto listener = listen_at(address);
    ASSERT_TRUE(listener);
    auto out = connect_to(address);
    ASSERT_TRUE(out);
    const UniqueFd in(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK));
    ASSERT_TRUE(in);
    EXPECT_EQ(credentials(in.get())->pid, ::getpid());
    EXPECT_EQ(credentials(in.get())->user, ::geteuid());

    std::vector<std::byte> buffer(64);
    EXPECT_EQ(receive_frame(in.get(), buffer).kind, Received::Kind::kNothing);
    const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const int two[] = {null.get(), null.get()};
    EXPECT_EQ(send_frame(out->get(), bytes(3), bytes(4, 2), two), SendStatus::kSent);
    EXPECT_EQ(send_frame(out->get(), bytes(1, 9), {}, {}), SendStatus::kSent);
    const Received first = receive_frame(in.get(), buffer);
    ASSERT_EQ(first.kind, Received::Kind::kFrame);
    EXPECT_EQ(first.size_bytes, 7u);
    EXPECT_EQ(buffer[3], std::byte{2});
    ASSERT_EQ(first.descriptor_count, 2u);
    EXPECT_EQ(::fcntl(first.descriptors[1].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    const Received second = receive_frame(in.get(), buffer);
    EXPECT_EQ(second.size_bytes, 1u);
    EXPECT_EQ(second.descriptor_count, 0u);
    out->reset();
    EXPECT_EQ(receive_frame(in.get(), buffer).kind, Received::Kind::kClosed);
    unlisten(address);
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(ShmSocket, AFrameThatIsTooLongClosesTheConnection) {
  const Address address = at(2, false);
  const auto listener = listen_at(address);
  const auto out = connect_to(address);
  const UniqueFd in(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK));
  std::vector<std::byte> buffer(64);
  ASSERT_EQ(send_frame(out->get(), bytes(64), {}, {}), SendStatus::kSent);
  EXPECT_EQ(receive_frame(in.get(), buffer).kind, Received::Kind::kFrame);
  ASSERT_EQ(send_frame(out->get(), bytes(65), {}, {}), SendStatus::kSent);
  EXPECT_EQ(receive_frame(in.get(), buffer).kind, Received::Kind::kClosed);
}

TEST_F(ShmSocket, AFullOneHasNoRoomAndAClosedOneIsBroken) {
  const Address address = at(3, false);
  auto listener = listen_at(address);
  const auto out = connect_to(address);
  UniqueFd in(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK));
  uint32_t sent = 0;
  while (send_frame(out->get(), bytes(1), {}, {}) == SendStatus::kSent && sent < 1'000'000) ++sent;
  EXPECT_EQ(send_frame(out->get(), bytes(1), {}, {}), SendStatus::kFull);
  std::vector<std::byte> buffer(64);
  while (receive_frame(in.get(), buffer).kind == Received::Kind::kFrame) --sent;
  EXPECT_EQ(sent, 0u);
  EXPECT_EQ(send_frame(out->get(), bytes(1), {}, {}), SendStatus::kSent);
  in.reset();
  EXPECT_EQ(send_frame(out->get(), bytes(1), {}, {}), SendStatus::kBroken);
}

TEST_F(ShmSocket, ReportsWhyNoEngineIsReachable) {
  EXPECT_EQ(connect_to(at(4, false)).error().code, Errc::kUnreachable);
  EXPECT_EQ(connect_to(at(4)).error().code, Errc::kNotFound);
  { const auto gone = listen_at(at(5)); }
  EXPECT_EQ(connect_to(at(5)).error().code, Errc::kUnreachable);
  Address nowhere = at(6);
  nowhere.directory = directory_ + "/nowhere";
  EXPECT_EQ(listen_at(nowhere).error().code, Errc::kPermission);
  EXPECT_EQ(connect_to(nowhere).error().code, Errc::kNotFound);
  nowhere.directory = "/proc";
  EXPECT_FALSE(listen_at(nowhere));
}

TEST_F(ShmSocket, TheLongestDirectoryStillHasRoomForTheName) {
  Address address = at(7);
  address.directory += "/" + std::string(kDirectoryBytesMax - directory_.size() - 1, 'd');
  ASSERT_EQ(address.directory.size(), kDirectoryBytesMax);
  fs::create_directory(address.directory);
  address.instance = UINT64_MAX;
  const auto listener = listen_at(address);
  ASSERT_TRUE(listener);
  EXPECT_TRUE(connect_to(address));
  unlisten(address);
  EXPECT_TRUE(fs::is_empty(address.directory));
}

TEST_F(ShmSocket, RemovesOnlyTheSocketsOfDeadEngines) {
  const auto alive = listen_at(at(1));
  { const auto dead = listen_at(at(2)); }
  ASSERT_EQ(files(), 2u);
  std::ofstream(directory_ + "/fabric-00000000000000aa") << "a file that only has such a name";
  std::ofstream(directory_ + "/fabric-") << "so has this one";
  std::ofstream(directory_ + "/other");
  fs::create_symlink("/dev/null", directory_ + "/fabric-00000000000000bb");
  remove_stale_sockets(directory_);
  EXPECT_TRUE(connect_to(at(1)));
  EXPECT_EQ(connect_to(at(2)).error().code, Errc::kNotFound);
  EXPECT_EQ(files(), 5u);
  remove_stale_sockets(directory_ + "/nowhere");
  unlisten(at(1));
  EXPECT_EQ(files(), 4u);
}

// Between its name and its first listener a socket looks like that of a dead engine, and a
// remove_stale_sockets would take it away.
TEST_F(ShmSocket, AFileGetsItsNameOnlyAfterListen) {
  const UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(::inotify_add_watch(watch.get(), directory_.c_str(), IN_CREATE | IN_MOVED_TO), 0);
  const auto listener = listen_at(at(8));
  ASSERT_TRUE(listener && connect_to(at(8)));
  const std::string name = fs::directory_iterator(directory_)->path().filename();
  alignas(inotify_event) char events[4096];
  const ssize_t got = ::read(watch.get(), events, sizeof(events));
  uint32_t moved = 0;
  for (ssize_t i = 0; i < got;) {
    const auto* event = reinterpret_cast<const inotify_event*>(events + i);
    EXPECT_TRUE(event->name != name || event->mask == IN_MOVED_TO)
        << "the socket must appear by rename only";
    moved += event->name == name;
    i += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  EXPECT_EQ(moved, 1u);
  unlisten(at(8));
}

}  // namespace
}  // namespace fabric::shm::shm_socket_test
