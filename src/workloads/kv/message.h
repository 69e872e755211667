#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fabric/kv.h>
#include <fabric/result.h>

// What a decoder and a prefiller send each other: versioned little-endian bytes. Messages of one
// session and channel arrive in the order of their submits; with writes they have no order.
//
// To the prefiller, on its channel: HELLO (the layout, before all others), GRANTS (descriptors of
// a grant set, in parts), DISPATCH, CANCEL. Each names the channel on which the decoder listens. To
// the decoder: ACCEPT, REFUSE, CONFIRM (the answer to CANCEL), FAILED, QUIET.
//
// A dispatch has a serial number, one more than the dispatch before it in this session. All later
// messages about it name the serial number, not the id. Its upper bits are the *incarnation* of the
// decoder's session, which HELLO announces: a decoder or a prefiller that is opened again on its
// engine and channel takes no message for one of its own that is about the other incarnation.

namespace fabric::kv::wire {

inline constexpr uint8_t kVersion = 1;
inline constexpr uint32_t kGrantSetsMax = 64;    ///< of a session
inline constexpr uint32_t kRefuseTextMax = 200;  ///< bytes of Refuse::text
inline constexpr uint64_t kAllLanded = UINT64_MAX;
inline constexpr uint32_t kIncarnationShift = 40;
constexpr uint64_t incarnation_of(uint64_t serial) { return serial >> kIncarnationShift; }

enum class MessageKind : uint8_t {
  kHello = 1,
  kGrants,
  kDispatch,
  kCancel,
  kAccept,
  kRefuse,
  kConfirm,
  kFailed,
  kQuiet,
};

struct MessageHead {
  MessageKind kind = MessageKind::kHello;
  uint16_t channel = 0;  ///< where the sender listens
};

/// Sent again when it may be lost, or the prefiller does not know the incarnation.
struct Hello {
  uint64_t next_serial = 1;             ///< of the first dispatch after it
  std::span<const std::byte> layout{};  ///< encode(Layout)
};

/// Descriptors number `first` and following of `total`: the regions of the layout in their order,
/// then the tail region and the staging region, if there are. A set number is used again with the
/// next generation. A part that begins at 0 begins the set again.
struct Grants {
  uint32_t set = 0;
  uint32_t generation = 0;
  uint32_t total = 0;
  uint32_t first = 0;
  bool has_tail = false;
  bool has_staging = false;
  std::vector<std::span<const std::byte>> descs{};
};

/// The pages of one group: positions `first` and following of the request's page list.
struct GroupPages {
  uint32_t first = 0;
  std::vector<uint32_t> ids{};
};

struct Dispatch {
  uint64_t serial = 0;
  std::string id{};
  uint32_t attempt = 0;
  bool per_layer = false;
  bool wants_quiet = false;
  bool has_tail = false;
  uint64_t plan_hash = 0;  ///< TransferPlan::target_hashes of the decoder
  uint32_t prompt_tokens = 0;
  uint32_t set = 0;  ///< grant set
  uint32_t set_generation = 0;
  uint64_t tail_offset = 0;  ///< in the tail region
  uint64_t tail_bytes_max = 0;
  std::vector<uint32_t> cached_tokens{};  ///< for each group of the plan
  /// Counter keys: one; or one for each layer with a count, ascending, and then one for the tail.
  std::vector<uint32_t> counter_keys{};
  std::vector<GroupPages> pages{};  ///< for each group of the plan
  /// Staging records, one for each unit that this source sends staged: list by list, in the order
  /// of the pair's groups. Record r begins at r * staging_record_bytes.
  uint64_t staging_record_bytes = 0;
  GroupPages staging_records{};
  std::vector<std::byte> info{};
};

struct Answer {
  uint64_t serial = 0;
  PrefillLoad load{};
};

struct Refuse {
  uint64_t serial = 0;
  PrefillLoad load{};
  RefuseCode code = RefuseCode::kNone;
  std::string text{};
};

/// CONFIRM and FAILED: the writes have ended.
struct Ended {
  uint64_t serial = 0;
  uint64_t landed = 0;  ///< kAllLanded: everything that was asked for
  uint64_t unknown = 0;
};

std::vector<std::byte> encode_hello(uint16_t channel, const Hello& hello);
std::vector<std::byte> encode_grants(uint16_t channel, const Grants& grants);
std::vector<std::byte> encode_dispatch(uint16_t channel, const Dispatch& dispatch);
std::vector<std::byte> encode_cancel(uint16_t channel, uint64_t serial);
std::vector<std::byte> encode_accept(uint16_t channel, const Answer& answer);
std::vector<std::byte> encode_refuse(uint16_t channel, const Refuse& refuse);
/// kConfirm or kFailed.
std::vector<std::byte> encode_ended(uint16_t channel, MessageKind kind, const Ended& ended);
std::vector<std::byte> encode_quiet(uint16_t channel, uint64_t serial, uint64_t unknown);

/// Bytes of a GRANTS message besides its descriptors, and of each descriptor besides its bytes.
inline constexpr uint64_t kGrantsHeadBytes = 32;
inline constexpr uint64_t kGrantsDescBytes = 2;

/// The head of any message; the rest is decoded by kind.
///
/// Fails with kBadFormat and kVersion.
Result<MessageHead> decode_head(std::span<const std::byte> bytes);

// Each takes the complete message and refuses what is truncated, too long, or out of range
// (kBadFormat). Spans point into `bytes`. `pages_max`: page entries of a dispatch, all groups, and
// as many staging records.
Result<Hello> decode_hello(std::span<const std::byte> bytes);
Result<Grants> decode_grants(std::span<const std::byte> bytes);
Result<Dispatch> decode_dispatch(std::span<const std::byte> bytes, uint64_t pages_max);
Result<uint64_t> decode_cancel(std::span<const std::byte> bytes);
Result<Answer> decode_accept(std::span<const std::byte> bytes);
Result<Refuse> decode_refuse(std::span<const std::byte> bytes);
Result<Ended> decode_ended(std::span<const std::byte> bytes);
Result<Ended> decode_quiet(std::span<const std::byte> bytes);

}  // namespace fabric::kv::wire
