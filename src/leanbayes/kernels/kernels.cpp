// Noise, and what is computed with it, in one pass over memory: float32 on a CPU.
//
// Plain C functions on pointers, called through ctypes: no header of torch or Python, so that one
// library serves every version of both. The file includes itself once for every instruction set
// (below), and the functions at the end choose the best one that the processor has.
//
// * The noise of row r under a seed is a stream of its own, so that a backward pass draws it again
//   instead of keeping it, and the number of threads changes nothing.
// * Sums over rows are taken in blocks whose size does not depend on the number of threads either.
// * Compile with -ffast-math, link without: GCC would otherwise link a start-up file that switches
//   the whole process to flush-to-zero.

#ifndef INSTRUCTIONS

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed only where they are inlined

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

typedef float f32;
typedef double f64;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

// A prediction: draws of y [samples, examples, n]. The law is known for all samples, or for one that
// serves them all (given = 1), and a number of noise serves as many examples as share it.
struct Fold {
    i64 samples, examples, n, given, sharing;
    u64 seed;
    int threads;
};

// A window [high, wide] that moves over images [channels, rows, columns] by steps, with gaps between
// its taps and padding before the first row and column; a vector is an image of one row.
struct Window {
    i64 channels, rows, columns, out_rows, out_columns, high, wide, step_y, step_x, pad_y, pad_x, gap_y, gap_x;
};

#define INSTRUCTIONS baseline
#define REGISTER 4  // numbers that a register holds
#include "kernels.cpp"
#undef REGISTER
#undef INSTRUCTIONS

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCH
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define INSTRUCTIONS avx2
#define REGISTER 8
#include "kernels.cpp"
#undef REGISTER
#undef INSTRUCTIONS
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,prefer-vector-width=512")
#define INSTRUCTIONS avx512
#define REGISTER 16
#include "kernels.cpp"
#undef REGISTER
#undef INSTRUCTIONS
#pragma GCC pop_options
#endif

