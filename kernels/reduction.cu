// Rows of logits to what a log-probability needs: the peer of scorer/reduction.py, bit for bit.
//
// In:  logits [rows, V] row-major, float32 (or bfloat16 / float16, by SCORER_BFLOAT16 /
//      SCORER_FLOAT16), V <= 2^20; a plan (below) that says what each row is asked for.
// Out: one compact buffer: RowResult [rows], TargetResult [targets], EntryResult [entries].
//
// Launch sequence, on one stream, with no host involvement in between. `chunks` blocks share
// a row, `chunks` a power of two from 1 to 64:
//
//   row_maxima      rows * chunks blocks of THREADS   first read of the logits: maxima of up to
//                                                     CELLS cells a row; how many ids come before
//                                                     each of a row's first few targets
//   row_thresholds  rows blocks of THREADS            row maximum; a value that at least the k
//                                                     best ids reach; target logits
//   row_terms       rows * chunks blocks of THREADS   second read: the integer sum; the ids that
//                                                     reach the threshold, in any order
//   many_ranks      any number of blocks of WIDE      ranks in rows of more than DIRECT targets
//   row_outputs     rows blocks of WIDE               those ids sorted, or, when they were too
//                                                     many (ties), an exact radix selection
//
// Why order can't matter: maxima and integer sums and counts have no order; the threshold only
// decides how many ids are sorted, never which are the k best; and what is sorted is a composite
// of value and id, distinct for every id of a row. So neither `chunks`, the number of blocks nor
// the order in which atomics arrive can move a bit.
//
// No operation may flush subnormal logits to zero, and CuPy compiles with -ftz=true, which can't be
// undone. So every float operation on logits is either PTX, where only .ftz flushes, or on bits.
//
// scorer/cuda/device.py puts the constants that it shares with this text (SCORER_...) before it.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int THREADS = SCORER_THREADS;  // of a block that reads part of a row
constexpr int WIDE = SCORER_WIDE;        // of a block that may read a whole one
constexpr int WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

constexpr int CELLS = SCORER_CELLS;    // of a row; their maxima bound the k-th best from below
constexpr int DIRECT = SCORER_DIRECT;  // targets of a row that are ranked while maxima are taken
constexpr int TILE = SCORER_TILE;      // targets that many_ranks searches at once
constexpr int MAX_CANDIDATES = SCORER_MAX_CANDIDATES;  // of a row

constexpr int ID_BITS = 20;
constexpr u32 ID_MASK = SCORER_MAX_VOCABULARY - 1;
static_assert(SCORER_MAX_VOCABULARY == 1 << ID_BITS, "a composite holds an id in ID_BITS");

// Whether a multiprocessor does half as many double as float operations, or far fewer.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
constexpr bool FAST_DOUBLES = true;
#else
constexpr bool FAST_DOUBLES = false;
#endif

constexpr u32 NAN_BITS = 0x7fc00000u;
constexpr u32 KEY_NAN = 0xffffffffu;
constexpr u32 KEY_INFINITY = 0xff800000u;
constexpr u32 KEY_MINUS_INFINITY = 0x007fffffu;

// --- what the host says, and what it gets -------------------------------------------------------

struct Plan {
    int rows;     // rows beyond these are not looked at
    int targets;  // of all rows
    int items;    // tiles of targets for many_ranks
    int slices;   // into which many_ranks cuts a row
    int unused[4];
};

struct RowPlan {  // the one behind the last row holds the totals
    int first_target;
    int first_entry;
    int first_candidate;
    int k;
};

struct Item {
    int row;
    int first;  // target
    int count;  // <= TILE
};

// Plan, RowPlan [rows + 1], int target_ids [targets], Item [items]
__device__ const RowPlan* row_plans(const Plan* plan) {
    return reinterpret_cast<const RowPlan*>(plan + 1);
}
__device__ const int* target_ids(const Plan* plan) {
    return reinterpret_cast<const int*>(row_plans(plan) + plan->rows + 1);
}
__device__ const Item* items(const Plan* plan) {
    return reinterpret_cast<const Item*>(target_ids(plan) + plan->targets);
}

struct RowResult {
    u64 sum_hi;
    u64 sum_lo;  // until row_outputs carries: the plain sum of the low halves
    float max;
    int chosen_id;
    float chosen_logit;
    int nonfinite;
};

struct TargetResult {
    float logit;
    int rank;
};

struct EntryResult {
    int id;
    float logit;
};

