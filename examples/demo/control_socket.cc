#include "channel.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace demo {

void Channel::send(const Note& note, const std::string& text) const {
  std::array<iovec, 2> parts{
      {{const_cast<Note*>(&note), sizeof(note)}, {const_cast<char*>(text.data()), text.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  while (::sendmsg(fd_, &message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

Letter Channel::read() const { return *take(0); }

std::optional<Letter> Channel::try_read() const { return take(MSG_DONTWAIT); }

std::optional<Letter> Channel::take(int flags) const {
  std::array<char, 16384> buffer;
  ssize_t n = 0;
  while ((n = ::recv(fd_, buffer.data(), buffer.size(), flags)) < 0 && errno == EINTR) {
  }
  if (n < 0 && errno == EAGAIN) return std::nullopt;
  Letter letter;
  if (n < static_cast<ssize_t>(sizeof(Note))) return letter;  // kClosed
  std::memcpy(&letter.note, buffer.data(), sizeof(Note));
  letter.text.assign(buffer.data() + sizeof(Note), static_cast<size_t>(n) - sizeof(Note));
  return letter;
}

}  // namespace demo