static int level() {
#ifdef DISPATCH
    const char *most = getenv("LEANBAYES_NATIVE");
    const bool is_baseline = most && !strcmp(most, "baseline"), is_avx2 = most && !strcmp(most, "avx2");
    __builtin_cpu_init();
    if (is_baseline || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    if (!is_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return 2;
    return 1;
#else
    return 0;
#endif
}
static const int LEVEL = level();

#ifdef DISPATCH
#define BEST(call) LEVEL == 2 ? avx512::call : LEVEL == 1 ? avx2::call : baseline::call
#else
#define BEST(call) baseline::call
#endif
#define EXPORT extern "C" __attribute__((visibility("default")))

// Raise it, here and in native.py, with every change of a signature: a library may be older.
EXPORT int interface() { return 13; }

EXPORT const char* instructions() {
    return LEVEL == 2 ? "AVX-512" : LEVEL == 1 ? "AVX2" : "baseline instructions";
}
EXPORT void normals(f32* out, i64 rows, i64 n, u64 seed, int threads) {
    BEST(normals(out, rows, n, seed, threads));
}
EXPORT void bits(u32* out, i64 rows, i64 n, u64 seed, int threads) {
    BEST(bits(out, rows, n, seed, threads));
}
EXPORT void noise_forward(f32* y, const f32* var, i64 rows, i64 n, u64 seed, int threads) {
    BEST(noise_forward(y, var, rows, n, seed, threads));
}
EXPORT void noise_backward(const f32* g, const f32* var, f32* gvar, i64 rows, i64 n, u64 seed,
                           int threads) {
    BEST(noise_backward(g, var, gvar, rows, n, seed, threads));
}
EXPORT void fold_noise(f32* y, const f32* mean, const f32* bias, const f32* var, i64 samples,
                       i64 examples, i64 n, i64 given, i64 sharing, u64 seed, int threads) {
    Fold fold = {samples, examples, n, given, sharing, seed, threads};
    BEST(fold_noise(y, mean, bias, var, fold));
}
EXPORT void fold_narrow(f32* y, const f32* x, const f32* loc, const f32* bias, const f32* var,
                        i64 samples, i64 examples, i64 n, i64 given, i64 sharing, i64 in, u64 seed,
                        int threads) {
    Fold fold = {samples, examples, n, given, sharing, seed, threads};
    BEST(fold_narrow(y, x, loc, bias, var, in, fold));
}
EXPORT void draw_forward(const f32* loc, const f32* scale, f32* w, i64 rows, i64 n, u64 seed,
                         int threads) {
    BEST(draw_forward(loc, scale, w, rows, n, seed, threads));
}
EXPORT void draw_backward(const f32* g, f32* gscale, i64 rows, i64 n, u64 seed, int threads) {
    BEST(draw_backward(g, gscale, rows, n, seed, threads));
}
EXPORT void scale_kl(const f32* loc, const f32* scale, f32* gscale, f64* totals, i64 rows, i64 n,
                     i64 logs, f32 unit, f64 prior_loc, f64 prior_scale, int threads) {
    BEST(scale_kl(loc, scale, gscale, totals, rows, n, logs, unit, prior_loc, prior_scale, threads));
}
EXPORT f64 relevance_kl(const f32* mean, const f32* variance, i64 rows, i64 n, int threads) {
    return BEST(relevance_kl(mean, variance, rows, n, threads));
}
EXPORT void relevance_backward(const f32* mean, const f32* variance, f32* gmean, f32* gvariance,
                               i64 rows, i64 n, f64 g, int threads) {
    BEST(relevance_backward(mean, variance, gmean, gvariance, rows, n, g, threads));
}
EXPORT void unpack_lower(const f32* diagonal, const f32* below, f32* lower, i64 n) {
    BEST(unpack_lower(diagonal, below, lower, n));
}
EXPORT void pack_lower(const f32* lower, f32* diagonal, f32* below, i64 n) {
    BEST(pack_lower(lower, diagonal, below, n));
}
EXPORT void row_squares(const f32* diagonal, const f32* below, f32* out, i64 n) {
    BEST(row_squares(diagonal, below, out, n));
}
EXPORT void row_squares_backward(const f32* g, const f32* diagonal, const f32* below,
                                 f32* gdiagonal, f32* gbelow, i64 n) {
    BEST(row_squares_backward(g, diagonal, below, gdiagonal, gbelow, n));
}
EXPORT void factor_forward(const f32* x, const f32* loc, const f32* scale, f32* y, i64 rows, i64 n,
                           i64 members, f32 clip, u64 seed, int threads) {
    BEST(factor_forward(x, loc, scale, y, rows, n, members, clip, seed, threads));
}
EXPORT void factor_backward(const f32* g, const f32* x, const f32* loc, const f32* scale, f32* gx,
                            f32* gloc, f32* gscale, i64 rows, i64 n, i64 members, f32 clip,
                            u64 seed, int threads) {
    BEST(factor_backward(g, x, loc, scale, gx, gloc, gscale, rows, n, members, clip, seed, threads));
}
EXPORT void scale_rows(const f32* x, const f32* f, f32* y, i64 rows, i64 n, int threads) {
    BEST(scale_rows(x, f, y, rows, n, threads));
}
EXPORT void scale_rows_backward(const f32* g, const f32* x, const f32* f, f32* gx, f32* gf, i64 rows,
                                i64 n, int threads) {
    BEST(scale_rows_backward(g, x, f, gx, gf, rows, n, threads));
}
EXPORT void lstm_forward(const f32* x, const f32* p, const f32* input_factor, const f32* state_factor,
                         const f32* bias, const f32* state_scale, const f32* before, f32* gates,
                         f32* cell, f32* h, f32* scaled, i64 bias_rows, i64 batch, i64 n, int threads) {
    BEST(lstm_forward({x, p, input_factor, state_factor, bias, state_scale, bias_rows, batch, n, threads},
                      before, gates, cell, h, scaled));
}
EXPORT void lstm_backward(const f32* x, const f32* p, const f32* input_factor, const f32* state_factor,
                          const f32* state_scale, const f32* g, const f32* next, const f32* before,
                          const f32* gates, const f32* cell, const f32* h, f32* gcell, f32* gx, f32* gp,
                          f32* ginput, f32* gstate, f32* gbias, f32* gscale, i64 batch, i64 n,
                          int threads) {
    BEST(lstm_backward({x, p, input_factor, state_factor, nullptr, state_scale, 0, batch, n, threads}, g,
                       next, before, gates, cell, h, {gcell, gx, gp, ginput, gstate, gbias, gscale}));
}
EXPORT void relu_moments(const f32* loc, const f32* var, f32* mean, f32* spread, i64 n, f32 slope,
                         int threads) {
    BEST(relu_moments(loc, var, mean, spread, n, slope, threads));
}
EXPORT void sigmoid_moments(const f32* loc, const f32* var, f32* mean, f32* spread, i64 n,
                            const f32* nodes, const f32* weights, i64 points, int threads) {
    BEST(sigmoid_moments(loc, var, mean, spread, n, nodes, weights, points, threads));
}
EXPORT void max_pool_moments(const f32* loc, const f32* var, f32* mean, f32* spread, const Window* w,
                             i64 images, int threads) {
    BEST(max_pool_moments(loc, var, mean, spread, *w, images, threads));
}
// The rank k of a k-tied scale is known when compiling, for 1 … 4.
#define RANKS(name, ...)                             \
    switch (k) {                                     \
        case 1: return BEST(name<1>(__VA_ARGS__));   \
        case 2: return BEST(name<2>(__VA_ARGS__));   \
        case 3: return BEST(name<3>(__VA_ARGS__));   \
        default: return BEST(name<4>(__VA_ARGS__));  \
    }
EXPORT void k_tied_forward(const f32* x, const f32* u, const f32* v, f32* shared, f32* y, i64 rows,
                           i64 n, i64 m, i64 k, i64 logs, f32 unit, u64 seed, int threads) {
    RANKS(k_tied_forward, x, u, v, shared, y, rows, n, m, logs, unit, seed, threads)
}
EXPORT void k_tied_fold(f32* y, const f32* x, const f32* mean, const f32* bias, const f32* u,
                        const f32* v, i64 samples, i64 examples, i64 n, i64 given, i64 sharing,
                        i64 in, i64 k, u64 seed, int threads) {
    Fold fold = {samples, examples, n, given, sharing, seed, threads};
    RANKS(k_tied_fold, y, x, mean, bias, u, v, in, fold)
}
EXPORT void k_tied_variance(const f32* x, const f32* var, const f32* u, const f32* v, f32* out,
                            i64 rows, i64 n, i64 m, i64 k, int threads) {
    RANKS(k_tied_variance, x, var, u, v, out, rows, n, m, threads)
}
EXPORT void k_tied_convolution(const f32* x, const f32* var, const f32* u, const f32* v, f32* out,
                               const Window* w, i64 images, i64 m, i64 k, int threads) {
    RANKS(k_tied_convolution, x, var, u, v, out, *w, images, m, threads)
}
EXPORT void k_tied_backward(const f32* g, const f32* x, const f32* u, const f32* v,
                            const f32* shared, f32* gx, f32* gbias, f32* gu, f32* gv, i64 rows,
                            i64 n, i64 m, i64 k, i64 logs, f32 unit, u64 seed, int threads) {
    RANKS(k_tied_backward, g, x, u, v, shared, gx, gbias, gu, gv, rows, n, m, logs, unit, seed, threads)
}
EXPORT void k_tied_mix_forward(f32* y, const f32* shared, const f32* q, i64 batch, i64 channels,
                               i64 n, i64 k, u64 seed, int threads) {
    RANKS(k_tied_mix_forward, y, shared, q, batch, channels, n, seed, threads)
}
EXPORT void k_tied_mix_backward(const f32* g, const f32* shared, const f32* q, f32* gshared,
                                f32* gq, i64 batch, i64 channels, i64 n, i64 k, u64 seed,
                                int threads) {
    RANKS(k_tied_mix_backward, g, shared, q, gshared, gq, batch, channels, n, seed, threads)
}
EXPORT void k_tied_draw_forward(const f32* loc, const f32* u, const f32* v, f32* w, i64 m, i64 n,
                                i64 k, u64 seed, int threads) {
    RANKS(k_tied_draw_forward, loc, u, v, w, m, n, seed, threads)
}
EXPORT void k_tied_draw_backward(const f32* g, const f32* u, const f32* v, f32* gu, f32* gv, i64 m,
                                 i64 n, i64 k, u64 seed, int threads) {
    RANKS(k_tied_draw_backward, g, u, v, gu, gv, m, n, seed, threads)
}
EXPORT void k_tied_kl(const f32* loc, const f32* u, const f32* v, f32* gu, f32* gv, f64* totals,
                      i64 m, i64 n, i64 k, i64 logs, f32 unit, f64 prior_loc, f64 prior_scale,
                      int threads) {
    RANKS(k_tied_kl, loc, u, v, gu, gv, totals, m, n, logs, unit, prior_loc, prior_scale, threads)
}

#else  // ---------------------------------------------------- once for every instruction set

namespace INSTRUCTIONS {

static const int L = 16;     // lanes of the generator, whatever the width of a register
static const int W = 2 * L;  // normals that are drawn at once

#define PARALLEL _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
#define SIMD _Pragma("omp simd")
#define ALWAYS_INLINE inline __attribute__((always_inline))

// ---- vectors: L numbers in as many registers as they take

typedef f32 Lanes __attribute__((vector_size(4 * L)));
typedef int32_t Whole __attribute__((vector_size(4 * L)));

static ALWAYS_INLINE Lanes at(const f32* x) {
    Lanes v;
    memcpy(&v, x, sizeof v);
    return v;
}
static ALWAYS_INLINE void put(f32* x, Lanes v) { memcpy(x, &v, sizeof v); }

// The numbers from column j on; those beyond the last of n are others.
static ALWAYS_INLINE Lanes at_end(const f32* x, i64 j, i64 n, f32 others) {
    if (j + L <= n) return at(x + j);
    Lanes v = others - (Lanes){};
    memcpy(&v, x + j, sizeof(f32) * (n - j));
    return v;
}
static ALWAYS_INLINE void put_end(f32* x, i64 j, i64 n, Lanes v) {
    if (j + L <= n)
        put(x + j, v);
    else
        memcpy(x + j, &v, sizeof(f32) * (n - j));
}
static ALWAYS_INLINE f32 sum(Lanes v) {
    f32 total = 0.0f;
    for (int l = 0; l < L; l++) total += v[l];
    return total;
}

// ---- noise

static inline u64 splitmix(u64 x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// The logarithm of a positive, normal number, to 1e-7 (Cephes): m + curve + exponent log 2.
struct Logarithm {
    f32 m, curve;
    int32_t exponent;

    ALWAYS_INLINE Logarithm(f32 x) {
        int32_t i, j;
        memcpy(&i, &x, 4);
        j = i - 0x3f3504f3;
        i = (j & 0x7fffff) + 0x3f3504f3;
        exponent = j >> 23;
        memcpy(&m, &i, 4);
        m -= 1.0f;
        f32 p = 7.0376836292e-2f;
        p = p * m - 1.1514610310e-1f;
        p = p * m + 1.1676998740e-1f;
        p = p * m - 1.2420140846e-1f;
        p = p * m + 1.4249322787e-1f;
        p = p * m - 1.6668057665e-1f;
        p = p * m + 2.0000714765e-1f;
        p = p * m - 2.4999993993e-1f;
        p = p * m + 3.3333331174e-1f;
        curve = m * m * (m * p - 0.5f);
    }
};

static inline f32 logarithm(f32 x) {
    Logarithm log(x);
    return log.m + (log.curve + (f32)log.exponent * 0.693147180559945f);
}

// e^x to 2e-7, for |x| up to 87.
static inline f32 exponential(f32 x) {
    x = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    f32 whole = std::floor(x * 1.44269504f + 0.5f);
    f32 r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    f32 p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)whole + 127) << 23;
    f32 power;
    memcpy(&power, &bits, 4);
    return p * power;
}
static inline f32 sigmoid(f32 x) { return 1.0f / (1.0f + exponential(-x)); }

// sin(2 pi a) for |a| <= 1/4, to 1e-8 before rounding.
static inline f32 quarter_sine(f32 a) {
    f32 s = a * a;
    return a * (6.28318528f +
                s * (-41.34168067f + s * (81.60248074f + s * (-76.58128456f + s * 39.76072207f))));
}

// One row of noise: 16 lanes of xoshiro128++, seeded by splitmix64 from the seed and the row.
struct Stream {
    u32 a[L], b[L], c[L], d[L];

    Stream(u64 seed, u64 row) {
        u64 base = splitmix(seed ^ splitmix(row)), s[2 * L];
        SIMD for (int i = 0; i < 2 * L; i++) s[i] = splitmix(base + (u64)i * 0x9E3779B97F4A7C15ull);
        memcpy(a, s, sizeof a);
        memcpy(b, s + L / 2, sizeof b);
        memcpy(c, s + L, sizeof c);
        memcpy(d, s + 3 * L / 2, sizeof d);
    }
    ALWAYS_INLINE void words(u32* out) {
        SIMD for (int l = 0; l < L; l++) {
            u32 r = a[l] + d[l], t = b[l] << 9;
            out[l] = ((r << 7) | (r >> 25)) + a[l];
            c[l] ^= a[l];
            d[l] ^= b[l];
            b[l] ^= c[l];
            a[l] ^= d[l];
            c[l] ^= t;
            d[l] = (d[l] << 11) | (d[l] >> 21);
        }
    }
    // Box and Muller: a radius from 31 bits and an angle from 24 make two normals.
    ALWAYS_INLINE void normals(f32* z) {
        u32 p[L], q[L];
        words(p);
        words(q);
        SIMD for (int l = 0; l < L; l++) {
            f32 radius = std::sqrt(-2.0f * logarithm((f32)(int32_t)(p[l] >> 1 | 1) * 0x1p-31f));
            f32 turn = (f32)((int32_t)q[l] >> 8) * 0x1p-24f;  // [-1/2, 1/2)
            f32 h = std::fabs(turn) - 0.25f;                  // cos(2 pi turn) = -sin(2 pi h)
            f32 sine = quarter_sine(0.25f - std::fabs(h));
            z[l] = -radius * quarter_sine(h);
            z[l + L] = radius * (turn < 0.0f ? -sine : sine);
        }
    }
};

// Calls f(j, eps) for every column of a row.
template <class F>
static inline void over_noise(u64 seed, i64 row, i64 n, F f) {
    Stream stream(seed, (u64)row);
    alignas(64) f32 z[W];
    i64 j = 0;
    for (; j + W <= n; j += W) {
        stream.normals(z);
        SIMD for (int l = 0; l < W; l++) f(j + l, z[l]);
    }
    if (j < n) {
        stream.normals(z);
        for (int l = 0; j + l < n; l++) f(j + l, z[l]);
    }
}

static void normals(f32* out, i64 rows, i64 n, u64 seed, int threads) {
    PARALLEL for (i64 r = 0; r < rows; r++) {
        f32* o = out + r * n;
        over_noise(seed, r, n, [=](i64 j, f32 e) { o[j] = e; });
    }
}

// What the normals are made of, for tests of the generator.
static void bits(u32* out, i64 rows, i64 n, u64 seed, int threads) {
    PARALLEL for (i64 r = 0; r < rows; r++) {
        Stream stream(seed, (u64)r);
        u32 word[L];
        for (i64 j = 0; j < n; j += L) {
            stream.words(word);
            memcpy(out + r * n + j, word, sizeof(u32) * (n - j < L ? n - j : L));
        }
    }
}

// Fast maths makes a root of its reciprocal, which is infinite for a variance below the normal numbers:
// there the standard deviation, below 1.1e-19, is zero.
static inline f32 root(f32 var) { return var > FLT_MIN ? std::sqrt(var) : 0.0f; }

// y += sqrt(var) eps, and gvar = g eps / (2 sqrt(var)), which is zero where the variance is.
static void noise_forward(f32* y, const f32* var, i64 rows, i64 n, u64 seed, int threads) {
    PARALLEL for (i64 r = 0; r < rows; r++) {
        f32* o = y + r * n;
        const f32* s = var + r * n;
        over_noise(seed, r, n, [=](i64 j, f32 e) { o[j] += root(s[j]) * e; });
    }
}

// Rows of a law, each drawn with a window of noise. The window of an example begins a part of its
// width behind that of the example before, so each is white and no two meet a number in one place.
template <class F>
static inline void over_windows(const Fold& fold, F row) {
    i64 n = fold.n, step = (n + fold.sharing - 1) / fold.sharing, threads = fold.threads;
    i64 groups = (fold.examples + fold.sharing - 1) / fold.sharing;
    PARALLEL for (i64 g = 0; g < fold.samples * groups; g++) {
        i64 first = g % groups * fold.sharing, left = fold.examples - first;
        i64 rows = left < fold.sharing ? left : fold.sharing;
        f32* z = (f32*)malloc(sizeof(f32) * (n + rows * step + 1));
        over_noise(fold.seed, g, n + (rows - 1) * step, [=](i64 j, f32 e) { z[j] = e; });
        for (i64 i = 0; i < rows; i++) {
            i64 r = g / groups * fold.examples + first + i;
            row(r, fold.given == 1 ? first + i : r, z + i * step);
        }
        free(z);
    }
}

// y = mean + bias + sqrt(var) eps; mean, bias or both may be missing, and y may be mean or var.
static void fold_noise(f32* y, const f32* mean, const f32* bias, const f32* var, const Fold& fold) {
    i64 n = fold.n;
    over_windows(fold, [=](i64 r, i64 of, const f32* z) {
        f32* o = y + r * n;
        const f32 *m = mean + of * n, *s = var + of * n;
        if (mean && bias) {
            SIMD for (i64 j = 0; j < n; j++) o[j] = m[j] + bias[j] + root(s[j]) * z[j];
        } else if (mean || bias) {
            const f32* c = mean ? m : bias;
            SIMD for (i64 j = 0; j < n; j++) o[j] = c[j] + root(s[j]) * z[j];
        } else {
            SIMD for (i64 j = 0; j < n; j++) o[j] = root(s[j]) * z[j];
        }
    });
}

// Rows [n, in] padded with zeros to whole vectors and to a whole number of pairs; no rows are zeros.
static f32* in_pairs(const f32* w, i64 n, i64 in, i64 wide) {
    f32* memory = (f32*)calloc((size_t)((n + 1) * wide + 1), sizeof(f32));
    for (i64 i = 0; w && i < n; i++) memcpy(memory + i * wide, w + i * in, sizeof(f32) * in);
    return memory;
}

// Means and variances of the outputs of weights N(loc, var) [n, in], as law [rows, 2, n], where they
// are so few that products of matrices take longer: some rows of x at a time meet two of weights.
template <bool has_means>
static void narrow_law(const f32* x, const f32* loc, const f32* var, f32* law, i64 rows, i64 in,
                       i64 n, int threads) {
    typedef f32 Register __attribute__((vector_size(4 * REGISTER)));
    const int V = REGISTER, R = V == 16 ? 4 : 2;  // 32 registers hold sums of four rows, 16 of two
    i64 wide = (in + V - 1) / V * V;
    f32 *w = in_pairs(loc, n, in, wide), *v = in_pairs(var, n, in, wide);
    PARALLEL for (i64 i = 0; i < rows; i += R) {
        const f32* a[R];  // a row beyond the last is the last once more
        for (i64 r = 0; r < R; r++) a[r] = x + (i + r < rows ? i + r : rows - 1) * in;
        for (i64 o = 0; o < n; o += 2) {
            Register m[R][2] = {}, s[R][2] = {};
            const f32 *w0 = w + o * wide, *w1 = w0 + wide, *v0 = v + o * wide, *v1 = v0 + wide;
            i64 j = 0;
            for (; j + V <= in; j += V) {
                Register mean0, mean1, var0, var1;
                memcpy(&mean0, w0 + j, sizeof mean0);
                memcpy(&mean1, w1 + j, sizeof mean1);
                memcpy(&var0, v0 + j, sizeof var0);
                memcpy(&var1, v1 + j, sizeof var1);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    Register p;
                    memcpy(&p, a[r] + j, sizeof p);
                    if (has_means) m[r][0] += p * mean0, m[r][1] += p * mean1;
                    p *= p;
                    s[r][0] += p * var0, s[r][1] += p * var1;
                }
            }
            for (i64 r = 0; r < R && i + r < rows; r++)
                for (i64 c = 0; c < 2 && o + c < n; c++) {
                    f32 mean = 0.0f, variance = 0.0f, lanes[2][V];
                    memcpy(lanes[0], &m[r][c], sizeof lanes[0]);
                    memcpy(lanes[1], &s[r][c], sizeof lanes[1]);
                    for (int l = 0; l < V; l++) mean += lanes[0][l], variance += lanes[1][l];
                    for (i64 l = j; l < in; l++) {
                        mean += a[r][l] * w0[c * wide + l];
                        variance += a[r][l] * a[r][l] * v0[c * wide + l];
                    }
                    f32* at = law + (i + r) * 2 * n + o + c;
                    at[0] = mean;
                    at[n] = variance;
                }
        }
    }
    free(v);
    free(w);
}

// y = x loc^T + bias + sqrt(x^2 var^T) eps for few outputs; loc, bias or both may be missing.
static void fold_narrow(f32* y, const f32* x, const f32* loc, const f32* bias, const f32* var,
                        i64 in, const Fold& fold) {
    i64 n = fold.n, rows = fold.given * fold.examples;
    f32* law = (f32*)malloc(sizeof(f32) * (rows * 2 * n + 1));
    auto fill = loc ? narrow_law<true> : narrow_law<false>;
    fill(x, loc, var, law, rows, in, n, fold.threads);
    over_windows(fold, [=](i64 r, i64 of, const f32* z) {
        f32* out = y + r * n;
        const f32 *m = law + of * 2 * n, *s = m + n;
        SIMD for (i64 j = 0; j < n; j++)
            out[j] = m[j] + (bias ? bias[j] : 0.0f) + root(s[j]) * z[j];
    });
    free(law);
}

// P(x > z) / exp(-z^2 / 2) for x ~ N(0, 1) and z >= 0, to 1.2e-7 of it (Chebyshev).
static inline f32 scaled_tail(f32 z) {
    f32 t = 1.0f / (1.0f + 0.353553391f * z), p = 0.17087277f;
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    return 0.5f * t * std::exp(p * t - 1.26551223f);
}

// max(x, 0) for x ~ N(m, v): P(x > 0), P(x < 0), the density at 0 times the standard deviation s, the
// mean, and the part of v that adds to that of x given its sign.
struct Positive {
    f32 above, below, mean, rest;

    ALWAYS_INLINE Positive(f32 m, f32 v) {
        f32 over = 1.0f / std::sqrt(v > FLT_MIN ? v : FLT_MIN), a = m * over;
        a = a > 13.0f ? 13.0f : a < -13.0f ? -13.0f : a;
        f32 bell = std::exp(-0.5f * a * a), density = 0.398942280f * bell;
        f32 tail = bell * scaled_tail(std::fabs(a));
        above = a > 0.0f ? 1.0f - tail : tail;
        below = a > 0.0f ? tail : 1.0f - tail;
        mean = m * above + v * over * density;
        rest = a * (a * above * below + density * (below - above)) - density * density;
    }
};

// Mean and variance of max(x, 0) + slope min(x, 0) for x ~ N(loc, var).
static void relu_moments(const f32* loc, const f32* var, f32* mean, f32* spread, i64 n, f32 slope,
                         int threads) {
    const i64 block = 4096;
    const f32 rest = 1.0f - slope;
    PARALLEL for (i64 first = 0; first < n; first += block) {
        i64 end = first + block < n ? first + block : n;
        SIMD for (i64 j = first; j < end; j++) {
            f32 m = loc[j], v = var[j];
            Positive x(m, v);
            f32 part = slope * slope + rest * (2.0f * slope * x.above + rest * (x.above + x.rest));
            mean[j] = slope * m + rest * x.mean;
            spread[j] = v * (part > 0.0f ? part : 0.0f);
        }
    }
}

// Mean and variance of a sigmoid by quadrature: deviations from its value at loc are summed.
static void sigmoid_moments(const f32* loc, const f32* var, f32* mean, f32* spread, i64 n,
                            const f32* nodes, const f32* weights, i64 points, int threads) {
    const i64 block = 1024;
    PARALLEL for (i64 first = 0; first < n; first += block) {
        i64 end = first + block < n ? first + block : n;
        f32 sums[block] = {}, squares[block] = {}, centers[block], std[block];
        SIMD for (i64 j = first; j < end; j++) {
            centers[j - first] = sigmoid(loc[j]);
            std[j - first] = root(var[j]);
        }
        for (i64 p = 0; p < points; p++)
            SIMD for (i64 j = first; j < end; j++) {
                f32 apart = sigmoid(loc[j] + nodes[p] * std[j - first]) - centers[j - first];
                sums[j - first] += weights[p] * apart;
                squares[j - first] += weights[p] * apart * apart;
            }
        SIMD for (i64 j = first; j < end; j++) {
            f32 sum = sums[j - first], left = squares[j - first] - sum * sum;
            mean[j] = centers[j - first] + sum;
            spread[j] = left > 0.0f ? left : 0.0f;
        }
    }
}

static inline f32 over_root(f32 var) {  // 1 / sqrt(var), zero where the variance is
    return var > FLT_MIN ? 1.0f / std::sqrt(var) : 0.0f;
}

static ALWAYS_INLINE Lanes over_root(Lanes var) {
    alignas(64) f32 x[L];
    put(x, var);
    SIMD for (int l = 0; l < L; l++) x[l] = over_root(x[l]);
    return at(x);
}

static void noise_backward(const f32* g, const f32* var, f32* gvar, i64 rows, i64 n, u64 seed,
                           int threads) {
    PARALLEL for (i64 r = 0; r < rows; r++) {
        const f32 *h = g + r * n, *s = var + r * n;
        f32* o = gvar + r * n;
        over_noise(seed, r, n, [=](i64 j, f32 e) { o[j] = 0.5f * h[j] * e * over_root(s[j]); });
    }
}

// w = loc + scale eps, and gscale = g eps; loc may be missing.
static void draw_forward(const f32* loc, const f32* scale, f32* w, i64 rows, i64 n, u64 seed,
                         int threads) {
    PARALLEL for (i64 r = 0; r < rows; r++) {
        const f32 *m = loc + r * n, *s = scale + r * n;
        f32* o = w + r * n;
        if (loc)
            over_noise(seed, r, n, [=](i64 j, f32 e) { o[j] = m[j] + s[j] * e; });
        else
            over_noise(seed, r, n, [=](i64 j, f32 e) { o[j] = s[j] * e; });
    }
}

static void draw_backward(const f32* g, f32* gscale, i64 rows, i64 n, u64 seed, int threads) {
    PARALLEL for (i64 r = 0; r < rows; r++) {
        const f32* h = g + r * n;
        f32* o = gscale + r * n;
        over_noise(seed, r, n, [=](i64 j, f32 e) { o[j] = h[j] * e; });
    }
}

// ---- sums over rows

// Zeroed memory for one row of sums for every block of rows, and their total.
struct Sums {
    i64 rows, size, block, blocks;
    f32* memory;

    Sums(i64 rows, i64 size) : rows(rows), size(size) {
        block = rows / 16 > 16 ? (rows + 15) / 16 : 16;
        blocks = (rows + block - 1) / block;
        memory = (f32*)calloc((size_t)((blocks ? blocks : 1) * size + 1), sizeof(f32));
    }
    ~Sums() { free(memory); }
    f32* of(i64 b) { return memory + b * size; }
    i64 first(i64 b) { return b * block; }
    i64 last(i64 b) { return (b + 1) * block < rows ? (b + 1) * block : rows; }
    const f32* total() {
        for (i64 b = 1; b < blocks; b++) {
            f32 *sum = memory, *part = of(b);
            SIMD for (i64 j = 0; j < size; j++) sum[j] += part[j];
        }
        return memory;
    }
};

static inline f32 sum(const f32* x) {
    f32 total = 0.0f;
    for (int l = 0; l < L; l++) total += x[l];
    return total;
}

#include "rank1_kernels.h"

// ---- k-tied scales sigma = u^T v

// A factor u or v, made of its logarithms if those are stored, relative to that of a unit.
struct Factor {
    const f32* w;
    f32* own;
    i64 count;

    Factor(const f32* stored, i64 count, i64 logs, f32 unit)
        : w(stored), own(nullptr), count(count) {
        if (!logs) return;
        own = (f32*)malloc(sizeof(f32) * (count + 1));
        SIMD for (i64 j = 0; j < count; j++) own[j] = std::exp(stored[j] + unit);
        w = own;
    }
    ~Factor() { free(own); }
    void chain(f32* g) const {  // from the gradient of the factor to that of what is stored
        if (!own) return;
        SIMD for (i64 j = 0; j < count; j++) g[j] *= own[j];
    }
};

// The variances have rank K = k (k + 1) / 2: sigma^2_ij = sum over a <= b of (2 - [a = b]) u_ai u_bi v_aj v_bj.
// Products of two rows of w [k, n], padded with zeros to whole vectors.
template <int k>
struct Pairs {
    static const int K = k * (k + 1) / 2;
    i64 n, padded;
    f32* memory;

    Pairs(const f32* w, i64 n, bool twice) : n(n), padded((n + W - 1) / W * W) {
        memory = (f32*)calloc((size_t)(K * padded + 1), sizeof(f32));
        for (int a = 0, r = 0; a < k; a++)
            for (int b = a; b < k; b++, r++) {
                f32 c = twice && a != b ? 2.0f : 1.0f, *o = memory + r * padded;
                const f32 *wa = w + a * n, *wb = w + b * n;
                SIMD for (i64 j = 0; j < n; j++) o[j] = c * wa[j] * wb[j];
            }
    }
    ~Pairs() { free(memory); }
    const f32* row(int r) const { return memory + r * padded; }

    // From the gradient of the products to that of w.
    static void backward(const f32* w, const f32* gpairs, f32* gw, i64 n, i64 padded, bool twice) {
        memset(gw, 0, sizeof(f32) * k * n);
        for (int a = 0, r = 0; a < k; a++)
            for (int b = a; b < k; b++, r++) {
                f32 c = twice && a != b ? 2.0f : 1.0f;
                for (i64 j = 0; j < n; j++) {
                    f32 h = c * gpairs[r * padded + j];
                    gw[a * n + j] += h * w[b * n + j];
                    gw[b * n + j] += h * w[a * n + j];
                }
            }
    }
};

// What the variances of a row's outputs are made of: t_r = sum_j (x_j^2 + var_j) p_rj, where inputs
// may have variances too.
template <int k>
static inline void meet(const Pairs<k>& p, const f32* x, i64 n, f32* t, const f32* var = nullptr) {
    const int K = Pairs<k>::K;
    Lanes acc[K] = {};
    for (i64 j = 0; j < n; j += L) {
        Lanes in = at_end(x, j, n, 0.0f);
        in *= in;
        if (var) in += at_end(var, j, n, 0.0f);
        for (int r = 0; r < K; r++) acc[r] += in * at(p.row(r) + j);
    }
    for (int r = 0; r < K; r++) t[r] = sum(acc[r]);
}

// y += sqrt(variance) eps for the variance sum_r shared_r q_r of every row.
template <int k>
static void k_tied_forward(const f32* x, const f32* u, const f32* v, f32* shared, f32* y, i64 rows,
                           i64 n, i64 m, i64 logs, f32 unit, u64 seed, int threads) {
    const int K = Pairs<k>::K;
    Factor of_u(u, k * m, logs, unit), of_v(v, k * n, logs, unit);
    Pairs<k> p(of_v.w, n, false), q(of_u.w, m, true);
    PARALLEL for (i64 i = 0; i < rows; i++) {
        alignas(64) f32 z[W];
        f32 t[K];
        meet<k>(p, x + i * n, n, t);
        memcpy(shared + i * K, t, sizeof t);
        Stream stream(seed, (u64)i);
        for (i64 j = 0; j < m; j += W) {
            stream.normals(z);
            f32 *o = y + i * m + j, var[W];
            SIMD for (int l = 0; l < W; l++) {
                var[l] = t[0] * q.row(0)[j + l];
                for (int r = 1; r < K; r++) var[l] += t[r] * q.row(r)[j + l];
            }
            if (j + W <= m) {
                SIMD for (int l = 0; l < W; l++) o[l] += root(var[l]) * z[l];
            } else {
                for (int l = 0; j + l < m; l++) o[l] += root(var[l]) * z[l];
            }
        }
    }
}

// y = mean + bias + sqrt(variance) eps of all samples, with noise that examples share; the bias may
// be missing, and y may be mean.
template <int k>
static void k_tied_fold(f32* y, const f32* x, const f32* mean, const f32* bias, const f32* u,
                        const f32* v, i64 in, const Fold& fold) {
    const int K = Pairs<k>::K;
    i64 n = fold.n, rows = fold.given * fold.examples, threads = fold.threads;
    Pairs<k> p(v, in, false), q(u, n, true);
    f32* shared = (f32*)malloc(sizeof(f32) * (rows * K + 1));
    PARALLEL for (i64 i = 0; i < rows; i++) meet<k>(p, x + i * in, in, shared + i * K);
    over_windows(fold, [&](i64 r, i64 of, const f32* z) {
        f32 t[K], *o = y + r * n;
        memcpy(t, shared + of * K, sizeof t);
        const f32* m = mean + of * n;
        SIMD for (i64 j = 0; j < n; j++) {
            f32 var = t[0] * q.row(0)[j];
            for (int a = 1; a < K; a++) var += t[a] * q.row(a)[j];
            o[j] = m[j] + (bias ? bias[j] : 0.0f) + root(var) * z[j];
        }
    });
    free(shared);
}

// out += (x^2 + var) (u^T v)^2^T: the variances of outputs m of uncertain inputs n; var may be missing.
template <int k>
static void k_tied_variance(const f32* x, const f32* var, const f32* u, const f32* v, f32* out, i64 rows,
                            i64 n, i64 m, int threads) {
    const int K = Pairs<k>::K;
    Pairs<k> p(v, n, false), q(u, m, true);
    PARALLEL for (i64 i = 0; i < rows; i++) {
        f32 t[K], *o = out + i * m;
        meet<k>(p, x + i * n, n, t, var ? var + i * n : nullptr);
        SIMD for (i64 j = 0; j < m; j++) {
            f32 total = t[0] * q.row(0)[j];
            for (int r = 1; r < K; r++) total += t[r] * q.row(r)[j];
            o[j] += total;
        }
    }
}

#include "window_kernels.h"

// What a row adds to the gradients, from that of its outputs, g: dq += t h^T, dbias += g, and of its
// own t dt = q h, where h = g eps / (2 sqrt(variance)).
template <int k>
static ALWAYS_INLINE void slopes_of_row(const Pairs<k>& q, const f32* g, const f32* t, i64 m, u64 seed,
                                        i64 row, f32* dq, f32* dbias, f32* dt) {
    const int K = Pairs<k>::K;
    Lanes acc[K] = {};
    alignas(64) f32 z[W];
    Stream stream(seed, (u64)row);
    for (i64 j = 0; j < m; j += L) {
        if (j % W == 0) stream.normals(z);
        Lanes slope = at_end(g, j, m, 0.0f), var = t[0] * at(q.row(0) + j);
        put(dbias + j, at(dbias + j) + slope);
        for (int r = 1; r < K; r++) var += t[r] * at(q.row(r) + j);
        slope *= 0.5f * at(z + j % W) * over_root(var);
        for (int r = 0; r < K; r++) {
            f32* o = dq + r * q.padded + j;
            put(o, at(o) + t[r] * slope);
            acc[r] += slope * at(q.row(r) + j);
        }
    }
    for (int r = 0; r < K; r++) dt[r] = sum(acc[r]);
}

// From g: gbias = sum g, and the gradients through the variances; gx, if asked for, has its other
// part already. Some rows at a time meet the sums over rows, which are longer than they.
template <int k>
static void k_tied_backward(const f32* g, const f32* x, const f32* u, const f32* v,
                            const f32* shared, f32* gx, f32* gbias, f32* gu, f32* gv, i64 rows,
                            i64 n, i64 m, i64 logs, f32 unit, u64 seed, int threads) {
    const int K = Pairs<k>::K, R = 4;
    Factor of_u(u, k * m, logs, unit), of_v(v, k * n, logs, unit);
    Pairs<k> p(of_v.w, n, false), q(of_u.w, m, true);
    i64 N = p.padded, M = q.padded;
    Sums sums(rows, K * N + (K + 1) * M);
    PARALLEL for (i64 b = 0; b < sums.blocks; b++) {
        f32 *dp = sums.of(b), *dq = dp + K * N, *dbias = dq + K * M;
        i64 last = sums.last(b);
        for (i64 i = sums.first(b); i < last; i += R) {
            f32 dt[R][K] = {};  // of a row beyond the last it stays zero
            const f32* in[R];
            for (int c = 0; c < R; c++) {
                i64 row = i + c < last ? i + c : last - 1;
                in[c] = x + row * n;
                if (i + c < last)
                    slopes_of_row<k>(q, g + row * m, shared + row * K, m, seed, row, dq, dbias, dt[c]);
            }
            for (i64 j = 0; j < n; j += L) {
                Lanes a[R], pairs[K], total[K];
                for (int r = 0; r < K; r++) pairs[r] = at(p.row(r) + j), total[r] = at(dp + r * N + j);
                for (int c = 0; c < R; c++) {
                    a[c] = at_end(in[c], j, n, 0.0f);
                    for (int r = 0; r < K; r++) total[r] += dt[c][r] * (a[c] * a[c]);
                }
                for (int r = 0; r < K; r++) put(dp + r * N + j, total[r]);
                for (int c = 0; gx && c < R && i + c < last; c++) {
                    f32* o = gx + (i + c) * n;
                    Lanes slope = dt[c][0] * pairs[0];
                    for (int r = 1; r < K; r++) slope += dt[c][r] * pairs[r];
                    put_end(o, j, n, at_end(o, j, n, 0.0f) + 2.0f * a[c] * slope);
                }
            }
        }
    }
    const f32* total = sums.total();
    Pairs<k>::backward(of_v.w, total, gv, n, N, false);
    Pairs<k>::backward(of_u.w, total + K * N, gu, m, M, true);
    of_v.chain(gv);
    of_u.chain(gu);
    memcpy(gbias, total + K * N + K * M, sizeof(f32) * m);
}

// The same where channels come before positions, as in a convolution: y [batch, channels, n] gets
// noise of variance sum_r q_rc shared_brj, for shared [batch, K, n] and q [K, channels].
template <int K>
static inline f32 mixed(const f32* c, const f32* t, i64 n, i64 j) {
    f32 var = c[0] * t[j];
    for (int r = 1; r < K; r++) var += c[r] * t[r * n + j];
    return var;
}

template <int k>
static void k_tied_mix_forward(f32* y, const f32* shared, const f32* q, i64 batch, i64 channels,
                               i64 n, u64 seed, int threads) {
    const int K = Pairs<k>::K;
    PARALLEL for (i64 row = 0; row < batch * channels; row++) {
        const f32* t = shared + row / channels * K * n;
        f32 c[K], *o = y + row * n;
        for (int r = 0; r < K; r++) c[r] = q[r * channels + row % channels];
        over_noise(seed, row, n,
                   [&](i64 j, f32 e) { o[j] += root(mixed<K>(c, t, n, j)) * e; });
    }
}

template <int k>
static void k_tied_mix_backward(const f32* g, const f32* shared, const f32* q, f32* gshared,
                                f32* gq, i64 batch, i64 channels, i64 n, u64 seed, int threads) {
    const int K = Pairs<k>::K;
    Sums sums(batch, K * channels);
    PARALLEL for (i64 b = 0; b < sums.blocks; b++) {
        f32* h = (f32*)malloc(sizeof(f32) * (n + 1));
        for (i64 i = sums.first(b); i < sums.last(b); i++) {
            const f32* t = shared + i * K * n;
            f32* dt = gshared + i * K * n;
            memset(dt, 0, sizeof(f32) * K * n);
            for (i64 channel = 0; channel < channels; channel++) {
                const f32* gi = g + (i * channels + channel) * n;
                f32 c[K];
                for (int r = 0; r < K; r++) c[r] = q[r * channels + channel];
                over_noise(seed, i * channels + channel, n, [&](i64 j, f32 e) {
                    h[j] = 0.5f * gi[j] * e * over_root(mixed<K>(c, t, n, j));
                });
                for (int r = 0; r < K; r++) {
                    const f32* tr = t + r * n;
                    f32 *o = dt + r * n, a = c[r], total = 0.0f;
                    _Pragma("omp simd reduction(+ : total)") for (i64 j = 0; j < n; j++) {
                        o[j] += a * h[j];
                        total += tr[j] * h[j];
                    }
                    sums.of(b)[r * channels + channel] += total;
                }
            }
        }
        free(h);
    }
    memcpy(gq, sums.total(), sizeof(f32) * K * channels);
}

template <int k>
static inline f32 tied(const f32* a, const f32* v, i64 n, i64 j) {  // sigma_ij = sum_r a_r v_rj
    f32 s = a[0] * v[j];
    for (int r = 1; r < k; r++) s += a[r] * v[r * n + j];
    return s;
}

// w = loc + (u^T v) eps
template <int k>
static void k_tied_draw_forward(const f32* loc, const f32* u, const f32* v, f32* w, i64 m, i64 n,
                                u64 seed, int threads) {
    PARALLEL for (i64 i = 0; i < m; i++) {
        f32 a[k];
        for (int r = 0; r < k; r++) a[r] = u[r * m + i];
        const f32* mean = loc + i * n;
        f32* o = w + i * n;
        over_noise(seed, i, n, [&](i64 j, f32 e) { o[j] = mean[j] + tied<k>(a, v, n, j) * e; });
    }
}

template <int k>
static void k_tied_draw_backward(const f32* g, const f32* u, const f32* v, f32* gu, f32* gv, i64 m,
                                 i64 n, u64 seed, int threads) {
    Sums sums(m, k * n);
    PARALLEL for (i64 b = 0; b < sums.blocks; b++) {
        f32* dv = sums.of(b);
        alignas(64) f32 z[W], h[W];
        for (i64 i = sums.first(b); i < sums.last(b); i++) {
            alignas(64) f32 acc[k][W] = {};
            Stream stream(seed, (u64)i);
            for (i64 j = 0; j < n; j += W) {
                stream.normals(z);
                int width = n - j < W ? (int)(n - j) : W;
                const f32* gi = g + i * n + j;
                if (width == W) {
                    SIMD for (int l = 0; l < W; l++) h[l] = gi[l] * z[l];
                } else {
                    for (int l = 0; l < width; l++) h[l] = gi[l] * z[l];
                }
                for (int r = 0; r < k; r++) {
                    const f32* vr = v + r * n + j;
                    f32 *o = dv + r * n + j, *s = acc[r], a = u[r * m + i];
                    if (width == W) {
                        SIMD for (int l = 0; l < W; l++) {
                            o[l] += a * h[l];
                            s[l] += vr[l] * h[l];
                        }
                    } else {
                        for (int l = 0; l < width; l++) {
                            o[l] += a * h[l];
                            s[l] += vr[l] * h[l];
                        }
                    }
                }
            }
            for (int r = 0; r < k; r++) gu[r * m + i] = sum(acc[r]) + sum(acc[r] + L);
        }
    }
    memcpy(gv, sums.total(), sizeof(f32) * k * n);
}

// ---- KL from one normal for all weights

// A sum of logarithms: mantissas are multiplied and exponents added, so that nothing leaves the range
// of a float, and one logarithm serves 64 numbers. What is not positive, normal and finite is noticed
// by its bits, because fast maths believes that there is no such thing, and taken with care.
struct Logs {
    Lanes mantissa = 1.0f - (Lanes){};
    Whole exponent = {}, odd = {};
    f64 total = 0.0;
    int held = 0;

    ALWAYS_INLINE void add(Lanes x) {
        Whole bits;
        memcpy(&bits, &x, sizeof bits);
        Whole e = bits >> 23, fraction = (bits & 0x7fffff) | 0x3f800000;
        odd |= (e - 1) | (254 - e);  // negative unless 1 <= e <= 254
        exponent += e;
        Lanes m;
        memcpy(&m, &fraction, sizeof m);
        mantissa *= m;
        if (++held == 64) flush();
    }
    void flush() {
        f32 logs = 0.0f;
        int32_t whole = -127 * L * held;
        for (int l = 0; l < L; l++) {
            Logarithm log(mantissa[l]);
            logs += log.m + log.curve;
            whole += log.exponent + exponent[l];
        }
        total += (f64)logs + 0.693147180559945309 * (f64)whole;
        mantissa = 1.0f - (Lanes){};
        exponent = Whole{};
        held = 0;
    }
    // The sum over n numbers that f(j) gives, all of which were added, and ones beside them.
    template <class F>
    f64 sum(i64 n, F f) {
        flush();
        bool is_odd = false;
        for (int l = 0; l < L; l++) is_odd |= odd[l] < 0;
        if (!is_odd) return total;
        f64 careful = 0.0;
        for (i64 j = 0; j < n; j++) {
            f32 x = f(j);
            u32 bits;
            memcpy(&bits, &x, 4);
            if ((bits & 0x7f800000) == 0x7f800000 || (bits > 0x80000000u)) return not_a_number();
            careful += std::log((f64)x);
        }
        return careful;
    }
    static f64 not_a_number() {
        u64 bits = 0x7ff8000000000000ull;
        f64 x;
        memcpy(&x, &bits, 8);
        return x;
    }
};

// The sum of E (w - prior_loc)^2 and that of log scale: the parts of the KL from a normal, which is a
// small difference of large sums.
struct Totals {
    f64 squares, logs;
};

// The sum of squares of a row around a center: some hundred in single precision, those in double.
static inline f64 squares_around(const f32* x, i64 n, f32 center) {
    f64 total = 0.0;
    for (i64 first = 0; first < n; first += 512) {
        i64 last = first + 512 < n ? first + 512 : n;
        f32 some = 0.0f;
        _Pragma("omp simd reduction(+ : some)") for (i64 j = first; j < last; j++) {
            f32 d = x[j] - center;
            some += d * d;
        }
        total += (f64)some;
    }
    return total;
}

static Totals sum(const Totals* parts, i64 count) {
    Totals total = {0.0, 0.0};
    for (i64 i = 0; i < count; i++) total.squares += parts[i].squares, total.logs += parts[i].logs;
    return total;
}

// The KL of independent normals, and its gradient in the scales: scale / prior_scale^2 - 1 / scale.
// Scales may be given by their logarithms, relative to that of a unit: sums of logarithms are exact then.
static void scale_kl(const f32* loc, const f32* scale, f32* gscale, f64* totals, i64 rows, i64 n,
                     i64 is_log, f32 unit, f64 prior_loc, f64 prior_scale, int threads) {
    Totals* parts = (Totals*)malloc(sizeof(Totals) * (rows + 1));
    f32 center = (f32)prior_loc, c = (f32)(1.0 / (prior_scale * prior_scale));
    PARALLEL for (i64 i = 0; i < rows; i++) {
        const f32 *m = loc + i * n, *s = scale + i * n;
        f32* o = gscale + i * n;
        f64 squares = loc ? squares_around(m, n, center) : (f64)n * prior_loc * prior_loc;
        if (is_log) {
            f64 total = (f64)n * unit;
            _Pragma("omp simd reduction(+ : squares, total)") for (i64 j = 0; j < n; j++) {
                f32 square = exponential(2.0f * (s[j] + unit));
                squares += square;
                total += s[j];
                o[j] = c * square - 1.0f;
            }
            parts[i] = {squares, total};
            continue;
        }
        Logs logs;
        for (i64 j = 0; j < n; j += L) {
            Lanes x = at_end(s, j, n, 1.0f);
            logs.add(x < 0.0f ? -x : x);
        }
        _Pragma("omp simd reduction(+ : squares)") for (i64 j = 0; j < n; j++) {
            f64 exact = s[j];  // scales are often all alike, so that their rounding would add up
            squares += exact * exact;
            o[j] = c * s[j] - 1.0f / s[j];
        }
        parts[i] = {squares, logs.sum(n, [=](i64 j) { return std::fabs(s[j]); })};
    }
    Totals total = sum(parts, rows);
    free(parts);
    memcpy(totals, &total, sizeof total);
}

// The KL of normal weights from their own best priors: the sum of log(1 + mean^2 / variance) / 2.
static f64 relevance_kl(const f32* mean, const f32* variance, i64 rows, i64 n, int threads) {
    f64* parts = (f64*)malloc(sizeof(f64) * (rows + 1));
    PARALLEL for (i64 i = 0; i < rows; i++) {
        const f32 *m = mean + i * n, *v = variance + i * n;
        Logs logs;
        for (i64 j = 0; j < n; j += L) {
            Lanes of = at_end(m, j, n, 0.0f);
            logs.add(1.0f + of * of / at_end(v, j, n, 1.0f));
        }
        parts[i] = 0.5 * logs.sum(n, [=](i64 j) { return 1.0f + m[j] * m[j] / v[j]; });
    }
    f64 total = 0.0;
    for (i64 i = 0; i < rows; i++) total += parts[i];
    free(parts);
    return total;
}

static void relevance_backward(const f32* mean, const f32* variance, f32* gmean, f32* gvariance,
                               i64 rows, i64 n, f64 g, int threads) {
    f32 slope = (f32)g;
    PARALLEL for (i64 i = 0; i < rows; i++) {
        const f32 *m = mean + i * n, *v = variance + i * n;
        f32 *gm = gmean + i * n, *gv = gvariance + i * n;
        SIMD for (i64 j = 0; j < n; j++) {
            f32 force = slope * m[j] / (v[j] + m[j] * m[j]);
            gm[j] = force;
            gv[j] = -0.5f * force * m[j] / v[j];
        }
    }
}

// A lower-triangular matrix [n, n] from its diagonal and what is below it, packed row by row.
static void unpack_lower(const f32* diagonal, const f32* below, f32* lower, i64 n) {
    for (i64 i = 0; i < n; below += i, lower += n, i++) {
        memcpy(lower, below, sizeof(f32) * i);
        lower[i] = diagonal[i];
        memset(lower + i + 1, 0, sizeof(f32) * (n - i - 1));
    }
}

static void pack_lower(const f32* lower, f32* diagonal, f32* below, i64 n) {
    for (i64 i = 0; i < n; below += i, lower += n, i++) {
        memcpy(below, lower, sizeof(f32) * i);
        diagonal[i] = lower[i];
    }
}

// The sum of squares of every row of such a matrix.
static void row_squares(const f32* diagonal, const f32* below, f32* out, i64 n) {
    for (i64 i = 0; i < n; below += i, i++) {
        f32 total = diagonal[i] * diagonal[i];
        _Pragma("omp simd reduction(+ : total)") for (i64 j = 0; j < i; j++) total +=
            below[j] * below[j];
        out[i] = total;
    }
}

static void row_squares_backward(const f32* g, const f32* diagonal, const f32* below,
                                 f32* gdiagonal, f32* gbelow, i64 n) {
    for (i64 i = 0; i < n; below += i, gbelow += i, i++) {
        f32 twice = 2.0f * g[i];
        gdiagonal[i] = twice * diagonal[i];
        SIMD for (i64 j = 0; j < i; j++) gbelow[j] = twice * below[j];
    }
}

// w w^T of a matrix w [k, n]
template <int k>
static void gram(const f32* w, i64 n, f64* out) {
    for (int a = 0; a < k; a++)
        for (int b = a; b < k; b++) {
            f64 total = 0.0;
            _Pragma("omp simd reduction(+ : total)") for (i64 j = 0; j < n; j++) total +=
                (f64)w[a * n + j] * (f64)w[b * n + j];
            out[a * k + b] = out[b * k + a] = total;
        }
}

// g = c * other w - g, for w and g [k, n]
template <int k>
static void add_squares(const f64* other, const f32* w, f32* g, i64 n, f32 c) {
    for (int a = 0; a < k; a++)
        for (i64 j = 0; j < n; j++) {
            f32 t = 0.0f;
            for (int b = 0; b < k; b++) t += (f32)other[a * k + b] * w[b * n + j];
            g[a * n + j] = c * t - g[a * n + j];
        }
}

// The KL of k-tied normals, and its gradient in u and v; that in loc is (loc - prior_loc) / prior_scale^2.
template <int k>
static void k_tied_kl(const f32* loc, const f32* stored_u, const f32* stored_v, f32* gu, f32* gv,
                      f64* totals, i64 m, i64 n, i64 logs, f32 unit, f64 prior_loc,
                      f64 prior_scale, int threads) {
    Factor of_u(stored_u, k * m, logs, unit), of_v(stored_v, k * n, logs, unit);
    const f32 *u = of_u.w, *v = of_v.w;
    Totals* parts = (Totals*)malloc(sizeof(Totals) * (m + 1));
    f32 center = (f32)prior_loc, c = (f32)(1.0 / (prior_scale * prior_scale));
    i64 N = (n + L - 1) / L * L;
    Sums sums(m, k * N);
    PARALLEL for (i64 b = 0; b < sums.blocks; b++) {
        f32* dv = sums.of(b);
        for (i64 i = sums.first(b); i < sums.last(b); i++) {
            const f32* mean = loc + i * n;
            Lanes acc[k] = {};
            f32 a[k];
            Logs logs;
            for (int r = 0; r < k; r++) a[r] = u[r * m + i];
            for (i64 j = 0; j < n; j += L) {
                Lanes columns[k];
                for (int r = 0; r < k; r++) columns[r] = at_end(v + r * n, j, n, 0.0f);
                Lanes s = a[0] * columns[0];
                for (int r = 1; r < k; r++) s += a[r] * columns[r];
                if (j + L > n) s = at_end(&s[0], 0, n - j, 1.0f);
                Lanes o = 1.0f / s;
                for (int r = 0; r < k; r++) {
                    f32* at_column = dv + r * N + j;
                    put(at_column, at(at_column) + a[r] * o);
                    acc[r] += columns[r] * o;
                }
                logs.add(s);
            }
            for (int r = 0; r < k; r++) gu[r * m + i] = sum(acc[r]);
            parts[i] = {squares_around(mean, n, center), logs.sum(n, [&](i64 j) { return tied<k>(a, v, n, j); })};
        }
    }
    const f32* total_v = sums.total();
    for (int r = 0; r < k; r++) memcpy(gv + r * n, total_v + r * N, sizeof(f32) * n);
    f64 U[k * k], V[k * k];
    gram<k>(u, m, U);
    gram<k>(v, n, V);
    add_squares<k>(V, u, gu, m, c);
    add_squares<k>(U, v, gv, n, c);
    of_u.chain(gu);
    of_v.chain(gv);
    Totals total = sum(parts, m);
    free(parts);
    for (int r = 0; r < k * k; r++) total.squares += U[r] * V[r];
    memcpy(totals, &total, sizeof total);
}

#undef PARALLEL
#undef SIMD
#undef ALWAYS_INLINE

}  // namespace INSTRUCTIONS

#endif
