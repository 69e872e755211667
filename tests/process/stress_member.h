#pragma once

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <fabric/fabric.h>

#include "base/rng.h"
#include "base/unique_fd.h"
#include "process/stress_plan.h"

// One process of a crowd: it writes to everybody it meets and checks all that is written to it. It
// believes nobody. What is wrong goes to the referee as a line that begins with "broken".

namespace fabric::crowd {

/// Memory to write to or from, and its registrations.
struct Ground {
  enum class Kind : uint32_t {
    kAllocated,  ///< shared with its writers
    kSlice,      ///< a registration inside a larger allocation, which outlives it
    kOrdinary,   ///< the process's own
  };
  std::span<std::byte> bytes{};
  std::vector<std::byte> own{};
  std::optional<MemoryRegion> block{};   ///< of a slice
  std::optional<MemoryRegion> region{};  ///< none: it has been taken back
};

struct MemberOptions {
  Party self{};
  uint64_t seed = 1;
  uint64_t plot_bytes = 1 << 20;
};

class Member {
 public:
  /// `line` leads to the referee: a SOCK_SEQPACKET of text.
  Member(Engine engine, const MemberOptions& options, Board& board, UniqueFd line);

  bool begin();
  /// One bounded step. False: the referee said "close", or is gone.
  bool step();
  /// Closes the engine and looks whether everything was reported. False: something is broken.
  bool finish();

  /// For the engine's Config::log_sink, whose context outlives the member.
  struct Log {
    std::mutex mutex;
    std::vector<std::string> lines;
    LogSink sink();
  };
  void watch(Log& log) { log_ = &log; }

 private:
  enum class Deed : uint8_t {
    kWrite,
    kNote,
    kGo,
    kAwaitRound,
    kAwaitGo,
    kFence,
    kRevoke,
    kRelease
  };
  /// An accepted operation that was not reported yet.
  struct Op {
    Deed deed{};
    PeerId peer{};
    uint32_t plot = 0;    ///< its number
    uint64_t counts = 0;  ///< of a write: how many it adds
    bool long_write = false;
  };
  struct Inbound {
    PlotId id{};
    Ground ground{};
    std::optional<Counter> counter{};
    uint32_t number = 0;  ///< of the round
    Round round{};
    OpId expectation{};   ///< none while nothing is expected
    uint64_t taken = 0;   ///< by earlier expectations
    OpId revocation{};    ///< one that had no proof in time
    bool closed = false;  ///< poisoned, or its memory is gone
    bool told = false;    ///< the writer has said how it ended
    uint64_t delivered = 0, unknown = 0;
  };
  struct Outbound {
    PlotId id{};
    RemoteRegion region{};
    CounterKey key{};
    uint64_t plot_bytes = 0;
    uint64_t go_base = 0;  ///< goes that belong to earlier plots
    uint32_t number = 0;   ///< of the round
    uint64_t pending = 0;  ///< operations
    uint64_t delivered = 0, unknown = 0;
    bool broken_off = false;
    bool told = false;
  };
  /// A session with one life of another member.
  struct Link {
    PeerId peer{};
    Party party{};
    PeerGroup group{};
    Inbound in{};
    std::deque<Inbound> old{};  ///< taken back, and not yet settled with the writer
    Outbound out{};
    std::optional<Outbound> next{};
    Ground source{};
    std::optional<Counter> go{};
    uint64_t goes_heard = 0, goes_sent = 0, goes_owed = 0;
    CounterKey go_key{};      ///< the other's
    uint32_t ops = 0;  ///< accepted and not yet reported, the expectations included
    bool lost = false;
    bool fence_asked = false, fence_pending = false;
    bool fence_ordered = false;  ///< by the referee, who waits for the answer
    OpId fence_op{};
  };
  /// Memory that must not change any more, whoever may still have a way to it.
  struct Grave {
    Ground ground{};
    uint64_t poison = 0;
    PlotId whose{};
  };
  struct Leaving {
    Ground ground{};
    uint32_t waits = 0;
  };
  /// What members tell each other; a descriptor may follow.
  struct Note {
    enum Kind : uint32_t { kPlot, kPlotEnded };
    Kind kind = kPlot;
    uint32_t number = 0, key = 0, go_key = 0;
    uint64_t plot_bytes = 0, goes = 0, delivered = 0, unknown = 0;
  };

  // crowd_member.cc
  void say(const std::string& line);
  void broken(const std::string& what);
  bool on_command(const std::string& line);
  void on_event(const Event& event);
  void on_done(const Event& event);
  void on_peer(const Event& event);
  void on_note(const Event& event);
  void lost_unmet(const Party& party, Errc code);
  Link* link_of(PeerId peer);
  Link* link_to(uint32_t slot);
  Notify noted(const Op& op);
  bool accepted(const Result<OpId>& op, const char* what);
  void send(Link& link, Note note, std::span<const std::byte> tail = {});
  void end_links();
  void fence_lost(Link& link);
  void fence(const std::string& verb, uint32_t slot);
  void fence_ended(Link& link, const Event& event);
  void fence_proved(Link& link);
  void report_settled();
  std::string footprint(bool listed) const;

  // crowd_traffic.cc
  Ground make_ground(Ground::Kind kind, uint64_t bytes, bool target);
  void release(Ground ground);
  void release_ended(const Op& op, const Event& event);
  void open_plot(Link& link);
  void begin_inbound(Link& link, Inbound& in);
  Inbound* inbound(Link& link, uint32_t number);
  void round_arrived(Link& link, const Op& op, const Event& event);
  void check_arrived(const Inbound& in);
  uint64_t whole_pieces(const Inbound& in) const;
  void look_at_gauge(Inbound& in);
  void close_inbound(Inbound& in);
  void revoke(Link& link);
  void revoked(Link& link, const Op& op, const Event& event);
  void revocation_proved(Link& link, Inbound& in);
  bool settled(const Inbound& in);
  void new_plot(Link& link, const Note& note, std::span<const std::byte> desc);
  void advance_outbound(Link& link);
  void write_round(Link& link);
  std::atomic<uint64_t>& long_writes(const Link& link);
  void write_ended(Link& link, const Op& op, const Event& event);
  void await_go(Link& link);
  void send_goes(Link& link);
  void go_heard(Link& link, const Event& event);
  void retire_graves(size_t keep);

  Engine engine_;
  const MemberOptions options_;
  Board& board_;
  UniqueFd line_;
  Log* log_ = nullptr;
  Rng rng_;
  std::optional<Inbox> inbox_;
  std::optional<Subscription> subscription_, listener_;
  std::map<uint64_t, Op> ops_;  ///< by tag
  uint64_t next_tag_ = 1;
  std::map<PeerId, Link> links_;
  std::map<PeerId, Party> connecting_;
  std::array<uint32_t, kSlotsMax> plots_made_{};
  std::deque<Grave> graves_;
  uint64_t poisons_ = 0;
  std::map<uint32_t, Leaving> leaving_;
  uint32_t next_leaving_ = 1;
  uint64_t rounds_ = 0, counts_ = 0, bytes_ = 0, bad_ = 0;
  bool quiet_ = false, said_settled_ = false, footprint_asked_ = false;
};

}  // namespace fabric::crowd
