// The parts of the store that need no file: trailer, record, cut, manifest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "io/store_cut.h"
#include "io/store_manifest.h"
#include "io/store_record.h"
#include "io/store_trailer.h"
#include "terrace/error.h"

namespace terrace {
namespace {

using testing::HasSubstr;

template <std::size_t N>
void flip(std::array<std::byte, N>& bytes, std::size_t bit) {
  bytes[bit / 8] ^= std::byte{1} << (bit % 8);
}

template <typename Body>
std::string error_of(ErrorCode code, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

Trailer some_trailer(std::size_t segments) {
  Trailer trailer;
  trailer.store_id = {1, 2};
  trailer.identity = {3, 4};
  trailer.epoch = 5;
  trailer.step = 6;
  trailer.payload_bytes = 8192;
  trailer.payload_checksum = {7, 8};
  trailer.extent = 1;
  for (std::size_t i = 0; i < segments; ++i) trailer.segment_steps.push_back(100 + i);
  return trailer;
}

TEST(Trailer, ReadsBackWhatWasWritten) {
  for (const std::size_t segments : {std::size_t{0}, std::size_t{1}, kMaxSegments - 1, kMaxSegments}) {
    std::array<std::byte, kTrailerBytes> block;
    const Trailer trailer = some_trailer(segments);
    encode_trailer(trailer, block);
    const TrailerRead read = decode_trailer(block, trailer);
    ASSERT_EQ(read.state, TrailerRead::State::valid) << read.why;
    EXPECT_EQ(read.trailer.epoch, 5u);
    EXPECT_EQ(read.trailer.step, 6u);
    EXPECT_EQ(read.trailer.payload_bytes, 8192u);
    EXPECT_EQ(read.trailer.payload_checksum, (Hash128{7, 8}));
    EXPECT_EQ(read.trailer.segment_steps, trailer.segment_steps);
  }
  std::array<std::byte, kTrailerBytes> block;
  EXPECT_THROW(encode_trailer(some_trailer(kMaxSegments + 1), block), Error);
}

TEST(Trailer, EveryFlippedBitIsDamage) {
  std::array<std::byte, kTrailerBytes> block;
  const Trailer trailer = some_trailer(3);
  encode_trailer(trailer, block);
  for (std::size_t bit = 0; bit < kTrailerBytes * 8; ++bit) {
    flip(block, bit);
    ASSERT_EQ(decode_trailer(block, trailer).state, TrailerRead::State::damaged) << bit;
    flip(block, bit);
  }
}

TEST(Trailer, OfAnotherStoreChunkOrExtentIsDamage) {
  std::array<std::byte, kTrailerBytes> block{};
  const Trailer trailer = some_trailer(3);
  EXPECT_EQ(decode_trailer(block, trailer).state, TrailerRead::State::blank);
  encode_trailer(trailer, block);
  Trailer other = trailer;
  other.store_id.high ^= 1;
  EXPECT_THAT(decode_trailer(block, other).why, HasSubstr("belongs to store"));
  other = trailer;
  other.identity.low ^= 1;
  EXPECT_THAT(decode_trailer(block, other).why, HasSubstr("belongs to chunk"));
  other = trailer;
  other.extent = 0;
  EXPECT_THAT(decode_trailer(block, other).why, HasSubstr("extent 1"));
  other = trailer;
  other.segment_steps.pop_back();
  EXPECT_THAT(decode_trailer(block, other).why, HasSubstr("3 segments"));
}

TEST(Trailer, IdentityDependsOnEveryPart) {
  const StoreSegment base{"ab", 1, 2, "c"};
  std::vector<std::vector<StoreSegment>> all = {
      {base}, {{"a", 1, 2, "bc"}}, {{"ab", 1, 3, "c"}}, {{"ab", 0, 2, "c"}}, {{"ab", 1, 2}}, {base, base},
      {}};
  std::set<Hash128> seen;
  for (const auto& segments : all) seen.insert(identity_of(segments));
  EXPECT_EQ(seen.size(), all.size());
  EXPECT_EQ(identity_of(all[0]), identity_of(std::vector<StoreSegment>{base}));
}

Record some_record(std::uint64_t sequence, std::size_t epochs) {
  Record record;
  record.store_id = {1, 2};
  record.sequence = sequence;
  record.epoch = 1000 + sequence;
  record.process_id = 77;
  if (sequence % 3 != 0) record.committed_step = sequence * 10;
  record.sum = {sequence, 9};
  for (std::size_t i = 0; i < epochs; ++i) {
    record.epochs.push_back({i + 1, i % 4 == 0 ? std::nullopt : std::optional<std::uint64_t>(i)});
  }
  return record;
}

using RecordBlock = std::array<std::byte, kRecordBytes>;

RecordBlock encoded(const Record& record) {
  RecordBlock block;
  encode_record(record, block);
  return block;
}

TEST(RecordFormat, ReadsBackWhatWasWritten) {
  for (const std::size_t epochs : {std::size_t{0}, std::size_t{1}, kMaxEpochs - 1, kMaxEpochs}) {
    for (const std::uint64_t sequence : {1, 2, 3}) {
      const Record record = some_record(sequence, epochs);
      const RecordRead read = decode_record(encoded(record), {1, 2});
      ASSERT_EQ(read.state, RecordRead::State::whole) << read.why;
      EXPECT_EQ(read.record, record);
    }
  }
  RecordBlock block{};
  EXPECT_THROW(encode_record(some_record(1, kMaxEpochs + 1), block), Error);
  EXPECT_EQ(decode_record(block, {1, 2}).state, RecordRead::State::blank);
  EXPECT_EQ(decode_record(encoded(some_record(1, 1)), {1, 3}).state, RecordRead::State::damaged);
}

TEST(RecordFormat, EveryFlippedBitIsDamageAndTheSequenceStillShows) {
  RecordBlock block = encoded(some_record(8, 4));
  for (std::size_t bit = 0; bit < kRecordBytes * 8; ++bit) {
    flip(block, bit);
    const RecordRead read = decode_record(block, {1, 2});
    ASSERT_EQ(read.state, RecordRead::State::damaged) << bit;
    ASSERT_EQ(read.sector_sequence, 8u) << bit;
    flip(block, bit);
  }
}

TEST(RecordFormat, EveryMixOfSectorsIsTorn) {
  for (const bool over_blank : {false, true}) {
    const RecordBlock before = over_blank ? RecordBlock{} : encoded(some_record(4, 3));
    const RecordBlock after = encoded(some_record(6, 5));
    for (unsigned mask = 0; mask < 256; ++mask) {
      RecordBlock mix = before;
      for (std::size_t k = 0; k < 8; ++k) {
        if ((mask >> k) & 1u) std::copy_n(after.begin() + 512 * k, 512, mix.begin() + 512 * k);
      }
      const RecordRead read = decode_record(mix, {1, 2});
      const auto none = over_blank ? RecordRead::State::blank : RecordRead::State::whole;
      const auto wanted = mask == 0 ? none : mask == 255 ? RecordRead::State::whole : RecordRead::State::torn;
      ASSERT_EQ(read.state, wanted) << mask;
    }
  }
  // Two writes of the same number, after a crash in the first: no sector tells them apart, the whole does.
  Record other = some_record(6, 5);
  other.process_id = 78;
  other.epochs.back().epoch = 9999;
  RecordBlock mix = encoded(some_record(6, 5));
  const RecordBlock second = encoded(other);
  std::copy_n(second.begin(), 512, mix.begin());
  EXPECT_EQ(decode_record(mix, {1, 2}).state, RecordRead::State::torn);
}

TEST(RecordFormat, TheOtherPlaceDoesOnlyWhenThatIsRight) {
  using State = RecordRead::State;
  const auto whole = [](std::uint64_t sequence) {
    RecordRead read;
    read.state = State::whole;
    read.record = some_record(sequence, 1);
    return read;
  };
  const auto bad = [](State state, std::optional<std::uint64_t> sequence = {}) {
    RecordRead read;
    read.state = state;
    read.sector_sequence = sequence;
    read.why = "because";
    return read;
  };
  const auto chosen = [](const RecordRead& a, const RecordRead& b) {
    const RecordChoice one = choose_record({a, b});
    const RecordChoice two = choose_record({b, a});
    EXPECT_EQ(one.record, two.record);
    EXPECT_TRUE(one.record || !one.why.empty());
    return one.record ? one.record->sequence : 0;
  };
  EXPECT_EQ(chosen(whole(4), whole(5)), 5u);
  EXPECT_EQ(chosen(whole(4), bad(State::torn)), 4u);        // 5 was never completed
  EXPECT_EQ(chosen(whole(1), bad(State::blank)), 1u);       // as created
  EXPECT_EQ(chosen(whole(4), bad(State::blank)), 0u);       // 3 or 5 was lost
  EXPECT_EQ(chosen(whole(4), bad(State::damaged, 3)), 4u);  // the older one
  EXPECT_EQ(chosen(whole(4), bad(State::damaged, 5)), 0u);  // the last commit
  EXPECT_EQ(chosen(whole(4), bad(State::damaged)), 0u);     // nobody knows
  for (const State a : {State::blank, State::torn, State::damaged}) {
    for (const State b : {State::blank, State::torn, State::damaged}) EXPECT_EQ(chosen(bad(a), bad(b)), 0u);
  }
  EXPECT_THAT(choose_record({bad(State::damaged), bad(State::torn)}).why, HasSubstr("because"));
}

// The slow reference: of all valid committed extents, the one no other is newer than.
TEST(Cut, ChoosesTheNewestCommittedExtentOfEachChunk) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    Record record;
    record.epoch = 4;
    for (std::uint64_t epoch = 1; epoch <= 4; ++epoch) {
      if (random() % 4 == 0) continue;  // left the list
      record.epochs.push_back(
          {epoch, random() % 3 == 0 ? std::nullopt : std::optional<std::uint64_t>(random() % 8)});
    }
    std::vector<ChunkTrailers> trailers(4);
    std::vector<Hash128> identities;
    for (std::size_t i = 0; i < trailers.size(); ++i) {
      identities.push_back(hash128(std::to_string(i)));
      for (TrailerRead& read : trailers[i]) {
        read.state = static_cast<TrailerRead::State>(random() % 3);
        read.trailer.epoch = 1 + random() % 4;
        read.trailer.step = random() % 8;
      }
    }
    const Cut cut = choose_cut(record, identities, trailers);
    Hash128 sum;
    std::vector<std::size_t> damaged;
    for (std::size_t i = trailers.size(); i-- > 0;) {
      std::map<std::pair<std::uint64_t, std::uint64_t>, int> candidates;
      for (int extent = 1; extent >= 0; --extent) {
        const TrailerRead& read = trailers[i][static_cast<std::size_t>(extent)];
        if (read.state != TrailerRead::State::valid) continue;
        for (const EpochEntry& entry : record.epochs) {
          if (entry.epoch == read.trailer.epoch && entry.committed_step &&
              *entry.committed_step >= read.trailer.step) {
            candidates[{read.trailer.epoch, read.trailer.step}] = extent;
          }
        }
      }
      ASSERT_EQ(cut.extents[i], candidates.empty() ? kNoExtent : candidates.rbegin()->second);
      if (!candidates.empty()) {
        sum += cut_term(identities[i], candidates.rbegin()->first.first, candidates.rbegin()->first.second);
      }
      const auto is_damaged = [](const TrailerRead& read) {
        return read.state == TrailerRead::State::damaged;
      };
      ASSERT_EQ(std::count(cut.damaged.begin(), cut.damaged.end(), i),
                is_damaged(trailers[i][0]) || is_damaged(trailers[i][1]));
    }
    ASSERT_EQ(cut.sum, sum);  // added in the other order
    ASSERT_TRUE(cut.from_later.empty());
  }
}

TEST(Cut, AnExtentOfAnUnknownLaterEpochIsNoticed) {
  Record record;
  record.epoch = 4;
  std::vector<ChunkTrailers> trailers(2);
  trailers[1][0].state = TrailerRead::State::valid;
  trailers[1][0].trailer.epoch = 5;
  const std::vector<Hash128> identities(2);
  EXPECT_EQ(choose_cut(record, identities, trailers).from_later, std::vector<std::size_t>{1});
}

TEST(Cut, EpochsThatNoExtentCarriesLeaveTheList) {
  const std::vector<EpochEntry> epochs = {{1, 5}, {2, {}}, {3, 7}, {4, 9}};
  const std::vector<std::uint64_t> carried = {4, 1, 9};
  EXPECT_EQ(carried_epochs(epochs, carried), (std::vector<EpochEntry>{{1, 5}, {4, 9}}));
  EXPECT_TRUE(carried_epochs(epochs, {}).empty());
}

Manifest some_manifest() {
  Manifest manifest;
  manifest.id = {0x0123456789abcdef, 0x00f0};
  manifest.shape.chunk_numel = 4096;
  manifest.shape.streams = {{"master", "fp32"}};
  manifest.shape.model = "{\"a\": \"\\n\"}\n";
  manifest.shape.chunks = {{{{"w", 0, 10}, {"x\"y", 5, 6, "2 of 4"}}, 4096}, {{{"w", 10, 20}}, 8192}};
  const std::vector<VolumeRoom> rooms = {{".", 1u << 30}, {"/elsewhere", 1u << 30}};
  place_extents(manifest, rooms);
  return manifest;
}

TEST(ManifestFormat, ReadsBackWhatWasWritten) {
  const Manifest manifest = some_manifest();
  const std::string text = manifest_text(manifest);
  const Manifest read = parse_manifest(text, "file");
  EXPECT_EQ(manifest_text(read), text);
  EXPECT_EQ(read.id, manifest.id);
  EXPECT_EQ(read.shape.model, manifest.shape.model);
  EXPECT_EQ(read.shape.chunks[0].segments[1].slice, "2 of 4");
  EXPECT_EQ(read.places.size(), 3u);
  EXPECT_EQ(read.paths[1].directory, "/elsewhere");
}

TEST(ManifestFormat, EveryFlippedBitAndEveryCutIsRefused) {
  const std::string text = manifest_text(some_manifest());
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string bad = text;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THAT(error_of(ErrorCode::corrupt, [&] { parse_manifest(bad, "the/file"); }),
                HasSubstr("the/file"));
  }
  for (std::size_t size = 0; size < text.size(); ++size) {
    error_of(ErrorCode::corrupt, [&] { parse_manifest(text.substr(0, size), "file"); });
  }
}

