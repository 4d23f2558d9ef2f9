// The operators as PyTorch sees them: shapes, dtypes, threads. On the stable ABI, so one build serves many versions.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "gather.h"
#include "row.h"

namespace knockout {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

struct Everybody {
  template <class Work>
  void operator()(int64_t count, int64_t grain, const Work& work) const {
    if (count <= grain) {
      if (count > 0) work(int64_t{0}, count);
    } else {
      torch::stable::parallel_for(0, count, grain, work);
    }
  }
  int64_t width() const { return torch::stable::get_num_threads(); }
};

// --- tensors ---

using Sizes = std::vector<int64_t>;

Sizes sizes_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return Sizes(sizes.begin(), sizes.end());
}

Tensor empty(const Sizes& sizes, ScalarType dtype) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                                         strides.data(), static_cast<int32_t>(dtype),
                                                         aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

template <class T>
constexpr ScalarType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return ScalarType::Float;
  if constexpr (std::is_same_v<T, double>) return ScalarType::Double;
  if constexpr (std::is_same_v<T, Float16>) return ScalarType::Half;
  if constexpr (std::is_same_v<T, BFloat16>) return ScalarType::BFloat16;
  if constexpr (std::is_same_v<T, int32_t>) return ScalarType::Int;
  if constexpr (std::is_same_v<T, int64_t>) return ScalarType::Long;
  if constexpr (std::is_same_v<T, bool>) return ScalarType::Bool;
}

// Half types are the library's own here, laid out as PyTorch's: hence the untyped pointers.
template <class T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

template <class Use>
auto by_dtype(const Tensor& tensor, const char* name, const Use& use) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return use(float{});
    case ScalarType::Double:
      return use(double{});
    case ScalarType::Half:
      return use(Float16{});
    case ScalarType::BFloat16:
      return use(BFloat16{});
    default:
      STD_TORCH_CHECK(false, "knockout: ", name, " must be float16, bfloat16, float32 or float64");
  }
}

