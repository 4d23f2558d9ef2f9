// What the tests of the kernels share: checks, threads, input, and one way to call the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../src/knockout/ops/cpu/csrc/select_row.h"
#include "../../src/knockout/ops/cpu/csrc/select_row_backward.h"

using namespace knockout;

inline std::mutex mutex;
inline int checks = 0, failures = 0;

inline void check(bool passed, const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++checks;
  if (passed) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

// A given number of threads (see threads.h), which start for much less work than would pay off.
struct SomeThreads {
  int64_t threads;

  template <class Work>
  void parallel_for(int64_t total, int64_t grain, const Work& work) const {
    const int64_t parts = std::min(threads, total / std::max<int64_t>(1, grain / 256));
    std::vector<std::thread> others;
    for (int64_t part = 1; part < parts; ++part) {
      others.emplace_back([&work, part, parts, total] { work(total * part / parts, total * (part + 1) / parts); });
    }
    if (total > 0) work(int64_t{0}, parts > 1 ? total / parts : total);
    for (std::thread& each : others) each.join();
  }
  int64_t count() const { return threads; }
};

struct Setting {
  int64_t k, kind, alpha;
  double c, unit;
  bool by_position;
  int64_t numerator = 0;  // of 2^30, if k is a fraction
};

// All results of a row.
template <class T>
struct Result {
  std::vector<int32_t> member;
  std::vector<int64_t> leader;
  std::vector<uint8_t> filled;
  std::vector<T> weight, score, gradient;
  int64_t max_members = 0;  // of a slot

  bool operator==(const Result& other) const {
    const auto same = [](const std::vector<T>& one, const std::vector<T>& two) {
      return one.size() == two.size() &&
             (one.empty() || std::memcmp(one.data(), two.data(), one.size() * sizeof(T)) == 0);
    };
    return member == other.member && leader == other.leader && filled == other.filled && same(weight, other.weight) &&
           same(score, other.score) && same(gradient, other.gradient);
  }
};

constexpr int64_t kLong = 5000;  // longer rows are checked less often: ThreadSanitizer is slow

// The forward pass of a row. Every array is exactly as large as required.
template <class T, class S, class Threads>
Result<T> forward(const ScoreRow<S>& row, const RowCall<T>& call, bool save, Workspace<T>& work, RowResults<T>& results,
                  const Threads& threads) {
  const int64_t k = call.shape.k;
  Result<T> out;
  out.leader.assign(k, -77);
  out.filled.assign(k, 1);
  out.score.assign(k, T(-77));
  const SlotOutputs<T> slots{out.score.data(), out.leader.data(), reinterpret_cast<bool*>(out.filled.data())};
  select_row<T>(row, call, save, work, slots, results, threads);
  out.max_members = results.most_members();
  out.member.assign(k * out.max_members, static_cast<int32_t>(call.shape.n));
  out.weight.assign(k * out.max_members, T(0));
  for (int64_t slot = 0; slot < k; ++slot) {
    const int64_t begin = results.begin(slot), count = results.end[slot] - begin, at = slot * out.max_members;
    std::copy_n(results.member.data() + begin, count, out.member.begin() + at);
    std::copy_n(results.weight.data() + begin, count, out.weight.begin() + at);
  }
  return out;
}

// The same numbers, `stride` apart.
template <class T>
std::vector<T> spaced(const std::vector<T>& dense, int64_t stride) {
  std::vector<T> out(dense.empty() ? 0 : (dense.size() - 1) * stride + 1);
  for (size_t i = 0; i < dense.size(); ++i) out[i * stride] = dense[i];
  return out;
}

// Forward and backward pass of a row, whose scores and mask are `stride` apart.
template <class T, class Threads>
Result<T> run(const std::vector<T>& scores, const std::vector<uint8_t>& mask, const Setting& set,
              const Threads& threads, int64_t stride = 1) {
  const RowShape shape(static_cast<int64_t>(scores.size()), set.k, set.numerator);
  const RowCall<T> call(shape, Boost<T>(set.kind, set.alpha, set.c, set.unit), set.by_position);
  const std::vector<T> spaced_scores = spaced(scores, stride);
  const std::vector<uint8_t> spaced_mask = spaced(mask, stride);
  const ScoreRow<T> row{spaced_scores.data(), stride, mask.empty() ? nullptr : spaced_mask.data(), stride};
  Workspace<T> work(shape);
  RowResults<T> results;
  Result<T> out = forward(row, call, true, work, results, threads);
  check(results.saved.size() <= saved_length<T>().of(shape.n, shape.k, shape.least),
        "length of the saved rounds, n = " + std::to_string(shape.n) + ", k = " + std::to_string(shape.k));
  if (shape.n <= kLong) {
    // The same without saved rounds, also in memory that the row before has used.
    Workspace<T> other_work(shape);
    for (int repeat = 0; repeat < 2; ++repeat) {
      RowResults<T> unsaved;
      check(forward(row, call, false, other_work, unsaved, threads) == out,
            "without saved rounds, n = " + std::to_string(shape.n));
    }
  }

  std::vector<T> d_weight(out.weight.size()), d_score(out.score.size());
  for (size_t i = 0; i < d_weight.size(); ++i) d_weight[i] = T(std::sin(1.0 + double(out.member[i])));
  for (size_t i = 0; i < d_score.size(); ++i) d_score[i] = T(std::cos(1.0 + double(out.leader[i])));
  out.gradient.assign(shape.n, T(-77));
  const char* problem = select_row_backward<T>(
      row, call, RowMembers{out.member.data(), out.max_members}, OutputGradients<T>{d_weight.data(), d_score.data()},
      results.saved.data(), results.saved.size(), out.gradient.data(), threads);
  check(!problem, problem ? problem : "");
  return out;
}

template <class T>
std::vector<T> draw(const std::string& kind, int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::normal_distribution<double> normal;
  std::vector<T> scores(n);
  for (T& score : scores) {
    if (kind == "uniform") score = T(uniform(random));
    if (kind == "constant") score = T(0.25);
    if (kind == "huge") score = T(normal(random)) * (std::numeric_limits<T>::max() / 8);
    if (kind == "tied") score = T(std::floor(5 * uniform(random)));
    if (kind == "heavy-tailed") score = T(std::exp(4 * normal(random)));
    if (kind == "nearly tied")
      score = T(10) + T(std::floor(4 * uniform(random))) * 8 * std::numeric_limits<T>::epsilon();
  }
  return scores;
}

inline std::vector<uint8_t> draw_mask(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> mask(n);
  for (uint8_t& each : mask) each = random() % 10 != 0;
  return mask;
}
