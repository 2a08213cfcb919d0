// Rank one: factors of rows and channels, and an LSTM with factors. Part of kernels.cpp, once for
// every instruction set.

// ---- rank one: y = x clip(loc + scale eps); the rows of a member come together

static inline f32 clipped(f32 f, f32 clip) { return f > clip ? clip : f < -clip ? -clip : f; }

static void factor_forward(const f32* x, const f32* loc, const f32* scale, f32* y, i64 rows, i64 n,
                           i64 members, f32 clip, u64 seed, int threads) {
    PARALLEL for (i64 r = 0; r < rows; r++) {
        i64 member = r / (rows / members);
        const f32 *m = loc + member * n, *s = scale + member * n, *in = x + r * n;
        f32* o = y + r * n;
        over_noise(seed, r, n,
                   [=](i64 j, f32 e) { o[j] = in[j] * clipped(m[j] + s[j] * e, clip); });
    }
}

static void factor_backward(const f32* g, const f32* x, const f32* loc, const f32* scale, f32* gx,
                            f32* gloc, f32* gscale, i64 rows, i64 n, i64 members, f32 clip,
                            u64 seed, int threads) {
    i64 each = rows / members;
    for (i64 member = 0; member < members; member++) {
        const f32 *m = loc + member * n, *s = scale + member * n;
        Sums sums(each, 2 * n);
        PARALLEL for (i64 b = 0; b < sums.blocks; b++) {
            f32 *dm = sums.of(b), *ds = dm + n;
            for (i64 i = sums.first(b); i < sums.last(b); i++) {
                i64 r = member * each + i;
                const f32 *h = g + r * n, *in = x + r * n;
                f32* o = gx + r * n;
                auto slopes = [=](i64 j, f32 e, f32 f) {
                    f32 slope = std::fabs(f) > clip ? 0.0f : h[j] * in[j];
                    dm[j] += slope;
                    ds[j] += slope * e;
                };
                if (gx)
                    over_noise(seed, r, n, [=](i64 j, f32 e) {
                        f32 f = m[j] + s[j] * e;
                        slopes(j, e, f);
                        o[j] = h[j] * clipped(f, clip);
                    });
                else
                    over_noise(seed, r, n, [=](i64 j, f32 e) { slopes(j, e, m[j] + s[j] * e); });
            }
        }
        const f32* total = sums.total();
        memcpy(gloc + member * n, total, sizeof(f32) * n);
        memcpy(gscale + member * n, total + n, sizeof(f32) * n);
    }
}

// y [rows, n] = x times a factor of every row; y may be x.
static void scale_rows(const f32* x, const f32* f, f32* y, i64 rows, i64 n, int threads) {
    PARALLEL for (i64 r = 0; r < rows; r++) {
        const f32 *in = x + r * n, c = f[r];
        f32* o = y + r * n;
        SIMD for (i64 j = 0; j < n; j++) o[j] = c * in[j];
    }
}

// gx = g f, and gf = the sum of g x over each row.
static void scale_rows_backward(const f32* g, const f32* x, const f32* f, f32* gx, f32* gf, i64 rows,
                                i64 n, int threads) {
    PARALLEL for (i64 r = 0; r < rows; r++) {
        const f32 *h = g + r * n, *in = x + r * n, c = f[r];
        f32 *o = gx + r * n, total = 0.0f;
        if (gx) {
            _Pragma("omp simd reduction(+ : total)") for (i64 j = 0; j < n; j++) {
                total += h[j] * in[j];
                o[j] = c * h[j];
            }
        } else {
            _Pragma("omp simd reduction(+ : total)") for (i64 j = 0; j < n; j++) total += h[j] * in[j];
        }
        gf[r] = total;
    }
}

// ---- one step of an LSTM whose products meet factors of their own for every example

