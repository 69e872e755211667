#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/export.h>
#include <fabric/result.h>
#include <fabric/types.h>

namespace fabric {
class Engine;
}

/// Which prefillers there are. A directory is a hint: it says whom to connect to. Whether a member
/// is alive, and what may be done with its pages, only the engine's session says. No member is ever
/// fenced because it has left a directory.
namespace fabric::kv {

enum class Role : uint8_t { kPrefill, kDecode, kRouter };

/// "prefill", "decode", "router".
FABRIC_EXPORT const char* to_string(Role role) noexcept;

inline constexpr uint32_t kMemberAddressBytesMax = 4096;
inline constexpr uint32_t kMemberLabelBytesMax = 255;
/// The most bytes that encode() produces.
inline constexpr uint32_t kMemberBytesMax = 44 + kMemberAddressBytesMax + kMemberLabelBytesMax;

/// One engine as a directory lists it.
struct Member {
  uint64_t engine_id = 0;            ///< PeerInfo::engine_id of its sessions; not 0
  uint64_t incarnation = 0;          ///< larger each time its engine is opened; not 0
  std::vector<std::byte> address{};  ///< Engine::address(); 1 to kMemberAddressBytesMax bytes
  uint64_t layout_hash = 0;          ///< of its cache layout; 0: any
  uint32_t capacity = 0;             ///< requests that it takes at the same time
  uint32_t load = 0;  ///< requests that it had when this was written; later ones ride on answers
  Role role = Role::kPrefill;
  std::string label{};  ///< human-readable: printable ASCII, at most kMemberLabelBytesMax
  bool operator==(const Member&) const = default;
};

/// Versioned bytes; equal members have equal bytes.
///
/// Fails with kInvalidArgument (engine_id, incarnation, address, role, label), kTooLarge (address,
/// label).
FABRIC_EXPORT Result<std::vector<std::byte>> encode(const Member& member);
/// Bytes of a later minor version may have more fields, which are ignored.
///
/// Fails with kBadFormat (truncated or hostile, more than kMemberBytesMax),
/// kVersion (another major version).
FABRIC_EXPORT Result<Member> decode_member(std::span<const std::byte> bytes);
/// The same as one word of text, for command lines and files: "fabric-kv1:" and base64url.
FABRIC_EXPORT Result<std::string> to_text(const Member& member);
FABRIC_EXPORT Result<Member> member_from_text(std::string_view text);

/// A member that describes this engine: engine_id, incarnation and address. The caller sets the
/// other fields.
///
/// Cost: opens a session with the engine's own address, which takes one of Config::peers_max.
/// Fails with what Engine::connect() and Engine::peer_info() fail with.
FABRIC_EXPORT Result<Member> describe(Engine& engine);

/// What a directory knows.
struct View {
  uint64_t revision = 0;  ///< grows whenever `members` or `stale` change
  /// The source of the view is away, or has not answered yet: members may have come, gone or
  /// changed. The last view is kept, and requests go on with it.
  bool stale = true;
  std::vector<Member> members{};  ///< ascending by engine_id, each id once

  /// Points into this view; null when there is none.
  const Member* find(uint64_t engine_id) const noexcept {
    for (const Member& member : members) {
      if (member.engine_id == engine_id) return &member;
    }
    return nullptr;
  }
};

/// One difference between two views.
struct Change {
  enum class Kind : uint8_t { kJoined, kChanged, kLeft };
  Kind kind = Kind::kJoined;
  bool restarted = false;  ///< kChanged: the incarnation differs
  Member member{};         ///< as it is in the later view; kLeft: in the earlier one
};
/// Ascending by engine_id.
FABRIC_EXPORT std::vector<Change> changes(const View& before, const View& after);

/// A source of members. There are three: make_static_directory(), EmbeddedDirectory, and
/// EtcdDirectory of the optional component fabric-lib::etcd (kv_etcd.h).
///
///     while (serving) {
///       if (directory->poll()) router.update(directory->members());
///       ...
///     }
///
/// Threads: one thread at a time, unless a class says otherwise.
class FABRIC_EXPORT Directory {
 public:
  virtual ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  /// Takes what has arrived and does what is due. Never blocks. True when the view's revision has
  /// changed since the last poll().
  virtual bool poll() = 0;
  /// A copy of the view as of the last poll().
  virtual View members() const = 0;
  /// Readable when there is something for poll(); for epoll and asyncio. Fails with kExhausted when
  /// the process has no descriptor left.
  virtual Result<int> fd() = 0;

