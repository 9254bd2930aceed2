// Commits, epochs and the record: docs/store-format.md, "Commit" and "Opening to write".
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "io/store_files.h"
#include "io/store_impl.h"
#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/units.h"

namespace terrace {

void StoreImpl::commit(std::uint64_t step, const std::string& run_state,
                       std::span<const CommitShare> others) {
  if (run_state.size() > kMaxRunStateBytes) {
    fail(ErrorCode::does_not_fit, "the run state has {} bytes, the store holds at most {}", run_state.size(),
         kMaxRunStateBytes);
  }
  bool again = false;
  {
    const Lock lock(mutex_);
    check(!committing_, "two commits at once");
    check(!member_, "a commit by a process that is not the leader");
    check(parts_.manifest.two_extents, "a commit of a store with one extent a chunk");
    check(writes_ == 0, "a commit while {} writes are under way", writes_);
    check_usable(lock);
    check(step >= highest_step_.value_or(0), "a commit of step {} after a write of step {}", step,
          highest_step_.value_or(0));
    check(step >= parts_.record.committed_step.value_or(0), "a commit of step {} after that of step {}", step,
          parts_.record.committed_step.value_or(0));
    check_shares(lock, others);
    again = is_committed(parts_.record, parts_.record.epoch, step);
    if (again && run_state == parts_.run_state) return;
  }
  try {
    // Another epoch would be news to the other processes.
    check(!shared_ || !again, "two commits of step {} of a shared store, with different run states", step);
    if (again) {
      begin_epoch();  // the same step once more: what it writes must be newer than what stands there
    }
    if (parts_.record.epochs.size() >= kMaxEpochs) rewrite_oldest();
    {
      const Lock lock(mutex_);
      committing_ = true;  // reads go on
    }
    write_run_state(step, run_state);
    flush_data();

    Record record = next_record();
    record.committed_step = step;
    std::vector<CommitShare> shares(others.begin(), others.end());
    {
      const Lock lock(mutex_);
      shares.push_back(own_share(lock));
    }
    std::vector<std::uint64_t> epochs;
    for (const CommitShare& share : shares) {
      record.sum += share.added;
      record.sum -= share.removed;
      epochs.insert(epochs.end(), share.epochs.begin(), share.epochs.end());
    }
    record.epochs = carried_epochs(parts_.record.epochs, epochs);
    if (record.epochs.empty() || record.epochs.back().epoch != record.epoch)
      record.epochs.push_back({record.epoch, {}});
    record.epochs.back().committed_step = step;
    write_record(record);
  } catch (...) {
    const Lock lock(mutex_);
    committing_ = false;
    if (!failed_) failed_ = std::current_exception();
    throw;
  }
  const Lock lock(mutex_);
  committing_ = false;
  for (Chunk& chunk : chunks_) chunk.committed = chunk.newest;  // the other extents may now be written
  highest_step_.reset();
  parts_.run_state = run_state;
  moved_on_ = shared_;
}

// A share that is missing would take its chunks out of the cut, or leave them at the commit before.
void StoreImpl::check_shares(const Lock&, std::span<const CommitShare> others) const {
  Hash128 answered, all;
  for (const CommitShare& share : others) answered += share.own;
  for (const Chunk& chunk : chunks_) {
    all += chunk.identity;
    if (chunk.own) answered += chunk.identity;
  }
  check(answered == all, "a commit by {} processes that do not answer for every chunk once",
        others.size() + 1);
}

// What this process's chunks change in the cut.
CommitShare StoreImpl::own_share(const Lock&) const {
  CommitShare share;
  std::set<std::uint64_t> epochs;
  for (const Chunk& chunk : chunks_) {
    if (!chunk.own) continue;
    share.own += chunk.identity;
    if (chunk.newest != kNoExtent)
      epochs.insert(chunk.trailers[static_cast<std::size_t>(chunk.newest)].epoch);
    if (chunk.newest == chunk.committed) continue;
    const Trailer& now = chunk.trailers[static_cast<std::size_t>(chunk.newest)];
    share.added += cut_term(chunk.identity, now.epoch, now.step);
    if (chunk.committed == kNoExtent) continue;
    const Trailer& before = chunk.trailers[static_cast<std::size_t>(chunk.committed)];
    share.removed += cut_term(chunk.identity, before.epoch, before.step);
  }
  share.epochs = {epochs.begin(), epochs.end()};
  return share;
}

void StoreImpl::set_own(const std::vector<bool>& own) {
  check(own.size() == run_state_chunk(), "{} owners for {} chunks", own.size(), run_state_chunk());
  const Lock lock(mutex_);
  for (std::size_t i = 0; i < own.size(); ++i) chunks_[i].own = own[i];
  shared_ = true;
}

void StoreImpl::share(const std::vector<bool>& own) {
  if (!parts_.manifest.two_extents) {
    fail(ErrorCode::unsupported,
         "the store {}: one extent a chunk (commit.every_steps = 0) cannot be shared by processes",
         parts_.directory);
  }
  for (const DataFile& file : parts_.files.data) parts_.locks.share(file.fd(), file.path(), parts_.directory);
  set_own(own);
}

void StoreImpl::become_member(const std::vector<bool>& own) {
  set_own(own);
  const Lock lock(mutex_);
  member_ = true;
  chunks_.back().own = false;  // the run state
}

// The leader flushes: that reaches every process's writes to a file.
CommitShare StoreImpl::prepare(std::uint64_t step) {
  const Lock lock(mutex_);
  check(member_, "a commit of step {} is prepared by a process that is no member", step);
  check(!committing_, "a commit of step {} is prepared before that of step {} was told of", step,
        prepared_.value_or(0));
  check(writes_ == 0, "a commit while {} writes are under way", writes_);
  check_usable(lock);
  check(step >= highest_step_.value_or(0), "a commit of step {} after a write of step {}", step,
        highest_step_.value_or(0));
  check(step >= parts_.record.committed_step.value_or(0), "a commit of step {} after that of step {}", step,
        parts_.record.committed_step.value_or(0));
  committing_ = true;
  prepared_ = step;
  return own_share(lock);
}

void StoreImpl::committed(std::uint64_t step) {
  const Lock lock(mutex_);
  check(member_ && committing_ && prepared_ == step, "a commit of step {} that was not prepared", step);
  committing_ = false;
  prepared_.reset();
  for (Chunk& chunk : chunks_) chunk.committed = chunk.newest;
  highest_step_.reset();
  parts_.record.committed_step = step;
  parts_.record.epochs.back().committed_step = step;  // this run's: the record was read in its epoch
  moved_on_ = true;
}

void StoreImpl::begin_run() {
  begin_epoch();
  if (parts_.record.epochs.size() < kMaxEpochs) return;
  logger()->info("the store {}: {} runs have left chunks; the oldest are rewritten", parts_.directory,
                 kMaxEpochs);
  const std::uint64_t step = parts_.record.committed_step.value();  // an epoch in the list has committed
  commit(step, parts_.run_state, {});
}

void StoreImpl::begin_epoch() {
  Record record = next_record();
  record.epochs = carried_epochs(parts_.record.epochs, carried(false));
  check(record.epochs.size() < kMaxEpochs, "{} epochs in the list", record.epochs.size());
  record.epoch = parts_.record.epoch + 1;
  record.process_id = static_cast<std::uint64_t>(::getpid());
  record.epochs.push_back({record.epoch, {}});
  write_record(record);
}

// Copies the chunks of the older half of the epochs into their working extents, as of this epoch and the
// committed step. The commit that follows makes the list short again.
void StoreImpl::rewrite_oldest() {
  const std::vector<EpochEntry>& epochs = parts_.record.epochs;
  const std::uint64_t last_old = epochs[epochs.size() / 2].epoch;
  for (std::size_t i = 0; i < run_state_chunk(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.newest == kNoExtent || chunk.newest != chunk.committed) continue;
    const Trailer trailer = chunk.trailers[static_cast<std::size_t>(chunk.committed)];
    if (trailer.epoch > last_old) continue;
    const AlignedBlock block(extent_bytes(parts_.manifest, i));
    TransferGroup group;
    read(i, block.span(), IoPriority::demand, group.add());
    group.wait();
    const ChunkVersion version{parts_.record.committed_step.value(), trailer.segment_steps};
    write(i, block.span(), version, IoPriority::demand, group.add());
    group.wait();
  }
}

void StoreImpl::write_run_state(std::uint64_t step, const std::string& run_state) {
  const std::uint64_t padded = round_up(run_state.size(), 4096);
  const AlignedBlock block(padded + kTrailerBytes);
  if (!run_state.empty()) std::memcpy(block.data(), run_state.data(), run_state.size());
  TransferGroup group;
  write_extent(run_state_chunk(), block.span(), run_state.size(), {step, {}}, IoPriority::demand,
               group.add());
  group.wait();
}

void StoreImpl::flush_data() {
  for (const IoFile file : parts_.files.data_ids) queue_.flush(file);
}

Record StoreImpl::next_record() const {
  Record record = parts_.record;
  ++record.sequence;
  return record;
}

void StoreImpl::write_record(const Record& record) {
  const AlignedBlock block(kRecordBytes);
  encode_record(record, block.span().first<kRecordBytes>());
  transfer(queue_, IoDirection::write, parts_.files.record_id, record.sequence % kRecordPlaces * kRecordBytes,
           block.span());
  queue_.flush(parts_.files.record_id);
  const Lock lock(mutex_);
  parts_.record = record;
}

std::vector<std::uint64_t> StoreImpl::carried(bool newest) const {
  std::set<std::uint64_t> epochs;
  for (const Chunk& chunk : chunks_) {
    const int extent = newest ? chunk.newest : chunk.committed;
    if (extent != kNoExtent) epochs.insert(chunk.trailers[static_cast<std::size_t>(extent)].epoch);
  }
  return {epochs.begin(), epochs.end()};
}

}  // namespace terrace
