#include "control/keyed_hash.h"

#include <sodium.h>

#include "base/check.h"

namespace fabric::control {

namespace {

const unsigned char* raw(std::span<const std::byte> bytes) noexcept {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

void start_sodium() {
  static const int started = sodium_init();
  FABRIC_CHECK(started >= 0, "libsodium could not start");
}

}  // namespace

Mac keyed_hash(std::string_view job_key, std::initializer_list<std::span<const std::byte>> parts) {
  Mac mac{};
  if (job_key.empty()) return mac;
  start_sodium();

  // The hash accepts keys of 16 to 64 bytes only; hashing the job key first allows any length.
  std::array<unsigned char, crypto_generichash_KEYBYTES> key;
  const auto text = std::as_bytes(std::span(job_key.data(), job_key.size()));
  int rc = crypto_generichash(key.data(), key.size(), raw(text), text.size(), nullptr, 0);

  crypto_generichash_state state;
  rc |= crypto_generichash_init(&state, key.data(), key.size(), mac.size());
  for (const auto part : parts) rc |= crypto_generichash_update(&state, raw(part), part.size());
  rc |= crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(mac.data()), mac.size());
  FABRIC_CHECK(rc == 0, "all sizes above are in range");
  sodium_memzero(key.data(), key.size());
  return mac;
}

bool equal(const Mac& a, const Mac& b) noexcept {
  return sodium_memcmp(a.data(), b.data(), kMacBytes) == 0;
}

}  // namespace fabric::control
