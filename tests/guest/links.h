#pragma once

#include <chrono>
#include <cstdint>
#include <string>

// The ports of the guest: a0 and a1 of host A, b0 and b1 of host B, c0 and c1 of host C. Rail r is
// a switch with the ports sa<r>, sb<r> and sc<r>; tests/guest/inside.sh plugs them together.

namespace fabric::test {

// Options of its devices. One that waits 67 ms, as usual, repeats what a slow guest is about to
// acknowledge, and then SoftRoCE brings an immediate twice now and then (docs/verbs.md). These wait
// 268 ms, and give up after 0.8 s all the same.
inline constexpr uint32_t kTimeoutCode = 16, kRetries = 2;

/// Whether this is the guest, with its six devices. Elsewhere its tests are skipped.
bool in_guest();

/// As `ip link set`, in milliseconds. The switch notices, the other hosts do not.
void set_link(const std::string& port, bool up);
/// What leaves by this port has netem's parameters done to it: "loss 5%", "delay 2ms reorder 25%".
void set_netem(const std::string& port, const std::string& parameters);
/// Everything that leaves by this port is lost, from the return of the call on. As netem's "loss
/// 100%", but no program is started for it, so that it can hit what is in flight.
void lose_all(const std::string& port);

/// Everything that leaves by this port comes so much later. As quick as lose_all().
void set_delay(const std::string& port, std::chrono::nanoseconds time);

/// What leaves by a port, in three queues: of RoCE everything but acknowledgements (and ARP with
/// it), the control datagrams, and the acknowledgements.
enum class Band : uint8_t { kData = 1, kControl, kAcks };
/// The control datagrams that leave by this port have netem's parameters done to them, RoCE has not.
/// Without parameters nothing happens to either.
void set_control_netem(const std::string& port, const std::string& parameters);
/// Behind that: all of a band is lost, from the return of the call on, or again nothing.
void set_band_lost(const std::string& port, Band band, bool lost);
/// Behind that: all of a band comes so much later; set_band_lost() ends it.
void set_band_delay(const std::string& port, Band band, std::chrono::nanoseconds time);
/// Behind that: RoCE is lost, and the datagrams fare as before.
void set_data_lost(const std::string& port, bool lost);
/// Of the datagrams, how many netem has passed on (those that it made twice, twice) and lost.
struct ControlTraffic {
  uint64_t passed = 0, lost = 0;
};
ControlTraffic control_traffic(const std::string& port);

/// Ends all of these, whichever it was.
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
