#pragma once

#include <cstdint>
#include <utility>
#include <variant>

#include <fabric/export.h>

namespace fabric {

/// Why something failed, grouped by what it takes down. 0 is success, so that an event can hold an
/// Errc.
enum class Errc : uint8_t {
  kOk = 0,
  // The call only.
  kInvalidArgument = 1,  ///< Error::what names the argument
  kOutOfBounds,          ///< offset + size is beyond the region
  kUnsupported,          ///< the network or memory kind cannot do it; see Caps
  kExhausted,            ///< a bounded resource is full: make progress, then try again
  kTooLarge,             ///< can never fit (message, page list): do not try again
  kBadFormat,            ///< truncated or hostile bytes
  kVersion,              ///< a format or protocol of another major version
  kNotFound,             ///< unknown or released handle
  kTimeout,              ///< the deadline passed
  kCancelled,            ///< cancel() came first
  kAborted,              ///< a write to this counter failed: its counter key is poisoned
  kReleased,             ///< the counter was released, here or by the peer that owns it
  kOverrun,              ///< more arrived than a counter can hold
  kBusy,                 ///< an expectation is armed already
  kWouldDeadlock,        ///< a blocking call from a callback
  kClosed,               ///< engine closed, or opened in a parent before fork()
  kPermission,           ///< the operating system refused
  // One peer.
  kPeerLost = 32,  ///< the peer is dead, fenced or restarted
  kUnreachable,    ///< no common network; peer_info() says what was tried
  kRemoteAccess,   ///< the target refused rkey, generation or bounds
  kWrongJob,       ///< the job keys differ
  // One NIC.
  kRailLost = 64,  ///< a rail failed and nothing could be replayed
};

/// A failure. Trivially copyable: no heap, and no formatting until it is printed.
struct Error {
  Errc code = Errc::kOk;
  /// errno or fi_errno, sign removed; 0 when there is none. With kInvalidArgument the value that
  /// would have been right, where a call documents it.
  int32_t native = 0;
  const char* what = "";  ///< static storage; names the argument or the call
  const char* file = "";
  int32_t line = 0;
};

/// The only way to make an Error. __builtin_FILE, because clang 14 lacks std::source_location.
inline Error fail(Errc code, const char* what, int32_t native = 0,
                  const char* file = __builtin_FILE(), int32_t line = __builtin_LINE()) {
  return {code, native, what, file, line};
}

/// The name of a code as written above, without the k: "PeerLost".
FABRIC_EXPORT const char* to_string(Errc code) noexcept;

namespace detail {
/// Prints where a Result without a value was dereferenced, then aborts: always a bug of the caller,
/// never caused by a network or a peer.
[[noreturn]] FABRIC_EXPORT void unchecked_result(const Error& error) noexcept;
}  // namespace detail

/// A value or an Error. Same spelling as std::expected, which GCC 12 has only in C++23 mode.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, error) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  T& operator*() & { return *checked(); }
  const T& operator*() const& { return *const_cast<Result*>(this)->checked(); }
  T&& operator*() && { return std::move(*checked()); }
  T* operator->() { return checked(); }
  const T* operator->() const { return const_cast<Result*>(this)->checked(); }
  Error error() const noexcept { return has_value() ? Error{} : *std::get_if<1>(&state_); }

 private:
  T* checked() {
    T* value = std::get_if<0>(&state_);
    if (value == nullptr) detail::unchecked_result(*std::get_if<1>(&state_));
    return value;
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(error) {}
  bool has_value() const noexcept { return error_.code == Errc::kOk; }
  explicit operator bool() const noexcept { return has_value(); }
  Error error() const noexcept { return error_; }

 private:
  Error error_{};
};

}  // namespace fabric
