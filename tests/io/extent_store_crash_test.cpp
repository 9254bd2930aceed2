// Crashes: for every prefix of a logged run, what the disk may hold is opened and compared with the shadow
// model.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "io/store_files.h"
#include "terrace/error.h"
#include "tests/support/store_helpers.h"
#include "tests/support/store_shadow.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

void run_steps(ShadowedStore& run, int steps, std::mt19937_64& random) {
  for (int s = 0; s < steps; ++s) {
    for (std::uint64_t w = random() % 4; w > 0; --w) run.write_random_chunk();
    if (random() % 2 == 0) run.commit();
    if (random() % 5 == 0) run.commit();  // perhaps once more at the same step
    run.next_step();
  }
}

// Opens what a crash after each prefix of the log may leave, and compares.
void expect_whole_commits(const ShadowedStore& run, const TempDir& folder, std::mt19937_64& random) {
  std::size_t images = 0;
  bool saw_older = false,
       saw_newer = false;  // a record that was written and not flushed may have lasted, or not
  for (std::size_t prefix = run.creation_events(); prefix <= run.log().events(); ++prefix) {
    const std::vector<ShadowCut> expected = run.expected_after(prefix);
    for (const CrashMode mode : kCrashModes) {
      const std::string image = folder.file("image");
      run.log().build_image(run.root(), image, prefix, mode, random);
      const auto got = open_image(image);
      ASSERT_TRUE(got) << "prefix " << prefix << " mode " << static_cast<int>(mode);
      std::string why;
      const int found = match(expected, *got, &why);
      ASSERT_GE(found, 0) << "prefix " << prefix << " mode " << static_cast<int>(mode) << why;
      if (expected.size() == 2) (found == 0 ? saw_newer : saw_older) = true;
      fs::remove_all(image);
      ++images;
    }
  }
  EXPECT_TRUE(saw_older);
  EXPECT_TRUE(saw_newer);
  EXPECT_GT(images, 300u);
}

TEST(StoreCrash, EveryPrefixOpensAtItsCommit) {
  const TempDir folder(fast_folder());
  std::mt19937_64 random(7);
  ShadowedStore run(folder.file("run"), 1);
  run_steps(run, 8, random);
  run.write_random_chunk();  // dead past its last commit
  run.next_step();
  run.reopen();
  run_steps(run, 5, random);
  run.write_random_chunk();
  run.next_step();
  run.reopen();
  run.write_random_chunk();
  run.commit();

  expect_whole_commits(run, folder, random);
}

// Opening flushes every path and the record before it judges, then writes only the record; a commit's order
// is data, every path's flush, record, flush.
TEST(StoreCrash, OpeningAndCommitKeepTheirOrder) {
  const TempDir folder(fast_folder());
  ShadowedStore run(folder.file("run"), 8);
  const auto events = [&](std::size_t from) {
    std::vector<std::string> lines;
    for (std::size_t i = from; i < run.log().events(); ++i) {
      std::string line = run.log().describe(i);
      if (const std::size_t at = line.find("terrace-"); at != std::string::npos)
        line = line.substr(0, at) + line.substr(at + 24);
      lines.push_back(line);
    }
    return lines;
  };
  const std::vector<std::string> flushes = {"flush -0.extents", "flush -1.extents", "flush -2.extents"};
  std::size_t from = run.log().events();
  run.commit();
  std::vector<std::string> wanted = {"write -0.extents"};  // the run state
  wanted.insert(wanted.end(), flushes.begin(), flushes.end());
  wanted.insert(wanted.end(), {"write record", "flush record"});
  EXPECT_EQ(events(from), wanted);
  from = run.log().events();
  run.reopen();
  wanted = flushes;
  wanted.insert(wanted.end(), {"flush record", "write record", "flush record"});
  EXPECT_EQ(events(from), wanted);
}

// A crash, an opening that crashes too (or a run that crashes before its first commit), and an opening.
TEST(StoreCrash, SecondCrashInOpeningOrBeforeTheNextCommit) {
  const TempDir folder(fast_folder());
  std::mt19937_64 random(11);
  ShadowedStore run(folder.file("run"), 2);
  run_steps(run, 6, random);
  run.write_random_chunk();

  for (std::size_t prefix = run.creation_events(); prefix <= run.log().events(); ++prefix) {
    const CrashMode mode = kCrashModes[prefix % kCrashModes.size()];
    const std::string first = folder.file("first");
    run.log().build_image(run.root(), first, prefix, mode, random);
    {
      ShadowedStore second(first, run, prefix);  // reads what it opened at
      std::string why;
      ASSERT_GE(match(run.expected_after(prefix), second.committed(), &why), 0) << "prefix " << prefix << why;
      for (int w = 0; w < 3; ++w) second.write_random_chunk();
      for (std::size_t again = 0; again <= second.log().events(); ++again) {
        // The files of the image are there before the opening registers them.
        const std::string image = folder.file("image");
        fs::copy(first, image, fs::copy_options::recursive);
        for (const auto& entry : fs::recursive_directory_iterator(image)) {
          if (entry.is_regular_file() && entry.path().filename() != kManifestName) fs::remove(entry.path());
        }
        const std::size_t at = std::max<std::size_t>(again, 4);  // all four files are registered
        second.log().build_image(second.root(), image, at, kCrashModes[again % kCrashModes.size()], random);
        const auto got = open_image(image);
        ASSERT_TRUE(got) << "prefix " << prefix << " then " << again;
        ASSERT_EQ(difference(second.committed(), *got), "") << "prefix " << prefix << " then " << again;
        fs::remove_all(image);
      }
    }
    fs::remove_all(first);
  }
}

