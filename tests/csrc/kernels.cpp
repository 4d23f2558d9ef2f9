// Tests of the kernels without PyTorch, to be run under sanitizers: `make sanitize` builds and runs them.
//
// The results of a row are the same to the last bit for 1, 2 and 8 threads, and when many rows are computed at once;
// the tournament, the sort and the gather agree with plain loops. Prints the failed checks, and how many there were.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../src/knockout/ops/cpu/csrc/gather.h"
#include "harness.h"

namespace {

const std::vector<std::string> kKinds = {"uniform", "tied", "nearly tied", "constant", "heavy-tailed", "huge"};

// Relative(4), Relative(0.5), Relative(2, alpha=1), Fixed(100), Fixed(1, alpha=2), Power(20), Adaptive(1.5, unit=10),
// Adaptive(4, unit=0.1, alpha=2)
std::vector<Setting> settings(int64_t k) {
  return {{k, 0, 1, 4, 1, false},    {k, 0, 1, 0.5, 1, true}, {k, 0, 0, 2, 0.01, false},
          {k, 1, 0, 100, 1, false},  {k, 1, 2, 1, 1, false},  {k, 2, 0, std::log(20.0), 1, true},
          {k, 3, 1, 1.5, 10, false}, {k, 3, 2, 4, 0.1, true}};
}

std::string name(const char* type, const std::string& kind, int64_t n, const Setting& set) {
  return std::string(type) + " " + kind + ", n = " + std::to_string(n) + ", k = " + std::to_string(set.k) + ", kind " +
         std::to_string(set.kind) + ", alpha " + std::to_string(set.alpha) + ", c = " + std::to_string(set.c);
}

template <class T>
void threads_change_no_bit(const char* type, const std::string& kind, int64_t n, const Setting& set, uint64_t seed) {
  const std::vector<T> scores = draw<T>(kind, n, seed);
  const std::vector<uint8_t> mask = seed % 3 ? std::vector<uint8_t>() : draw_mask(n, seed);
  const Result<T> expected = run<T>(scores, mask, set, OneThread());
  if (n <= kLong) check(run<T>(scores, mask, set, OneThread(), 3) == expected, "strided, " + name(type, kind, n, set));
  for (const int64_t count : {2, 8}) {
    if (n > kLong && count == 2 && seed % 2) continue;
    check(run<T>(scores, mask, set, SomeThreads{count}) == expected,
          std::to_string(count) + " threads, " + name(type, kind, n, set));
  }
}

template <class T>
void threads_change_no_bit(const char* type) {
  uint64_t seed = 0;
  for (const std::string& kind : kKinds) {
    for (const int64_t n : {1, 2, 3, 17, 300, 3000}) {
      for (const int64_t k : {int64_t{1}, int64_t{7}, n / 3}) {
        if (k < 1 || k > n) continue;
        for (const Setting& set : settings(k)) {
          if (++seed % 4 == 0 || n < kLong / 5) threads_change_no_bit<T>(type, kind, n, set, seed);
          if (seed % 4 || k == n) continue;
          Setting fraction = set;
          fraction.numerator = k * RowShape::kDenominator / n;
          threads_change_no_bit<T>(type, kind, n, fraction, 3 * seed);
        }
      }
    }
  }
}

void many_rows_at_once() {
  struct Job {
    std::vector<float> scores;
    Setting set;
    Result<float> expected;
  };
  std::vector<Job> jobs;
  for (const std::string& kind : kKinds) {
    for (const Setting& set : settings(7)) {
      Job job{draw<float>(kind, 2000, 5), set, {}};
      job.expected = run<float>(job.scores, {}, set, OneThread());
      jobs.push_back(std::move(job));
    }
  }
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&jobs, caller] {
      for (size_t i = 0; i < jobs.size(); ++i) {
        const Job& job = jobs[(i + 3 * caller) % jobs.size()];
        const bool two_threads = i % 3 == 0;
        check((two_threads ? run<float>(job.scores, {}, job.set, SomeThreads{2})
                           : run<float>(job.scores, {}, job.set, OneThread())) == job.expected,
              "many rows at once");
      }
    });
  }
  for (std::thread& each : callers) each.join();
}

