#include "control_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace demo {

void ControlSocket::send(const MessageHeader& header, const std::string& text) const {
  std::array<iovec, 2> parts{{{const_cast<MessageHeader*>(&header), sizeof(header)},
                              {const_cast<char*>(text.data()), text.size()}}};
  msghdr packet{};
  packet.msg_iov = parts.data();
  packet.msg_iovlen = parts.size();
  while (::sendmsg(fd_, &packet, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

Message ControlSocket::read() const { return *take(0); }

std::optional<Message> ControlSocket::try_read() const { return take(MSG_DONTWAIT); }

std::optional<Message> ControlSocket::take(int flags) const {
  std::array<char, 16384> buffer;
  ssize_t n = 0;
  while ((n = ::recv(fd_, buffer.data(), buffer.size(), flags)) < 0 && errno == EINTR) {
  }
  if (n < 0 && errno == EAGAIN) return std::nullopt;
  Message message;
  if (n < static_cast<ssize_t>(sizeof(MessageHeader))) return message;  // kClosed
  std::memcpy(&message.header, buffer.data(), sizeof(MessageHeader));
  message.text.assign(buffer.data() + sizeof(MessageHeader),
                      static_cast<size_t>(n) - sizeof(MessageHeader));
  return message;
}

}  // namespace demo
