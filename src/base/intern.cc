#include "base/intern.h"

#include <functional>
#include <mutex>
#include <set>
#include <string>

namespace fabric {

namespace {

struct Pool {
  std::mutex mutex;
  std::set<std::string, std::less<>> texts;  // nodes never move, so c_str() stays valid
};

Pool& pool() {
  // Never destroyed: an Error may be printed while the process exits.
  static Pool* const instance = new Pool;
  return *instance;
}

}  // namespace

const char* intern(std::string_view text) {
  text = text.substr(0, kInternedBytesMax);
  Pool& interned = pool();
  const std::lock_guard lock(interned.mutex);
  if (const auto found = interned.texts.find(text); found != interned.texts.end()) {
    return found->c_str();
  }
  if (interned.texts.size() >= kInternedMax) return "(unnamed)";
  return interned.texts.emplace(text).first->c_str();
}

}  // namespace fabric
