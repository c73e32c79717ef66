/* kernels/cuda/{linear,matmul,matmul_plan,matmul_tune}.c without a GPU: on a fake runtime and a fake cuBLASLt.
 *
 * cc -std=c11 -DHS_WITH_CUDA -Itests/c/fake_cuda tests/c/test_linear.c kernels/ops/{linear,check}.c
 *    kernels/cuda/{linear,matmul,matmul_plan,matmul_tune}.c kernels/base/{os,status}.c -lm -lpthread -ldl */
#define _POSIX_C_SOURCE 200809L
#undef NDEBUG
#include <stdio.h>

#include "../../kernels/base/library.h"
#include "../../kernels/cuda/device.h"
#include "../../kernels/cuda/matmul.h"
#include "../../kernels/ops/linear.h"
#include "fake_act.h"
#include "fake_cublaslt.h"

/* ---- what surrounds the code under test ---- */
struct fake_cuda fake_cuda = {.buffers_allowed = -1};
static bool capturing, absent;

const hs_cublaslt *hs_library_cublaslt(const char *op) {
    if (!absent) return &fake_table;
    hs_fail(HS_FAILURE, "%s: cuBLASLt was not found", op);
    return NULL;
}
const hs_device_properties *hs_device_properties_of(int index) {
    static const hs_device_properties small = {.multiprocessors = 1, .capability = 89}, large = {1, 0, 0, 90};
    return index == 1 ? &large : &small;
}
bool hs_device_is_capturing(void *stream) {
    (void)stream;
    return capturing;
}

/* ---- tensors between poisoned margins ---- */
enum { MARGIN = 64, POISON = 0xa5, MAX_TENSORS = 16 };
static hs_tensor made[MAX_TENSORS];
static int made_count;

static hs_tensor tensor(int dtype, int ndim, int64_t rows, int64_t cols) {
    hs_tensor t = {.dtype = dtype, .ndim = ndim, .device = {HS_CUDA, 0}};
    t.shape[0] = ndim == 2 ? rows : cols;
    t.shape[1] = cols;
    t.stride[0] = ndim == 2 ? cols : 1;
    t.stride[1] = 1;
    const size_t bytes = (size_t)(hs_numel(&t) * hs_dtype_size(dtype));
    char *memory = malloc(bytes + 2 * MARGIN);
    memset(memory, POISON, bytes + 2 * MARGIN);
    t.data = memory + MARGIN;
    for (int64_t i = 0; i < hs_numel(&t); i++) set_element(t.data, i, type_of(&t), (double)(rand() % 2001) / 1000 - 1);
    assert(made_count < MAX_TENSORS);
    made[made_count++] = t;
    return t;
}
static void check_margins_and_free(void) {
    while (made_count) {
        const hs_tensor t = made[--made_count];
        unsigned char *memory = (unsigned char *)t.data - MARGIN;
        const int64_t bytes = hs_numel(&t) * hs_dtype_size(t.dtype);
        for (int i = 0; i < MARGIN; i++) assert(memory[i] == POISON && memory[MARGIN + bytes + i] == POISON);
        free(memory);
    }
}
/* Eight roundings to the operands' dtype: of z or dz, and of the result. */
static void check_near(const hs_tensor *t, int64_t i, double expected, int dtype) {
    const double tolerance = 8 * ldexp(1, dtype == HS_BF16 ? -8 : -24);
    if (fabs(get(t, i) - expected) <= tolerance * (1 + fabs(expected))) return;
    fprintf(stderr, "element %lld is %g, expected %g\n", (long long)i, get(t, i), expected);
    abort();
}

static hs_ctx context(bool deterministic, int64_t workspace) {
    hs_ctx ctx = {.device = {HS_CUDA, 0}, .deterministic = deterministic, .workspace_bytes = workspace};
    ctx.workspace = aligned_alloc(256, (size_t)(workspace + 255) / 256 * 256);
    return ctx;
}

/* ---- the cases ---- */
typedef struct {
    int dtype, dw_dtype, db_dtype;
    int64_t rows, in, out, kind;
    bool b, z;
} shape;

