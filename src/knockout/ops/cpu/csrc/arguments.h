// Checks of the arguments of an operator, made once a call before anything is read. An operator can be called with
// anything, for example from a loaded program. The library's own functions check more, with better texts, in Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "errors.h"
#include "tensors.h"

namespace knockout {

// Check that a tensor is on the CPU, has one of these dtypes, and has all its elements in its storage.
inline void check_tensor(const Tensor& tensor, const char* name, std::initializer_list<ScalarType> allowed,
                         const char* dtype_names) {
  static const int32_t cpu = aoti_torch_device_type_cpu();
  int32_t device = -1;
  check(tensor.defined(), name, " must be a tensor; got None");
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &device));
  check(device == cpu, name, " must be a CPU tensor");
  const ScalarType dtype = tensor.scalar_type();
  check(std::find(allowed.begin(), allowed.end(), dtype) != allowed.end(), name, " must be ", dtype_names,
        "; got another dtype");
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  int64_t last = tensor.storage_offset(), bytes = 0;  // the last element that is used
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return;
    last += (sizes[i] - 1) * strides[i];
  }
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor.get(), &bytes));
  check(bytes / item_size(dtype) > last, name, " must have its elements in memory; got a tensor of shape ",
        sizes_of(tensor), " whose storage has ", bytes, " bytes");
}

inline void check_floating(const Tensor& tensor, const char* name) {
  check_tensor(tensor, name, {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16},
               "float16, bfloat16, float32 or float64");
}

// Check the shape of a tensor: (*batch, *more).
inline void check_shape(const Tensor& tensor, const char* name, const Sizes& batch,
                        std::initializer_list<int64_t> more) {
  const auto sizes = tensor.sizes();
  const bool fits = sizes.size() == batch.size() + more.size() &&
                    std::equal(batch.begin(), batch.end(), sizes.begin()) &&
                    std::equal(more.begin(), more.end(), sizes.begin() + batch.size());
  check(fits, name, " must have shape ", joined(batch, more), "; got ", sizes_of(tensor));
}

// Check that sizes are (*rows, n, d), where *rows broadcasts to the batch dimensions.
template <class SomeSizes>
void check_rows(const SomeSizes& sizes, const char* name, const Sizes& batch) {
  bool fits = sizes.size() == batch.size() + 2;
  for (size_t i = 0; fits && i < batch.size(); ++i) fits = sizes[i] == batch[i] || sizes[i] == 1;
  check(fits, name, " must have shape (*rows, n, d), where *rows broadcasts to the batch dimensions ", batch,
        " of member, with as many dimensions; got ", Sizes(sizes.begin(), sizes.end()));
}

}  // namespace knockout
