#include "tests/e2e/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

namespace terrace::e2e {
namespace {

constexpr unsigned kMostSeconds = 120;

[[noreturn]] void abandon(const char* what) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, what, std::char_traits<char>::length(what));
  ::_exit(126);
}

Config small(Config config) {
  config.model.layers = 2;
  config.model.width = 32;
  config.train.micro_batch = 4;
  config.train.steps = 16;
  config.placement.chunk_numel = 4096;
  return config;
}

double number_or(const nlohmann::json& value, double otherwise) {
  return value.is_null() ? otherwise : value.get<double>();
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << "exit status " << outcome.code << ", signal " << outcome.signal << "\n"
             << outcome.out << "\n"
             << outcome.err;
}

Program::Program(const std::string& folder, const std::vector<std::string>& arguments,
                 const std::function<void()>& prepare) {
  static std::atomic<int> started{0};
  const std::string number = std::to_string(++started);
  out_ = folder + "/out-" + number;
  err_ = folder + "/err-" + number;
  std::vector<char*> argv{const_cast<char*>("terrace")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  // Opened here: the process may become a user who cannot reach the program's folder.
  const int program = ::open(TERRACE_PROGRAM, O_RDONLY | O_CLOEXEC);
  const int out = ::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const int err = ::open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (program < 0 || out < 0 || err < 0)
    throw std::runtime_error("cannot open " TERRACE_PROGRAM " or " + out_);
  id_ = ::fork();
  if (id_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    if (::chdir(folder.c_str()) != 0) abandon("chdir");
    ::alarm(kMostSeconds);
    if (prepare) prepare();
    ::fexecve(program, argv.data(), environ);
    abandon("fexecve");
  }
  for (const int fd : {program, out, err}) ::close(fd);
  if (id_ < 0) throw std::runtime_error("fork");
}

Program::~Program() {
  if (!running()) return;
  send(SIGKILL);
  wait();
}

void Program::send(int signal) const {
  ::kill(id_, signal);
}

bool Program::running() {
  if (!ended_) ended_ = ::waitpid(id_, &status_, WNOHANG) == id_;
  return !ended_;
}

Outcome Program::wait() {
  while (!ended_) ended_ = ::waitpid(id_, &status_, 0) == id_;
  return {WIFEXITED(status_) ? WEXITSTATUS(status_) : -1, WIFSIGNALED(status_) ? WTERMSIG(status_) : 0,
          read_file(out_), read_file(err_)};
}

Outcome run_program(const std::string& folder, const std::vector<std::string>& arguments,
                    const std::function<void()>& prepare) {
  return Program(folder, arguments, prepare).wait();
}

std::string write_config(const std::string& folder, const Config& config) {
  const std::string path = folder + "/config.toml";
  std::ofstream(path) << to_toml(config);
  return path;
}

std::vector<std::string> TrainProgram::arguments(const Config& config, bool resume) const {
  std::vector<std::string> all{"train", write_config(folder_, config), "--metrics", metrics_path()};
  if (resume) all.push_back("--resume");
  return all;
}

Config small_in_memory(const Workspace& workspace) {
  return small(workspace.config());
}

Config small_on_disk(Workspace& workspace) {
  Config config = small(workspace.config_on_disk());
  config.placement.optimizer_state = shares(0, 0.5, 0.5);
  return config;
}

Record record_of_metrics(const std::string& path) {
  Record record;
  record.eval_loss = std::numeric_limits<double>::quiet_NaN();
  bool ended = false;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    EXPECT_FALSE(event.is_discarded()) << path << ": " << line;
    EXPECT_FALSE(ended) << path << ": after the end: " << line;
    if (event.is_discarded()) break;
    if (event["event"] == "step") {
      record.losses.push_back(number_or(event["loss"], std::numeric_limits<double>::quiet_NaN()));
      record.norms.push_back(number_or(event["grad_norm"], std::numeric_limits<double>::infinity()));
      EXPECT_EQ(event["step"], record.losses.size()) << path << ": " << line;
    } else if (event["event"] == "eval") {
      record.eval_loss = number_or(event["loss"], std::numeric_limits<double>::quiet_NaN());
    } else {
      EXPECT_EQ(event["event"], "end");
      EXPECT_EQ(event["steps"], record.losses.size());
      record.hash = event["state_hash"];
      ended = true;
    }
  }
  EXPECT_TRUE(ended) << path << " has no end line";
  return record;
}

std::size_t steps_told(const std::string& path) {
  const std::string text = read_file(path);
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find("\"event\":\"step\"", at)) != std::string::npos; ++at) {
    count += text.find('\n', at) != std::string::npos ? 1 : 0;
  }
  return count;
}

bool wait_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<std::uint64_t> bytes_of(const std::string& message, const std::string& key) {
  const std::size_t at = message.find("= ", message.find(key));
  if (message.find(key) == std::string::npos || at == std::string::npos) return std::nullopt;
  std::size_t length = 0;
  const std::uint64_t number = std::stoull(message.substr(at + 2), &length);
  if (message.compare(at + 2 + length, 6, " bytes") != 0) return std::nullopt;
  return number;
}

void limit(int resource, std::uint64_t value) {
  const rlimit both{value, value};
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &both) != 0) abandon("setrlimit");
}

void refuse_io_uring() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{static_cast<unsigned short>(std::size(code)), code};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    abandon("seccomp");
  }
}

void drop_page_lock_right() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) abandon("capget");
  for (auto* set : {&data[0].effective, &data[0].permitted, &data[0].inheritable})
    *set &= ~(1u << CAP_IPC_LOCK);
  // Root gets its rights back on exec unless the bounding set lacks them.
  ::prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
  if (::syscall(SYS_capset, &header, data) != 0) abandon("capset");
}

}  // namespace terrace::e2e