 protected:
  Directory() = default;
};

/// A list that never changes, and never is stale.
///
/// Fails with kInvalidArgument: a member that encode() refuses, or an engine_id twice.
FABRIC_EXPORT Result<std::unique_ptr<Directory>> make_static_directory(
    std::span<const Member> members);

/// The channel of EmbeddedDirectory's messages (Send::channel).
inline constexpr uint16_t kDirectoryChannel = 0x6b64;
inline constexpr uint32_t kSeedsMax = 16;

struct EmbeddedOptions {
  /// Engine::address() of the seeds. Members announce themselves to all of them, and a view is the
  /// union of theirs. Empty for an engine that is the only seed.
  std::vector<std::vector<std::byte>> seeds{};
  bool serve = false;  ///< this engine is a seed: others may announce themselves, and watch
  bool watch = true;   ///< take the views of the seeds. Of its own as a seed there is always one
  uint16_t channel = kDirectoryChannel;
  uint32_t members_max = 1024;   ///< of a seed, and of what one seed may list here; 1..65536
  uint32_t watchers_max = 1024;  ///< of a seed; 1..65536
  Nanos retry{100'000'000};      ///< first delay before a seed is tried again; doubles
  Nanos retry_max{5'000'000'000};
  Nanos refresh{30'000'000'000};  ///< every announcement and watch is repeated after this time
  /// How long a seed's view is stale after its start, so that its members can reconnect. With more
  /// than Config::lost_timeout plus retry_max of the members, no live member is missing afterwards.
  Nanos warm_up{10'000'000'000};
  uint64_t jitter_seed = 0;  ///< of the random part of delays; 0: from the engine's id
};

struct EmbeddedStats {
  uint32_t seeds_connected = 0;   ///< whose complete view is here
  uint32_t announced = 0;         ///< seeds that list this engine
  uint32_t members = 0;           ///< as a seed: that have announced themselves here
  uint32_t watchers = 0;          ///< as a seed
  uint64_t reconnects = 0;        ///< sessions with seeds that were lost, or could not be opened
  uint64_t bad_messages = 0;      ///< that did not parse, or that the sender may not send
  uint64_t members_refused = 0;   ///< as a seed: beyond members_max, or not the session's engine
  uint64_t watchers_refused = 0;  ///< as a seed: beyond watchers_max
  uint64_t views_sent = 0;        ///< as a seed: messages
  uint64_t members_unsent = 0;    ///< as a seed: larger than a watcher's message_bytes_max
};

/// Membership without a server. Members connect to the seeds and announce themselves by messages;
/// a seed lists a member until their session ends, or until leave(). A seed also sends its view,
/// and every change of it, to each engine that watches. One object serves all roles of an engine:
///
///     // router: the seed
///     auto directory = EmbeddedDirectory::open(engine, {.serve = true});
///     publish(engine.address());
///     // prefiller
///     auto directory = EmbeddedDirectory::open(engine, {.seeds = seeds, .watch = false});
///     auto self = describe(engine);
///     self->layout_hash = hash, self->capacity = 64;
///     directory->announce(*self);
///     // decoder
///     auto directory = EmbeddedDirectory::open(engine, {.seeds = seeds});
///
/// A member can only announce itself: a seed refuses another engine_id or incarnation than that of
/// the session. It does not check the address: compare PeerInfo::engine_id with the member's once
/// connected. While no seed answers, the last view is kept and stale. A view that is not stale is
/// the union of what the seeds with complete views list, so a seed that restarts empties no view.
///
/// Wrong. Nothing happens without poll(), neither announcements nor reconnects:
///
///     directory->announce(*self);
///     run_forever();
///
/// Lifetime: the engine outlives it, and is not moved.
/// Threads: one thread at a time.
class FABRIC_EXPORT EmbeddedDirectory final : public Directory {
 public:
  /// Fails with kInvalidArgument (the field's name), kBusy (channel: it has a listener),
  /// kExhausted.
  static Result<std::unique_ptr<EmbeddedDirectory>> open(Engine& engine,
                                                         const EmbeddedOptions& options);
  ~EmbeddedDirectory() override;

  /// Announces this engine to all seeds from now on; again to change what they list. As a seed it
  /// lists itself, too.
  ///
  /// Fails with kInvalidArgument: as encode(), or `engine_id` and `incarnation` are not those of
  /// this engine.
  Result<void> announce(const Member& self);
  /// Withdraws the announcement. The seeds drop it when the message arrives.
  Result<void> leave();
  /// Other addresses, for seeds that were restarted elsewhere. Sessions with seeds that are in both
  /// lists go on.
  ///
  /// Fails with kInvalidArgument.
  Result<void> set_seeds(std::vector<std::vector<std::byte>> seeds);

  bool poll() override;
  View members() const override;
  Result<int> fd() override;
  EmbeddedStats stats() const;

 private:
  struct Impl;
  explicit EmbeddedDirectory(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fabric::kv
