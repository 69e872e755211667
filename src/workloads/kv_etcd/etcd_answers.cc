#include "workloads/kv_etcd/etcd_answers.h"

#include <charconv>
#include <optional>

#include <nlohmann/json.hpp>

#include "workloads/kv_etcd/base64_text.h"

namespace fabric::kv {

namespace {

using Json = nlohmann::json;

// etcd's answers have five levels. The parser keeps a stack, and the values take tens of bytes each
// where the text takes two: both are bounded before it sees the text.
constexpr uint32_t kDepthMax = 16;
constexpr uint32_t kValuesBase = 256;
constexpr uint32_t kValuesPerEntry = 24;
constexpr size_t kMessageBytesMax = 512;

bool within_bounds(std::string_view text, uint64_t values_max) noexcept {
  uint32_t depth = 0;
  uint64_t values = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDepthMax || ++values > values_max) return false;
    } else if (c == '}' || c == ']') {
      depth -= depth > 0 ? 1 : 0;
    } else if (c == ',' && ++values > values_max) {
      return false;
    }
  }
  return true;
}

/// Reads fields of an object. A field of another type than expected fails the reader for good.
class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(&object), ok_(object.is_object()) {}

  /// Null when it is missing.
  const Json* find(const char* name) const {
    if (!ok_) return nullptr;
    const auto found = object_->find(name);
    return found == object_->end() || found->is_null() ? nullptr : &*found;
  }
  int64_t number(const char* name) {
    const Json* field = find(name);
    if (field == nullptr) return 0;
    int64_t value = 0;
    if (field->is_number_integer() && !field->is_number_unsigned()) {
      value = field->get_ref<const Json::number_integer_t&>();
    } else if (field->is_number_unsigned()) {
      const uint64_t large = field->get_ref<const Json::number_unsigned_t&>();
      ok_ = ok_ && large <= INT64_MAX;
      value = static_cast<int64_t>(large);
    } else if (field->is_string()) {
      const auto& text = field->get_ref<const std::string&>();
      const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
      ok_ = ok_ && read.ec == std::errc{} && read.ptr == text.data() + text.size();
    } else {
      ok_ = false;
    }
    return ok_ ? value : 0;
  }
  bool flag(const char* name) {
    const Json* field = find(name);
    if (field == nullptr) return false;
    ok_ = ok_ && field->is_boolean();
    return ok_ && field->get_ref<const bool&>();
  }
  std::string_view text(const char* name) {
    const Json* field = find(name);
    if (field == nullptr) return {};
    ok_ = ok_ && field->is_string();
    return ok_ ? std::string_view(field->get_ref<const std::string&>()) : std::string_view();
  }
  std::vector<std::byte> bytes(const char* name) {
    auto decoded = base64_decode(text(name));
    ok_ = ok_ && decoded.has_value();
    return ok_ ? *std::move(decoded) : std::vector<std::byte>();
  }
  /// The elements of an array; none when it is missing.
  const Json::array_t& array(const char* name, size_t size_max) {
    static const Json::array_t kNone;
    const Json* field = find(name);
    if (field == nullptr) return kNone;
    ok_ = ok_ && field->is_array() && field->size() <= size_max;
    return ok_ ? field->get_ref<const Json::array_t&>() : kNone;
  }
  void require(bool condition) { ok_ = ok_ && condition; }
  bool ok() const { return ok_; }

 private:
  const Json* object_;
  bool ok_;
};

Error bad_answer() { return fail(Errc::kBadFormat, "an answer of etcd"); }

std::optional<Json> parse(std::string_view text, uint64_t entries_max) {
  if (!within_bounds(text, kValuesBase + kValuesPerEntry * entries_max)) return std::nullopt;
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  return json;
}

int64_t revision_of(FieldReader& in) {
  const Json* header = in.find("header");
  if (header == nullptr) return 0;
  FieldReader fields(*header);
  const int64_t revision = fields.number("revision");
  in.require(fields.ok() && revision >= 0);
  return revision;
}

