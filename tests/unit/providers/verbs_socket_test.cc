#include "providers/verbs/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include <gtest/gtest.h>

namespace fabric::verbs::verbs_socket_test {
namespace {

using Bytes = std::vector<std::byte>;

GidBytes ip(const char* text) { return *parse_ip(text); }

/// Two loopback addresses in place of two rails.
ControlSockets two_rails(uint64_t instance) {
  const GidBytes ips[] = {ip("127.0.0.1"), ip("127.0.0.2")};
  auto sockets = ControlSockets::open(ips, 0, instance);
  EXPECT_TRUE(sockets) << sockets.error().what;
  return *std::move(sockets);
}

ControlPeer peer_at(const ControlSockets& to, uint64_t instance) {
  return {.to = {.instance = instance, .rails = 2, .control = to.addresses()}, .open = true};
}

/// Waits for something to read, then reads once around.
ControlSockets::Received receive(ControlSockets& sockets) {
  std::vector<pollfd> fds;
  for (const int fd : sockets.fds()) fds.push_back({fd, POLLIN, 0});
  EXPECT_GT(::poll(fds.data(), fds.size(), 10'000), 0);
  return sockets.receive();
}

TEST(VerbsSockets, CarryDatagramsOfEverySize) {
  ControlSockets a = two_rails(1), b = two_rails(2);
  ControlPeer to_b = peer_at(b, 2);
  for (const size_t size : {size_t{1}, size_t{kDatagramPartBytes}, size_t{kControlBytesMax}}) {
    const Bytes datagram(size, std::byte{0x5a});
    ASSERT_TRUE(a.send(to_b, datagram, 0));
    const auto received = receive(b);
    EXPECT_EQ(received.from, 1u);
    EXPECT_TRUE(std::equal(received.datagram.begin(), received.datagram.end(), datagram.begin(),
                           datagram.end()));
    to_b.unanswered = 0;
  }
  EXPECT_TRUE(b.receive().datagram.empty());
}

TEST(VerbsSockets, ReportFromWhichRailTheyCame) {
  ControlSockets a = two_rails(1), b = two_rails(2);
  ControlPeer to_b = peer_at(b, 2);
  for (const uint32_t address_index : {0u, 1u}) {
    to_b.address_index = address_index;
    ASSERT_TRUE(a.send(to_b, Bytes(1), 0));
    EXPECT_EQ(receive(b).address_index, address_index);
  }
}

TEST(VerbsSockets, ARailThatIsDownIsSkipped) {
  ControlSockets a = two_rails(1), b = two_rails(2);
  ControlPeer to_b = peer_at(b, 2);
  ASSERT_TRUE(a.send(to_b, Bytes(1), 0b01));
  EXPECT_EQ(receive(b).address_index, 1u);
  EXPECT_EQ(to_b.address_index, 1u);
  // With all down it is sent anyway: a port reported as down may still work.
  ASSERT_TRUE(a.send(to_b, Bytes(1), 0b11));
  EXPECT_EQ(receive(b).address_index, 1u);
}

TEST(VerbsSockets, WithoutAnAnswerTheNextRailIsTried) {
  ControlSockets a = two_rails(1), b = two_rails(2);
  ControlPeer to_b = peer_at(b, 2);
  uint32_t first = 0;
  for (uint32_t i = 0; i < 100 && to_b.address_index == 0; ++i, ++first) {
    ASSERT_TRUE(a.send(to_b, Bytes(1), 0));
  }
  EXPECT_GT(first, 1u) << "moved on after one lost datagram";
  EXPECT_LT(first, 16u) << "silence must lead to the next rail";
  for (uint32_t i = 0; i < 100; ++i) {
    to_b.unanswered = 0;  // as when it is received
    ASSERT_TRUE(a.send(to_b, Bytes(1), 0));
    ASSERT_EQ(to_b.address_index, 1u);
  }
}

TEST(VerbsSockets, OnlyAddressesOfTheirKindAreReached) {
  const ControlSockets a = two_rails(1);
  Address far{.instance = 2, .rails = 1, .control = {{ip("2001:db8::1"), 1}}};
  EXPECT_FALSE(a.reaches(far));
  far.control.push_back({ip("192.0.2.1"), 1});
  EXPECT_TRUE(a.reaches(far));
}

TEST(VerbsSockets, WhatIsNoDatagramPartIsDropped) {
  ControlSockets a = two_rails(1), b = two_rails(2);
  ControlPeer to_b = peer_at(b, 2);
  // Datagrams in another format, before a valid one.
  auto stranger = ControlSockets::open(std::vector{ip("127.0.0.3")}, 0, 9);
  ASSERT_TRUE(stranger);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(b.addresses()[0].port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const Bytes noise(5000, std::byte{1});
  for (const size_t size : {size_t{1}, size_t{30}, noise.size()}) {
    ASSERT_GT(::sendto(stranger->fds()[0], noise.data(), size, 0,
                       reinterpret_cast<const sockaddr*>(&at), sizeof(at)),
              0);
  }
  ASSERT_TRUE(a.send(to_b, Bytes(7), 0));
  EXPECT_EQ(receive(b).datagram.size(), 7u);
}

TEST(VerbsSockets, AnAddressThatIsNotOursOrNoneAtAllIsNamed) {
  const auto foreign = ControlSockets::open(std::vector{ip("192.0.2.1")}, 0, 1);
  ASSERT_FALSE(foreign);
  EXPECT_STREQ(foreign.error().what, "control_address");
  for (const char* text : {"", "localhost", "1.2.3", "1.2.3.4:5", "::g"}) {
    const auto parsed = parse_ip(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_STREQ(parsed.error().what, "control_address");
  }
}

}  // namespace
}  // namespace fabric::verbs::verbs_socket_test