static inline f32 hyperbolic(f32 x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// Gates a = input_factor x + bias + state_factor p in torch's order i, f, g, o; any of the three
// [batch, 4 n] may be missing, and a bias of one row serves all. What the next step multiplies is
// scaled = h state_scale.
struct Step {
    const f32 *x, *p, *input_factor, *state_factor, *bias, *state_scale;
    i64 bias_rows, batch, n;
    int threads;
};

static void lstm_forward(const Step& step, const f32* before, f32* gates, f32* cell, f32* h, f32* scaled) {
    i64 n = step.n, threads = step.threads;
    PARALLEL for (i64 r = 0; r < step.batch; r++) {
        const f32 *x = step.x + r * 4 * n, *p = step.p + r * 4 * n;
        const f32* bias = step.bias ? step.bias + (step.bias_rows > 1 ? r * 4 * n : 0) : nullptr;
        const f32* fx = step.input_factor ? step.input_factor + r * 4 * n : nullptr;
        const f32* fp = step.state_factor ? step.state_factor + r * 4 * n : nullptr;
        f32* a = gates + r * 4 * n;
        SIMD for (i64 j = 0; j < 4 * n; j++) a[j] = fx ? fx[j] * x[j] : x[j];
        SIMD for (i64 j = 0; j < 4 * n; j++) a[j] += fp ? fp[j] * p[j] : p[j];
        if (bias) {
            SIMD for (i64 j = 0; j < 4 * n; j++) a[j] += bias[j];
        }
        SIMD for (i64 j = 0; j < 2 * n; j++) a[j] = sigmoid(a[j]);
        SIMD for (i64 j = 2 * n; j < 3 * n; j++) a[j] = hyperbolic(a[j]);
        SIMD for (i64 j = 3 * n; j < 4 * n; j++) a[j] = sigmoid(a[j]);
        const f32* old = before + r * n;
        f32 *c = cell + r * n, *out = h + r * n;
        SIMD for (i64 j = 0; j < n; j++) {
            c[j] = a[n + j] * old[j] + a[j] * a[2 * n + j];
            out[j] = a[3 * n + j] * hyperbolic(c[j]);
        }
        if (scaled) {
            const f32* s = step.state_scale + r * n;
            f32* o = scaled + r * n;
            SIMD for (i64 j = 0; j < n; j++) o[j] = out[j] * s[j];
        }
    }
}

// From the gradients g of h and next of what the next step multiplied (missing after the last): those
// of the cell (in place), of both products, and sums over steps of those of factors and bias.
struct Slopes {
    f32 *cell, *x, *p, *input_factor, *state_factor, *bias, *state_scale;
};

static void lstm_backward(const Step& step, const f32* g, const f32* next, const f32* before,
                          const f32* gates, const f32* cell, const f32* h, const Slopes& to) {
    i64 n = step.n, threads = step.threads;
    PARALLEL for (i64 r = 0; r < step.batch; r++) {
        const f32 *a = gates + r * 4 * n, *c = cell + r * n, *old = before + r * n, *out = h + r * n;
        f32 *dc = to.cell + r * n, *dx = to.x + r * 4 * n;
        const f32 *gh = g + r * n, *from = next ? next + r * n : nullptr;
        const f32* s = step.state_scale ? step.state_scale + r * n : nullptr;
        f32* ds = to.state_scale ? to.state_scale + r * n : nullptr;
        if (from && ds) {
            SIMD for (i64 j = 0; j < n; j++) ds[j] += from[j] * out[j];
        }
        SIMD for (i64 j = 0; j < n; j++) {
            f32 dh = gh[j] + (from ? (s ? from[j] * s[j] : from[j]) : 0.0f);
            f32 i = a[j], f = a[n + j], u = a[2 * n + j], o = a[3 * n + j], t = hyperbolic(c[j]);
            f32 d = dc[j] + dh * o * (1.0f - t * t);
            dx[j] = d * u * i * (1.0f - i);
            dx[n + j] = d * old[j] * f * (1.0f - f);
            dx[2 * n + j] = d * i * (1.0f - u * u);
            dx[3 * n + j] = dh * t * o * (1.0f - o);
            dc[j] = d * f;
        }
        if (to.bias) {
            f32* sum = to.bias + r * 4 * n;
            SIMD for (i64 j = 0; j < 4 * n; j++) sum[j] += dx[j];
        }
        if (step.state_factor) {
            const f32 *factor = step.state_factor + r * 4 * n, *p = step.p + r * 4 * n;
            f32 *dp = to.p + r * 4 * n, *sum = to.state_factor + r * 4 * n;
            SIMD for (i64 j = 0; j < 4 * n; j++) {
                sum[j] += dx[j] * p[j];
                dp[j] = dx[j] * factor[j];
            }
        }
        if (step.input_factor) {
            const f32 *factor = step.input_factor + r * 4 * n, *x = step.x + r * 4 * n;
            f32* sum = to.input_factor + r * 4 * n;
            SIMD for (i64 j = 0; j < 4 * n; j++) {
                sum[j] += dx[j] * x[j];
                dx[j] *= factor[j];
            }
        }
    }
}
