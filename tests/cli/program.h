// Runs the program `terrace` as a user does, in a folder of the test's own.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "tests/support/temp_dir.h"

namespace terrace {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Program {
 public:
  explicit Program(std::string path) : path_(std::move(path)) {}

  std::string file(const std::string& name) const { return folder_.file(name); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name), std::ios::binary) << text;
  }

  // `arguments` go through a shell.
  Outcome run(const std::string& arguments) const {
    const int status = std::system(command(arguments).c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(file("out")), read_file(file("err"))};
  }

  // The process id of the program itself.
  pid_t start(const std::string& arguments) const {
    const std::string text = command("exec", arguments);
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", text.c_str(), nullptr);
      _exit(127);
    }
    return child;
  }
  Outcome wait(pid_t child) const {
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(file("out")), read_file(file("err"))};
  }

 private:
  std::string command(const std::string& arguments) const { return command("", arguments); }
  std::string command(const std::string& prefix, const std::string& arguments) const {
    return "cd " + folder_.path() + " && " + prefix + " " + path_ + " " + arguments + " >out 2>err";
  }

  std::string path_;
  TempDir folder_;
};

}  // namespace terrace
