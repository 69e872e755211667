#pragma once

#include <cstdint>
#include <optional>
#include <string>

// How the parent and its children talk: what a job's launcher does in real life, and the only thing
// between the processes that is not fabric-lib.

namespace demo {

struct MessageHeader {
  enum class Kind : uint32_t {
    kClosed,  ///< the other side is gone
    // To the source.
    kJoin,   ///< `receiver_id` offers its memory: text
    kPace,   ///< since_ns: between the layers of a prompt; at_ns: between prompts; 0: flat out
    kDrain,  ///< begin nothing more, say when everything has ended
    // To a receiver.
    kDie,     ///< in the middle of the next prompt, which is a long one
    kFinish,  ///< nothing comes any more
    // From any child.
    kWarning,  ///< a warning of the library: text
    // From a receiver.
    kOffer,  ///< text
    kDying,  ///< its last word: count pages of `request` are there
    kFinished,   ///< count: immediates that nobody waited for
    // From the source.
    kReady,
    kState,    ///< `receiver_id` is in another state: code is the PeerState
    kStarted,    ///< a request: count pages
    kDone,     ///< a request was acknowledged: count, wrong, extra, bytes; since_ns: last submit
    kFailed,   ///< an operation: code is the Errc, count its pages that did not arrive
    kRefused,  ///< a submit: code is the Errc
    kDrained,  ///< count operations were accepted, extra have ended
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

/// One end of a socket pair that keeps messages apart. Does not own the descriptor.
///
/// Threads: everything from any thread; letters are read by one.
class ControlSocket {
 public:
  explicit ControlSocket(int fd) : fd_(fd) {}
  int fd() const { return fd_; }
  /// A side that is gone is found out by read().
  void send(const MessageHeader& header, const std::string& text = {}) const;
  Message read() const;                     ///< blocks
  std::optional<Message> try_read() const;  ///< nothing there: nothing

 private:
  std::optional<Message> take(int flags) const;
  int fd_;
};

}  // namespace demo
