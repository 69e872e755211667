#pragma once

#include <cstdint>
#include <optional>
#include <string>

// Messages between the parent and its children: commands, and what the table and the report are
// made from. Requests, membership and caches go through fabric-lib.

namespace demo {

struct MessageHeader {
  enum class Kind : uint32_t {
    kClosed,  ///< the other side has closed the socket
    // To a child.
    kSeed,    ///< the router's address: text. Once more when another router has replaced it
    kPace,    ///< router: a request every at_ns, at most `count` open; 0: no more. After number
              ///< `request`, up to number `extra`; 0: without end
    kResume,  ///< router: this request of an earlier router is open; code: its prompt, attempt:
              ///< the next number
    kKill,    ///< prefiller: kill yourself in the middle of the next prompt
    kStop,    ///< prefiller: stop yourself (SIGSTOP) in the middle of the next prompt
    kDrain,   ///< decoder: leave
    kFinish,  ///< check the pages, report kFinished and exit
    // From any child.
    kReady,     ///< text: the engine's address
    kWarning,   ///< a warning of the library: text
    kStatus,    ///< count pages, extra available, code in flight, attempt fenced, wrong requests
    kFinished,  ///< the last message: count pages, extra of them free, wrong were touched
    // From the router.
    kSubmitted,  ///< a new request; code: the number of its prompt
    kSentAgain,  ///< after a failure, as `attempt`; text: "prefiller decoder"
    kListed,     ///< a member joined (code 1) or left (code 0) the directory; text: its name
    kIdle,       ///< after the last kPace, or the last request: none is open
    // From a prefiller.
    kComputed,  ///< layer `code` of a chunk, count tokens from `extra` on; begun since_ns
    kStopping,  ///< right before it kills or stops itself, in layer `code` of a request
    // From a decoder.
    kStarted,    ///< an attempt was dispatched; text: the prefiller
    kLayer,      ///< layer `code` has arrived
    kComplete,   ///< everything has arrived: count bytes
    kFailed,     ///< an attempt has failed; text: why
    kPagesFree,  ///< its pages are proved quiet
    kDone,       ///< since_ns: first token; text: all tokens, 4 bytes each
  };
  Kind kind = Kind::kClosed;
  uint32_t code = 0;
  uint64_t request = 0;
  uint32_t attempt = 0;
  uint32_t spare = 0;
  uint64_t count = 0;
  uint64_t wrong = 0;
  uint64_t extra = 0;
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