static void check_forward(shape s) {
    hs_linear_forward_args a = {.kind = s.kind};
    a.x = tensor(s.dtype, 2, s.rows, s.in);
    a.w = tensor(s.dtype, 2, s.out, s.in);
    if (s.b) a.b = tensor(s.dtype, 1, 1, s.out);
    a.y = tensor(s.dtype, 2, s.rows, s.out);
    if (s.z) a.z = tensor(s.dtype, 2, s.rows, s.out);
    hs_ctx ctx = {.device = {HS_CUDA, 0}};
    ctx = context(false, hs_linear_forward_workspace(&ctx, &a));
    assert(hs_linear_forward(&ctx, &a) == HS_OK);
    for (int64_t r = 0; r < s.rows; r++) {
        for (int64_t o = 0; o < s.out; o++) {
            double z = s.b ? get(&a.b, o) : 0;
            for (int64_t i = 0; i < s.in; i++) z += get(&a.x, r * s.in + i) * get(&a.w, o * s.in + i);
            check_near(&a.y, r * s.out + o, f(s.kind, z), s.dtype);
            if (s.z) check_near(&a.z, r * s.out + o, z, s.dtype);
        }
    }
    check_margins_and_free();
    free(ctx.workspace);
}

/* x and w are absent where no gradient reads them. */
static void check_backward(shape s, bool dx, bool dw, bool db) {
    hs_linear_backward_args a = {.kind = s.kind};
    if (dw) a.x = tensor(s.dtype, 2, s.rows, s.in);
    if (dx) a.w = tensor(s.dtype, 2, s.out, s.in);
    a.dy = tensor(s.dtype, 2, s.rows, s.out);
    if (s.kind) a.saved = tensor(s.dtype, 2, s.rows, s.out);
    if (dx) a.dx = tensor(s.dtype, 2, s.rows, s.in);
    if (dw) a.dw = tensor(s.dw_dtype, 2, s.out, s.in);
    if (db) a.db = tensor(s.db_dtype, 1, 1, s.out);
    hs_ctx ctx = {.device = {HS_CUDA, 0}};
    ctx = context(false, hs_linear_backward_workspace(&ctx, &a));
    assert(hs_linear_backward(&ctx, &a) == HS_OK);
    double *dz = malloc(sizeof(double) * (size_t)(s.rows * s.out + 1));
    for (int64_t i = 0; i < s.rows * s.out; i++) dz[i] = get(&a.dy, i) * (s.kind ? slope(s.kind, get(&a.saved, i)) : 1);
    for (int64_t r = 0; dx && r < s.rows; r++) {
        for (int64_t i = 0; i < s.in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < s.out; o++) sum += dz[r * s.out + o] * get(&a.w, o * s.in + i);
            check_near(&a.dx, r * s.in + i, sum, s.dtype);
        }
    }
    for (int64_t o = 0; o < s.out; o++) {
        double sum = 0;
        for (int64_t r = 0; r < s.rows; r++) sum += dz[r * s.out + o];
        if (db) check_near(&a.db, o, sum, s.dtype);
        for (int64_t i = 0; dw && i < s.in; i++) {
            sum = 0;
            for (int64_t r = 0; r < s.rows; r++) sum += dz[r * s.out + o] * get(&a.x, r * s.in + i);
            check_near(&a.dw, o * s.in + i, sum, s.dtype);
        }
    }
    free(dz);
    check_margins_and_free();
    free(ctx.workspace);
}

static void check_all(int64_t rows, int64_t in, int64_t out) {
    const int dtypes[][3] = {
        {HS_F32, HS_F32, HS_F32}, {HS_BF16, HS_F32, HS_F32}, {HS_BF16, HS_BF16, HS_BF16}, {HS_BF16, HS_BF16, HS_F32}};
    for (int kind = 0; kind < HS_ACT_COUNT; kind++) {
        for (int d = 0; d < 4; d++) {
            shape s = {dtypes[d][0], dtypes[d][1], dtypes[d][2], rows, in, out, kind, true, true};
            for (int bits = 0; bits < 8; bits++) check_backward(s, bits & 1, bits & 2, bits & 4);
            for (int bits = 0; bits < 4; bits++) {
                s.b = bits & 1;
                s.z = (bits & 2) && kind > HS_ACT_RELU;
                check_forward(s);
            }
        }
    }
}

static void test_results(void) {
    const int64_t sizes[][3] = {{5, 3, 8}, {1, 1, 1}, {4, 7, 16}, {3, 8, 9},
                                {0, 3, 8}, {5, 0, 8}, {5, 3, 0},  {2, 0, 3}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) check_all(sizes[i][0], sizes[i][1], sizes[i][2]);
}

