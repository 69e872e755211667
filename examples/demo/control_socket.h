#pragma once

#include <cstdint>
#include <optional>
#include <string>

// Messages between the parent and its children: what a job launcher would do. All other
// communication between the processes goes through fabric-lib.

namespace demo {

struct MessageHeader {
  enum class Kind : uint32_t {
    kClosed,  ///< the other side has closed the socket
    // To the source.
    kJoin,   ///< `receiver_id` offers its memory: text
    kPace,   ///< since_ns: between the layers of a prompt; at_ns: between prompts; 0: no pause
    kDrain,  ///< start no more requests, reply when all operations have completed
    // To a receiver.
    kDie,     ///< in the middle of the next prompt, which is a long one
    kFinish,  ///< no more requests: exit
    // From any child.
    kWarning,  ///< a warning of the library: text
    // From a receiver.
    kOffer,     ///< text
    kDying,     ///< sent right before it kills itself: count pages of `request` have arrived
    kFinished,  ///< count: immediates that no request expected
    // From the source.
    kReady,
    kState,    ///< the state of `receiver_id` has changed: code is the PeerState
    kStarted,  ///< a request: count pages
    kDone,     ///< a request was acknowledged: count, wrong, extra, bytes; since_ns: last submit
    kFailed,   ///< an operation: code is the Errc, count its pages that did not arrive
    kRefused,  ///< a submit: code is the Errc
    kDrained,  ///< count operations were accepted, extra have completed
  };
  Kind kind = Kind::kClosed;
  uint32_t receiver_id = 0;
  uint32_t code = 0;
  uint32_t spare = 0;
  uint64_t request = 0;
  uint64_t count = 0;
  uint64_t wrong = 0;
  uint64_t extra = 0;
  uint64_t bytes = 0;
  int64_t since_ns = 0;
  int64_t at_ns = 0;
};

struct Message {
  MessageHeader header{};
  std::string text{};
};

/// One end of a SOCK_SEQPACKET socket pair. Does not own the descriptor.
///
/// Threads: any thread may send; one thread reads.
class ControlSocket {
 public:
  explicit ControlSocket(int fd) : fd_(fd) {}
  int fd() const { return fd_; }
  /// Errors are ignored: read() reports a closed socket.
  void send(const MessageHeader& header, const std::string& text = {}) const;
  Message read() const;                     ///< blocks
  std::optional<Message> try_read() const;  ///< empty: no message is waiting

 private:
  std::optional<Message> take(int flags) const;
  int fd_;
};

}  // namespace demo
