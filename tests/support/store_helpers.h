// What the tests of the store share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "io/extent_store.h"
#include "io/store_files.h"
#include "terrace/error.h"

namespace terrace {

// A parent for the folders of tests that make many small files: in memory where that is possible.
inline std::string fast_folder() {
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : testing::TempDir();
}

// Runs `body`, which must throw an Error of `code`; returns its message.
template <typename Body>
std::string thrown(ErrorCode code, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error_code_name(error.code()), error_code_name(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// Writes a chunk whose bytes all follow from `seed`; waits.
inline void write_chunk(ExtentStore& store, std::size_t chunk, std::uint64_t step, std::uint64_t seed) {
  const StoreChunk& shape = store.shape().chunks.at(chunk);
  const AlignedBlock block(shape.payload_bytes + kTrailerBytes);
  for (std::uint64_t at = 0; at < shape.payload_bytes; at += 8) {
    const std::uint64_t word = seed * 0x9E3779B97F4A7C15u + at;
    std::memcpy(block.data() + at, &word, 8);
  }
  TransferGroup group;
  store.write(chunk, block.span(), {step, std::vector<std::uint64_t>(shape.segments.size(), seed)},
              IoPriority::write_back, group.add());
  group.wait();
}

// Reads a chunk and says whether it is what write_chunk(seed) wrote. Throws what the read ends with.
inline bool chunk_is(ExtentStore& store, std::size_t chunk, std::uint64_t seed) {
  const StoreChunk& shape = store.shape().chunks.at(chunk);
  const AlignedBlock block(shape.payload_bytes + kTrailerBytes);
  TransferGroup group;
  store.read(chunk, block.span(), IoPriority::demand, group.add());
  group.wait();
  for (std::uint64_t at = 0; at < shape.payload_bytes; at += 8) {
    const std::uint64_t word = seed * 0x9E3779B97F4A7C15u + at;
    if (std::memcmp(block.data() + at, &word, 8) != 0) return false;
  }
  return store.version(chunk).segment_steps == std::vector<std::uint64_t>(shape.segments.size(), seed);
}

// Flips one bit of a file.
inline void flip_bit(const std::string& file, std::uint64_t byte, int bit) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(byte));
  const int value = stream.get();
  ASSERT_NE(value, EOF);
  stream.seekp(static_cast<std::streamoff>(byte));
  stream.put(static_cast<char>(value ^ (1 << bit)));
  ASSERT_TRUE(stream.flush());
}

}  // namespace terrace
