// The kernels by themselves, without PyTorch, for the sanitizers: `make sanitize` builds and runs this.
//
// Rows come out the same to the last bit for 1, 2 and 8 threads and when many are computed at once; the tournament and
// the gather agree with plain loops. Prints what failed, and how much was checked.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../src/knockout/ops/cpu/csrc/gather.h"
#include "../../src/knockout/ops/cpu/csrc/row.h"

using namespace knockout;

namespace {

std::mutex mutex;
int checks = 0, failures = 0;

void check(bool passed, const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++checks;
  if (passed) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

// As `Alone`, with as many threads as it is told, for far less work than would pay.
struct Threads {
  int64_t count;

  template <class Work>
  void operator()(int64_t total, int64_t grain, const Work& work) const {
    const int64_t parts = std::min(count, total / std::max<int64_t>(1, grain / 256));
    std::vector<std::thread> others;
    for (int64_t part = 1; part < parts; ++part) {
      others.emplace_back([&work, part, parts, total] { work(total * part / parts, total * (part + 1) / parts); });
    }
    if (total > 0) work(int64_t{0}, parts > 1 ? total / parts : total);
    for (std::thread& each : others) each.join();
  }
  int64_t width() const { return count; }
};

struct Setting {
  int64_t k, kind, alpha;
  double c, unit;
  bool by_position;
  int64_t parts = 0;  // of 2^30, where k is a share
};

// All that comes out of a row.
template <class T>
struct Result {
  std::vector<int32_t> member;
  std::vector<int64_t> leader;
  std::vector<uint8_t> filled;
  std::vector<T> weight, score, gradient;
  int64_t places = 0;  // for the members of a slot

  bool operator==(const Result& other) const {
    const auto same = [](const std::vector<T>& one, const std::vector<T>& two) {
      return one.size() == two.size() &&
             (one.empty() || std::memcmp(one.data(), two.data(), one.size() * sizeof(T)) == 0);
    };
    return member == other.member && leader == other.leader && filled == other.filled && same(weight, other.weight) &&
           same(score, other.score) && same(gradient, other.gradient);
  }
};

constexpr int64_t kLong = 5000;  // from here on less is checked: ThreadSanitizer takes its time

// The one place that knows how the kernels are called. Every array is as large as it must be and no larger.
template <class T, class Team>
Result<T> run(const std::vector<T>& scores, const std::vector<uint8_t>& mask, const Setting& set, const Team& team) {
  const Shape shape(static_cast<int64_t>(scores.size()), set.k, set.parts);
  const Boost<T> boost(set.kind, set.alpha, set.c, set.unit);
  const Scores<T> row{scores.data(), 1, mask.empty() ? nullptr : reinterpret_cast<const bool*>(mask.data()), 1};
  const auto forward = [&](Workspace<T>& work, bool save, Outcome<T>& outcome) {
    Result<T> out;
    out.leader.assign(set.k, -77);
    out.filled.assign(set.k, 1);
    out.score.assign(set.k, T(-77));
    const Slots<T> slots{out.score.data(), out.leader.data(), reinterpret_cast<bool*>(out.filled.data())};
    select_row<T>(row, shape, boost, set.by_position, save, work, slots, outcome, team);
    out.places = outcome.most();
    out.member.assign(set.k * out.places, static_cast<int32_t>(shape.n));
    out.weight.assign(set.k * out.places, T(0));
    for (int64_t slot = 0; slot < set.k; ++slot) {
      const int64_t begin = outcome.begin(slot), end = outcome.end[slot];
      std::copy(outcome.member.begin() + begin, outcome.member.begin() + end, out.member.begin() + slot * out.places);
      std::copy(outcome.weight.begin() + begin, outcome.weight.begin() + end, out.weight.begin() + slot * out.places);
    }
    return out;
  };

  Workspace<T> saving(shape);
  Outcome<T> kept;
  Result<T> out = forward(saving, true, kept);
  if (shape.n <= kLong) {
    // Without a record for the backward pass: the same, and so in memory that the row before has used.
    Workspace<T> forgetting(shape);
    for (int twice = 0; twice < 2; ++twice) {
      Outcome<T> outcome;
      check(forward(forgetting, false, outcome) == out, "without a record, n = " + std::to_string(shape.n));
    }
  }

  std::vector<T> d_weight(out.weight.size()), d_score(out.score.size());
  for (size_t i = 0; i < d_weight.size(); ++i) d_weight[i] = T(std::sin(1.0 + double(out.member[i])));
  for (size_t i = 0; i < d_score.size(); ++i) d_score[i] = T(std::cos(1.0 + double(out.leader[i])));
  const auto ledger = Ledger<T>::read(kept.ledger.data(), set.k);
  out.gradient.assign(shape.n, T(-77));
  select_row_backward<T>(row, shape, boost, out.member.data(), out.places, Back<T>{d_weight.data(), d_score.data()},
                         ledger, out.gradient.data(), team);
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

std::vector<uint8_t> draw_mask(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> mask(n);
  for (uint8_t& each : mask) each = random() % 10 != 0;
  return mask;
}

const std::vector<std::string> kKinds = {"uniform", "tied", "nearly tied", "constant", "heavy-tailed", "huge"};

// Relative(4), Relative(0.5), Relative(2, alpha=1), Fixed(100), Fixed(1, alpha=2), Power(20)
std::vector<Setting> settings(int64_t k) {
  return {{k, 0, 1, 4, 1, false},   {k, 0, 1, 0.5, 1, true}, {k, 0, 0, 2, 0.01, false},
          {k, 1, 0, 100, 1, false}, {k, 1, 2, 1, 1, false},  {k, 2, 0, std::log(20.0), 1, true}};
}

std::string name(const char* type, const std::string& kind, int64_t n, const Setting& set) {
  return std::string(type) + " " + kind + ", n = " + std::to_string(n) + ", k = " + std::to_string(set.k) + ", kind " +
         std::to_string(set.kind) + ", alpha " + std::to_string(set.alpha) + ", c = " + std::to_string(set.c);
}

template <class T>
void threads_change_no_bit(const char* type, const std::string& kind, int64_t n, const Setting& set, uint64_t seed) {
  const std::vector<T> scores = draw<T>(kind, n, seed);
  const std::vector<uint8_t> mask = seed % 3 ? std::vector<uint8_t>() : draw_mask(n, seed);
  const Result<T> alone = run<T>(scores, mask, set, Alone());
  for (const int64_t count : {2, 8}) {
    if (n > kLong && count == 2 && seed % 2) continue;
    check(run<T>(scores, mask, set, Threads{count}) == alone,
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
          Setting share = set;
          share.parts = k * Shape::kWhole / n;
          threads_change_no_bit<T>(type, kind, n, share, 3 * seed);
        }
      }
    }
  }
}

void many_at_once() {
  struct Job {
    std::vector<float> scores;
    Setting set;
    Result<float> expected;
  };
  std::vector<Job> jobs;
  for (const std::string& kind : kKinds) {
    for (const Setting& set : settings(7)) {
      Job job{draw<float>(kind, 2000, 5), set, {}};
      job.expected = run<float>(job.scores, {}, set, Alone());
      jobs.push_back(std::move(job));
    }
  }
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&jobs, caller] {
      for (size_t i = 0; i < jobs.size(); ++i) {
        const Job& job = jobs[(i + 3 * caller) % jobs.size()];
        const bool helped = i % 3 == 0;
        check((helped ? run<float>(job.scores, {}, job.set, Threads{2})
                      : run<float>(job.scores, {}, job.set, Alone())) == job.expected,
              "many at once");
      }
    });
  }
  for (std::thread& each : callers) each.join();
}