Tensor dense(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

int64_t product(const Sizes& sizes, size_t count) {
  return std::accumulate(sizes.begin(), sizes.begin() + static_cast<int64_t>(count), int64_t{1}, std::multiplies<>());
}

// Where each of the rows of a batch starts in a tensor whose leading dimensions are those of the batch, or 1.
class Offsets {
 public:
  Offsets(const Tensor& tensor, const Sizes& batch) : batch_(batch) {
    const auto sizes = tensor.sizes();
    const auto strides = tensor.strides();
    for (size_t i = 0; i < batch.size(); ++i) strides_.push_back(sizes[i] == 1 ? 0 : strides[i]);
  }
  int64_t operator()(int64_t row) const {
    int64_t offset = 0;
    for (size_t i = batch_.size(); i-- > 0;) {
      offset += row % batch_[i] * strides_[i];
      row /= batch_[i];
    }
    return offset;
  }

 private:
  Sizes batch_, strides_;
};

// Rows among the threads, or all threads on each row in turn when the rows are few and long.
template <class Each>
void rows_of(int64_t rows, int64_t n, const Each& each) {
  const int64_t threads = torch::stable::get_num_threads();
  if (n >= (1 << 16) && rows < 2 * threads && threads > 1) {
    return each(int64_t{0}, rows, Everybody());
  }
  Everybody()(rows, std::max<int64_t>(1, 512 / std::max<int64_t>(n, 1)),
              [&](int64_t begin, int64_t end) { each(begin, end, Alone()); });
}

// --- the tournament ---

struct Call {
  Sizes batch;
  Shape shape;
  int64_t rows;
  Call(const Tensor& scores, int64_t k, int64_t parts = 0)
      : batch(sizes_of(scores)), shape(batch.back(), k, parts), rows(0) {
    batch.pop_back();
    rows = product(batch, batch.size());
    STD_TORCH_CHECK(k >= 1 && k <= shape.n && shape.n < (int64_t{1} << 30),
                    "knockout: k must be from 1 to n, n below 2^30");
    STD_TORCH_CHECK(shape.slots(shape.n) == k, "knockout: k must be the share of n that parts stands for");
  }
  Sizes with(std::initializer_list<int64_t> more) const {
    Sizes sizes = batch;
    sizes.insert(sizes.end(), more);
    return sizes;
  }
};

template <class S>
Scores<S> row_of(const Tensor& scores, const Offsets& at, const std::optional<Tensor>& mask,
                 const std::optional<Offsets>& mask_at, int64_t row) {
  const int64_t last = scores.dim() - 1;
  return {data<S>(scores) + at(row), scores.stride(last), mask ? data<bool>(*mask) + (*mask_at)(row) : nullptr,
          mask ? mask->stride(last) : 0};
}

// With c, or with what a tensor holds in its stead.
template <class T>
Boost<T> boost_of(const std::optional<Tensor>& sharpness, int64_t kind, int64_t alpha, double c, double unit) {
  if (sharpness) {
    STD_TORCH_CHECK(sharpness->dim() == 0, "knockout: sharpness must have no dimensions");
    c = by_dtype(*sharpness, "sharpness", [&](auto s) {
      using S = decltype(s);
      return static_cast<double>(static_cast<Computing<S>>(*data<S>(*sharpness)));
    });
    STD_TORCH_CHECK(c > 0, "knockout: c of a boost must be positive; its tensor holds ", c);
  }
  return Boost<T>(kind, alpha, c, unit);
}

using Selected = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Everything that has no use for a fixed shape is as long as the longest row needs; `fixed` makes it as long as any row
// could need, for who must know shapes beforehand.
template <class S>
Selected tournament_of(const Tensor& scores, const std::optional<Tensor>& mask, const Call& call,
                       const Boost<Computing<S>>& boost, bool by_position, bool save, bool fixed) {
  using T = Computing<S>;
  const Shape shape = call.shape;
  const int64_t k = shape.k;
  const Sizes per_slot = call.with({k});
  Tensor score = empty(per_slot, dtype_of<T>()), leader = empty(per_slot, ScalarType::Long);
  Tensor filled = empty(per_slot, ScalarType::Bool);
  const Slots<T> out{data<T>(score), data<int64_t>(leader), data<bool>(filled)};
  const Offsets at(scores, call.batch);
  const std::optional<Offsets> mask_at = mask ? std::optional<Offsets>(Offsets(*mask, call.batch)) : std::nullopt;
  std::vector<Outcome<T>> outcomes(call.rows);
  rows_of(call.rows, shape.n, [&](int64_t begin, int64_t end, const auto& team) {
    Workspace<T> work(shape);
    for (int64_t row = begin; row < end; ++row) {
      const Slots<T> mine{out.score + row * k, out.leader + row * k, out.filled + row * k};
      select_row<T>(row_of<S>(scores, at, mask, mask_at, row), shape, boost, by_position, save, work, mine,
                    outcomes[row], team);
    }
  });

  int64_t places = fixed ? shape.places() : 1, length = save && fixed ? Room::for_all(shape).length<T>() : 0;
  for (const Outcome<T>& outcome : outcomes) {
    if (!fixed) places = std::max(places, outcome.most());
    if (save) length = std::max(length, static_cast<int64_t>(outcome.ledger.size()));
  }
  const Sizes per_member = call.with({k, places});
  Tensor member = empty(per_member, ScalarType::Int), weight = empty(per_member, dtype_of<T>());
  Tensor ledger = empty(call.with({length}), ScalarType::Int);
  int32_t* const members = data<int32_t>(member);
  T* const weights = data<T>(weight);
  Everybody()(call.rows * k, std::max<int64_t>(1, (1 << 14) / places), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Outcome<T>& outcome = outcomes[i / k];
      const int64_t first = outcome.begin(i % k), count = outcome.end[i % k] - first;
      int32_t* const mine = members + i * places;
      std::copy_n(outcome.member.data() + first, count, mine);
      std::fill(mine + count, mine + places, static_cast<int32_t>(shape.n));
      std::copy_n(outcome.weight.data() + first, count, weights + i * places);
      std::fill(weights + i * places + count, weights + (i + 1) * places,
                outcome.sound ? T(0) : std::numeric_limits<T>::quiet_NaN());
    }
  });
  if (length == 0) return {member, weight, score, leader, filled, ledger};
  int32_t* const ledgers = data<int32_t>(ledger);
  Everybody()(call.rows, std::max<int64_t>(1, (1 << 14) / length), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const std::vector<int32_t>& mine = outcomes[row].ledger;
      std::fill(std::copy(mine.begin(), mine.end(), ledgers + row * length), ledgers + (row + 1) * length, 0);
    }
  });
  return {member, weight, score, leader, filled, ledger};
}

