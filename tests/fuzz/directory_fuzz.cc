#include "fuzz/fuzz_helpers.h"
#include "workloads/kv/directory_messages.h"

using namespace fabric;

// Members, alone (an even first byte) and in the messages of the embedded directory.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = fuzz::input(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    const auto member = kv::decode_member(bytes);
    if (!member) return 0;
    fuzz::expect_same_again(
        *member, [](const kv::Member& value) { return *kv::encode(value); },
        [](const auto& again) { return kv::decode_member(again); });
    return 0;
  }
  const auto message = kv::decode_directory_message(bytes);
  if (!message) return 0;
  fuzz::expect_same_again(
      *message, [](const kv::DirectoryMessage& value) { return kv::encode(value); },
      [](const auto& again) { return kv::decode_directory_message(again); });
  return 0;
}
