// Opens a directory in an etcd that is not there: the component is linked, and its thread runs and
// ends.

#include <cstdio>

#include <fabric/kv_etcd.h>

int main() {
  fabric::kv::EtcdOptions options;
  options.endpoints = {"http://127.0.0.1:1"};
  options.job = "package";
  const auto directory = fabric::kv::EtcdDirectory::open(options);
  if (!directory) {
    std::fprintf(stderr, "%s\n", directory.error().what);
    return 1;
  }
  return (*directory)->members().stale ? 0 : 1;
}