Selected tournament(Tensor scores, std::optional<Tensor> mask, std::optional<Tensor> sharpness, int64_t k,
                    int64_t parts, int64_t kind, int64_t alpha, double c, double unit, bool by_position, bool save,
                    bool fixed) {
  const Call call(scores, k, parts);
  return by_dtype(scores, "scores", [&](auto s) {
    using S = decltype(s);
    return tournament_of<S>(scores, mask, call, boost_of<Computing<S>>(sharpness, kind, alpha, c, unit), by_position,
                            save, fixed);
  });
}

template <class S>
Tensor tournament_backward_of(const std::optional<Tensor>& d_weight, const std::optional<Tensor>& d_score,
                              const Tensor& scores, const std::optional<Tensor>& mask, const Tensor& member,
                              const Tensor& ledger, const Call& call, const Boost<Computing<S>>& boost) {
  using T = Computing<S>;
  const Shape shape = call.shape;
  const int64_t places = member.size(member.dim() - 1), all = shape.k * places;
  const int64_t length = ledger.size(ledger.dim() - 1);
  Tensor out = empty(call.with({shape.n}), scores.scalar_type());
  const Offsets at(scores, call.batch);
  const std::optional<Offsets> mask_at = mask ? std::optional<Offsets>(Offsets(*mask, call.batch)) : std::nullopt;
  const T* const weights = d_weight ? data<T>(*d_weight) : nullptr;
  const T* const slots = d_score ? data<T>(*d_score) : nullptr;
  const int32_t* const members = data<int32_t>(member);
  int32_t* const ledgers = data<int32_t>(ledger);
  S* const result = data<S>(out);
  rows_of(call.rows, shape.n, [&](int64_t begin, int64_t end, const auto& team) {
    for (int64_t row = begin; row < end; ++row) {
      const Back<T> back{weights ? weights + row * all : nullptr, slots ? slots + row * shape.k : nullptr};
      select_row_backward<T>(row_of<S>(scores, at, mask, mask_at, row), shape, boost, members + row * all, places, back,
                             Ledger<T>::read(ledgers + row * length, shape.k), result + row * shape.n, team);
    }
  });
  return out;
}

Tensor tournament_backward(std::optional<Tensor> d_weight, std::optional<Tensor> d_score, Tensor scores,
                           std::optional<Tensor> mask, std::optional<Tensor> sharpness, Tensor member, Tensor ledger,
                           int64_t k, int64_t kind, int64_t alpha, double c, double unit) {
  const Call call(scores, k);
  if (d_weight) d_weight = dense(*d_weight);
  if (d_score) d_score = dense(*d_score);
  member = dense(member), ledger = dense(ledger);
  return by_dtype(scores, "scores", [&](auto s) {
    using S = decltype(s);
    return tournament_backward_of<S>(d_weight, d_score, scores, mask, member, ledger, call,
                                     boost_of<Computing<S>>(sharpness, kind, alpha, c, unit));
  });
}

// --- the weighted gather ---

