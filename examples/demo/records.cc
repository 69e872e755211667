#include "records.h"

#include <algorithm>
#include <span>

#include "serve_message.h"

namespace demo {

namespace {

using Kind = MessageHeader::Kind;

void take_attempt(AttemptRecord& attempt, const Message& message, const std::string& from) {
  const MessageHeader& header = message.header;
  switch (header.kind) {
    case Kind::kStarted:
      attempt.prefiller = message.text;
      attempt.decoder = from;
      attempt.started_ns = header.at_ns;
      break;
    case Kind::kComputed:
      attempt.prefiller = from;
      attempt.computed.push_back({.layer = header.code,
                                  .first_token = header.extra,
                                  .tokens = header.count,
                                  .begin_ns = header.since_ns,
                                  .end_ns = header.at_ns});
      break;
    case Kind::kLayer:
      attempt.arrived_ns[header.code] = header.at_ns;
      break;
    case Kind::kComplete:
      attempt.complete_ns = header.at_ns;
      attempt.bytes = header.count;
      break;
    case Kind::kFailed:
      attempt.failed_ns = header.at_ns;
      attempt.why = message.text;
      break;
    case Kind::kPagesFree:
      attempt.pages_free_ns = header.at_ns;
      break;
    default:
      break;
  }
}

}  // namespace

void Records::take(const Message& message, const std::string& from) {
  const MessageHeader& header = message.header;
  switch (header.kind) {
    case Kind::kSubmitted:
      requests[header.request].prompt = header.code;
      requests[header.request].submitted_ns = header.at_ns;
      break;
    case Kind::kDone: {
      RequestRecord& request = requests[header.request];
      auto tokens = decode_tokens(std::as_bytes(std::span(message.text)));
      request.answers_differ =
          request.answers_differ || (request.done_ns > 0 && request.tokens != tokens);
      request.first_token_ns = header.since_ns;
      request.done_ns = header.at_ns;
      request.tokens = std::move(tokens);
      break;
    }
    case Kind::kSentAgain:
      ++sent_again_;
      break;
    case Kind::kStarted:
    case Kind::kComputed:
    case Kind::kLayer:
    case Kind::kComplete:
    case Kind::kFailed:
    case Kind::kPagesFree:
      take_attempt(requests[header.request].attempts[header.attempt], message, from);
      break;
    default:
      break;
  }
}

uint64_t Records::answered() const {
  return static_cast<uint64_t>(
      std::ranges::count_if(requests, [](const auto& each) { return each.second.done_ns > 0; }));
}

Window Records::window(const std::string& decoder, int64_t from_ns, int64_t to_ns) const {
  Window out;
  std::vector<double> times;
  uint64_t bytes = 0;
  for (const auto& [number, request] : requests) {
    for (const auto& [index, attempt] : request.attempts) {
      if (attempt.complete_ns < from_ns || attempt.complete_ns >= to_ns) continue;
      if (!decoder.empty() && attempt.decoder != decoder) continue;
      bytes += attempt.bytes;
      times.push_back(static_cast<double>(attempt.complete_ns - request.submitted_ns) / 1e6);
    }
  }
  out.requests = times.size();
  if (times.empty()) return out;
  std::ranges::sort(times);
  out.gigabytes_per_second = static_cast<double>(bytes) / static_cast<double>(to_ns - from_ns);
  out.p50_ms = times[times.size() / 2];
  out.p99_ms = times[times.size() * 99 / 100];
  return out;
}

}  // namespace demo