__device__ TargetResult* target_results(RowResult* results, const Plan* plan) {
    return reinterpret_cast<TargetResult*>(results + plan->rows);
}
__device__ EntryResult* entry_results(RowResult* results, const Plan* plan) {
    return reinterpret_cast<EntryResult*>(target_results(results, plan) + plan->targets);
}

struct RowState {
    float threshold;  // at least the k best ids reach it
    float best;       // the largest logit of a real id
    int candidates;   // how many reached it, also when there was no room
    int unused;
};

// --- values --------------------------------------------------------------------------------------

#if defined(SCORER_BFLOAT16) || defined(SCORER_FLOAT16)
typedef unsigned short Logit;
#else
typedef float Logit;
#endif
constexpr int VECTOR = 16 / sizeof(Logit);

#if defined(SCORER_BFLOAT16)
__device__ __forceinline__ float widen(Logit bits) {
    return __uint_as_float(static_cast<u32>(bits) << 16);
}
#elif defined(SCORER_FLOAT16)
__device__ __forceinline__ float widen(Logit bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#else
__device__ __forceinline__ float widen(Logit x) { return x; }
#endif

__device__ __forceinline__ void load_vector(const Logit* aligned, float (&x)[VECTOR]) {
    const uint4 words = __ldg(reinterpret_cast<const uint4*>(aligned));
    const u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if defined(SCORER_BFLOAT16) || defined(SCORER_FLOAT16)
        x[2 * i] = widen(static_cast<Logit>(word[i] & 0xffff));
        x[2 * i + 1] = widen(static_cast<Logit>(word[i] >> 16));
#else
        x[i] = __uint_as_float(word[i]);
#endif
    }
}

// The larger one; NaN when either is.
__device__ __forceinline__ float max_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