// Weights and members (*batch, k, places), read in whatever of their types they have.
class Bracket {
 public:
  Bracket(const std::optional<Tensor>& weight, const Tensor& member)
      : sizes(sizes_of(member)),
        weight_(weight ? std::optional<Tensor>(dense(*weight)) : std::nullopt),
        member_(dense(member)),
        wide_(weight && weight->scalar_type() == ScalarType::Double),
        long_(member.scalar_type() == ScalarType::Long) {
    places = sizes.back();
    k = sizes[sizes.size() - 2];
    batch.assign(sizes.begin(), sizes.end() - 2);
    rows = product(batch, batch.size());
  }

  // use(i, member, weight) for the members of a slot that carry weight; without weights, 1.
  template <class C, class Use>
  void each(int64_t slot, int64_t n, const Use& use) const {
    if (long_) return wide_ ? walk<C, int64_t, double>(slot, n, use) : walk<C, int64_t, float>(slot, n, use);
    return wide_ ? walk<C, int32_t, double>(slot, n, use) : walk<C, int32_t, float>(slot, n, use);
  }

  bool spoiled(int64_t slot) const {
    const int64_t i = slot * places;
    return wide_ ? data<double>(*weight_)[i] != data<double>(*weight_)[i]
                 : data<float>(*weight_)[i] != data<float>(*weight_)[i];
  }

  Sizes sizes, batch;
  int64_t k, places, rows;

 private:
  template <class C, class I, class W, class Use>
  void walk(int64_t slot, int64_t n, const Use& use) const {
    const I* member = static_cast<const I*>(member_.data_ptr()) + slot * places;
    const W* weight = weight_ ? static_cast<const W*>(weight_->data_ptr()) + slot * places : nullptr;
    constexpr int64_t block = 64;
    for (int64_t at = 0; at < places; at += block) {
      const int64_t end = std::min(at + block, places);
      // Most of a long slot is nobody: look at many at a time.
      I least = static_cast<I>(n);
      for (int64_t i = at; i < end; ++i) least = member[i] < least ? member[i] : least;
      if (least == static_cast<I>(n)) continue;
      for (int64_t i = at; i < end; ++i) {
        if (member[i] < n) use(i, static_cast<int64_t>(member[i]), weight ? static_cast<C>(weight[i]) : C(1));
      }
    }
  }

  std::optional<Tensor> weight_;
  Tensor member_;
  bool wide_, long_;
};

Sizes shape_like(const Bracket& bracket, std::initializer_list<int64_t> more) {
  Sizes sizes = bracket.batch;
  sizes.insert(sizes.end(), more);
  return sizes;
}

// Rows of numbers that lie next to each other.
Tensor with_rows(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return tensor.size(last) <= 1 || tensor.stride(last) == 1 ? tensor : torch::stable::contiguous(tensor);
}

// The members of some slots that carry weight, looked up together so that their rows are on the way from memory while
// others are added up.
template <class V>
class Batch {
 public:
  static constexpr int64_t kSlots = 32;
  using C = Computing<V>;

  void look_up(const Bracket& bracket, int64_t first, int64_t count, const Offsets& at, const V* values, int64_t n,
               int64_t stride, int64_t d) {
    place_.clear(), weight_.clear(), end_.clear();
    for (int64_t slot = first; slot < first + count; ++slot) {
      if (slot / bracket.k != row_) row_ = slot / bracket.k, offset_ = at(row_);
      bracket.each<C>(slot, n, [&](int64_t, int64_t member, C share) {
        place_.push_back(offset_ + member * stride);
        weight_.push_back(share);
        const char* row = reinterpret_cast<const char*>(values + place_.back());
        for (int64_t byte = 0; byte < std::min<int64_t>(d * sizeof(V), 512); byte += 64) __builtin_prefetch(row + byte);
      });
      end_.push_back(static_cast<int64_t>(place_.size()));
    }
  }

  Members<C> members(int64_t i) const {
    const int64_t begin = i ? end_[i - 1] : 0;
    return {place_.data() + begin, weight_.data() + begin, end_[i] - begin};
  }

 private:
  int64_t row_ = -1, offset_ = 0;
  std::vector<int64_t> place_, end_;
  std::vector<C> weight_;
};

