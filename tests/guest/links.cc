#include "guest/links.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "base/unique_fd.h"

namespace fabric::test {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPorts[] = {"a0", "a1", "b0", "b1"};

std::set<std::string>& lossy() {
  static std::set<std::string> ports;
  return ports;
}

void tc(const std::string& arguments) {
  const std::string command = "tc qdisc " + arguments;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

sockaddr_in address_of(char host, char rail, uint16_t port) {
  const std::string text = std::string("10.9.") + rail + (host == 'a' ? ".1" : ".2");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, text.c_str(), &address.sin_addr);
  return address;
}

UniqueFd bound(const sockaddr_in& address) {
  UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  EXPECT_EQ(::bind(fd.get(), at, sizeof address), 0) << std::strerror(errno);
  return fd;
}

/// One datagram gets from this port to the other end of its rail.
bool passes(char host, char rail) {
  constexpr uint16_t kProbe = 9;
  const char other = host == 'a' ? 'b' : 'a';
  const sockaddr_in target = address_of(other, rail, kProbe);
  const UniqueFd here = bound(address_of(host, rail, 0)), there = bound(target);
  for (int tries = 0; tries < 100; ++tries) {
    const auto* to = reinterpret_cast<const sockaddr*>(&target);
    if (::sendto(here.get(), "?", 1, MSG_DONTWAIT, to, sizeof target) != 1) {
      std::this_thread::sleep_for(50ms);  // its route is on the way
      continue;
    }
    pollfd ready{there.get(), POLLIN, 0};
    if (::poll(&ready, 1, 50) == 1) return true;
  }
  return false;
}

}  // namespace

bool in_guest() {
  for (const char* port : kPorts) {
    if (!std::filesystem::exists(std::string("/sys/class/infiniband/x") + port)) return false;
  }
  return true;
}

void set_link(const std::string& port, bool up) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, port.c_str(), IFNAMSIZ - 1);
  ASSERT_EQ(::ioctl(fd.get(), SIOCGIFFLAGS, &request), 0) << port << ": " << std::strerror(errno);
  const auto flag = static_cast<short>(IFF_UP);
  request.ifr_flags = static_cast<short>(up ? request.ifr_flags | flag : request.ifr_flags & ~flag);
  ASSERT_EQ(::ioctl(fd.get(), SIOCSIFFLAGS, &request), 0) << port << ": " << std::strerror(errno);
}

void set_netem(const std::string& port, const std::string& words) {
  tc("replace dev " + port + " root netem " + words);
  lossy().insert(port);
}

void clear_netem(const std::string& port) {
  if (lossy().erase(port) != 0) tc("del dev " + port + " root");
}

void heal_all() {
  if (!in_guest()) return;
  for (const char* port : kPorts) {
    clear_netem(port);
    set_link(port, true);
  }
  for (const char rail : {'0', '1'}) {
    for (const char host : {'a', 'b'}) {
      EXPECT_TRUE(passes(host, rail)) << "rail " << rail << " from host " << host;
    }
  }
}

}  // namespace fabric::test
