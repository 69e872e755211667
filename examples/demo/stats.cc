#include "stats.h"

#include <algorithm>
#include <cctype>

namespace demo {

void ReceiverStats::take(const MessageHeader& header) {
  switch (header.kind) {
    case MessageHeader::Kind::kState:
      state = static_cast<fabric::PeerState>(header.code);
      entered_ns[state] = header.at_ns;
      break;
    case MessageHeader::Kind::kStarted:
      pages_expected += header.count;
      open[header.request] = header.count;
      break;
    case MessageHeader::Kind::kDone:
      ++requests_done;
      pages_counted += header.count;
      pages_wrong += header.wrong;
      counts_extra += header.extra;
      bytes_correct += header.bytes;
      open.erase(header.request);
      samples.push_back({header.since_ns, header.at_ns, header.bytes});
      break;
    case MessageHeader::Kind::kFailed:
      if (failures() == 0) first_failure_ns = header.at_ns;
      last_failure_ns = header.at_ns;
      ++failed_ops[static_cast<fabric::Errc>(header.code)];
      break;
    case MessageHeader::Kind::kRefused:
      ++refused[static_cast<fabric::Errc>(header.code)];
      break;
    case MessageHeader::Kind::kFinished:
      counts_extra += header.count;
      break;
    default:
      break;
  }
}

Window ReceiverStats::window(int64_t from_ns, int64_t to_ns) const {
  std::vector<double> times;
  uint64_t bytes = 0;
  for (const Sample& sample : samples) {
    if (sample.counted_ns < from_ns || sample.counted_ns >= to_ns) continue;
    times.push_back(static_cast<double>(sample.counted_ns - sample.submitted_ns) / 1e6);
    bytes += sample.bytes;
  }
  Window out{.requests = times.size()};
  if (times.empty() || to_ns <= from_ns) return out;
  std::ranges::sort(times);
  const double seconds = static_cast<double>(to_ns - from_ns) / 1e9;
  out.gigabytes_per_second = static_cast<double>(bytes) / 1e9 / seconds;
  out.p50 = times[times.size() / 2];
  out.p99 = times[times.size() * 99 / 100];
  out.longest = times.back();
  return out;
}

uint64_t ReceiverStats::failures() const {
  uint64_t sum = 0;
  for (const auto& [code, count] : failed_ops) sum += count;
  return sum;
}

uint64_t ReceiverStats::pages_open() const {
  uint64_t sum = 0;
  for (const auto& [request, pages] : open) sum += pages;
  return sum;
}

std::string lower(const char* name) {
  std::string out = name;
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

}  // namespace demo
