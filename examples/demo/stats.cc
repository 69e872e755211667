#include "figures.h"

#include <algorithm>
#include <cctype>

namespace demo {

void Figures::take(const Note& note) {
  switch (note.kind) {
    case Note::Kind::kState:
      state = static_cast<fabric::PeerState>(note.code);
      entered_ns[state] = note.at_ns;
      break;
    case Note::Kind::kBegun:
      pages_expected += note.count;
      open[note.request] = note.count;
      break;
    case Note::Kind::kDone:
      ++requests_done;
      pages_counted += note.count;
      pages_wrong += note.wrong;
      counts_extra += note.extra;
      bytes_right += note.bytes;
      open.erase(note.request);
      samples.push_back({note.since_ns, note.at_ns, note.bytes});
      break;
    case Note::Kind::kFailed:
      if (failures() == 0) first_failure_ns = note.at_ns;
      last_failure_ns = note.at_ns;
      ++ended[static_cast<fabric::Errc>(note.code)];
      break;
    case Note::Kind::kRefused:
      ++refused[static_cast<fabric::Errc>(note.code)];
      break;
    case Note::Kind::kLeft:
      counts_extra += note.count;
      break;
    default:
      break;
  }
}

Window Figures::window(int64_t from_ns, int64_t to_ns) const {
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

uint64_t Figures::failures() const {
  uint64_t sum = 0;
  for (const auto& [code, count] : ended) sum += count;
  return sum;
}

uint64_t Figures::pages_open() const {
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
