#include "guest/links.h"

#include <arpa/inet.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>
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
  const std::string command = "tc " + arguments;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

constexpr std::string_view kBlackHole = "blackhole", kFifo = "pfifo";
constexpr uint32_t kDataBand = 0x10001;  // "1:1"

/// One queue in the place of another. By hand: to start tc takes a tenth of a second here, and by
/// then all that was in flight has landed.
void replace_queue(const std::string& port, uint32_t parent, std::string_view kind) {
  struct {
    nlmsghdr head{};
    tcmsg body{};
    rtattr attribute{};
    std::array<char, 12> name{};
  } request;
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = RTM_NEWQDISC;
  request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
  request.body.tcm_ifindex = static_cast<int>(::if_nametoindex(port.c_str()));
  request.body.tcm_parent = parent;
  request.attribute.rta_type = TCA_KIND;
  request.attribute.rta_len = RTA_LENGTH(kind.size() + 1);
  std::ranges::copy(kind, request.name.begin());
  struct {
    nlmsghdr head{};
    nlmsgerr error{};
    std::array<char, 512> rest{};
  } answer;
  const UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  ASSERT_EQ(::send(fd.get(), &request, sizeof request, 0), static_cast<ssize_t>(sizeof request));
  ASSERT_GE(::recv(fd.get(), &answer, sizeof answer, 0),
            static_cast<ssize_t>(NLMSG_LENGTH(sizeof answer.error)));
  ASSERT_EQ(answer.error.error, 0) << port << ": " << std::strerror(-answer.error.error);
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
  tc("qdisc replace dev " + port + " root netem " + words);
  lossy().insert(port);
}

void lose_all(const std::string& port) {
  replace_queue(port, TC_H_ROOT, kBlackHole);
  lossy().insert(port);
}

void set_control_netem(const std::string& port, const std::string& words) {
  // Two bands of one queue: RoCE (and ARP) takes the first, all other UDP the second.
  tc("qdisc replace dev " + port + " root handle 1: prio bands 2 priomap" +
     " 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0");
  tc("qdisc add dev " + port + " parent 1:2 netem " + words);
  const std::string filter = "filter add dev " + port + " parent 1: protocol ip prio ";
  tc(filter + "1 u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:1");
  tc(filter + "2 u32 match ip protocol 17 0xff flowid 1:2");
  lossy().insert(port);
}

void set_data_lost(const std::string& port, bool lost) {
  replace_queue(port, kDataBand, lost ? kBlackHole : kFifo);
}

ControlTraffic control_traffic(const std::string& port) {
  const std::string command = "tc -s qdisc show dev " + port + " parent 1:2";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::array<char, 256> line{};
  unsigned long passed = 0, lost = 0;
  bool found = false;
  while (pipe != nullptr && std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    found |= std::sscanf(line.data(), " Sent %*u bytes %lu pkt (dropped %lu,", &passed, &lost) == 2;
  }
  EXPECT_TRUE(found) << command;
  return {passed, lost};
}

void clear_netem(const std::string& port) {
  if (lossy().erase(port) != 0) tc("qdisc del dev " + port + " root");
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