template <class V>
Tensor blend_of(const Tensor& values, const Bracket& bracket, bool hard) {
  const int64_t dims = values.dim(), n = values.size(dims - 2), d = values.size(dims - 1),
                stride = values.stride(dims - 2);
  Tensor out = empty(shape_like(bracket, {bracket.k, d}), values.scalar_type());
  if (d == 0) return out;
  const Offsets at(values, bracket.batch);
  const V* const source = data<V>(values);
  V* const result = data<V>(out);
  const V nan = static_cast<V>(std::numeric_limits<float>::quiet_NaN());
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / (4 * d + bracket.places));
  Everybody()(bracket.rows * bracket.k, grain, [&](int64_t begin, int64_t end) {
    Batch<V> batch;
    for (int64_t first = begin; first < end; first += Batch<V>::kSlots) {
      const int64_t count = std::min(Batch<V>::kSlots, end - first);
      batch.look_up(bracket, first, count, at, source, n, stride, d);
      for (int64_t i = 0; i < count; ++i) {
        V* const mine = result + (first + i) * d;
        const auto members = batch.members(i);
        if (members.count == 0) {
          std::fill_n(mine, d, bracket.spoiled(first + i) ? nan : V(0));
        } else if (members.weight[0] != members.weight[0]) {
          std::fill_n(mine, d, nan);
        } else if (hard) {
          std::copy_n(source + members.place[0], d, mine);
        } else {
          blend_rows(mine, source, members, d);
        }
      }
    }
  });
  return out;
}

Tensor blend(Tensor values, Tensor weight, Tensor member, bool hard) {
  values = with_rows(values);
  const Bracket bracket(weight, member);
  return by_dtype(values, "values", [&](auto v) { return blend_of<decltype(v)>(values, bracket, hard); });
}

// Each batch entry has values of its own: every row of the gradient is written once.
template <class V>
void spread_own(const V* grad, const Bracket& bracket, V* result, int64_t n, int64_t d) {
  using C = Computing<V>;
  rows_of(bracket.rows, n * d, [&](int64_t begin, int64_t end, const auto& team) {
    Buffer<int64_t> slot_of(n);
    Buffer<C> weight_of(n);
    for (int64_t row = begin; row < end; ++row) {
      std::fill_n(slot_of.get(), n, int64_t{-1});
      for (int64_t slot = row * bracket.k; slot < (row + 1) * bracket.k; ++slot) {
        bracket.each<C>(slot, n, [&](int64_t, int64_t member, C share) {
          slot_of[member] = slot;
          weight_of[member] = share;
        });
      }
      team(n, std::max<int64_t>(1, (1 << 16) / d), [&](int64_t from, int64_t to) {
        for (int64_t j = from; j < to;) {
          int64_t none = j;
          while (none < to && slot_of[none] < 0) ++none;
          V* const mine = result + (row * n + j) * d;
          if (none > j)
            std::fill_n(mine, (none - j) * d, V(0));
          else
            scale_row(mine, grad + slot_of[j] * d, weight_of[j], d);
          j = std::max(none, j + 1);
        }
      });
    }
  });
}

// Several batch entries share their values: their gradients are added up, in the order of the entries.
template <class V>
void spread_shared(const V* grad, const Bracket& bracket, const Offsets& at, V* result, int64_t tables, int64_t n,
                   int64_t d) {
  using C = Computing<V>;
  std::vector<std::vector<int64_t>> rows(tables);
  for (int64_t row = 0; row < bracket.rows; ++row) rows[at(row) / (n * d)].push_back(row);
  const int64_t width = 64, blocks = (d + width - 1) / width;
  Everybody()(tables * blocks, 1, [&](int64_t begin, int64_t end) {
    Buffer<C> sum(n * width);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t table = i / blocks, column = i % blocks * width, count = std::min(width, d - column);
      std::fill_n(sum.get(), n * count, C(0));
      for (const int64_t row : rows[table]) {
        for (int64_t slot = row * bracket.k; slot < (row + 1) * bracket.k; ++slot) {
          bracket.each<C>(slot, n, [&](int64_t, int64_t member, C share) {
            add_row(sum.get() + member * count, grad + slot * d + column, share, count);
          });
        }
      }
      for (int64_t j = 0; j < n; ++j) round_row(result + (table * n + j) * d + column, sum.get() + j * count, count);
    }
  });
}

