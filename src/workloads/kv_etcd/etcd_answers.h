#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/result.h>

// The answers of etcd's JSON gateway, parsed from text that is not trusted. Its conventions: 64-bit
// numbers are strings, keys and values base64, and fields with default values are left out.

namespace fabric::kv {

/// What bounds the memory that a text may take. A text itself is bounded where it is received.
struct AnswerLimits {
  uint32_t entries_max = 1024;      ///< keys of a list, events of a watch
  uint32_t value_bytes_max = 8192;  ///< of one value; a larger one is empty here
};

struct EtcdEntry {
  std::string key{};
  std::vector<std::byte> value{};
  int64_t mod_revision = 0;
  int64_t lease = 0;
  bool deleted = false;  ///< of a watch: the key is gone
  bool operator==(const EtcdEntry&) const = default;
};

struct ListAnswer {
  int64_t revision = 0;
  std::vector<EtcdEntry> entries{};
  bool more = false;  ///< there are keys beyond the requested limit
};

struct WatchAnswer {
  bool created = false;
  bool cancelled = false;
  int64_t compact_revision = 0;  ///< cancelled because of a compaction, up to here
  std::string failure{};         ///< not empty: the stream ends with this
  int64_t revision = 0;
  std::vector<EtcdEntry> events{};  ///< in order
};

struct LeaseAnswer {
  int64_t id = 0;
  int64_t ttl_s = 0;  ///< 0: the field was missing, which is how etcd says that the lease is gone
};

struct PutAnswer {
  int64_t revision = 0;
  bool succeeded = false;  ///< of a transaction: its comparison held
};

/// The body of an answer with another status than 200.
struct FailureAnswer {
  int64_t code = 0;  ///< of gRPC: 5 is "not found", 11 "out of range" (compacted)
  std::string message{};
};

// All fail with kBadFormat: no JSON, too deep or too many values, or a field of another type.
Result<ListAnswer> parse_list(std::string_view text, const AnswerLimits& limits);
Result<WatchAnswer> parse_watch(std::string_view text, const AnswerLimits& limits);
Result<LeaseAnswer> parse_lease(std::string_view text);       ///< of lease/grant
Result<LeaseAnswer> parse_keep_alive(std::string_view text);  ///< of lease/keepalive
Result<PutAnswer> parse_put(std::string_view text);           ///< of kv/txn
Result<FailureAnswer> parse_failure(std::string_view text);

/// Cuts a stream into texts by line breaks, however the stream was cut before.
///
/// Memory: never more than `bytes_max`.
class TextSplitter {
 public:
  explicit TextSplitter(size_t bytes_max) : bytes_max_(bytes_max) {}
  /// Calls function(std::string_view) for every text that is complete and not empty. False: a text
  /// is longer than the limit; the stream cannot be read further.
  template <class Function>
  [[nodiscard]] bool add(std::string_view bytes, Function function) {
    while (!bytes.empty()) {
      const size_t end = bytes.find('\n');
      const std::string_view part = bytes.substr(0, end);
      if (part.size() > bytes_max_ - pending_.size()) return false;
      pending_ += part;
      if (end == std::string_view::npos) return true;
      bytes.remove_prefix(end + 1);
      if (!pending_.empty()) function(std::string_view(pending_));
      pending_.clear();
    }
    return true;
  }

 private:
  size_t bytes_max_;
  std::string pending_;
};

}  // namespace fabric::kv
