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
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "base/unique_fd.h"

namespace fabric::test {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPorts[] = {"a0", "a1", "b0", "b1", "c0", "c1"};

std::set<std::string>& lossy() {
  static std::set<std::string> ports;
  return ports;
}

/// Takes several lines of arguments, for one start of the program.
void tc(const std::string& lines) {
  FILE* const pipe = ::popen("tc -batch -", "w");
  ASSERT_NE(pipe, nullptr);
  std::fputs((lines + "\n").c_str(), pipe);
  EXPECT_EQ(::pclose(pipe), 0) << lines;
}

constexpr std::string_view kBlackHole = "blackhole", kFifo = "pfifo";

/// One queue in the place of another. By hand: to start tc takes a tenth of a second here, and by
/// then all that was in flight has landed.
void replace_queue(const std::string& port, uint32_t parent, std::string_view kind,
                   std::span<const std::byte> options = {}) {
  constexpr size_t kRoom = 128;
  struct {
    nlmsghdr head{};
    tcmsg body{};
    std::array<std::byte, kRoom> attributes{};
  } request;
  size_t used = 0;
  const auto add = [&](uint16_t type, std::span<const std::byte> value) {
    const rtattr attribute{static_cast<uint16_t>(RTA_LENGTH(value.size())), type};
    std::memcpy(request.attributes.data() + used, &attribute, sizeof attribute);
    std::memcpy(request.attributes.data() + used + sizeof attribute, value.data(), value.size());
    used += RTA_SPACE(value.size());
  };
  const std::string name(kind);
  add(TCA_KIND, std::as_bytes(std::span(name.c_str(), name.size() + 1)));
  if (!options.empty()) add(TCA_OPTIONS, options);
  request.head.nlmsg_len = static_cast<uint32_t>(sizeof request - kRoom + used);
  request.head.nlmsg_type = RTM_NEWQDISC;
  request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
  request.body.tcm_ifindex = static_cast<int>(::if_nametoindex(port.c_str()));
  request.body.tcm_parent = parent;
  struct {
    nlmsghdr head{};
    nlmsgerr error{};
    std::array<char, 512> rest{};
  } answer;
  const UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  ASSERT_EQ(::send(fd.get(), &request, request.head.nlmsg_len, 0),
            static_cast<ssize_t>(request.head.nlmsg_len));
  ASSERT_GE(::recv(fd.get(), &answer, sizeof answer, 0),
            static_cast<ssize_t>(NLMSG_LENGTH(sizeof answer.error)));
  ASSERT_EQ(answer.error.error, 0) << port << ": " << std::strerror(-answer.error.error);
}

void replace_by_delay(const std::string& port, uint32_t parent, std::chrono::nanoseconds time) {
  constexpr int64_t kTickNs = 64;  // of the kernel's packet schedulers
  const tc_netem_qopt options{.latency = static_cast<uint32_t>(time.count() / kTickNs),
                              .limit = 100'000};
  replace_queue(port, parent, "netem", std::as_bytes(std::span(&options, 1)));
}

constexpr uint32_t parent_of(Band band) { return 0x10000 + static_cast<uint32_t>(band); }

sockaddr_in address_of(char host, char rail, uint16_t port) {
  const std::string text = std::string("10.9.") + rail + "." + static_cast<char>('1' + host - 'a');
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

/// One datagram gets from this port to another one of its rail.
bool passes(char host, char other, char rail) {
  constexpr uint16_t kProbe = 9;
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

void set_netem(const std::string& port, const std::string& parameters) {
  tc("qdisc replace dev " + port + " root netem " + parameters);
  lossy().insert(port);
}

void lose_all(const std::string& port) {
  replace_queue(port, TC_H_ROOT, kBlackHole);
  lossy().insert(port);
}

void set_delay(const std::string& port, std::chrono::nanoseconds time) {
  replace_by_delay(port, TC_H_ROOT, time);
  lossy().insert(port);
}

void set_control_netem(const std::string& port, const std::string& parameters) {
  const std::string queue = "qdisc replace dev " + port;
  const std::string filter = "\nfilter add dev " + port + " parent 1: protocol ip prio ";
  const std::string roce = " u32 match ip protocol 17 0xff match ip dport 4791 0xffff ";
  // The operation code of RoCE follows the headers of IP and UDP; 17 acknowledges.
  tc(queue + " root handle 1: prio bands 3 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0" +
     (parameters.empty() ? "" : "\n" + queue + " parent 1:2 netem " + parameters) + filter + "1" +
     roce + "match u8 17 0xff at 28 flowid 1:3" + filter + "2" + roce + "flowid 1:1" + filter +
     "3 u32 match ip protocol 17 0xff flowid 1:2");
  lossy().insert(port);
}

void set_band_lost(const std::string& port, Band band, bool lost) {
  replace_queue(port, parent_of(band), lost ? kBlackHole : kFifo);
}

void set_band_delay(const std::string& port, Band band, std::chrono::nanoseconds time) {
  replace_by_delay(port, parent_of(band), time);
}

void set_data_lost(const std::string& port, bool lost) {
  set_band_lost(port, Band::kData, lost);
  set_band_lost(port, Band::kAcks, lost);
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
  for (const std::string& port : std::set(lossy())) clear_netem(port);
  for (const char* port : kPorts) set_link(port, true);
  for (const char rail : {'0', '1'}) {
    for (const auto& [host, other] :
         {std::pair('a', 'b'), {'b', 'a'}, {'a', 'c'}, {'c', 'a'}, {'b', 'c'}, {'c', 'b'}}) {
      EXPECT_TRUE(passes(host, other, rail)) << "rail " << rail << ": " << host << " to " << other;
    }
  }
}

}  // namespace fabric::test
