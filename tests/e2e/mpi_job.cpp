#include "tests/e2e/mpi_job.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace terrace::e2e {

using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

#ifndef TERRACE_MPIRUN
#define TERRACE_MPIRUN ""
#endif

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::function<void()> mpirun(const Arguments& arguments) {
  return [arguments] {
    std::istringstream words(TERRACE_MPIRUN);
    Arguments all;
    for (std::string word; words >> word;) all.push_back(word);
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& argument : all) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(126);
  };
}

std::set<pid_t> children_of(pid_t parent) {
  std::set<pid_t> children;
  std::error_code gone;
  for (auto entry = fs::directory_iterator("/proc", gone); !gone && entry != fs::directory_iterator();
       entry.increment(gone)) {
    const int id = std::atoi(entry->path().filename().c_str());
    if (id == 0) continue;
    const std::string text = read_file(entry->path() / "stat");
    const std::size_t name_end = text.rfind(')');  // "id (name) state parent"
    if (name_end == std::string::npos) continue;
    std::istringstream words(text.substr(name_end + 1));
    char state = 0;
    pid_t of = 0;
    words >> state >> of;
    if (of == parent && state != 'Z') children.insert(id);
  }
  return children;
}

int rank_of(pid_t process) {
  const std::string text = read_file("/proc/" + std::to_string(process) + "/environ");
  const std::string key = "OMPI_COMM_WORLD_RANK=";
  const std::size_t at = text.find(key);
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + key.size());
}

bool runs(pid_t process) {
  return ::kill(process, 0) == 0 || errno != ESRCH;
}

void MpiJobTest::SetUp() {
  if (std::string(TERRACE_MPIRUN).empty()) GTEST_SKIP() << "this build has no MPI";
}

Config MpiJobTest::shape(Config config) {
  config.model.layers = 2;
  config.model.width = 32;
  config.train.steps = 4;
  config.train.micro_batch = 2;
  config.train.micro_batches = 5;
  config.optimizer.schedule = "constant";
  config.placement.chunk_numel = 4096;
  config.compute.threads = 1;
  config.ranks.time_limit_s = 20;
  return config;
}

Arguments MpiJobTest::job(std::uint32_t processes, const Config& config, bool resume) const {
  Arguments all{"-n", std::to_string(processes), TERRACE_PROGRAM};
  for (std::string& argument : program_.arguments(config, resume)) all.push_back(std::move(argument));
  all.insert(all.end(), {"--ranks-per-process", "1"});
  return all;
}

Arguments MpiJobTest::mixed_job(const std::vector<Config>& configs,
                                const std::vector<Arguments>& more) const {
  Arguments all;
  for (std::size_t rank = 0; rank < configs.size(); ++rank) {
    const std::string folder = workspace_.path() + "/rank" + std::to_string(rank);
    fs::create_directories(folder);
    if (rank > 0) all.push_back(":");
    all.insert(all.end(), {"-n", "1", TERRACE_PROGRAM, "train", write_config(folder, configs[rank]),
                           "--metrics", program_.metrics_path(), "--ranks-per-process", "1"});
    if (rank < more.size()) all.insert(all.end(), more[rank].begin(), more[rank].end());
  }
  return all;
}

Outcome MpiJobTest::run_job(std::uint32_t processes, const Config& config, bool resume) const {
  return run_program(workspace_.path(), {}, mpirun(job(processes, config, resume)));
}

Record MpiJobTest::record_of_job(std::uint32_t processes, const Config& config, bool resume) const {
  return record_of_job(job(processes, config, resume));
}

Record MpiJobTest::record_of_job(const Arguments& arguments) const {
  const Outcome outcome = run_program(workspace_.path(), {}, mpirun(arguments));
  EXPECT_EQ(outcome.code, 0) << outcome;
  const Record record = record_of_metrics(program_.metrics_path());
  EXPECT_EQ(count_of(outcome.out, "state "), 1u) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("state " + record.hash + "\n"));
  EXPECT_EQ(count_of(outcome.out, "trained "), 1u) << outcome;
  EXPECT_EQ(count_of(outcome.err, "matrix products by"), 1u) << outcome;
  return record;
}

void MpiJobTest::expect_refused(const Arguments& arguments,
                                const testing::Matcher<const std::string&>& words) const {
  const Outcome outcome = run_program(workspace_.path(), {}, mpirun(arguments));
  EXPECT_GT(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.err, words);
  EXPECT_THAT(outcome.out, Not(HasSubstr("trained ")));
}

Config MpiJobTest::on(Config config, const std::string& stage, std::uint32_t replicas) {
  config.ranks.stage = stage;
  config.ranks.replicas = replicas;
  return config;
}

}  // namespace terrace::e2e
