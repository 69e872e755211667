#pragma once

#include <string>

// The ports of the guest: a0 and a1 of host A, b0 and b1 of host B. Rail r is the pair a<r>, b<r>;
// tests/guest/inside.sh plugs them together.

namespace fabric::test {

/// Whether this is the guest, with its four devices. Elsewhere its tests are skipped.
bool in_guest();

/// As `ip link set`, in milliseconds. Both ends lose their carrier, only this one its address.
void set_link(const std::string& port, bool up);
/// What leaves by this port has netem's words done to it: "loss 5%", "delay 2ms reorder 25%".
void set_netem(const std::string& port, const std::string& words);
void clear_netem(const std::string& port);

/// Everything up, nothing lossy, and packets pass on both rails. A link that comes up carries
/// nothing for about a second.
void heal_all();

/// Heals when the test ends, however it ends.
struct Healed {
  Healed() = default;
  Healed(const Healed&) = delete;
  Healed& operator=(const Healed&) = delete;
  ~Healed() { heal_all(); }
};

}  // namespace fabric::test