/* Every epilogue but the plain product is refused, before or at the launch. Sizes are new, so nothing is remembered. */
static void test_refusals(void) {
    const unsigned all[] = {HS_LT_EPILOGUE_RELU,          HS_LT_EPILOGUE_BIAS,      HS_LT_EPILOGUE_RELU_BIAS,
                            HS_LT_EPILOGUE_GELU,          HS_LT_EPILOGUE_GELU_BIAS, HS_LT_EPILOGUE_GELU_AUX,
                            HS_LT_EPILOGUE_GELU_AUX_BIAS, HS_LT_EPILOGUE_BGRADB};
    for (int i = 0; i < 8; i++) fake_lt.refused[i] = all[i];
    check_all(6, 5, 16);
    fake_lt.refused[1] = 0;
    check_all(6, 4, 16);
    memset(fake_lt.refused, 0, sizeof fake_lt.refused);
    for (int i = 0; i < 8; i++) {
        fake_lt.refused_at_launch = all[i];
        check_all(3, 6 + i, 8);
    }
    fake_lt.refused_at_launch = 0;
}

/* x wT is 1 + 2^-9, which rounds to 1, and b takes the 1 away: z is 2^-9 only where it is rounded once. */
static void test_one_rounding(void) {
    const unsigned refused[] = {HS_LT_EPILOGUE_BIAS, HS_LT_EPILOGUE_RELU_BIAS, HS_LT_EPILOGUE_GELU_AUX_BIAS};
    memcpy(fake_lt.refused, refused, sizeof refused);
    const int64_t kinds[] = {HS_ACT_NONE, HS_ACT_RELU, HS_ACT_GELU_TANH};
    for (int i = 0; i < 3; i++) {
        const bool with_z = kinds[i] == HS_ACT_GELU_TANH;
        hs_linear_forward_args a = {.kind = kinds[i]};
        a.x = tensor(HS_BF16, 2, 1, 2);
        a.w = tensor(HS_BF16, 2, 1, 2);
        a.b = tensor(HS_BF16, 1, 1, 1);
        a.y = tensor(HS_BF16, 2, 1, 1);
        if (with_z) a.z = tensor(HS_BF16, 2, 1, 1);
        set_element(a.x.data, 0, HS_LT_R_16BF, 1);
        set_element(a.x.data, 1, HS_LT_R_16BF, 0x1p-9);
        for (int k = 0; k < 2; k++) set_element(a.w.data, k, HS_LT_R_16BF, 1);
        set_element(a.b.data, 0, HS_LT_R_16BF, -1);
        hs_ctx ctx = {.device = {HS_CUDA, 0}};
        ctx = context(false, hs_linear_forward_workspace(&ctx, &a));
        assert(hs_linear_forward(&ctx, &a) == HS_OK);
        assert(get(with_z ? &a.z : &a.y, 0) == 0x1p-9);
        check_margins_and_free();
        free(ctx.workspace);
    }
    memset(fake_lt.refused, 0, sizeof fake_lt.refused);
}

/* ---- the choice of an algorithm ---- */
static hs_matmul product(int64_t m) {
    static _Alignas(256) float operands[3][4096];
    return (hs_matmul){.op = "linear",
                       .m = m,
                       .n = 1,
                       .k = 2,
                       .a = operands[0],
                       .b = operands[1],
                       .d = operands[2],
                       .dtype = HS_F32,
                       .d_dtype = HS_F32,
                       .epilogue = HS_LT_EPILOGUE_DEFAULT};
}

/* Runs p; says how often the heuristic was asked, how many products ran, and which candidate ran last. */
static void expect(const hs_ctx *ctx, const hs_matmul *p, int asked, int launched, int algo) {
    bool found = false;
    const int asked_before = fake_lt.asked, launched_before = fake_lt.launched;
    assert(hs_matmul_run(ctx, p, &found) == HS_OK && found);
    assert(fake_lt.asked - asked_before == asked);
    assert(fake_lt.launched - launched_before == launched);
    assert(fake_lt.last_algo == algo);
    assert(fake_cuda.streams == 0 && fake_cuda.events == 0 && fake_cuda.buffers == 0);
    assert(fake_cuda.mode == cudaStreamCaptureModeGlobal);
}