// The process is killed, the machine goes on: what was written and not flushed is still to be seen. An
// opening takes it for good, and then the power goes.
TEST(StoreCrash, KilledThenOpenedThenCut) {
  bool more = true;
  for (std::size_t after = 0; more; ++after) {
    const TempDir folder(fast_folder());
    std::mt19937_64 random(after);
    ShadowedStore run(folder.file("run"), 6);
    run.write_random_chunk();
    run.commit();
    run.next_step();
    run.write_random_chunk();
    run.kill_at(run.log().events() + after);
    try {
      run.commit();
      more = false;  // it ended before the kill
    } catch (const std::runtime_error&) {
    }
    const std::size_t killed_at = run.log().events();
    ASSERT_TRUE(run.open_after_kill()) << after;
    for (std::size_t prefix = killed_at; prefix <= run.log().events(); ++prefix) {
      for (int round = 0; round < 8; ++round) {
        const std::string image = folder.file("image");
        run.log().build_image(run.root(), image, prefix, kCrashModes[static_cast<std::size_t>(round % 4)],
                              random);
        const auto got = open_image(image);
        ASSERT_TRUE(got) << "killed after " << after << ", prefix " << prefix;
        std::string why;
        ASSERT_GE(match(run.expected_after(prefix), *got, &why), 0) << "killed after " << after << why;
        fs::remove_all(image);
      }
    }
  }
}

// A dead run's writes past its last commit stay void: runs that do not touch those chunks never bring them
// back.
TEST(StoreCrash, DeadEpochsStayVoid) {
  const TempDir folder(fast_folder());
  ShadowedStore run(folder.file("run"), 3);
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (int w = 0; w < 8; ++w) run.write_random_chunk();
    if (epoch % 2 == 0) run.commit();
    run.next_step();
    for (int w = 0; w < 8; ++w) run.write_random_chunk();  // newer than the commit, on most chunks
    run.next_step();
    run.reopen();
    ASSERT_EQ(difference(run.committed(), read_all(run.store())), "");
    run.next_step();
    run.commit();  // this run commits a later step without having written a chunk
    run.reopen();
    ASSERT_EQ(difference(run.committed(), read_all(run.store())), "");
  }
}

TEST(StoreCrash, RandomRunsAgainstTheShadow) {
  const TempDir folder(fast_folder());
  std::mt19937_64 random(5);
  auto run = std::make_unique<ShadowedStore>(folder.file("run0"), 4);
  int kills = 0;
  std::size_t since = run->creation_events();
  for (int op = 0; op < 4000; ++op) {
    const std::uint64_t dice = random() % 100;
    if (dice < 70) {
      run->write_random_chunk();
    } else if (dice < 78) {
      run->next_step();
    } else if (dice < 90) {
      run->commit();
      if (random() % 4 == 0) run->commit();  // once more at the same step
      run->next_step();
    } else if (dice < 95) {
      ASSERT_EQ(difference(run->now(),
                           [&] {
                             ShadowCut got = read_all(run->store());
                             got.step = run->now().step;
                             return got;
                           }()),
                "");
    } else if (dice < 97) {
      run->next_step();
      run->reopen();
      ASSERT_EQ(difference(run->committed(), read_all(run->store())), "");
    } else {
      const std::size_t now = run->log().events();
      const std::size_t first = std::min(std::max(since, now > 12 ? now - 12 : 0), now);
      const std::size_t prefix = first + random() % (now - first + 1);
      const std::string root = folder.file("run" + std::to_string(++kills));
      const std::string old = run->root();
      run->log().build_image(old, root, prefix, kCrashModes[random() % kCrashModes.size()], random);
      if (!fs::exists(root + "/store/manifest.json")) {
        fs::create_directories(root + "/store");
        fs::copy(old + "/store/manifest.json", root + "/store/manifest.json");
      }
      const std::vector<ShadowCut> expected = run->expected_after(prefix);
      auto next = std::make_unique<ShadowedStore>(root, *run, random());
      std::string why;
      ASSERT_GE(match(expected, next->committed(), &why), 0) << "op " << op << why;
      run = std::move(next);
      since = run->log().events();
      fs::remove_all(old);
    }
  }
  EXPECT_GT(kills, 50);
}

