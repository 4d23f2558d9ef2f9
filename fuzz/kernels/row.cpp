// A coverage-guided fuzzer of the CPU kernels without PyTorch: libFuzzer turns bytes into a row of scores, a boost and
// saved rounds. `make fuzz-kernels` builds it with Clang and runs it; corpus/ has inputs that together reach all of the
// code that was ever reached.
//
// A row is selected by one thread and by three, with the same bits; its slots must be what docs/semantics.md promises;
// and its backward pass must take its own saved rounds, and survive any others.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../../src/knockout/ops/cpu/csrc/gather.h"
#include "../../tests/csrc/harness.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  std::abort();
}

// For what takes long: an input that reaches new code does so all the same.
bool rarely(FuzzedDataProvider& data) { return data.ConsumeIntegralInRange<int>(0, 15) == 15; }

// Scores of many kinds: exact bits for a short row, or a long row drawn from a few numbers.
template <class T>
std::vector<T> scores_from(FuzzedDataProvider& data) {
  if (!rarely(data)) {
    std::vector<T> scores(data.ConsumeIntegralInRange<int64_t>(1, 96));
    const bool small_integers = data.ConsumeBool();
    for (T& score : scores) {
      if (small_integers) {
        score = T(data.ConsumeIntegral<int8_t>());
      } else {
        uint8_t bits[sizeof(T)] = {};
        data.ConsumeData(bits, sizeof(T));
        std::memcpy(&score, bits, sizeof(T));
      }
    }
    return scores;
  }
  const char* const kinds[] = {"uniform", "constant", "huge", "tied", "heavy-tailed", "nearly tied"};
  std::vector<T> scores = draw<T>(data.PickValueInArray(kinds), data.ConsumeIntegralInRange<int64_t>(97, 5000),
                                  data.ConsumeIntegral<uint16_t>());
  const T factor = T(data.ConsumeFloatingPointInRange<float>(-4, 4));
  for (T& score : scores) score *= factor;
  for (int changes = data.ConsumeIntegralInRange<int>(0, 8); changes > 0; --changes) {
    scores[data.ConsumeIntegralInRange<size_t>(0, scores.size() - 1)] = data.ConsumeFloatingPoint<T>();
  }
  return scores;
}

Setting setting_from(FuzzedDataProvider& data, int64_t n) {
  Setting set{};
  set.k = data.ConsumeIntegralInRange<int64_t>(1, n);
  set.kind = data.ConsumeIntegralInRange<int64_t>(0, 3);
  set.alpha = data.ConsumeIntegralInRange<int64_t>(0, 2);
  const double usual[] = {0.5, 1, 2, 4, 16, 100, 1e-30, 1e-3, 1e30};
  const auto positive = [&](double least) {
    const double x = data.ConsumeBool() ? data.PickValueInArray(usual) : std::abs(data.ConsumeFloatingPoint<double>());
    return std::isfinite(x) && x > least ? x : least + 1;  // other numbers are refused by the operators
  };
  set.c = positive(set.kind == 2 ? 1 : 0);
  set.unit = positive(0);
  set.by_position = data.ConsumeBool();
  if (data.ConsumeBool()) {  // a fraction
    set.numerator = data.ConsumeIntegralInRange<int64_t>(1, RowShape::kDenominator - 1);
    set.k = RowShape(n, 1, set.numerator).slots_for(n);
  }
  return set;
}

// What holds for every selection.
template <class T>
void check_result(const Result<T>& out, const RowResults<T>& results, const std::vector<T>& scores,
                  const Setting& set) {
  const int64_t n = static_cast<int64_t>(scores.size());
  std::vector<uint8_t> used(scores.size(), 0);
  for (int64_t slot = 0; slot < set.k; ++slot) {
    require(out.filled[slot] ? out.leader[slot] >= 0 && out.leader[slot] < n : out.leader[slot] == -1, "leader");
    double total = 0;
    for (int64_t i = slot * out.max_members; i < (slot + 1) * out.max_members; ++i) {
      const int32_t member = out.member[i];
      require(member >= 0 && member <= n, "member in range");
      if (member == n) continue;
      require(used[member]++ == 0, "a candidate is in one slot only");
      total += double(out.weight[i]);
    }
    if (!results.rows[0].valid) continue;
    require(std::isfinite(out.score[slot]), "the score of a slot of a valid row is finite");
    require(std::abs(total - (out.filled[slot] ? 1.0 : 0.0)) < 1e-3, "weights of a slot add up to 1");
  }
}

template <class T>
std::vector<int32_t> saved_of(const RowResults<T>& results) {
  return {results.saved.data(), results.saved.data() + results.saved.size()};
}

