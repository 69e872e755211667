#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fabric/export.h>
#include <fabric/kv_directory.h>
#include <fabric/result.h>
#include <fabric/types.h>

// The optional component fabric-lib::etcd: find_package(fabric-lib COMPONENTS etcd). The library
// itself does not depend on it, nor on what it needs.

namespace fabric::kv {

struct EtcdOptions {
  /// "http://host:2379" or "https://...", 1 to 16. One is in use; after a failure the next one is.
  std::vector<std::string> endpoints{};
  /// Keys are fabric/<job>/kv/<role>/<engine_id>; 1 to 128 letters, digits, '.', '_' and '-'.
  std::string job{};
  Role role = Role::kPrefill;  ///< of the members that are listed
  bool watch = true;           ///< false: only announce
  std::string ca_file{};       ///< PEM; empty: the system's
  std::string cert_file{};     ///< PEM; both or none: the client's certificate and its private key
  std::string private_key_file{};
  std::string proxy{};  ///< empty: none, whatever the environment says
  /// Of an announcement: etcd forgets this engine so long after its last keep-alive, of which there
  /// are three in this time. Whole seconds, 1 s to 1 h; a server may grant a longer one.
  Nanos lease_ttl{10'000'000'000};
  Nanos request_timeout{3'000'000'000};
  /// How often everything is listed again, beside the watch: the only proof that a watch without
  /// events still is one.
  Nanos relist{60'000'000'000};
  Nanos retry{200'000'000};  ///< first delay after a failure; doubles
  Nanos retry_max{10'000'000'000};
  uint32_t members_max = 1024;  ///< further ones are left out; 1..65536
  uint64_t jitter_seed = 0;     ///< of the random part of delays; 0: random
};

struct EtcdStats {
  bool watching = false;         ///< the view is of a server that answers
  bool registered = false;       ///< the announcement is in etcd, as far as its answers say
  bool replaced = false;         ///< a later incarnation of this engine_id is in etcd: given up
  std::string endpoint{};        ///< in use
  std::string last_failure{};    ///< of a request; empty: none yet
  int64_t revision = 0;          ///< etcd's, of the view
  uint64_t failures = 0;         ///< requests and watches that failed; the next endpoint follows
  uint64_t lists = 0;            ///< that succeeded
  uint64_t watches = 0;          ///< that were created
  uint64_t compactions = 0;      ///< watches that etcd cancelled because it had compacted
  uint64_t registrations = 0;    ///< times that the announcement was written
  uint64_t keep_alives = 0;      ///< that succeeded
  uint64_t leases_lost = 0;      ///< keep-alives of a lease that etcd no longer knew
  uint64_t bad_answers = 0;      ///< that did not parse, or were too large
  uint64_t bad_members = 0;      ///< values that do not parse, or whose key names another member
  uint64_t members_dropped = 0;  ///< beyond members_max
};

/// Members in etcd v3 (3.4 or later), over its JSON gateway.
///
/// What etcd guarantees: keys under a lease vanish within its time after the last keep-alive; a
/// watch reports every change after a list, in order. What it does not: that a listed member is
/// alive (after a restart of etcd a dead one lingers for up to one lease time more), that a live
/// one is listed (while etcd is away, no member can renew its lease), or that two directories have
/// the same view. While etcd is away the last view is kept, and stale.
///
/// It has a thread of its own, in real time: not for simulated worlds.
///
/// Threads: every function from any thread.
class FABRIC_EXPORT EtcdDirectory final : public Directory {
 public:
  /// Returns at once; the first view follows.
  ///
  /// Fails with kInvalidArgument (the field's name), kExhausted.
  static Result<std::unique_ptr<EtcdDirectory>> open(const EtcdOptions& options);
  /// Waits for an outstanding leave(), at most request_timeout. Without leave() the
  /// announcement ends with its lease.
  ~EtcdDirectory() override;

  /// Registers this member under a lease, and again whenever the lease or the key is lost; again to
  /// change it. An earlier incarnation never replaces a later one of the same engine_id.
  ///
  /// Fails with what encode() fails with.
  Result<void> announce(const Member& self);
  /// Revokes the lease, which removes the key. Fails with kNotFound.
  Result<void> leave();

  bool poll() override;
  View members() const override;
  Result<int> fd() override;
  EtcdStats stats() const;

 private:
  struct Impl;
  explicit EtcdDirectory(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fabric::kv
