#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace fabric::test {

/// Accepts connections on the loopback, and serves each on a thread of its own.
class LoopbackServer {
 public:
  LoopbackServer();
  virtual ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  uint16_t port() const { return port_; }
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }

 protected:
  /// Until it returns the connection is open. shutdown() of the descriptor ends it early.
  virtual void serve(int connection) = 0;
  /// Closes the listener and all connections, and waits; from the destructor of each subclass.
  void close_all();
  void cut_connections();  ///< those that are open now

 private:
  void accept_all();

  int listener_ = -1;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::vector<int> open_;
  std::list<std::thread> serving_;
  std::thread accepting_;
};

/// A TCP relay to a loopback port that can delay, drop and cut connections.
class TcpRelay final : public LoopbackServer {
 public:
  explicit TcpRelay(uint16_t to) : to_(to) {}
  ~TcpRelay() override;

  /// Nothing passes, and no connection ends: a partition, as TCP sees it at first.
  void pause() { paused_.store(true); }
  void resume() { paused_.store(false); }
  /// All connections end, and new ones end at once.
  void cut();
  void mend() { cut_.store(false); }
  /// Requests that contain `text` wait here, and all after them on their connection.
  void hold(const std::string& text);
  void release();
  bool holding() const { return held_.load(); }

 private:
  void serve(int connection) override;
  bool forward(int from, int to, bool request);
  bool must_hold(std::string_view bytes);

  const uint16_t to_;
  std::atomic<bool> paused_{false}, cut_{false}, held_{false};
  std::mutex mutex_;
  std::string hold_;
};

/// Answers HTTP requests with whatever a test makes up.
class ScriptedHttpServer final : public LoopbackServer {
 public:
  /// From the path of a request to all bytes that are sent; then the connection ends.
  using Answer = std::function<std::string(const std::string& path)>;
  explicit ScriptedHttpServer(Answer answer) : answer_(std::move(answer)) {}
  ~ScriptedHttpServer() override { close_all(); }
  uint64_t requests() const { return requests_.load(); }

 private:
  void serve(int connection) override;

  const Answer answer_;
  std::atomic<uint64_t> requests_{0};
};

/// A complete answer of HTTP with this body.
std::string http_answer(std::string_view body, int status = 200);

}  // namespace fabric::test
