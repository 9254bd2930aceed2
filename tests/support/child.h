// Runs a part of a test in a process of its own, whose limits and rights it may change.
#pragma once

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>

namespace terrace {

inline constexpr int kSkippedInChild = 77;

// Gives what the library logged there, or "skipped" where the body skipped. Fails the test where it failed or
// threw.
inline std::string in_child(const std::function<void()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe");
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(120);
    std::ostringstream log;
    spdlog::drop("terrace");
    spdlog::register_logger(
        std::make_shared<spdlog::logger>("terrace", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
    int code = 0;
    try {
      body();
      code = testing::Test::IsSkipped() ? kSkippedInChild : testing::Test::HasFailure() ? 1 : 0;
    } catch (const std::exception& error) {
      log << "threw " << error.what() << "\n";
      code = 2;
    }
    const std::string text = log.str();
    [[maybe_unused]] const ssize_t ignored = ::write(ends[1], text.data(), text.size());
    std::fflush(nullptr);
    ::_exit(code);
  }
  ::close(ends[1]);
  std::string log;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof(buffer))) > 0;)
    log.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkippedInChild) return "skipped";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status << "\n" << log;
  return log;
}

inline void limit_locked_memory(rlim_t bytes) {
  const rlimit both{bytes, bytes};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &both), 0);
}

// Root may lock more than its limit; not without this right.
inline void drop_page_lock_right() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  ASSERT_EQ(::syscall(SYS_capget, &header, data), 0);
  for (auto* set : {&data[0].effective, &data[0].permitted}) *set &= ~(1u << CAP_IPC_LOCK);
  ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);
}

inline std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // mlock does nothing there; memory is another allocator's
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace terrace