// The smaller one; where one is NaN, the other.
__device__ __forceinline__ float min_number(float a, float b) {
    float smaller;
    asm("min.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}

// x >= bar; not for NaN.
__device__ __forceinline__ bool reaches(float x, float bar) {
    u32 yes;
    asm("{\n\t.reg .pred p;\n\tsetp.ge.f32 p, %1, %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(yes)
        : "f"(x), "f"(bar));
    return yes;
}

// The same as a number, to be added up.
__device__ __forceinline__ float one_if_reaches(float x, float bar) {
    float one;
    asm("set.ge.f32.f32 %0, %1, %2;" : "=f"(one) : "f"(x), "f"(bar));
    return one;
}

__device__ __forceinline__ double widen_exactly(float x) {
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
    return wide;
}

// The bits of x, 0.0 for -0.0.
__device__ __forceinline__ u32 canonical_bits(float x) {
    const u32 bits = __float_as_uint(x);
    return bits == 0x80000000u ? 0 : bits;
}

__device__ __forceinline__ float canonical(float x) { return __uint_as_float(canonical_bits(x)); }

// Unsigned integers in the order of the values, every NaN above all.
__device__ __forceinline__ u32 order_key(float x) {
    const u32 bits = canonical_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return KEY_NAN;
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

__device__ __forceinline__ float key_value(u32 key) {
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

// Larger is better: value first, then the smaller id. Never 0.
__device__ __forceinline__ u64 composite(float x, int id) {
    return static_cast<u64>(order_key(x)) << ID_BITS | (ID_MASK - id);
}

__device__ __forceinline__ int composite_id(u64 value) {
    return ID_MASK - (static_cast<u32>(value) & ID_MASK);
}

__device__ __forceinline__ float composite_logit(u64 value) {
    return key_value(static_cast<u32>(value >> ID_BITS));
}

// The smallest value above x, so that y > x is y >= next_up(x). x: neither NaN nor +inf.
__device__ __forceinline__ float next_up(float x) {
    const u32 bits = canonical_bits(x);
    return __uint_as_float(bits == 0 ? 1 : bits >> 31 ? bits - 1 : bits + 1);
}

// e^-(largest - x) in units of 2^-63, as scorer/reduction.py defines it.
__device__ __forceinline__ u64 term(double largest, float x) {
    double d = __dsub_rn(largest, widen_exactly(x));
    // d is never negative, so its high words compare like integers. Cutting the high word alone
    // leaves a d of 44 to 44.0001 where the definition says 44: the term is 0 either way.
    d = __hiloint2double(min(__double2hiint(d), __double2hiint(SCORER_CLAMP)), __double2loint(d));
    const double y = __dadd_rn(__dmul_rn(d, SCORER_LOG2E), SCORER_FIXED_POINT);
    const u32 f = __double2loint(y);
    const u32 n = __double2hiint(y) & 63;
    constexpr u32 C[] = {0,         SCORER_C1, SCORER_C2, SCORER_C3,
                         SCORER_C4, SCORER_C5, SCORER_C6, SCORER_C7};
    u32 t;
    if constexpr (FAST_DOUBLES) {
        // (f t) >> 32 is floor(f 2^-32 t), which a fused step rounded down to a multiple of 1, as
        // 2^52 makes it, gives exactly; so does C + 2^52 less that. The last step's 2^54 makes
        // the multiple 4 and its low word the quarter. Double steps are faster than high products
        // where doubles are fast at all: 1.95 against 2.31 ms for 8192 rows on an H200.
        const double fraction =
            __dsub_rn(__hiloint2double(__double2hiint(SCORER_FIXED_POINT), f), SCORER_FIXED_POINT);
        double wide = C[7];
#pragma unroll
        for (int i = 6; i >= 2; --i) {
            wide = __dsub_rn(0x1p52 + C[i], __fma_rd(fraction, wide, 0x1p52));
        }
        t = C[1] - static_cast<u32>(__double2loint(__fma_rd(fraction, wide, 0x1p54)));
    } else {
        t = C[7];
#pragma unroll
        for (int i = 6; i >= 2; --i) t = C[i] - __umulhi(f, t);
        t = C[1] - (__umulhi(f, t) >> 2);
    }
    return ((1ull << 63) - (static_cast<u64>(f) * t >> 1)) >> n;
}

struct Sum {  // 96 bits
    u32 low, middle, high;
};

__device__ __forceinline__ void add(Sum& sum, u64 value) {
    asm("add.cc.u32 %0, %0, %3;\n\taddc.cc.u32 %1, %1, %4;\n\taddc.u32 %2, %2, 0;"
        : "+r"(sum.low), "+r"(sum.middle), "+r"(sum.high)
        : "r"(static_cast<u32>(value)), "r"(static_cast<u32>(value >> 32)));
}

// --- rows ----------------------------------------------------------------------------------------

// The real ids of a row: `head` single ones up to a 16-byte boundary, `vectors` of VECTOR ids
// each, and `rest` single ones.
struct Row {
    const Logit* logits;
    int head, vectors, rest;
};

__device__ __forceinline__ Row find_row(const Logit* logits, int row, int vocabulary, int ids) {
    Row found;
    found.logits = logits + static_cast<u64>(row) * vocabulary;
    const int past = static_cast<int>(reinterpret_cast<u64>(found.logits) % 16 / sizeof(Logit));
    found.head = min((VECTOR - past) % VECTOR, ids);
    found.vectors = (ids - found.head) / VECTOR;
    found.rest = ids - found.head - found.vectors * VECTOR;
    return found;
}

// Call vector(x[VECTOR], first id, u) and single(x, id) so that, over all chunks, each real id of
// the row is seen once; u < Unroll is known to the compiler. To be called by all `Threads`.
template <int Threads, int Unroll, typename Vector, typename Single>
__device__ __forceinline__ void visit(const Row& row, int chunk, int chunks, Vector vector,
                                      Single single) {
    const int share = (row.vectors + chunks - 1) / chunks;
    const int end = min(share * (chunk + 1), row.vectors);
    int i = share * chunk + threadIdx.x;
    int id = row.head + i * VECTOR;
    const Logit* next = row.logits + id;
    for (; i + (Unroll - 1) * Threads < end; i += Unroll * Threads) {
        float x[Unroll][VECTOR];
#pragma unroll
        for (int u = 0; u < Unroll; ++u) load_vector(next + u * Threads * VECTOR, x[u]);
#pragma unroll
        for (int u = 0; u < Unroll; ++u) vector(x[u], id + u * Threads * VECTOR, u);
        id += Unroll * Threads * VECTOR;
        next += Unroll * Threads * VECTOR;
    }
    for (; i < end; i += Threads) {
        float x[VECTOR];
        load_vector(next, x);
        vector(x, id, 0);
        id += Threads * VECTOR;
        next += Threads * VECTOR;
    }
    if (chunk == 0 && threadIdx.x < row.head + row.rest) {
        const int t = threadIdx.x;
        const int edge = t < row.head ? t : t + row.vectors * VECTOR;
        single(widen(row.logits[edge]), edge);
    }
}

// The maximum of `value` over the block. shared: one word a warp, free to be written.
template <int Threads>
__device__ __forceinline__ u32 block_max(u32 value, u32* shared) {
    value = __reduce_max_sync(ALL_LANES, value);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (int i = 1; i < Threads / WARP; ++i) value = max(value, shared[i]);
    return value;
}

template <int Threads>
__device__ __forceinline__ u32 block_sum(u32 value, u32* shared) {
    value = __reduce_add_sync(ALL_LANES, value);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int i = 0; i < Threads / WARP; ++i) value += shared[i];
    return value;
}

// The sum of `value` over this thread and those before it. shared: one word a warp.
template <int Threads>
__device__ __forceinline__ u32 block_prefix(u32 value, u32* shared) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const u32 before = __shfl_up_sync(ALL_LANES, value, step);
        if (lane >= step) value += before;
    }
    if (lane == WARP - 1) shared[threadIdx.x / WARP] = value;
    __syncthreads();
    for (int i = 0; i < static_cast<int>(threadIdx.x / WARP); ++i) value += shared[i];
    return value;
}

// Bitonic, descending; size a power of two. Begins and ends at a barrier.
template <int Threads>
__device__ void sort_descending(u64* values, int size) {
    __syncthreads();
    for (int run = 2; run <= size; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            for (int i = threadIdx.x; i < size / 2; i += Threads) {
                const int a = 2 * i - (i & (step - 1));
                const int b = a + step;
                const u64 first = values[a];
                const u64 second = values[b];
                if ((first < second) == ((a & run) == 0)) {
                    values[a] = second;
                    values[b] = first;
                }
            }
            __syncthreads();
        }
    }
}

