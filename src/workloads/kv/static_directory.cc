#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fabric/kv_directory.h>

#include "base/unique_fd.h"

namespace fabric::kv {

Directory::~Directory() = default;

namespace {

class StaticDirectory final : public Directory {
 public:
  explicit StaticDirectory(std::vector<Member> members) {
    view_ = {.revision = 1, .stale = false, .members = std::move(members)};
  }
  bool poll() override { return !std::exchange(polled_, true); }
  View members() const override { return view_; }
  /// Never readable after the first poll(): nothing changes.
  Result<int> fd() override {
    if (!never_) never_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!never_) return fail(Errc::kExhausted, "eventfd", errno);
    return never_.get();
  }

 private:
  View view_;
  bool polled_ = false;
  UniqueFd never_;
};

}  // namespace

Result<std::unique_ptr<Directory>> make_static_directory(std::span<const Member> members) {
  std::vector<Member> sorted(members.begin(), members.end());
  std::ranges::sort(sorted, {}, &Member::engine_id);
  for (const Member& member : sorted) {
    if (const auto bytes = encode(member); !bytes) {
      return fail(Errc::kInvalidArgument, bytes.error().what);
    }
  }
  if (std::ranges::adjacent_find(sorted, {}, &Member::engine_id) != sorted.end()) {
    return fail(Errc::kInvalidArgument, "members: an engine_id twice");
  }
  return std::unique_ptr<Directory>(std::make_unique<StaticDirectory>(std::move(sorted)));
}

}  // namespace fabric::kv