TEST(ManifestFormat, ShapesThatCannotBeAreRefusedByChunk) {
  const auto shape_of = [](std::vector<StoreChunk> chunks) {
    StoreShape shape;
    shape.chunks = std::move(chunks);
    return shape;
  };
  const auto refused = [&](std::vector<StoreChunk> chunks) {
    return error_of(ErrorCode::invalid_argument, [&] { check_shape(shape_of(chunks)); });
  };
  const StoreChunk good{{{"w", 0, 10}}, 4096};
  check_shape(shape_of({good, {{{"w", 10, 11}}, 4096}, {{{"w", 0, 10, "other slice"}}, 4096}}));
  EXPECT_THAT(refused({good, {{}, 4096}}), HasSubstr("chunk 1"));
  EXPECT_THAT(refused({good, {{{"v", 0, 1}}, 4095}}), HasSubstr("4095"));
  EXPECT_THAT(refused({good, {{{"v", 3, 3}}, 4096}}), HasSubstr("v[3:3]"));
  EXPECT_THAT(refused({good, {{{"w", 9, 11}}, 4096}}), HasSubstr("element 9 of w"));
  StoreChunk crowded{{}, 4096};
  for (std::uint64_t i = 0; i < kMaxSegments; ++i) crowded.segments.push_back({"t", i, i + 1});
  check_shape(shape_of({crowded}));
  crowded.segments.push_back({"t", kMaxSegments, kMaxSegments + 1});
  EXPECT_THAT(refused({crowded}), HasSubstr("499"));
}