__device__ __forceinline__ int power_of_two_from(int n) {
    return n <= 1 ? 1 : 1 << (WARP - __clz(n - 1));
}

// --- row_maxima ----------------------------------------------------------------------------------

// cells: u32 [rows, CELLS], keys, `cells_of(chunks)` of them written; padding: u32 [rows, chunks],
// the largest key of the ids that no token has; before: int [rows, chunks, DIRECT], how many ids
// of this chunk come before each target, but for ids of equal value in the target's own vector.

__device__ __forceinline__ int cells_of(int chunks) { return min(CELLS, chunks * 4 * THREADS); }

template <int Targets>
__device__ void take_maxima(const Row& row, int chunk, int chunks, const int* ids, int count,
                            float (&best)[4], int* before, u32* shared) {
    float value[Targets + 1], above[Targets + 1];  // + 1: an array can't be empty
    float seen[Targets + 1];  // counts, exact below 2^24
    int last_before[Targets + 1];  // a vector that starts here or earlier lies before the target
    float lowest = key_value(KEY_INFINITY);
#pragma unroll
    for (int t = 0; t < Targets; ++t) {
        const bool real = t < count;
        const int id = real ? ids[t] : 0;
        value[t] = real ? widen(row.logits[id]) : __uint_as_float(NAN_BITS);
        above[t] = real ? next_up(value[t]) : __uint_as_float(NAN_BITS);
        last_before[t] = id - VECTOR;
        seen[t] = 0.0f;
        lowest = min_number(lowest, value[t]);
    }
    visit<THREADS, 4>(
        row, chunk, chunks,
        [&](const float(&x)[VECTOR], int id, int u) {
            float largest = x[0];
#pragma unroll
            for (int i = 1; i < VECTOR; ++i) largest = max_nan(largest, x[i]);
            best[u] = max_nan(best[u], largest);
            if constexpr (Targets > 0) {
                // Labels are mostly near the top, so that most vectors hold nothing before them.
                if (!reaches(largest, lowest)) return;
#pragma unroll
                for (int t = 0; t < Targets; ++t) {
                    const float bar = id <= last_before[t] ? value[t] : above[t];
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i) seen[t] += one_if_reaches(x[i], bar);
                }
            }
        },
        [&](float x, int id) {
            best[0] = max_nan(best[0], x);
#pragma unroll
            for (int t = 0; t < Targets; ++t) {
                const float bar = id < last_before[t] + VECTOR ? value[t] : above[t];
                seen[t] += one_if_reaches(x, bar);
            }
        });
    if constexpr (Targets > 0) {
        const int warp = threadIdx.x / WARP;
#pragma unroll
        for (int t = 0; t < Targets; ++t) {
            const u32 sum = __reduce_add_sync(ALL_LANES, static_cast<u32>(seen[t]));
            if (threadIdx.x % WARP == 0) shared[warp * Targets + t] = sum;
        }
        __syncthreads();
        if (threadIdx.x < Targets) {
            u32 sum = 0;
            for (int w = 0; w < THREADS / WARP; ++w) sum += shared[w * Targets + threadIdx.x];
            before[threadIdx.x] = sum;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
row_maxima(const Logit* __restrict__ logits, const Plan* __restrict__ plan, u32* cells,
           u32* padding, int* before, int vocabulary, int ids, int chunks) {
    __shared__ u32 shared[THREADS / WARP * DIRECT];
    const int index = blockIdx.x / chunks;
    const int chunk = blockIdx.x % chunks;
    if (index >= plan->rows) return;
    const Row row = find_row(logits, index, vocabulary, ids);
    const RowPlan* rows = row_plans(plan);
    const int first = rows[index].first_target;
    const int count = rows[index + 1].first_target - first;
    const int* wanted = target_ids(plan) + first;
    before += static_cast<u64>(blockIdx.x) * DIRECT;
    const float lowest = key_value(KEY_MINUS_INFINITY);
    float best[4] = {lowest, lowest, lowest, lowest};
    if (count == 0 || count > DIRECT) {
        take_maxima<0>(row, chunk, chunks, wanted, 0, best, before, shared);
    } else if (count <= DIRECT / 2) {
        take_maxima<DIRECT / 2>(row, chunk, chunks, wanted, count, best, before, shared);
    } else {
        take_maxima<DIRECT>(row, chunk, chunks, wanted, count, best, before, shared);
    }
    float rest = lowest;
    for (int id = ids + chunk * THREADS + threadIdx.x; id < vocabulary; id += chunks * THREADS) {
        rest = max_nan(rest, widen(row.logits[id]));
    }
    const u32 rest_key = block_max<THREADS>(order_key(rest), shared);
    if (threadIdx.x == 0) padding[blockIdx.x] = rest_key;
    // Four cells a thread, merged until a row's blocks together have at most CELLS.
    u32 key[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) key[i] = order_key(best[i]);
    const int mine = cells_of(chunks) / chunks;
    cells += static_cast<u64>(index) * CELLS + chunk * mine;
    if (mine == 4 * THREADS) {
#pragma unroll
        for (int i = 0; i < 4; ++i) cells[i * THREADS + threadIdx.x] = key[i];
        return;
    }
    key[0] = max(key[0], key[1]);
    key[1] = max(key[2], key[3]);
    if (mine == 2 * THREADS) {
        cells[threadIdx.x] = key[0];
        cells[THREADS + threadIdx.x] = key[1];
        return;
    }
    key[0] = max(key[0], key[1]);
    const int lanes = THREADS / mine;  // that share a cell
    for (int step = 1; step < lanes; step *= 2) {
        key[0] = max(key[0], __shfl_xor_sync(ALL_LANES, key[0], step));
    }
    if (threadIdx.x % lanes == 0) cells[threadIdx.x / lanes] = key[0];
}

// --- row_thresholds ------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS)
row_thresholds(const Logit* __restrict__ logits, const Plan* __restrict__ plan,
               const u32* __restrict__ cells, const u32* __restrict__ padding,
               const int* __restrict__ before, RowState* states, RowResult* results,
               int vocabulary, int ids, int chunks) {
    constexpr int WARPS = THREADS / WARP;
    constexpr int MINE = CELLS / THREADS;
    static_assert(DIRECT <= WARPS, "a warp adds up the counts of one target");
    __shared__ u32 shared[4][WARPS];
    const int index = blockIdx.x;
    if (index >= plan->rows) return;
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const int written = cells_of(chunks);
    u32 key[MINE];
    u32 largest = KEY_MINUS_INFINITY;
    u32 smallest = KEY_NAN;
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        const int cell = i * THREADS + threadIdx.x;
        // A cell that does not exist counts for nothing, not even for -inf.
        key[i] = cell < written ? cells[static_cast<u64>(index) * CELLS + cell] : 0;
        largest = max(largest, key[i]);
        if (cell < written) smallest = min(smallest, key[i]);
    }
    u32 rest = KEY_MINUS_INFINITY;
    if (threadIdx.x < chunks) rest = padding[static_cast<u64>(index) * chunks + threadIdx.x];
    const u32 best = block_max<THREADS>(largest, shared[0]);
    const u32 row_max = max(best, block_max<THREADS>(rest, shared[1]));
    u32 low = ~block_max<THREADS>(~smallest, shared[2]);
    const bool nonfinite = row_max >= KEY_INFINITY || row_max <= KEY_MINUS_INFINITY;

    // The k-th largest cell is at most the k-th largest logit. Near is good enough.
    const RowPlan* rows = row_plans(plan);
    const int k = max(rows[index].k, 1);
    if (k == 1) {
        low = best;
    } else if (k > written || nonfinite) {
        low = KEY_MINUS_INFINITY;
    } else {
        const int enough = k + k / 8 + 16;
        u32 high = best;
        int reached = written;
        __syncthreads();
        for (int turn = 0; reached > enough && low < high; turn ^= 1) {
            const u32 middle = low + ((high - low) >> 1) + 1;
            u32 count = 0;
#pragma unroll
            for (int i = 0; i < MINE; ++i) count += key[i] >= middle;
            // Two places in turn: nobody can be two rounds behind.
            count = block_sum<THREADS>(count, shared[turn]);
            if (static_cast<int>(count) >= k) {
                low = middle;
                reached = count;
            } else {
                high = middle - 1;
            }
        }
    }
    if (threadIdx.x == 0) {
        states[index].threshold = key_value(low);
        states[index].best = key_value(best);
        states[index].candidates = 0;
        RowResult result;
        result.sum_hi = 0;
        result.sum_lo = 0;
        result.max = nonfinite ? __uint_as_float(NAN_BITS) : key_value(row_max);
        result.chosen_id = -1;
        result.chosen_logit = __uint_as_float(NAN_BITS);
        result.nonfinite = nonfinite;
        results[index] = result;
    }

    const Row row = find_row(logits, index, vocabulary, ids);
    const int first = rows[index].first_target;
    const int count = rows[index + 1].first_target - first;
    const int* wanted = target_ids(plan) + first;
    TargetResult* targets = target_results(results, plan) + first;
    if (nonfinite || count > DIRECT) {
        for (int t = threadIdx.x; t < count; t += THREADS) {
            TargetResult target;
            target.logit =
                nonfinite ? __uint_as_float(NAN_BITS) : canonical(widen(row.logits[wanted[t]]));
            target.rank = nonfinite ? -1 : 1;  // many_ranks adds the rest
            targets[t] = target;
        }
    } else if (warp < count) {
        before += static_cast<u64>(index) * chunks * DIRECT + warp;
        u32 rank = 0;
        for (int chunk = lane; chunk < chunks; chunk += WARP) rank += before[chunk * DIRECT];
        const int id = wanted[warp];
        const float value = canonical(widen(row.logits[id]));
        const int behind_head = id - row.head;
        if (behind_head >= 0 && behind_head < row.vectors * VECTOR) {
            const int other = id - behind_head % VECTOR + lane;
            if (other < id) rank += order_key(widen(row.logits[other])) == order_key(value);
        }
        rank = __reduce_add_sync(ALL_LANES, rank);
        if (lane == 0) {
            TargetResult target;
            target.logit = value;
            target.rank = static_cast<int>(rank) + 1;
            targets[warp] = target;
        }
    }
}

// --- row_terms -----------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS)
row_terms(const Logit* __restrict__ logits, const Plan* __restrict__ plan, RowState* states,
          u64* __restrict__ candidates, RowResult* results, int vocabulary, int ids, int chunks) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ u64 low_sums[WARPS];
    __shared__ u64 high_sums[WARPS];
    const int rows = plan->rows;
    // The last rows first: they may still be in the cache.
    const int index = rows - 1 - static_cast<int>(blockIdx.x / chunks);
    const int chunk = blockIdx.x % chunks;
    if (index < 0 || results[index].nonfinite) return;
    const Row row = find_row(logits, index, vocabulary, ids);
    const double largest = widen_exactly(results[index].max);
    const float threshold = states[index].threshold;
    const int room = row_plans(plan)[index + 1].first_candidate
                     - row_plans(plan)[index].first_candidate;
    candidates += row_plans(plan)[index].first_candidate;
    int* taken = &states[index].candidates;
    bool full = false;
    const auto propose = [&](float x, int id) {
        if (reaches(x, threshold) && !full) {
            const int place = atomicAdd(taken, 1);
            if (place < room) {
                candidates[place] = composite(x, id);
            } else {
                full = true;
            }
        }
    };
    Sum sum = {0, 0, 0};
    visit<THREADS, 8 / VECTOR>(
        row, chunk, chunks,
        [&](const float(&x)[VECTOR], int id, int) {
            bool any = false;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) any |= reaches(x[i], threshold);
            if (any) {
#pragma unroll 1
                for (int i = 0; i < VECTOR; ++i) propose(widen(row.logits[id + i]), id + i);
            }
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) add(sum, term(largest, x[i]));
        },
        [&](float x, int id) {
            propose(x, id);
            add(sum, term(largest, x));
        });
    for (int id = ids + chunk * THREADS + threadIdx.x; id < vocabulary; id += chunks * THREADS) {
        add(sum, term(largest, widen(row.logits[id])));
    }
    u64 low = sum.low;
    u64 high = static_cast<u64>(sum.high) << 32 | sum.middle;
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        low += __shfl_xor_sync(ALL_LANES, low, step);
        high += __shfl_xor_sync(ALL_LANES, high, step);
    }
    if (threadIdx.x % WARP == 0) {
        low_sums[threadIdx.x / WARP] = low;
        high_sums[threadIdx.x / WARP] = high;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; ++w) {
            low += low_sums[w];
            high += high_sums[w];
        }
        atomicAdd(&results[index].sum_lo, low);
        atomicAdd(&results[index].sum_hi, high);
    }
}