// The tournament as a plain loop, for Fixed(c, alpha=1.5): dense weights.
struct Player {
  double score;
  int64_t leader;
  std::vector<double> weight;
};

std::vector<Player> plain(const std::vector<double>& scores, const std::vector<uint8_t>& mask, int64_t k, double c) {
  std::vector<Player> field;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!mask.empty() && !mask[i]) continue;
    field.push_back({scores[i], static_cast<int64_t>(i), std::vector<double>(scores.size(), 0.0)});
    field.back().weight[i] = 1;
  }
  int rounds = 0;
  while ((k << rounds) < static_cast<int64_t>(field.size())) ++rounds;
  const auto rank = [&field] {
    std::sort(field.begin(), field.end(), [](const Player& one, const Player& other) {
      return one.score > other.score || (one.score == other.score && one.leader < other.leader);
    });
  };
  rank();
  for (; rounds > 0; --rounds) {
    rank();
    const size_t half = static_cast<size_t>(k << (rounds - 1));
    for (size_t loser = half; loser < field.size(); ++loser) {
      Player& a = field[2 * half - 1 - loser];
      const Player& b = field[loser];
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
        const Result<double> out = run<double>(scores, mask, set, Alone());
        const std::vector<Player> expected = plain(scores, mask, k, c);
        bool same = true;
        for (int64_t slot = 0; slot < k; ++slot) {
          const bool filled = slot < static_cast<int64_t>(expected.size());
          same = same && bool(out.filled[slot]) == filled && out.leader[slot] == (filled ? expected[slot].leader : -1);
          std::vector<double> weight(n, 0.0);
          for (int64_t i = slot * out.places; i < (slot + 1) * out.places; ++i) {
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

template <class V>
void gathers(const char* type, double precision) {
  using C = Computing<V>;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const auto fill = [&](int64_t count) {
    std::vector<V> x(count);
    for (V& each : x) each = V(static_cast<float>(uniform(random)));
    return x;
  };
  for (const int64_t d : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 255, 256, 257, 600}) {
    const std::vector<V> values = fill(5 * d), other = fill(d);
    const std::vector<int64_t> place = {2 * d, 0, 4 * d};
    const std::vector<C> weight = {C(0.5), C(0.3), C(0.2)};
    std::vector<V> blended(d), scaled(d);
    std::vector<C> sum(d, C(1));
    blend_rows(blended.data(), values.data(), Members<C>{place.data(), weight.data(), 3}, d);
    scale_row(scaled.data(), values.data() + d, C(0.7), d);
    add_row(sum.data(), values.data() + d, C(0.7), d);
    bool same = true;
    double product = 0;
    for (int64_t i = 0; i < d; ++i) {
      double expected = 0;
      for (size_t j = 0; j < 3; ++j) expected += double(weight[j]) * double(C(values[place[j] + i]));
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
  many_at_once();
  agrees_with_a_plain_loop();
  gathers<float>("float32", 1e-6);
  gathers<double>("float64", 1e-15);
  gathers<Float16>("float16", 1e-3);
  gathers<BFloat16>("bfloat16", 1e-2);
  std::printf("kernels: %d checks, %d failed\n", checks, failures);
  return failures ? 1 : 0;
}