// The tournament as a plain loop, for Fixed(c, alpha=1.5), with dense weights.
struct PlainEntry {
  double score;
  int64_t leader;
  std::vector<double> weight;
};

std::vector<PlainEntry> plain_tournament(const std::vector<double>& scores, const std::vector<uint8_t>& mask, int64_t k,
                                         double c) {
  std::vector<PlainEntry> field;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!mask.empty() && !mask[i]) continue;
    field.push_back({scores[i], static_cast<int64_t>(i), std::vector<double>(scores.size(), 0.0)});
    field.back().weight[i] = 1;
  }
  int rounds = 0;
  while ((k << rounds) < static_cast<int64_t>(field.size())) ++rounds;
  const auto rank = [&field] {
    std::sort(field.begin(), field.end(), [](const PlainEntry& one, const PlainEntry& other) {
      return one.score > other.score || (one.score == other.score && one.leader < other.leader);
    });
  };
  rank();
  for (; rounds > 0; --rounds) {
    rank();
    const size_t half = static_cast<size_t>(k << (rounds - 1));
    for (size_t worse = half; worse < field.size(); ++worse) {
      PlainEntry& a = field[2 * half - 1 - worse];
      const PlainEntry& b = field[worse];
      const double t = std::min(c * (a.score - b.score), 2.0);
      const double share = std::min(0.5 + t / 4 * std::sqrt(2 - t * t / 4), 1.0);
      a.score = share * a.score + (1 - share) * b.score;
      for (size_t i = 0; i < a.weight.size(); ++i) a.weight[i] = share * a.weight[i] + (1 - share) * b.weight[i];
    }
    field.resize(half);
  }
  return field;
}

void agrees_with_a_plain_loop() {
  for (int64_t n = 1; n <= 120; n += n < 20 ? 1 : 13) {
    for (const int64_t k : {int64_t{1}, int64_t{2}, int64_t{5}, n}) {
      if (k > n) continue;
      for (const double c : {0.1, 2.0, 30.0}) {
        const uint64_t seed = static_cast<uint64_t>(n * 1000 + k * 10) + static_cast<uint64_t>(c);
        const std::vector<double> scores = draw<double>(seed % 2 ? "uniform" : "heavy-tailed", n, seed);
        const std::vector<uint8_t> mask = seed % 5 ? std::vector<uint8_t>() : draw_mask(n, seed);
        const Setting set{k, 1, 1, c, 1, false};
        const Result<double> out = run<double>(scores, mask, set, OneThread());
        const std::vector<PlainEntry> expected = plain_tournament(scores, mask, k, c);
        bool same = true;
        for (int64_t slot = 0; slot < k; ++slot) {
          const bool filled = slot < static_cast<int64_t>(expected.size());
          same = same && bool(out.filled[slot]) == filled && out.leader[slot] == (filled ? expected[slot].leader : -1);
          std::vector<double> weight(n, 0.0);
          for (int64_t i = slot * out.max_members; i < (slot + 1) * out.max_members; ++i) {
            if (out.member[i] < n) weight[out.member[i]] += out.weight[i];
          }
          for (int64_t i = 0; i < n && same; ++i) {
            same = std::abs(weight[i] - (filled ? expected[slot].weight[i] : 0.0)) < 1e-12;
          }
          const double score = filled ? expected[slot].score : 0.0;
          same = same && std::abs(out.score[slot] - score) <= 1e-12 * (1 + std::abs(score));
        }
        check(same, "plain loop, " + name("double", "", n, set));
      }
    }
  }
}