template <class T>
void backward_of(FuzzedDataProvider& data, const ScoreRow<T>& row, const RowCall<T>& call, Result<T> out,
                 std::vector<int32_t> saved) {
  const std::vector<T> d_weight(out.weight.size(), T(0.5)), d_score(out.score.size(), T(-0.25));
  std::vector<T> gradient(call.shape.n, T(-77));
  const auto run = [&](const auto& threads) {
    return select_row_backward<T>(row, call, RowMembers{out.member.data(), out.max_members},
                                  OutputGradients<T>{d_weight.data(), d_score.data()}, saved.data(),
                                  static_cast<int64_t>(saved.size()), gradient.data(), threads);
  };
  require(!run(OneThread()), "the saved rounds of the same call are accepted");
  // Changed: other numbers anywhere, another length, other members.
  const bool exact = data.ConsumeBool();
  for (int changes = data.ConsumeIntegralInRange<int>(0, 12); changes > 0 && !saved.empty(); --changes) {
    const size_t at = data.ConsumeIntegralInRange<size_t>(0, std::min<size_t>(saved.size() - 1, exact ? 7 : 4000));
    const auto how = data.ConsumeIntegralInRange<int>(0, 3);
    if (how == 0) saved[at] = data.ConsumeIntegral<int32_t>();
    if (how == 1) saved[at] = int32_t(uint32_t(saved[at]) + uint32_t(data.ConsumeIntegral<int8_t>()));
    if (how == 2) saved[at] = saved[data.ConsumeIntegralInRange<size_t>(0, saved.size() - 1)];
    if (how == 3) std::swap(saved[at], saved[data.ConsumeIntegralInRange<size_t>(0, saved.size() - 1)]);
  }
  if (data.ConsumeBool()) saved.resize(data.ConsumeIntegralInRange<size_t>(0, saved.size() + 8));
  if (data.ConsumeBool()) {
    out.member[data.ConsumeIntegralInRange<size_t>(0, out.member.size() - 1)] = data.ConsumeIntegral<int32_t>();
  }
  saved.shrink_to_fit();
  rarely(data) ? run(SomeThreads{3}) : run(OneThread());
}

template <class T>
void fuzz_row(FuzzedDataProvider& data) {
  const std::vector<T> scores = scores_from<T>(data);
  const int64_t n = static_cast<int64_t>(scores.size());
  const Setting set = setting_from(data, n);
  std::vector<uint8_t> mask;
  if (data.ConsumeBool()) {
    mask = draw_mask(n, data.ConsumeIntegral<uint8_t>());
    for (uint8_t& each : mask) each = each ? uint8_t(7) : uint8_t(0);  // any byte but 0 is true
  }
  const RowShape shape(n, set.k, set.numerator);
  const RowCall<T> call(shape, Boost<T>(set.kind, set.alpha, set.c, set.unit), set.by_position);
  const ScoreRow<T> row{scores.data(), 1, mask.empty() ? nullptr : mask.data(), 1};
  Workspace<T> work(shape);
  RowResults<T> result, by_threads;
  const Result<T> out = forward<T>(row, call, true, work, result, OneThread());
  check_result(out, result, scores, set);
  if (rarely(data)) {
    Workspace<T> other_work(shape);
    require(forward<T>(row, call, true, other_work, by_threads, SomeThreads{3}) == out &&
                saved_of(by_threads) == saved_of(result),
            "three threads give the same bits");
  }
  backward_of<T>(data, row, call, out, saved_of(result));
}

// The weighted gather of one slot, and its derivatives, against plain loops.
template <class V>
void fuzz_gather(FuzzedDataProvider& data) {
  using C = ComputeType<V>;
  const int64_t d = data.ConsumeIntegralInRange<int64_t>(1, 700), rows = data.ConsumeIntegralInRange<int64_t>(1, 9);
  std::vector<V> values(rows * d), blended(d), scaled(d);
  for (size_t i = 0; i < values.size(); ++i) values[i] = V(static_cast<float>(std::sin(double(i))));
  std::vector<int64_t> offset;
  std::vector<C> weight, sum(d, C(1));
  for (int64_t members = data.ConsumeIntegralInRange<int64_t>(1, 12); members > 0; --members) {
    offset.push_back(data.ConsumeIntegralInRange<int64_t>(0, rows - 1) * d);
    weight.push_back(C(data.ConsumeFloatingPointInRange<float>(0, 1)));
  }
  const auto count = static_cast<int64_t>(offset.size());
  blend_value_rows(blended.data(), values.data(),
                   PackedMembers<C, int64_t>{offset.data(), 1, weight.data(), count, count}, d);
  scale_value_row(scaled.data(), values.data(), weight[0], d);
  add_weighted(sum.data(), values.data(), weight[0], d);
  double product = 0;
  for (int64_t i = 0; i < d; ++i) {
    double expected = 0;
    for (int64_t j = 0; j < count; ++j) expected += double(weight[j]) * double(C(values[offset[j] + i]));
    require(std::abs(double(C(blended[i])) - expected) <= 0.01 * (1 + std::abs(expected)), "blend");
    const double row = double(weight[0]) * double(C(values[i]));
    require(std::abs(double(C(scaled[i])) - row) <= 0.01 && std::abs(double(sum[i]) - 1 - row) <= 1e-5, "scaled row");
    product += double(C(values[i])) * double(C(values[offset[0] + i]));
  }
  require(std::abs(double(dot(values.data(), values.data() + offset[0], d)) - product) <= 1e-4 * double(d), "dot");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  switch (data.ConsumeIntegralInRange<int>(0, 7)) {
    case 0:
      fuzz_gather<float>(data);
      break;
    case 1:
      data.ConsumeBool() ? fuzz_gather<Float16>(data) : fuzz_gather<BFloat16>(data);
      break;
    case 2:
    case 3:
    case 4:
      fuzz_row<double>(data);
      break;
    default:
      fuzz_row<float>(data);
  }
  return 0;
}
