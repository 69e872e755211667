#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <fabric/result.h>
#include <fabric/types.h>

namespace fabric::kv {

/// What all requests share. As in EtcdOptions.
struct HttpOptions {
  std::string ca_file{};
  std::string cert_file{};
  std::string private_key_file{};
  std::string proxy{};
  Nanos connect_timeout{};
};

struct HttpRequest {
  std::string url{};
  std::string body{};
  Nanos timeout{};       ///< of all of it; 0: a stream without end
  size_t bytes_max = 0;  ///< of the answer's body; of a stream between two calls of `arrived`
  /// A stream's bytes, as they come. An answer of one text has it in `done`.
  std::function<void(std::string_view bytes)> arrived{};
};

struct HttpAnswer {
  bool complete = false;  ///< an answer came, whatever its status
  long status = 0;
  std::string body{};
  std::string failure{};  ///< not complete: why
  bool too_large = false;
};

/// POSTs over libcurl's multi interface: many at a time, none blocks. All calls of `arrived` and
/// `done` come from run(), never from inside libcurl, so they may post and cancel.
///
/// Threads: one thread at a time, except wake().
class HttpClient {
 public:
  static Result<std::unique_ptr<HttpClient>> make(const HttpOptions& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  using Done = std::function<void(const HttpAnswer&)>;
  /// `done` is called once, later. Returns the request's number, or 0 when libcurl has no memory.
  uint64_t post(HttpRequest request, Done done);
  /// Its `done` is not called. A number that has ended, or 0, is ignored.
  void cancel(uint64_t number);
  /// Waits for the network at most `wait`, or until wake(), and calls what is due.
  void run(Nanos wait);
  void wake() noexcept;  ///< from any thread

 private:
  struct Transfer;
  struct Multi;
  HttpClient(HttpOptions options, std::unique_ptr<Multi> multi);
  void take_arrived();
  void take_completed();

  const HttpOptions options_;
  std::unique_ptr<Multi> multi_;
  std::map<uint64_t, std::unique_ptr<Transfer>> transfers_;
  uint64_t next_ = 1;
};

}  // namespace fabric::kv
