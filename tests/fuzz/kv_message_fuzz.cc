#include "fuzz/fuzz_helpers.h"
#include "workloads/kv/message.h"

// What a decoder and a prefiller send each other. Whatever decodes is within the limits, and is the
// same after it was encoded and decoded again.

using namespace fabric;
using namespace fabric::kv;

namespace {

constexpr uint64_t kPagesMax = 4096;

void expect_dispatch(std::span<const std::byte> bytes, uint16_t channel) {
  const auto dispatch = wire::decode_dispatch(bytes, kPagesMax);
  if (!dispatch) return;
  uint64_t pages = 0;
  for (const wire::GroupPages& group : dispatch->pages) pages += group.ids.size();
  FABRIC_CHECK(pages <= kPagesMax, "more pages than allowed");
  FABRIC_CHECK(!dispatch->id.empty() && dispatch->id.size() <= kRequestIdBytesMax);
  FABRIC_CHECK(dispatch->info.size() <= kInfoBytesMax);
  const auto again = wire::encode_dispatch(channel, *dispatch);
  const auto back = wire::decode_dispatch(again, kPagesMax);
  FABRIC_CHECK(back && wire::encode_dispatch(channel, *back) == again, "changed on the way");
}

void expect_grants(std::span<const std::byte> bytes) {
  const auto grants = wire::decode_grants(bytes);
  if (!grants) return;
  const uint32_t besides = (grants->has_tail ? 1 : 0) + (grants->has_staging ? 1 : 0);
  FABRIC_CHECK(grants->set < wire::kGrantSetsMax && grants->total <= kRegionsMax + besides);
  FABRIC_CHECK(grants->first + grants->descs.size() <= grants->total, "past the end of the set");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::input(data, size);
  const auto head = wire::decode_head(bytes);
  if (!head) return 0;
  switch (head->kind) {
    case wire::MessageKind::kHello:
      if (const auto hello = wire::decode_hello(bytes)) {
        FABRIC_CHECK(hello->next_serial > 0, "no serial number precedes it");
        (void)decode_layout(hello->layout);
      }
      break;
    case wire::MessageKind::kGrants:
      expect_grants(bytes);
      break;
    case wire::MessageKind::kDispatch:
      expect_dispatch(bytes, head->channel);
      break;
    case wire::MessageKind::kCancel:
      (void)wire::decode_cancel(bytes);
      break;
    case wire::MessageKind::kAccept:
      (void)wire::decode_accept(bytes);
      break;
    case wire::MessageKind::kRefuse:
      if (const auto refuse = wire::decode_refuse(bytes)) {
        FABRIC_CHECK(refuse->text.size() <= wire::kRefuseTextMax);
        FABRIC_CHECK(to_string(refuse->code) != std::string_view("?"), "a code without a name");
      }
      break;
    case wire::MessageKind::kConfirm:
    case wire::MessageKind::kFailed:
      (void)wire::decode_ended(bytes);
      break;
    case wire::MessageKind::kQuiet:
      (void)wire::decode_quiet(bytes);
      break;
  }
  return 0;
}