static void test_choice(void) {
    const int timed = FAKE_CANDIDATES * 4; /* a warm-up and three runs each */
    hs_ctx ctx = context(false, hs_matmul_workspace(0)), fixed = ctx;
    fixed.deterministic = true;
    fake_lt.fastest = 2;
    hs_matmul p = product(1);
    expect(&ctx, &p, 1, timed + 1, 2);
    expect(&ctx, &p, 0, 1, 2);
    assert(fake_lt.workspace == 4 << 20 && hs_matmul_workspace(1) == 32 << 20);
    assert(fake_lt.align_a == 256 && fake_lt.align_b == 256 && fake_lt.align_d == 256);
    expect(&fixed, &p, 1, 1, 0);
    expect(&ctx, &p, 0, 1, 2);
    p.b = (const char *)p.b + 4;
    p.d = (char *)p.d + 16;
    expect(&ctx, &p, 1, timed + 1, 2);
    assert(fake_lt.align_a == 256 && fake_lt.align_b == 4 && fake_lt.align_d == 16);
    p.tf32 = true;
    assert(fake_lt.last_compute == HS_LT_COMPUTE_32F);
    expect(&ctx, &p, 1, timed + 1, 2);
    assert(fake_lt.last_compute == HS_LT_COMPUTE_32F_FAST_TF32);

    p = product(2);
    capturing = true;
    const int buffers = fake_cuda.buffers_made;
    expect(&ctx, &p, 1, 1, 0);
    assert(fake_cuda.buffers_made == buffers);
    capturing = false;
    expect(&ctx, &p, 0, 1, 0);

    p = product(3);
    setenv("HALFSTEP_TUNE", "0", 1);
    expect(&ctx, &p, 1, 1, 0);
    unsetenv("HALFSTEP_TUNE");

    p = product(4);
    fake_cuda.buffers_allowed = 2;
    expect(&ctx, &p, 1, 1, 0);
    fake_cuda.buffers_allowed = -1;
    free(ctx.workspace);
}

static void test_sentences(void) {
    hs_ctx ctx = context(false, hs_matmul_workspace(0));
    hs_matmul p = product(5);
    bool found;
    absent = true;
    assert(hs_matmul_run(&ctx, &p, &found) == HS_FAILURE);
    assert(!strcmp(hs_error(), "linear: cuBLASLt was not found"));
    absent = false;
    fake_lt.refused[0] = HS_LT_EPILOGUE_DEFAULT;
    const int alive = fake_lt.alive;
    assert(hs_matmul_run(&ctx, &p, &found) == HS_FAILURE && fake_lt.alive == alive);
    assert(!strcmp(hs_error(), "linear: cuBLASLt on m = 5, n = 1, k = 2 in float32: not supported"));
    fake_lt.refused[0] = 0;
    free(ctx.workspace);
}

/* Shapes beyond what a device remembers still run, with the heuristic's first choice, and leave nothing behind. */
static void test_many_shapes(void) {
    hs_ctx ctx = context(true, hs_matmul_workspace(0));
    for (int64_t m = 6; m < 1100; m++) {
        const hs_matmul p = product(m);
        expect(&ctx, &p, 1, 1, 0);
    }
    const int alive = fake_lt.alive;
    const hs_matmul p = product(1200);
    ctx.deterministic = false;
    expect(&ctx, &p, 1, 1, 0);
    expect(&ctx, &p, 1, 1, 0);
    assert(fake_lt.alive == alive);
    free(ctx.workspace);
}

/* ---- bad input ---- */
static void expect_error(bool as_expected, const char *sentence) {
    if (as_expected && strcmp(hs_error(), sentence) == 0) return;
    fprintf(stderr, "%s\n", hs_error());
    abort();
}

static void expect_forward_error(const hs_linear_forward_args *a, hs_status status, const char *sentence) {
    hs_ctx ctx = {.device = a->x.device};
    const int launched = fake_lt.launched;
    expect_error(hs_linear_forward(&ctx, a) == status && fake_lt.launched == launched, sentence);
}

static void expect_backward_error(const hs_linear_backward_args *a, hs_status status, const char *sentence) {
    hs_ctx ctx = {.device = a->dy.device};
    const int launched = fake_lt.launched;
    expect_error(hs_linear_backward(&ctx, a) == status && fake_lt.launched == launched, sentence);
}

