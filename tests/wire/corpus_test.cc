#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "fuzz/sequence_seeds.h"
#include "fuzz/shm_script.h"
#include "providers/shm/wire.h"
#include "wire/samples.h"
#include "wire/wire_helpers.h"

namespace fabric::control::corpus_test {
namespace {

Bytes with_minor(Bytes bytes) { return with(std::move(bytes), kMinorAt, 1); }

/// One frame of each kind between engines of one host, preceded by the number of its descriptors.
std::map<std::string, Bytes> shm_frames() {
  const shm::Address here{.instance = 7, .user = 1000, .directory = "/run"};
  const auto frame = [](char descriptors, const shm::Frame& of) {
    return Bytes{static_cast<std::byte>(descriptors)} + shm::encode(of);
  };
  return {{"address", shm::encode(here)},
          {"hello", shm::encode(shm::PathHello{here, 1, 2})},
          {"key", shm::encode(shm::WireRkey{1, 3})},
          {"greeting", frame(2, shm::Greeting{.from = here, .connection = 1})},
          {"datagram", frame(0, shm::Datagram{}) + hex("c0ffee")},
          {"ring", frame(1, shm::RingReady{.path = 5, .epoch = 1})},
          {"need_block", frame(0, shm::BlockRequest{3})},
          {"block", frame(1, shm::BlockReply{3, 4096})},
          {"own_memory", frame(1, shm::MemoryReply{})}};
}

/// The seeds of the fuzzers by their path under tests/fuzz/corpus.
std::map<std::string, Bytes> seeds() {
  const Bytes desc = *encode(samples::desc());
  const std::string offer =
      encode_offer({encode(samples::address()), desc, CounterKey::from_wire(0x0abcdef)});
  const Bytes no_networks = encode(Address{1, 2, {}});
  RegionDesc open = samples::desc();
  open.granted_to = 0;
  open.grant = 0;
  open.session = 0;
  std::map<std::string, Bytes> files{
      {"address/two_networks", encode(samples::address())},
      {"address/no_networks", no_networks},
      {"address/newer_minor", with_minor(encode(samples::address()))},
      {"address/unknown_section", with_length(no_networks + hex("ff7f 0300 010203"))},
      {"desc/granted", desc},
      {"desc/open", *encode(open)},
      {"desc/newer_minor", with_minor(desc)},
      {"offer/small", hex("4641424f 01 00 0000 27000000 0100 0700 61646472657373"
                          "0200 0400 64657363 0300 0400 23010000")},
      {"text/address", samples::bytes_of(address_to_text(encode(samples::address())))},
      {"text/offer", samples::bytes_of(offer)},
      {"text/other_version", samples::bytes_of("fabric2:AAAA")},
      {"text/base64", samples::bytes_of("Zm9vYmE")},
  };
  for (const auto& sample : samples::messages()) {
    files[std::string("frame/") + to_string(sample.type)] =
        encode_frame(samples::header(sample.type), sample.body, "");
  }
  for (const auto& [name, script] : fuzz::handshake_seeds()) {
    files["handshake/" + name] = fuzz::encode_script(script);
  }
  for (const auto& [name, script] : fuzz::session_seeds()) {
    files["session/" + name] = fuzz::encode_script(script);
  }
  files.merge(fuzz::shm_connection_seeds());
  for (auto& [name, bytes] : shm_frames()) files["shm_frame/" + name] = std::move(bytes);
  return files;
}

/// tests/fuzz/corpus of the source tree above the working folder; empty when there is none.
std::filesystem::path corpus_root() {
  for (auto folder = std::filesystem::current_path();; folder = folder.parent_path()) {
    const auto root = folder / "tests" / "fuzz" / "corpus";
    if (std::filesystem::is_directory(root)) return root;
    if (folder == folder.parent_path()) return {};
  }
}

// A fuzzer that starts from the bytes of an older format gets no further than the version. After a
// wanted change, FABRICLIB_TEST_WRITE_CORPUS=1 writes the files again.
TEST(FuzzCorpus, HoldsTheCurrentFormats) {
  const auto root = corpus_root();
  if (root.empty()) GTEST_SKIP() << "the working folder is not below the source tree";
  const bool write = std::getenv("FABRICLIB_TEST_WRITE_CORPUS") != nullptr;
  for (const auto& [name, bytes] : seeds()) {
    const auto path = root / name;
    if (write) {
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
    }
    std::ifstream file(path, std::ios::binary);
    ASSERT_TRUE(file.is_open()) << path;
    const std::string found{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(to_hex(samples::bytes_of(found)), to_hex(bytes)) << path;
  }
}

}  // namespace
}  // namespace fabric::control::corpus_test
