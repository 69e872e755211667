#include "support/recorded_sysfs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace fabric::test {

namespace {

namespace fs = std::filesystem;
using Attributes = std::vector<std::pair<std::string, std::string>>;

void write(const fs::path& path, std::string value) {
  std::replace(value.begin(), value.end(), '~', ' ');
  fs::create_directories(path.parent_path());
  std::ofstream(path) << value << '\n';
}

void link(const fs::path& path, const fs::path& target) {
  fs::create_directories(path.parent_path());
  fs::remove(path);
  fs::create_symlink(target, path);
}

/// Makes `path` below devices/ and the bridges on the way to it.
void make_pci(const fs::path& root, const fs::path& path, const std::string& numa) {
  fs::path at;
  for (const fs::path& part : path) {
    at /= part;
    const fs::path folder = root / "devices" / at;
    if (fs::exists(folder) || part.string().starts_with("pci")) continue;
    for (const auto& [name, value] :
         Attributes{{"class", "0x060400"}, {"vendor", "0x1000"}, {"device", "0xc030"}}) {
      write(folder / name, value);
    }
    if (!numa.empty()) write(folder / "numa_node", numa);
    link(root / "bus/pci/devices" / part, "../../.." / ("devices" / at));
  }
}

/// Makes what a driver registers in a class: the folder in the device, and the link to it.
fs::path make_class_device(const fs::path& root, const std::string& kind, const std::string& name,
                           const fs::path& device) {
  const fs::path folder = "devices" / device / kind / name;
  fs::create_directories(root / folder);
  link(root / folder / "device", "../../../" / device.filename());
  link(root / "class" / kind / name, "../.." / folder);
  return root / folder;
}

}  // namespace

RecordedSysfs RecordedSysfs::open(const std::string& name, const Replacements& replaced) {
  std::ifstream file(std::string(FABRIC_TEST_SYSFS "/") + name + ".txt");
  EXPECT_TRUE(file) << name;
  std::ostringstream text;
  text << file.rdbuf();
  std::string tree = text.str();
  for (const auto& [from, to] : replaced) {
    for (size_t at = 0; (at = tree.find(from, at)) != std::string::npos; at += to.size()) {
      tree.replace(at, from.size(), to);
    }
  }
  return RecordedSysfs(tree);
}

RecordedSysfs::RecordedSysfs(const std::string& text) {
  // Hundreds of small files: in memory where that is possible.
  const fs::path memory = "/dev/shm";
  const fs::path parent = fs::is_directory(memory) ? memory : fs::temp_directory_path();
  std::string folder = (parent / "fabriclib_sysfs_XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << folder;
  root_ = folder;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) add(line);
}

RecordedSysfs::~RecordedSysfs() {
  std::error_code ignored;
  if (!root_.empty()) fs::remove_all(root_, ignored);
}

void RecordedSysfs::add(const std::string& line) {
  const fs::path root = root_;
  std::istringstream words(line);
  std::string kind, name, path;
  if (!(words >> kind) || kind.starts_with('#')) return;
  if (kind == "file" || kind == "link") {
    std::string value;
    words >> name >> value;
    kind == "file" ? write(root / name, value) : link(root / name, value);
    return;
  }
  if (kind == "rdma" || kind == "net" || kind == "node") words >> name;
  if (kind != "node") words >> path;
  if (path.starts_with('+')) path = prefix_ + path.substr(1);
  Attributes attributes;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    attributes.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  fs::path folder = root / "devices" / path;
  if (kind == "under") {
    prefix_ = path;
    numa_ = attributes.empty() ? "" : attributes[0].second;
    return;
  }
  if (kind == "pci") {
    make_pci(root, path, numa_);
  } else if (kind == "rdma") {
    folder = make_class_device(root, "infiniband", name, path) / "ports/1";
    write(folder / "state", "4:~ACTIVE");
  } else if (kind == "net") {
    folder = make_class_device(root, "net", name, path);
  } else if (kind == "node") {
    folder = root / "devices/system/node" / ("node" + name);
  } else {
    ADD_FAILURE() << "no such line in a recorded tree: " << line;
  }
  for (const auto& [attribute, value] : attributes) write(folder / attribute, value);
}

}  // namespace fabric::test