static void test_backward_checks(void) {
    hs_linear_backward_args good = {.kind = HS_ACT_NONE}, a;
    good.dy = tensor(HS_BF16, 2, 5, 4);
    good.x = tensor(HS_BF16, 2, 5, 3);
    good.w = tensor(HS_BF16, 2, 4, 3);
    good.dx = tensor(HS_BF16, 2, 5, 3);
    good.dw = tensor(HS_F32, 2, 4, 3);
    good.db = tensor(HS_F32, 1, 1, 4);
    a = good, a.x = (hs_tensor){0};
    expect_backward_error(&a, HS_BAD_TYPE, "linear: x is missing");
    a = good, a.w = (hs_tensor){0};
    expect_backward_error(&a, HS_BAD_TYPE, "linear: weight is missing");
    a = good, a.x.shape[0] = 6;
    expect_backward_error(&a, HS_BAD_VALUE, "linear: x has shape (6, 3), grad w has shape (5, 3)");
    a = good, a.w.shape[0] = 5;
    expect_backward_error(&a, HS_BAD_VALUE, "linear: weight has 5 rows, grad has 4 columns");
    a = good, a.w.shape[1] = a.w.stride[0] = 2;
    expect_backward_error(&a, HS_BAD_VALUE, "linear: weight has 2 columns, x has 3");
    a = good, a.w.dtype = HS_F32;
    expect_backward_error(&a, HS_BAD_TYPE, "linear: weight is float32, grad is bfloat16");
    a = good, a.dx.shape[1] = a.dx.stride[0] = 2;
    expect_backward_error(&a, HS_BAD_VALUE, "linear: dx has shape (5, 2), grad w has shape (5, 3)");
    a = good, a.dw.dtype = HS_F16;
    expect_backward_error(&a, HS_BAD_TYPE, "linear: dw is float16, expected float32 or bfloat16 as grad is");
    a = good, a.db.shape[0] = 3;
    expect_backward_error(&a, HS_BAD_VALUE, "linear: db has 3 elements, the number of columns of grad is 4");
    check_margins_and_free();
}

static void test_checks(void) {
    hs_linear_forward_args good = {.kind = HS_ACT_GELU}, a;
    good.x = tensor(HS_F32, 2, 5, 3);
    good.w = tensor(HS_F32, 2, 4, 3);
    good.b = tensor(HS_F32, 1, 1, 4);
    good.y = tensor(HS_F32, 2, 5, 4);
    good.z = tensor(HS_F32, 2, 5, 4);
    a = good, a.w.shape[1] = a.w.stride[0] = 2;
    expect_forward_error(&a, HS_BAD_VALUE, "linear: weight has 2 columns, x has 3");
    a = good, a.w.dtype = HS_F16;
    expect_forward_error(&a, HS_BAD_TYPE, "linear: weight is float16, x is float32");
    a = good, a.w.ndim = 1, a.w.stride[0] = 1;
    expect_forward_error(&a, HS_BAD_VALUE, "linear: weight has 1 axes, expected 2");
    a = good, a.b.shape[0] = 3;
    expect_forward_error(&a, HS_BAD_VALUE, "linear: bias has 3 elements, the number of rows of weight is 4");
    a = good, a.y.shape[0] = 6;
    expect_forward_error(&a, HS_BAD_VALUE, "linear: y has shape (6, 4), x wT has shape (5, 4)");
    a = good, a.z.device.index = 1;
    expect_forward_error(&a, HS_BAD_VALUE, "linear: z is on cuda:1, the other tensors are on cuda:0");
    a = good, a.kind = HS_ACT_RELU;
    expect_forward_error(&a, HS_BAD_VALUE, "linear: z is written for gelu, gelu_tanh and silu only");
    a = good, a.kind = 9;
    expect_forward_error(&a, HS_BAD_VALUE, "linear: activation is 9, expected 0 to 4");
    a = good, a.y = (hs_tensor){0};
    expect_forward_error(&a, HS_BAD_TYPE, "linear: y is missing");
    a = good, a.x.dtype = HS_I64;
    expect_forward_error(&a, HS_BAD_TYPE, "linear: x is int64, expected float32, float16 or bfloat16");
    check_margins_and_free();
}

int main(void) {
    test_choice();
    test_sentences();
    test_checks();
    test_backward_checks();
    setenv("HALFSTEP_TUNE", "0", 1);
    test_results();
    test_refusals();
    test_one_rounding();
    test_many_shapes();
    assert(act_passes > 0);
    puts("linear: ok");
    return 0;
}