// --- many_ranks ----------------------------------------------------------------------------------

// How many of the descending values[0 ... size - 1] are at least `value`; size a power of two.
__device__ __forceinline__ int count_from(const u64* values, int size, u64 value) {
    int place = 0;
    for (int step = size / 2; step > 0; step /= 2) {
        if (values[place + step - 1] >= value) place += step;
    }
    return place + (values[place] >= value);
}

extern "C" __global__ void __launch_bounds__(WIDE)
many_ranks(const Logit* __restrict__ logits, const Plan* __restrict__ plan, RowResult* results,
           int vocabulary, int ids) {
    constexpr int MINE = TILE / WIDE;
    __shared__ u64 sorted[TILE];
    __shared__ u32 counts[TILE];
    __shared__ u32 shared[WIDE / WARP];
    const int slices = plan->slices;
    for (int work = blockIdx.x; work < plan->items * slices; work += gridDim.x) {
        const Item item = items(plan)[work / slices];
        if (results[item.row].nonfinite) continue;
        const Row row = find_row(logits, item.row, vocabulary, ids);
        const int* wanted = target_ids(plan) + item.first;
        const int size = power_of_two_from(item.count);
        __syncthreads();
        for (int i = threadIdx.x; i < TILE; i += WIDE) {
            counts[i] = 0;
            if (i < size) {
                sorted[i] = i < item.count ? composite(widen(row.logits[wanted[i]]), wanted[i]) : 0;
            }
        }
        sort_descending<WIDE>(sorted, size);
        const u64 last = sorted[item.count - 1];
        // An id comes before every target behind those that are at least as good as it.
        const auto place = [&](float x, int id) {
            const u64 value = composite(x, id);
            if (value > last) atomicAdd(&counts[count_from(sorted, size, value)], 1u);
        };
        visit<WIDE, 2>(
            row, work % slices, slices,
            [&](const float(&x)[VECTOR], int id, int) {
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) place(x[i], id + i);
            },
            place);
        __syncthreads();
        u32 mine[MINE];
        u32 total = 0;
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            mine[i] = counts[threadIdx.x * MINE + i];
            total += mine[i];
        }
        u32 running = block_prefix<WIDE>(total, shared) - total;
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            running += mine[i];
            counts[threadIdx.x * MINE + i] = running;
        }
        __syncthreads();
        TargetResult* targets = target_results(results, plan) + item.first;
        for (int i = threadIdx.x; i < item.count; i += WIDE) {
            const u64 own = composite(widen(row.logits[wanted[i]]), wanted[i]);
            // Repeated targets: all of them at the place of the first.
            const u32 better = counts[count_from(sorted, size, own + 1)];
            if (better > 0) atomicAdd(&targets[i].rank, static_cast<int>(better));
        }
    }
}

