// Tensors and threads of PyTorch, by its stable ABI: one build serves many versions of PyTorch.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "errors.h"
#include "half.h"
#include "threads.h"

namespace knockout {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The threads of PyTorch, see threads.h.
struct AllThreads {
  template <class Work>
  void parallel_for(int64_t count, int64_t grain, const Work& work) const {
    if (count <= grain) {
      if (count > 0) work(int64_t{0}, count);
    } else {
      // An error would cross the threads of PyTorch and lose its text: keep the first one, and throw it here.
      std::exception_ptr error;
      std::atomic_flag failed;
      torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
        try {
          work(begin, end);
        } catch (...) {
          if (!failed.test_and_set()) error = std::current_exception();
        }
      });
      if (error) std::rethrow_exception(error);
    }
  }
  int64_t count() const { return torch::stable::get_num_threads(); }
};

// work(begin, end, threads) on parts of the rows of a batch: each part by one thread, or, if the rows are few and long,
// all rows in turn by all threads.
template <class Work>
void parallel_rows(int64_t rows, int64_t row_length, const Work& work) {
  const AllThreads all;
  const int64_t count = all.count();
  if (row_length >= (1 << 16) && rows < 2 * count && count > 1) return work(int64_t{0}, rows, all);
  all.parallel_for(rows, std::max<int64_t>(1, 512 / std::max<int64_t>(row_length, 1)),
                   [&](int64_t begin, int64_t end) { work(begin, end, OneThread()); });
}

inline Sizes sizes_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return Sizes(sizes.begin(), sizes.end());
}

// (*batch, *more)
inline Sizes joined(const Sizes& batch, std::initializer_list<int64_t> more) {
  Sizes sizes = batch;
  sizes.insert(sizes.end(), more);
  return sizes;
}

// The product of the first `count` sizes.
inline int64_t product(const Sizes& sizes, size_t count) {
  return std::accumulate(sizes.begin(), sizes.begin() + static_cast<int64_t>(count), int64_t{1}, std::multiplies<>());
}

inline Tensor empty(const Sizes& sizes, ScalarType dtype) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    check(!__builtin_mul_overflow(stride, std::max<int64_t>(sizes[i], 1), &stride),
          "there is not enough memory for a result of shape ", sizes);
  }
  AtenTensorHandle handle;
  const auto error = aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                                              static_cast<int32_t>(dtype), aoti_torch_device_type_cpu(), 0, &handle);
  check(error == AOTI_TORCH_SUCCESS, "there is not enough memory for a result of shape ", sizes);
  return Tensor(handle);
}

// The size of an element in bytes, of the dtypes that operators take; more than any storage has, for other dtypes.
inline int64_t item_size(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Bool:
      return 1;
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return 2;
    case ScalarType::Float:
    case ScalarType::Int:
      return 4;
    case ScalarType::Double:
    case ScalarType::Long:
      return 8;
    default:
      return std::numeric_limits<int64_t>::max();
  }
}

// The same tensor, at an address that is a multiple of `bytes`: tensors made of a buffer can lie anywhere.
inline Tensor as_aligned(const Tensor& tensor, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  return address % static_cast<uintptr_t>(bytes) ? torch::stable::clone(tensor) : tensor;
}

inline Tensor as_aligned(const Tensor& tensor) { return as_aligned(tensor, item_size(tensor.scalar_type())); }

// A contiguous copy.
inline Tensor contiguous_copy(const Tensor& tensor) {
  try {
    return torch::stable::contiguous(tensor);
  } catch (const std::exception&) {
    refuse("there is not enough memory for a contiguous copy of a tensor of shape ", sizes_of(tensor));
  }
}

inline Tensor as_contiguous(const Tensor& tensor) {
  return as_aligned(tensor.is_contiguous() ? tensor : contiguous_copy(tensor));
}

// The pointer is untyped in between because the half types of half.h are not those of PyTorch.
template <class T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

template <class T>
constexpr ScalarType dtype_of() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  return std::is_same_v<T, float> ? ScalarType::Float : ScalarType::Double;
}

// use(x), where the type of x is the C++ type of the tensor's floating dtype, which has been checked.
template <class Use>
auto dispatch_dtype(const Tensor& tensor, const Use& use) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return use(float{});
    case ScalarType::Double:
      return use(double{});
    case ScalarType::Half:
      return use(Float16{});
    default:
      return use(BFloat16{});
  }
}

// Where the data of each batch entry starts in a tensor whose leading dimensions broadcast to those of the batch.
class RowOffsets {
 public:
  RowOffsets(const Tensor& tensor, const Sizes& batch) : batch_(batch) {
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

}  // namespace knockout