Tensor spread(Tensor grad, Tensor weight, Tensor member, std::vector<int64_t> shape) {
  grad = dense(grad);
  const Bracket bracket(weight, member);
  const int64_t n = shape[shape.size() - 2], d = shape.back(), tables = product(shape, shape.size() - 2);
  Tensor out = empty(shape, grad.scalar_type());
  if (n * d * tables == 0) return out;
  by_dtype(grad, "grad", [&](auto v) {
    using V = decltype(v);
    if (tables == bracket.rows)
      spread_own(data<V>(grad), bracket, data<V>(out), n, d);
    else
      spread_shared(data<V>(grad), bracket, Offsets(out, bracket.batch), data<V>(out), tables, n, d);
  });
  return out;
}

template <class V, class W>
void match_of(const V* grad, const Tensor& values, const Bracket& bracket, W* result) {
  const int64_t dims = values.dim(), n = values.size(dims - 2), d = values.size(dims - 1),
                stride = values.stride(dims - 2);
  const Offsets at(values, bracket.batch);
  const V* const source = data<V>(values);
  const int64_t grain = std::max<int64_t>(1, (1 << 16) / (4 * d + bracket.places));
  Everybody()(bracket.rows * bracket.k, grain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      const int64_t offset = at(slot / bracket.k);
      W* const mine = result + slot * bracket.places;
      std::fill_n(mine, bracket.places, W(0));
      bracket.each<Computing<V>>(slot, n, [&](int64_t i, int64_t member, Computing<V>) {
        mine[i] = static_cast<W>(dot(source + offset + member * stride, grad + slot * d, d));
      });
    }
  });
}

Tensor match(Tensor grad, Tensor values, Tensor member, bool wide) {
  grad = dense(grad);
  values = with_rows(values);
  const Bracket bracket(std::nullopt, member);
  Tensor out = empty(bracket.sizes, wide ? ScalarType::Double : ScalarType::Float);
  by_dtype(values, "values", [&](auto v) {
    using V = decltype(v);
    if (wide)
      match_of(data<V>(grad), values, bracket, data<double>(out));
    else
      match_of(data<V>(grad), values, bracket, data<float>(out));
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY(knockout, m) {
  m.def(
      "tournament(Tensor scores, Tensor? mask, Tensor? sharpness, SymInt k, int parts, int kind, int alpha, float c, "
      "float unit, bool by_position, bool save, bool fixed)"
      " -> (Tensor member, Tensor weight, Tensor score, Tensor leader, Tensor filled, Tensor ledger)");
  m.def(
      "tournament_backward(Tensor? d_weight, Tensor? d_score, Tensor scores, Tensor? mask, Tensor? sharpness, "
      "Tensor member, Tensor ledger, SymInt k, int kind, int alpha, float c, float unit) -> Tensor");
  m.def("blend(Tensor values, Tensor weight, Tensor member, bool hard) -> Tensor");
  m.def("spread(Tensor grad, Tensor weight, Tensor member, SymInt[] shape) -> Tensor");
  m.def("match(Tensor grad, Tensor values, Tensor member, bool wide) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(knockout, CPU, m) {
  m.impl("tournament", TORCH_BOX(&tournament));
  m.impl("tournament_backward", TORCH_BOX(&tournament_backward));
  m.impl("blend", TORCH_BOX(&blend));
  m.impl("spread", TORCH_BOX(&spread));
  m.impl("match", TORCH_BOX(&match));
}

}  // namespace knockout

// Importable, so that Python finds the library by its module name; all it does is to be loaded.
#include <Python.h>
extern "C" PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
