// A small HTTP/1.1 server on a loopback port of its own: one thread, one request a connection. It
// can misbehave as servers and networks do.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace heed {

struct HttpRequest {
  std::string method, target;
  std::map<std::string, std::string> headers;  // lower-case names
};

struct HttpAnswer {
  int status = 200;
  std::map<std::string, std::string> headers;
  std::string body;
  int64_t content_length = -1;  // what is said of the body's size; the truth when below 0
  int64_t cut_after = -1;       // bytes of the body, after which the connection ends
  int64_t hang_after = -1;      // bytes of the body, after which nothing comes
};

class HttpServer {
 public:
  using Handler = std::function<HttpAnswer(const HttpRequest&)>;

  explicit HttpServer(Handler handler) : handler_(std::move(handler)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ready_ = bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
             listen(listener_, 16) == 0 &&
             getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~HttpServer() {
    stopped_ = true;
    thread_.join();
    close(listener_);
  }
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string address() const { return "http://127.0.0.1:" + std::to_string(port_); }
  bool ready() const { return ready_; }
  std::vector<HttpRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  // Whether there is something to read, or to accept; false when the server is to end.
  bool Await(int fd) const {
    while (!stopped_) {
      pollfd one = {fd, POLLIN, 0};
      if (poll(&one, 1, 10) > 0) return true;
    }
    return false;
  }

  void Serve() {
    while (Await(listener_)) {
      const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) continue;
      std::string head;
      char buffer[4096];
      while (head.find("\r\n\r\n") == head.npos && Await(connection)) {
        const ssize_t n = recv(connection, buffer, sizeof(buffer), 0);
        if (n <= 0) break;
        head.append(buffer, static_cast<size_t>(n));
      }
      const HttpRequest request = Parse(head);
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      Answer(connection, request.method == "HEAD", handler_(request));
      close(connection);
    }
  }

  static HttpRequest Parse(std::string_view head) {
    HttpRequest request;
    const auto line = [&] {
      const size_t end = std::min(head.find("\r\n"), head.size());
      const std::string_view text = head.substr(0, end);
      head.remove_prefix(std::min(end + 2, head.size()));
      return text;
    };
    const std::string_view first = line();
    const size_t space = std::min(first.find(' '), first.size());
    request.method = first.substr(0, space);
    const std::string_view rest = first.substr(std::min(space + 1, first.size()));
    request.target = rest.substr(0, rest.find(' '));
    for (std::string_view text = line(); !text.empty(); text = line()) {
      std::string name(text.substr(0, text.find(": ")));
      std::transform(name.begin(), name.end(), name.begin(), [](char c) {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
      });
      request.headers[name] = text.substr(std::min(name.size() + 2, text.size()));
    }
    return request;
  }

  void Answer(int connection, bool head, const HttpAnswer& answer) const {
    const int64_t size = static_cast<int64_t>(answer.body.size());
    const int64_t said = answer.content_length >= 0 ? answer.content_length : size;
    std::string text = "HTTP/1.1 " + std::to_string(answer.status) + " x\r\nConnection: close\r\n" +
                       "Content-Length: " + std::to_string(said) + "\r\n";
    for (const auto& [name, value] : answer.headers) text += name + ": " + value + "\r\n";
    text += "\r\n";
    int64_t sent = size;
    if (answer.cut_after >= 0) sent = std::min(sent, answer.cut_after);
    if (answer.hang_after >= 0) sent = std::min(sent, answer.hang_after);
    if (!head) text.append(answer.body, 0, static_cast<size_t>(sent));
    for (size_t at = 0; at < text.size();) {
      const ssize_t n = send(connection, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
    // Until the other side gives up.
    if (!head && answer.hang_after >= 0) Await(connection);
  }

  Handler handler_;
  int listener_ = -1;
  uint16_t port_ = 0;
  bool ready_ = false;
  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;
  std::vector<HttpRequest> requests_;
  std::thread thread_;
};

}  // namespace heed
