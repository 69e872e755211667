#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz_helpers.h"
#include "workloads/kv_etcd/etcd_answers.h"
#include "workloads/kv_etcd/etcd_members.h"

using namespace fabric;

// The answers of an etcd server that lies: the first byte chooses the parser, the second where the
// stream is cut. What a watch or a list reports goes on into the table of members.

namespace {

constexpr kv::AnswerLimits kLimits{.entries_max = 8, .value_bytes_max = 4096};
constexpr size_t kTextMax = 4096;

std::vector<std::string> texts(std::string_view stream, size_t first) {
  std::vector<std::string> found;
  kv::TextSplitter splitter(kTextMax);
  const auto take = [&](std::string_view text) { found.emplace_back(text); };
  const size_t cut = first < stream.size() ? first : stream.size();
  if (splitter.add(stream.substr(0, cut), take)) (void)splitter.add(stream.substr(cut), take);
  return found;
}

void check(const std::vector<kv::EtcdEntry>& entries) {
  FABRIC_CHECK(entries.size() <= kLimits.entries_max);
  for (const kv::EtcdEntry& entry : entries) {
    FABRIC_CHECK(!entry.key.empty() && entry.value.size() <= kLimits.value_bytes_max);
  }
}

void check(const kv::EtcdMembers& members) {
  FABRIC_CHECK(members.members().size() <= 4);
  for (const auto& [engine_id, member] : members.members()) {
    FABRIC_CHECK(member.engine_id == engine_id && kv::encode(member).has_value());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  kv::EtcdMembers members("job", kv::Role::kPrefill, 4);
  switch (data[0] % 6) {
    case 0:
      if (const auto list = kv::parse_list(text, kLimits)) {
        check(list->entries);
        FABRIC_CHECK(list->revision > 0);
        members.list(*list, true);
      }
      break;
    case 1: {
      const auto found = texts(text, data[1]);
      FABRIC_CHECK(found == texts(text, 0) || text.size() > kTextMax);
      for (const std::string& one : found) {
        const auto watch = kv::parse_watch(one, kLimits);
        if (!watch) continue;
        check(watch->events);
        members.watch(*watch);
      }
      break;
    }
    case 2:
      if (const auto lease = kv::parse_lease(text)) FABRIC_CHECK(lease->ttl_s > 0);
      break;
    case 3:
      if (const auto lease = kv::parse_keep_alive(text)) FABRIC_CHECK(lease->id != 0);
      break;
    case 4:
      if (const auto put = kv::parse_put(text)) FABRIC_CHECK(put->revision > 0);
      break;
    case 5:
      if (const auto failure = kv::parse_failure(text)) {
        FABRIC_CHECK(failure->message.size() <= 512);
      }
      break;
  }
  check(members);
  return 0;
}
