#include "kv_etcd/etcd_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "workloads/kv_etcd/http_client.h"

namespace fabric::test {

namespace {

using namespace std::chrono_literals;

std::string etcd_program() {
  const char* named = std::getenv("FABRICLIB_TEST_ETCD");
  if (named != nullptr) return named;
  for (const char* path : {"/usr/bin/etcd", "/usr/local/bin/etcd"}) {
    if (::access(path, X_OK) == 0) return path;
  }
  return {};
}

}  // namespace

uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

std::string EtcdServer::missing() {
  if (!etcd_program().empty()) return {};
  return "no etcd on this machine: install Debian's etcd-server";
}

EtcdServer::EtcdServer() {
  std::string folder = (std::filesystem::temp_directory_path() / "fabric-etcd-XXXXXX").string();
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  folder_ = folder;
  // Another process may take a port before the server does.
  bool answers = false;
  for (int attempt = 0; attempt < 3 && !answers; ++attempt) {
    port_ = free_port();
    peer_port_ = free_port();
    std::filesystem::remove_all(folder_ + "/data");
    answers = launch();
  }
  EXPECT_TRUE(answers) << "etcd does not start; see its log in " << folder_;
}

EtcdServer::~EtcdServer() {
  kill();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void EtcdServer::start() { ASSERT_TRUE(launch()) << "see the log in " << folder_; }

bool EtcdServer::launch() {
  const std::string peer = "http://127.0.0.1:" + std::to_string(peer_port_);
  // Short intervals: etcd grants no lease below one and a half election timeouts.
  std::vector<std::string> words = {etcd_program(),
                                    "--data-dir=" + folder_ + "/data",
                                    "--listen-client-urls=" + endpoint(),
                                    "--advertise-client-urls=" + endpoint(),
                                    "--listen-peer-urls=" + peer,
                                    "--initial-advertise-peer-urls=" + peer,
                                    "--initial-cluster=default=" + peer,
                                    "--heartbeat-interval=10",
                                    "--election-timeout=100"};
  const std::string log = folder_ + "/log";
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  process_ = ::fork();
  if (process_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no server outlives a test that crashes
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (post("/v3/kv/range", R"({"key":"YQ=="})").empty()) {
    if (::waitpid(process_, nullptr, WNOHANG) != 0) {
      process_ = 0;
      return false;
    }
    if (std::chrono::steady_clock::now() >= until) {
      kill();
      return false;
    }
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

void EtcdServer::kill() {
  if (process_ <= 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  process_ = 0;
}

void EtcdServer::stop() { ::kill(process_, SIGSTOP); }
void EtcdServer::resume() { ::kill(process_, SIGCONT); }

std::string EtcdServer::post(std::string_view path, const std::string& body) const {
  auto http = *kv::HttpClient::make({.connect_timeout = 1s});
  std::string text;
  bool done = false;
  http->post(
      {.url = endpoint() + std::string(path), .body = body, .timeout = 2s, .bytes_max = 1u << 20},
      [&](const kv::HttpAnswer& answer) {
        done = true;
        if (answer.complete && answer.status == 200) text = answer.body;
      });
  while (!done) http->run(100ms);
  return text;
}

void EtcdServer::compact() const {
  const auto header = nlohmann::json::parse(post("/v3/kv/range", R"({"key":"YQ=="})"));
  const std::string revision = header.at("header").at("revision");
  EXPECT_NE(post("/v3/kv/compaction", R"({"physical":true,"revision":")" + revision + R"("})"), "");
}

void EtcdServer::revoke_leases() const {
  const auto answer = nlohmann::json::parse(post("/v3/lease/leases", "{}"));
  ASSERT_TRUE(answer.contains("leases"));
  for (const auto& lease : answer.at("leases")) {
    EXPECT_NE(post("/v3/lease/revoke", nlohmann::json{{"ID", lease.at("ID")}}.dump()), "");
  }
}

}  // namespace fabric::test
