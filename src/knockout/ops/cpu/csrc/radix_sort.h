// Radix sort of entries by score, best first. No branch depends on a score, and the result is stable.
//
// Two passes over a linear key, which divides the range of the scores evenly into many more parts than there are
// entries. That leaves few pairs of neighbors in the wrong order, which are exchanged at the end. If scores are spread
// over many orders of magnitude, most of them share a key; then all bits of the scores are the key, in more passes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "buckets.h"
#include "buffer.h"
#include "entry.h"
#include "read_ahead.h"

namespace knockout {

// Keys of scores: integers that are smaller for better scores. A key has 32 bits, or 64 for all bits of a double.
template <class T>
struct LinearKey {
  using Integer = int32_t;
  BucketOfScore<T> part;
  LinearKey(T low, T high, int bits) : part(low, high, int32_t{1} << bits) {}
  KNOCKOUT_INLINE Integer operator()(T score) const { return part(score); }
};

template <class T>
struct BitsKey {
  using Integer = std::conditional_t<std::is_same_v<T, float>, int32_t, int64_t>;
  // The bits of negative scores rise with their distance from 0; those of the others, if inverted, fall.
  KNOCKOUT_INLINE Integer operator()(T score) const {
    using Unsigned = std::make_unsigned_t<Integer>;
    constexpr Unsigned sign = Unsigned{1} << (8 * sizeof(T) - 1);
    const Unsigned bits = std::bit_cast<Unsigned>(score);
    return static_cast<Integer>(bits & sign ? bits : bits ^ ~sign);
  }
};

constexpr int64_t kKeyBlock = 256;

template <class Key, class T>
KNOCKOUT_INLINE void find_keys_of(const T* score, int64_t count, const Key& shared_key, typename Key::Integer* key) {
  const Key key_of = shared_key;  // a local copy can stay in registers
  for (int64_t i = 0; i < count; ++i) key[i] = key_of(score[i]);
}
#define KNOCKOUT_KEYS(Key, T)                                                                                     \
  KNOCKOUT_VECTORIZED void find_keys(const T* score, int64_t count, const Key<T>& key_of, Key<T>::Integer* key) { \
    find_keys_of(score, count, key_of, key);                                                                      \
  }
KNOCKOUT_KEYS(LinearKey, float)
KNOCKOUT_KEYS(LinearKey, double)
KNOCKOUT_KEYS(BitsKey, float)
KNOCKOUT_KEYS(BitsKey, double)
#undef KNOCKOUT_KEYS

// use(key, at, size) for blocks of entries: `key` has those of the entries [at, at + size) of the source.
template <class T, class Source, class Key, class Use>
KNOCKOUT_INLINE void for_each_key_block(const Source& source, int64_t count, const Key& key_of, const Use& use) {
  T scores[kKeyBlock];
  typename Key::Integer key[kKeyBlock];
  for (int64_t at = 0; at < count; at += kKeyBlock) {
    const int64_t size = std::min(kKeyBlock, count - at);
    find_keys(source.scores(at, size, scores), size, key_of, key);
    use(key, at, size);
  }
}

// Sort by the keys: `passes` digits of `bits` bits each, the lowest first. The result is in `entry`, or, after an odd
// number of passes, in `other`, which is returned. The source may be the entries themselves if there are two or more
// passes and `entry` is read before it is written: the first pass writes to the array that the last one does not.
template <int passes, class T, class Source, class Key>
void radix_sort_by(const Source& source, Entry<T>* entry, Entry<T>* other, int64_t count, const Key& key_of, int bits) {
  const int64_t digits = int64_t{1} << bits;
  const auto last_digit = static_cast<typename Key::Integer>(digits - 1);
  const Buffer<int32_t> position(passes * digits);  // per pass and digit: first a count, then where to put the next
  std::fill_n(position.get(), passes * digits, 0);
  for_each_key_block<T>(source, count, key_of, [&](const auto* key, int64_t, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      for (int pass = 0; pass < passes; ++pass) ++position[pass * digits + ((key[i] >> (pass * bits)) & last_digit)];
    }
  });
  for (int pass = 0; pass < passes; ++pass) {
    int32_t* const of_pass = position.get() + pass * digits;
    for (int32_t digit = 0, total = 0; digit < digits; ++digit) total += std::exchange(of_pass[digit], total);
  }
  ReadAhead& ahead = ReadAhead::of_this_thread();
  const auto run = [&](const auto& from, Entry<T>* to, int pass) {
    int32_t* const next = position.get() + pass * digits;
    const int shift = pass * bits;
    for_each_key_block<T>(from, count, key_of, [&](const auto* key, int64_t at, int64_t size) {
      ahead.along(size, [&](int64_t i) { store(to + next[(key[i] >> shift) & last_digit]++, from[at + i]); });
    });
  };
  run(source, passes % 2 ? entry : other, 0);
  for (int pass = 1; pass < passes; ++pass) {
    const bool to_entry = (passes - pass) % 2;
    run(EntrySource<T>{to_entry ? other : entry}, to_entry ? entry : other, pass);
  }
}