TEST(ManifestFormat, ExtentsFillThePathsAndNeverOverlap) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    Manifest manifest;
    manifest.two_extents = random() % 2 == 0;
    const std::size_t chunks = random() % 20;
    for (std::uint64_t i = 0; i < chunks; ++i) {
      manifest.shape.chunks.push_back({{{"t", i, i + 1}}, 4096 * (1 + random() % 50)});
    }
    std::vector<VolumeRoom> rooms(1 + random() % 3);
    for (VolumeRoom& room : rooms) room = {"d", random() % (std::uint64_t{8} << 20)};
    try {
      place_extents(manifest, rooms);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
      continue;
    }
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> taken;
    std::vector<std::uint64_t> used(rooms.size(), 0);
    for (std::size_t i = 0; i < manifest.places.size(); ++i) {
      const std::uint64_t bytes =
          i == chunks ? kRunStateExtentBytes : manifest.shape.chunks[i].payload_bytes + kTrailerBytes;
      for (std::size_t k = 0; k < (manifest.two_extents ? 2u : 1u); ++k) {
        const ExtentPlace& place = manifest.places[i];
        EXPECT_EQ(place.offset_bytes[k] % 4096, 0u);
        EXPECT_TRUE(taken.emplace(std::pair(place.path, place.offset_bytes[k]), bytes).second);
        used[place.path] += bytes;
      }
    }
    for (auto it = taken.begin(); it != taken.end(); ++it) {
      const auto next = std::next(it);
      if (next == taken.end() || next->first.first != it->first.first) continue;
      EXPECT_LE(it->first.second + it->second, next->first.second);
    }
    for (std::size_t v = 0; v < rooms.size(); ++v) {
      EXPECT_EQ(manifest.paths[v].file_bytes, used[v]);
      EXPECT_LE(used[v], rooms[v].bytes);
    }
  }
}

TEST(ManifestFormat, WhatDoesNotFitIsSaidInBytes) {
  Manifest manifest;
  manifest.shape.chunks = {{{{"t", 0, 1}}, 4096}};
  const std::uint64_t wanted = 2 * kRunStateExtentBytes + 2 * 8192;
  std::vector<VolumeRoom> rooms = {{"here", wanted}};
  place_extents(manifest, rooms);
  rooms[0].bytes = wanted - 1;
  const std::string why = error_of(ErrorCode::does_not_fit, [&] { place_extents(manifest, rooms); });
  EXPECT_THAT(why, HasSubstr(std::to_string(wanted)));
  EXPECT_THAT(why, HasSubstr("here"));
}

}  // namespace
}  // namespace terrace
