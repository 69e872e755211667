#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fabric::test {

/// A recorded sysfs tree, unpacked into a temporary folder with its links, and removed with this
/// object. tests/support/sysfs has the trees, and their format in each one's first lines.
class RecordedSysfs {
 public:
  using Replacements = std::vector<std::pair<std::string, std::string>>;

  /// The tree of tests/support/sysfs/`name`.txt. `replaced`: texts to replace in it first, such as
  /// the names of NICs.
  static RecordedSysfs open(const std::string& name, const Replacements& replaced = {});
  explicit RecordedSysfs(const std::string& text);
  RecordedSysfs(RecordedSysfs&& other) noexcept : root_(std::exchange(other.root_, {})) {}
  ~RecordedSysfs();

  const std::string& root() const { return root_; }
  /// One more line of the format.
  void add(const std::string& line);

 private:
  std::string root_;
  std::string prefix_{};  ///< what `+` means
  std::string numa_{};    ///< the NUMA node of what follows
};

}  // namespace fabric::test