// --- row_outputs ---------------------------------------------------------------------------------

// Put the k best composites of the row in `values`, in any order. Digit by digit from the top:
// the count of each digit among those that agree with the prefix so far. low, high: keys between
// which the k best are. values: 2 * 2048 words or more, also the counters' place.
__device__ void select_best(const Row& row, int k, u32 low, u32 high, u64* values, u32* shared) {
    __shared__ u32 found_bin, found_above, found_count;
    __shared__ int collected;
    constexpr int DIGITS = 5;
    constexpr int width[DIGITS] = {11, 11, 10, 10, 10};
    constexpr int MINE = (1 << 11) / WIDE;
    u32* counts = reinterpret_cast<u32*>(values);
    u64 prefix = 0;
    int shift = 32 + ID_BITS;
    u32 need = k;
#pragma unroll 1
    for (int digit = 0; digit < DIGITS; ++digit) {
        const int bins = 1 << width[digit];
        const int top = shift;
        shift -= width[digit];
        if (shift >= ID_BITS && low >> (shift - ID_BITS) == high >> (shift - ID_BITS)) {
            prefix = high >> (shift - ID_BITS);  // all alike
            continue;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < MINE * WIDE; i += WIDE) counts[i] = 0;
        __syncthreads();
        const auto count = [&](float x, int id) {
            const u64 value = composite(x, id);
            if (value >> top == prefix) {
                atomicAdd(&counts[static_cast<u32>(value >> shift) & (bins - 1)], 1u);
            }
        };
        visit<WIDE, 4>(
            row, 0, 1,
            [&](const float(&x)[VECTOR], int id, int) {
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) count(x[i], id + i);
            },
            count);
        __syncthreads();
        // From the highest bin down, MINE bins a thread; bins that a short digit lacks are 0.
        u32 total = 0;
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            total += counts[MINE * WIDE - 1 - (threadIdx.x * MINE + i)];
        }
        const u32 upto = block_prefix<WIDE>(total, shared);
        u32 above = upto - total;
        if (above < need && need <= upto) {
            for (int i = 0; i < MINE; ++i) {
                const u32 bin = MINE * WIDE - 1 - (threadIdx.x * MINE + i);
                if (above < need && need <= above + counts[bin]) {
                    found_bin = bin;
                    found_above = above;
                    found_count = counts[bin];
                }
                above += counts[bin];
            }
        }
        __syncthreads();
        prefix = prefix << width[digit] | found_bin;
        need -= found_above;
        if (found_count == need) break;  // all of the bin
    }
    if (threadIdx.x == 0) collected = 0;
    __syncthreads();
    const auto collect = [&](float x, int id) {
        const u64 value = composite(x, id);
        if (value >> shift >= prefix) values[atomicAdd(&collected, 1)] = value;
    };
    visit<WIDE, 4>(
        row, 0, 1,
        [&](const float(&x)[VECTOR], int id, int) {
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) collect(x[i], id + i);
        },
        collect);
}

