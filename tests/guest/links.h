#pragma once

#include <chrono>
#include <cstdint>
#include <string>

// The ports of the guest: a0 and a1 of host A, b0 and b1 of host B, c0 and c1 of host C. Rail r is
// a switch with the ports sa<r>, sb<r> and sc<r>; tests/guest/inside.sh plugs them together.

namespace fabric::test {

// Options of its devices. With the default timeout of 67 ms a device retransmits what a slow guest
// is about to acknowledge, and then SoftRoCE sometimes delivers an immediate twice (docs/verbs.md).
// These wait 268 ms, and still give up after 0.8 s.
inline constexpr uint32_t kTimeoutCode = 16, kRetries = 2;

/// Whether this is the guest, with its six devices. Elsewhere its tests are skipped.
bool in_guest();

/// As `ip link set`, in milliseconds. The switch notices, the other hosts do not.
void set_link(const std::string& port, bool up);
/// Applies netem to what leaves by this port: "loss 5%", "delay 2ms reorder 25%".
void set_netem(const std::string& port, const std::string& parameters);
/// Everything that leaves by this port is lost, from the return of the call on. As netem's "loss
/// 100%", but no program is started for it, so that it can hit what is in flight.
void lose_all(const std::string& port);

/// Everything that leaves by this port comes so much later. As quick as lose_all().
void set_delay(const std::string& port, std::chrono::nanoseconds time);

/// What leaves by a port, in three queues: of RoCE everything but acknowledgements (and ARP with
/// it), the control datagrams, and the acknowledgements.
enum class Band : uint8_t { kData = 1, kControl, kAcks };
/// Applies netem to the control datagrams that leave by this port, but not to RoCE. With an empty
/// string it only sets up the three queues.
void set_control_netem(const std::string& port, const std::string& parameters);
/// After that: all of a band is lost, from the return of the call on, or again nothing.
void set_band_lost(const std::string& port, Band band, bool lost);
/// After that: all of a band is delayed by `time`; set_band_lost() ends it.
void set_band_delay(const std::string& port, Band band, std::chrono::nanoseconds time);
/// After that: RoCE is lost, and the datagrams are not affected.
void set_data_lost(const std::string& port, bool lost);
/// How many datagrams netem has passed on (duplicates count twice) and dropped.
struct ControlTraffic {
  uint64_t passed = 0, lost = 0;
};
ControlTraffic control_traffic(const std::string& port);

/// Ends all of these.
void clear_netem(const std::string& port);

/// Everything up, nothing lossy, and packets pass on both rails, between all hosts. A link that
/// comes up carries nothing for about a second.
void heal_all();

/// Heals when the test ends, however it ends.
struct Healed {
  Healed() = default;
  Healed(const Healed&) = delete;
  Healed& operator=(const Healed&) = delete;
  ~Healed() { heal_all(); }
};

}  // namespace fabric::test