// Whether each of `count` entries is worse than the one before it.
template <class T>
KNOCKOUT_INLINE bool falls_of(const Entry<T>* entry, int64_t count) {
  int32_t rises = 0;
  for (int64_t i = 0; i < count; ++i) rises |= static_cast<int32_t>(!(entry[i - 1].score > entry[i].score));
  return !rises;
}
KNOCKOUT_VECTORIZED bool falls(const Entry<float>* entry, int64_t count) { return falls_of(entry, count); }
KNOCKOUT_VECTORIZED bool falls(const Entry<double>* entry, int64_t count) { return falls_of(entry, count); }

enum class Sorted { strictly, with_ties, no };

// Put entries in order that are nearly so, by moving some of them up; equal scores keep their order. Gives up after
// many moves.
template <class T>
Sorted finish_sorting(Entry<T>* entry, int64_t count) {
  constexpr int64_t block = 64;
  int64_t moves = count / 2 + block;
  bool ties = false;
  for (int64_t at = 1; at < count; at += block) {
    const int64_t end = std::min(at + block, count);
    if (falls(entry + at, end - at)) continue;
    for (int64_t i = at; i < end; ++i) {
      if (entry[i - 1].score > entry[i].score) continue;
      const Entry<T> moving = entry[i];
      int64_t to = i;
      for (; to > 0 && entry[to - 1].score < moving.score && moves > 0; --to, --moves) entry[to] = entry[to - 1];
      entry[to] = moving;
      ties = ties || (to > 0 && entry[to - 1].score == moving.score);
      if (moves == 0) return Sorted::no;
    }
  }
  return ties ? Sorted::with_ties : Sorted::strictly;
}

// Sort the entries of a source, which are scores from `low` to `high`, to `entry`; equal scores keep their order (but
// 0 and -0 may not). The source may be `entry` itself. Returns whether there may be equal scores.
template <class T, class Source>
bool radix_sort(const Source& source, Entry<T>* entry, int64_t count, T low, T high) {
  const Buffer<Entry<T>> other(count);
  // Two digits with 7 bits more than it takes to number the entries; at most 22, since the counters of a digit have to
  // fit into the first-level cache.
  const int bits = std::clamp((static_cast<int>(std::bit_width(static_cast<uint64_t>(count))) + 7) / 2, 7, 11);
  radix_sort_by<2>(source, entry, other.get(), count, LinearKey<T>(low, high, 2 * bits), bits);
  const Sorted sorted = finish_sorting(entry, count);
  if (sorted != Sorted::no) return sorted == Sorted::with_ties;
  constexpr int passes = std::is_same_v<T, float> ? 4 : 8;
  radix_sort_by<passes>(EntrySource<T>{entry}, entry, other.get(), count, BitsKey<T>(), 8);
  return true;
}

}  // namespace knockout