// Candidates and blends, of which some have equal scores and two have zeros of either sign.
template <class T>
void sorts(const char* type) {
  uint64_t seed = 100;
  for (const std::string& kind : kKinds) {
    for (const int64_t count : {1, 2, 31, 64, 65, 300, 5000, 65536, 65537, 150000}) {
      std::vector<T> scores = draw<T>(kind, count, ++seed);
      if (count > 2) scores[0] = T(0), scores[1] = -T(0);
      if (count > 64 && seed % 2)
        scores[2] = std::numeric_limits<T>::max(), scores[3] = std::numeric_limits<T>::lowest();
      std::mt19937_64 random(seed);
      const auto n = static_cast<int32_t>(count);
      std::vector<Pair> pairs(count);
      for (int32_t node = 0; node < n; ++node) pairs[node] = {n - 1 - node, 0};
      const Leaders leaders{n, pairs.data()};
      std::vector<Entry<T>> field(count), expected(count);
      // No two entries have the same leader.
      for (int32_t i = 0; i < n; ++i) field[i] = {scores[i], random() % 2 ? i : n + (n - 1 - i)};
      std::shuffle(field.begin(), field.end(), random);
      expected = field;
      std::sort(expected.begin(), expected.end(),
                [&](const Entry<T>& one, const Entry<T>& other) { return is_better(one, other, leaders); });
      for (const int64_t threads : {1, 3}) {
        std::vector<Entry<T>> found = field;
        sort_entries(found.data(), count, leaders, SomeThreads{threads});
        check(std::equal(found.begin(), found.end(), expected.begin(),
                         [](const Entry<T>& one, const Entry<T>& other) {
                           return one.score == other.score && one.ref == other.ref;
                         }),
              std::string("sort, ") + type + " " + kind + ", " + std::to_string(count) + " entries");
      }
    }
  }
}

template <class V>
void gathers(const char* type, double precision) {
  using C = ComputeType<V>;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const auto fill = [&](int64_t count) {
    std::vector<V> x(count);
    for (V& each : x) each = V(static_cast<float>(uniform(random)));
    return x;
  };
  for (const int64_t d : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 255, 256, 257, 600}) {
    const std::vector<V> values = fill(5 * d), other = fill(d);
    const std::vector<int64_t> offset = {2 * d, 0, 4 * d};
    const std::vector<C> weight = {C(0.5), C(0.3), C(0.2)};
    std::vector<V> blended(d), scaled(d);
    std::vector<C> sum(d, C(1));
    blend_value_rows(blended.data(), values.data(), PackedMembers<C, int64_t>{offset.data(), 1, weight.data(), 3, 3},
                     d);
    scale_value_row(scaled.data(), values.data() + d, C(0.7), d);
    add_weighted(sum.data(), values.data() + d, C(0.7), d);
    bool same = true;
    double product = 0;
    for (int64_t i = 0; i < d; ++i) {
      double expected = 0;
      for (size_t j = 0; j < 3; ++j) expected += double(weight[j]) * double(C(values[offset[j] + i]));
      const double row = double(C(0.7)) * double(C(values[d + i]));
      same = same && std::abs(double(C(blended[i])) - expected) <= precision &&
             std::abs(double(C(scaled[i])) - row) <= precision && std::abs(double(sum[i]) - 1 - row) <= 1e-6;
      product += double(C(values[i])) * double(C(other[i]));
    }
    same = same && std::abs(double(dot(values.data(), other.data(), d)) - product) <= 1e-5 * double(d);
    check(same, std::string("gather, ") + type + ", d = " + std::to_string(d));
  }
}

}  // namespace

int main() {
  threads_change_no_bit<float>("float");
  threads_change_no_bit<double>("double");
  threads_change_no_bit<float>("float", "uniform", 300000, settings(64)[0], 1);
  threads_change_no_bit<float>("float", "tied", 200000, settings(1)[2], 2);
  threads_change_no_bit<float>("float", "heavy-tailed", 150000, settings(50000)[1], 3);
  threads_change_no_bit<double>("double", "nearly tied", 150000, settings(7)[3], 5);
  threads_change_no_bit<double>("double", "uniform", 150000, settings(7)[5], 7);
  // Gaps at which pairs are decided that no number can hold.
  threads_change_no_bit<double>("double", "uniform", 3000, Setting{7, 1, 0, 1e-308, 1, false}, 8);
  threads_change_no_bit<double>("double", "uniform", 3000, Setting{7, 0, 0, 1e-30, 1e300, false}, 10);
  many_rows_at_once();
  agrees_with_a_plain_loop();
  sorts<float>("float");
  sorts<double>("double");
  gathers<float>("float32", 1e-6);
  gathers<double>("float64", 1e-15);
  gathers<Float16>("float16", 1e-3);
  gathers<BFloat16>("bfloat16", 1e-2);
  std::printf("kernels: %d checks, %d failed\n", checks, failures);
  return failures ? 1 : 0;
}