bool read_entry(const Json& json, const AnswerLimits& limits, EtcdEntry& entry) {
  FieldReader in(json);
  const auto key = in.bytes("key");
  entry.key.assign(reinterpret_cast<const char*>(key.data()), key.size());
  entry.value = in.bytes("value");
  // Too large for a member. The entry is kept without its value: it may replace a valid one.
  if (entry.value.size() > limits.value_bytes_max) entry.value.clear();
  entry.value.shrink_to_fit();
  entry.mod_revision = in.number("mod_revision");
  entry.lease = in.number("lease");
  return in.ok() && !entry.key.empty() && entry.key.size() <= limits.value_bytes_max;
}

std::string shortened(std::string_view message) {
  return std::string(message.substr(0, kMessageBytesMax));
}

Result<LeaseAnswer> read_lease(FieldReader in) {
  LeaseAnswer answer{.id = in.number("ID"), .ttl_s = in.number("TTL")};
  if (!in.ok() || answer.id == 0 || answer.ttl_s < 0) return bad_answer();
  return answer;
}

}  // namespace

Result<ListAnswer> parse_list(std::string_view text, const AnswerLimits& limits) {
  const auto json = parse(text, limits.entries_max);
  if (!json) return bad_answer();
  FieldReader in(*json);
  ListAnswer answer;
  answer.revision = revision_of(in);
  answer.more = in.flag("more");
  for (const Json& one : in.array("kvs", limits.entries_max)) {
    in.require(read_entry(one, limits, answer.entries.emplace_back()));
  }
  // Without a revision there is nothing to watch from.
  if (!in.ok() || answer.revision == 0) return bad_answer();
  return answer;
}

Result<WatchAnswer> parse_watch(std::string_view text, const AnswerLimits& limits) {
  const auto json = parse(text, limits.entries_max);
  if (!json) return bad_answer();
  FieldReader outer(*json);
  WatchAnswer answer;
  if (const Json* failure = outer.find("error")) {
    const std::string_view message =
        failure->is_object() ? FieldReader(*failure).text("message") : outer.text("error");
    answer.failure = message.empty() ? "error" : shortened(message);
    return answer;
  }
  const Json* result = outer.find("result");
  if (result == nullptr) return bad_answer();
  FieldReader in(*result);
  answer.revision = revision_of(in);
  answer.created = in.flag("created");
  answer.cancelled = in.flag("canceled");
  answer.compact_revision = in.number("compact_revision");
  for (const Json& one : in.array("events", limits.entries_max)) {
    FieldReader event(one);
    const std::string_view type = event.text("type");
    const Json* kv = event.find("kv");
    EtcdEntry& entry = answer.events.emplace_back();
    in.require(event.ok() && kv != nullptr && read_entry(*kv, limits, entry));
    in.require(type.empty() || type == "PUT" || type == "DELETE");
    entry.deleted = type == "DELETE";
  }
  if (!in.ok()) return bad_answer();
  return answer;
}

Result<LeaseAnswer> parse_lease(std::string_view text) {
  const auto json = parse(text, 0);
  if (!json) return bad_answer();
  auto answer = read_lease(FieldReader(*json));
  if (answer && answer->ttl_s == 0) return bad_answer();
  return answer;
}

Result<LeaseAnswer> parse_keep_alive(std::string_view text) {
  const auto json = parse(text, 0);
  if (!json) return bad_answer();
  const Json* result = FieldReader(*json).find("result");
  if (result == nullptr) return bad_answer();
  return read_lease(FieldReader(*result));
}

Result<PutAnswer> parse_put(std::string_view text) {
  const auto json = parse(text, 0);
  if (!json) return bad_answer();
  FieldReader in(*json);
  PutAnswer answer;
  answer.revision = revision_of(in);
  answer.succeeded = in.flag("succeeded");
  if (!in.ok() || answer.revision == 0) return bad_answer();
  return answer;
}

Result<FailureAnswer> parse_failure(std::string_view text) {
  const auto json = parse(text, 0);
  if (!json) return bad_answer();
  FieldReader in(*json);
  FailureAnswer answer{.code = in.number("code"), .message = shortened(in.text("message"))};
  if (!in.ok()) return bad_answer();
  return answer;
}

}  // namespace fabric::kv