// The joint log of a leader's and its members' writes: whatever prefix of it lasts, the store is at a whole
// commit.
TEST(StoreCrash, EveryPrefixOfSeveralProcesses) {
  const TempDir folder(fast_folder());
  std::mt19937_64 random(17);
  ShadowedStore run(folder.file("run"), 23);
  for (const std::size_t processes : {std::size_t{3}, std::size_t{2}, std::size_t{1}, std::size_t{4}}) {
    run.reopen(processes);
    for (int s = 0; s < 4; ++s) {
      for (std::uint64_t w = random() % 4; w > 0; --w) run.write_random_chunk();
      if (random() % 3 != 0) run.commit();
      run.next_step();
    }
    run.write_random_chunk();  // dead past the last commit
    run.next_step();
  }
  expect_whole_commits(run, folder, random);
}

// Killed in a commit, at each of its events, between what members prepare and what the leader writes: the
// machine goes on, and the next run, of another number of processes, goes on from a whole commit.
TEST(StoreCrash, SeveralProcessesKilledInACommit) {
  bool more = true;
  for (std::size_t after = 0; more; ++after) {
    const TempDir folder(fast_folder());
    ShadowedStore run(folder.file("run"), 29 + after);
    run.reopen(3);
    for (int w = 0; w < 6; ++w) run.write_random_chunk();
    run.commit();
    run.next_step();
    for (int w = 0; w < 6; ++w) run.write_random_chunk();
    run.kill_at(run.log().events() + after);
    try {
      run.commit();
      more = false;
    } catch (const std::runtime_error&) {
    }
    ASSERT_TRUE(run.open_after_kill()) << after;
    run.next_step();
    run.reopen(2);
    run.write_random_chunk();
    run.commit();
    run.reopen();
    EXPECT_EQ(difference(run.committed(), read_all(run.store())), "") << after;
  }
}

// A kill at each event of a creation leaves what the next creation recognises and reclaims.
TEST(StoreCrash, KilledCreationIsReclaimed) {
  for (std::size_t event = 0;; ++event) {
    const TempDir folder(fast_folder());
    const std::string path = folder.file("store");
    const std::string volume = folder.file("volume");
    fs::create_directories(volume);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      CrashLog disk;
      disk.before_event = [&](std::size_t now) {
        if (now == event) ::_exit(9);
      };
      const auto store = ExtentStore::create(disk, {path, {{path, 0}, {volume, 0}}}, small_shape());
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    CrashLog disk;
    if (WEXITSTATUS(status) == 0) {
      EXPECT_GT(event, 5u);
      EXPECT_TRUE(ExtentStore::exists(path));
      return;
    }
    ASSERT_FALSE(ExtentStore::exists(path));
    EXPECT_THROW(ExtentStore::open(disk, path), Error);
    { const auto store = ExtentStore::create(disk, {path, {{path, 0}, {volume, 0}}}, small_shape()); }
    EXPECT_EQ(std::distance(fs::directory_iterator(volume), fs::directory_iterator()), 1);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename());
    EXPECT_EQ(names.size(), 4u) << testing::PrintToString(names);  // manifest, record, holder, one data file
    const auto store = ExtentStore::open(disk, path);
    EXPECT_FALSE(store->committed_step());
  }
}

// A power cut while the store is created: whatever lasted, it is no store, and the next creation succeeds.
TEST(StoreCrash, CutCreationIsReclaimed) {
  const TempDir folder(fast_folder());
  std::mt19937_64 random(3);
  ShadowedStore run(folder.file("run"), 5);
  for (std::size_t prefix = 0; prefix < run.creation_events(); ++prefix) {
    for (const CrashMode mode : kCrashModes) {
      const std::string image = folder.file("image");
      fs::create_directories(image + "/store");
      run.log().build_image(run.root(), image, prefix, mode, random);
      // Names that no flush of their folder followed may be missing.
      if (random() % 2 == 0) fs::remove(image + "/store/record");
      const std::string path = image + "/store";
      ASSERT_FALSE(ExtentStore::exists(path));
      CrashLog disk;
      EXPECT_THROW(ExtentStore::open(disk, path), Error);
      { const auto store = ExtentStore::create(disk, {path, {}}, small_shape()); }
      std::size_t extents = 0;
      for (const auto& entry : fs::recursive_directory_iterator(path))
        extents += entry.path().extension() == ".extents";
      EXPECT_EQ(extents, 1u) << "prefix " << prefix << " mode " << static_cast<int>(mode);
      fs::remove_all(image);
    }
  }
}

}  // namespace
}  // namespace terrace
