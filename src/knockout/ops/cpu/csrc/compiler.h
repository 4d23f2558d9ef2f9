// Function attributes that depend on the compiler and the processor.
#pragma once

#define KNOCKOUT_INLINE inline __attribute__((always_inline))

// A function compiled twice, for any x86-64 and for processors with AVX2 and F16C; the dynamic loader picks one. On
// other platforms it is compiled once; so it is with KNOCKOUT_ONE_TARGET, for the processor that -march names. A
// program that is linked to a sanitizer needs this: the loader would pick before the sanitizer is ready. Clang 19
// leaves out functions that only the two call.
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__clang__) && \
    !defined(KNOCKOUT_ONE_TARGET)
#define KNOCKOUT_VECTORIZED [[maybe_unused]] static __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define KNOCKOUT_VECTORIZED [[maybe_unused]] static
#endif