extern "C" __global__ void __launch_bounds__(WIDE)
row_outputs(const Logit* __restrict__ logits, const Plan* __restrict__ plan,
            const RowState* __restrict__ states, const u64* __restrict__ candidates,
            RowResult* results, int vocabulary, int ids) {
    __shared__ u64 values[MAX_CANDIDATES];
    __shared__ u32 shared[WIDE / WARP];
    const int index = blockIdx.x;
    if (index >= plan->rows) return;
    const RowPlan own = row_plans(plan)[index];
    EntryResult* entries = entry_results(results, plan) + own.first_entry;
    if (results[index].nonfinite) {
        for (int i = threadIdx.x; i < own.k; i += WIDE) {
            EntryResult entry;
            entry.id = -1;
            entry.logit = __uint_as_float(NAN_BITS);
            entries[i] = entry;
        }
        return;
    }
    int count = states[index].candidates;
    if (count <= row_plans(plan)[index + 1].first_candidate - own.first_candidate) {
        for (int i = threadIdx.x; i < count; i += WIDE) {
            values[i] = candidates[own.first_candidate + i];
        }
    } else {
        count = max(own.k, 1);
        select_best(find_row(logits, index, vocabulary, ids), count,
                    order_key(states[index].threshold), order_key(states[index].best), values,
                    shared);
    }
    const int size = power_of_two_from(count);
    for (int i = count + threadIdx.x; i < size; i += WIDE) values[i] = 0;
    sort_descending<WIDE>(values, size);
    for (int i = threadIdx.x; i < own.k; i += WIDE) {
        EntryResult entry;
        entry.id = composite_id(values[i]);
        entry.logit = composite_logit(values[i]);
        entries[i] = entry;
    }
    if (threadIdx.x == 0) {
        const u64 low = results[index].sum_lo;
        results[index].sum_hi += low >> 32;
        results[index].sum_lo = low & 0xffffffffu;
        results[index].chosen_id = composite_id(values[0]);
        results[index].chosen_logit = composite_logit(values[0]);
    }
}
