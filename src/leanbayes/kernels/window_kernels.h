// Moments of convolutions and pools over one or two dimensions. Part of kernels.cpp, once for every
// instruction set.

// Input that tap t of the window meets at output i: t * gap + i * step - pad.
static inline i64 first_inside(i64 start, i64 step) { return start < 0 ? (-start + step - 1) / step : 0; }
static inline i64 end_inside(i64 start, i64 step, i64 size, i64 count) {
    i64 end = start < size ? (size - start + step - 1) / step : 0;
    return end < count ? end : count;
}

// x^2 + var of one image, for output rows from `first` on: padded with zeros and sorted by the phase
// of the stride, so that a tap is a shift of the whole.
struct Shifted {
    const Window& w;
    i64 rows, columns, phases, plane;
    f32* memory;
    i64* shifts;

    Shifted(const Window& w, i64 band, i64 block)
        : w(w), rows(band + (w.high - 1) * w.gap_y / w.step_y),
          columns(w.out_columns + (w.wide - 1) * w.gap_x / w.step_x), phases(w.step_y * w.step_x),
          plane(rows * columns) {
        memory = (f32*)calloc((size_t)(w.channels * phases * plane + columns + block), sizeof(f32));
        shifts = (i64*)malloc(sizeof(i64) * w.high * w.wide);
        for (i64 tap = 0; tap < w.high * w.wide; tap++) {
            i64 y = tap / w.wide * w.gap_y, x = tap % w.wide * w.gap_x;
            i64 phase = y % w.step_y * w.step_x + x % w.step_x;
            shifts[tap] = (phase * rows + y / w.step_y) * columns + x / w.step_x;
        }
    }
    ~Shifted() { free(memory), free(shifts); }

    void fill(const f32* x, const f32* var, i64 first) {
        for (i64 c = 0; c < w.channels; c++)
            for (i64 phase = 0; phase < phases; phase++)
                for (i64 i = 0; i < rows; i++) {
                    f32* o = memory + ((c * phases + phase) * rows + i) * columns;
                    i64 row = (first + i) * w.step_y + phase / w.step_x - w.pad_y;
                    i64 start = phase % w.step_x - w.pad_x, step = w.step_x;
                    i64 low = first_inside(start, step), end = end_inside(start, step, w.columns, columns);
                    memset(o, 0, sizeof(f32) * columns);
                    if (row < 0 || row >= w.rows) continue;
                    i64 at = (c * w.rows + row) * w.columns + start;
                    for (i64 j = low; j < end; j++) {
                        f32 in = x[at + j * step];
                        o[j] = in * in + (var ? var[at + j * step] : 0.0f);
                    }
                }
    }
};

// out += the variances of a convolution's outputs [images, m, rows, columns], for k-tied kernels.
template <int k>
static void k_tied_convolution(const f32* x, const f32* var, const f32* u, const f32* v, f32* out,
                               const Window& w, i64 images, i64 m, int threads) {
    const int K = Pairs<k>::K, B = REGISTER == 16 ? (K <= 6 ? 4 : 2) : (K <= 3 ? 2 : 1);
    const i64 block = B * L, taps = w.high * w.wide, size = w.channels * w.rows * w.columns;
    Pairs<k> p(v, w.channels * taps, false), q(u, m, true);
    i64 band = (1 << 16) / (w.channels * w.step_y * w.step_x * w.out_columns + 1);
    band = band < 4 ? 4 : band > w.out_rows ? w.out_rows : band;
    i64 bands = (w.out_rows + band - 1) / band;
    PARALLEL for (i64 task = 0; task < images * bands; task++) {
        i64 image = task / bands, first = task % bands * band, left = w.out_rows - first;
        Shifted s(w, band, block);
        s.fill(x + image * size, var ? var + image * size : nullptr, first);
        i64 places = (band * s.columns + block - 1) / block * block;
        f32* t = (f32*)malloc(sizeof(f32) * K * places);
        for (i64 at0 = 0; at0 < band * s.columns; at0 += block) {
            Lanes acc[K][B] = {};
            for (i64 c = 0; c < w.channels; c++)
                for (i64 tap = 0; tap < taps; tap++) {
                    const f32* in = s.memory + c * s.phases * s.plane + s.shifts[tap] + at0;
                    for (int r = 0; r < K; r++) {
                        f32 weight = p.row(r)[c * taps + tap];
                        for (int b = 0; b < B; b++) acc[r][b] += at(in + b * L) * weight;
                    }
                }
            for (int r = 0; r < K; r++)
                for (int b = 0; b < B; b++) put(t + r * places + at0 + b * L, acc[r][b]);
        }
        for (i64 o = 0; o < m; o++)
            for (i64 i = 0; i < (left < band ? left : band); i++) {
                f32* to = out + ((image * m + o) * w.out_rows + first + i) * w.out_columns;
                const f32* from = t + i * s.columns;
                SIMD for (i64 j = 0; j < w.out_columns; j++) {
                    f32 total = 0.0f;
                    for (int r = 0; r < K; r++) total += q.row(r)[o] * from[r * places + j];
                    to[j] += total;
                }
            }
        free(t);
    }
}

// Keeps the larger mean and its variance of a row so far and of one tap.
static ALWAYS_INLINE void keep_larger(const f32* loc, const f32* var, f32* mean, f32* spread, i64 low,
                                      i64 end, i64 step) {
    SIMD for (i64 j = low; j < end; j++) {
        f32 m = loc[j * step], v = var[j * step];
        bool is_larger = m > mean[j];
        mean[j] = is_larger ? m : mean[j];
        spread[j] = is_larger ? v : spread[j];
    }
}

// The largest mean of every window and its variance.
static void max_pool_moments(const f32* loc, const f32* var, f32* mean, f32* spread, const Window& w,
                             i64 images, int threads) {
    PARALLEL for (i64 plane = 0; plane < images * w.channels; plane++)
        for (i64 i = 0; i < w.out_rows; i++) {
            i64 o = (plane * w.out_rows + i) * w.out_columns;
            for (i64 j = 0; j < w.out_columns; j++) mean[o + j] = -FLT_MAX, spread[o + j] = 0.0f;
            for (i64 y = 0; y < w.high; y++)
                for (i64 x = 0; x < w.wide; x++) {
                    i64 row = i * w.step_y + y * w.gap_y - w.pad_y, start = x * w.gap_x - w.pad_x;
                    if (row < 0 || row >= w.rows) continue;
                    i64 from = (plane * w.rows + row) * w.columns + start, low = first_inside(start, w.step_x);
                    i64 end = end_inside(start, w.step_x, w.columns, w.out_columns);
                    if (w.step_x == 2)
                        keep_larger(loc + from, var + from, mean + o, spread + o, low, end, 2);
                    else
                        keep_larger(loc + from, var + from, mean + o, spread + o, low, end, w.step_x);
                }
        }
}
