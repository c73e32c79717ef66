#include "matmul.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../base/library.h"
#include "../base/os.h"
#include "../ops/check.h"
#include "device.h"
#include "matmul_tune.h"

enum {
    MAX_DEVICES = 64,
    SLOTS = 2048,       /* a power of two */
    MAX_USED = 1024,    /* half of the slots, so that a search ends soon */
    MAX_ALIGNMENT = 256 /* bytes; no kernel asks for more */
};

/* Everything that the choice of an algorithm depends on; compared byte by byte, so there is no padding. */
typedef struct {
    int64_t m, n, k;
    int32_t dtype, d_dtype, epilogue;
    uint16_t align_a, align_b, align_d, align_bias, align_aux;
    uint8_t transpose_a, transpose_b, tf32, accumulate, deterministic;
    uint8_t unused[5];
} product_key;
_Static_assert(sizeof(product_key) == 56, "product_key has padding");

typedef struct {
    product_key key; /* m is 0 in an empty slot */
    hs_matmul_plan plan;
    hs_lt_algo algo;
    bool found;
} product;

typedef struct {
    hs_os_lock *lock; /* held from the search to the launch, because the pointers are part of the description */
    hs_lt_handle handle;
    int used;
    product slots[SLOTS];
} device_state;

static hs_os_lock *states_lock;
static _Atomic(device_state *) states[MAX_DEVICES];

/* Runs before main or at dlopen, so that the lock exists before any thread asks for it. */
__attribute__((constructor)) static void matmul_init(void) {
    states_lock = hs_os_lock_new();
}

int64_t hs_matmul_workspace(int device) {
    return (int64_t)(hs_device_properties_of(device)->capability >= 90 ? 32 : 4) << 20;
}

static hs_status fail_status(const hs_cublaslt *lt, const hs_matmul *p, hs_lt_status status) {
    return hs_fail(status == HS_LT_STATUS_ALLOC_FAILED ? HS_OUT_OF_MEMORY : HS_FAILURE,
                   "%s: cuBLASLt on m = %lld, n = %lld, k = %lld in %s: %s", p->op, (long long)p->m, (long long)p->n,
                   (long long)p->k, hs_dtype_name(p->dtype), lt->status_text(status));
}

/* ---- what a device keeps ---- */
/* Creating a handle waits for no stream; what it may allocate is allowed even while a graph is recorded, because the
 * thread's capture mode is relaxed meanwhile. */
static hs_lt_status create_handle(const hs_cublaslt *lt, hs_lt_handle *handle) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    const hs_lt_status status = lt->create(handle);
    cudaThreadExchangeStreamCaptureMode(&mode);
    return status;
}

static hs_status state_of(const hs_cublaslt *lt, const hs_matmul *p, int device, device_state **state) {
    if (device < 0 || device >= MAX_DEVICES)
        return hs_fail(HS_FAILURE, "%s: the device is cuda:%d, the highest supported is cuda:%d", p->op, device,
                       MAX_DEVICES - 1);
    *state = atomic_load_explicit(&states[device], memory_order_acquire);
    if (*state) return HS_OK;
    hs_status result = HS_OK;
    hs_os_lock_take(states_lock);
    *state = states[device];
    if (!*state) {
        device_state *s = calloc(1, sizeof *s);
        if (s) s->lock = hs_os_lock_new();
        const hs_lt_status status = s && s->lock ? create_handle(lt, &s->handle) : HS_LT_STATUS_ALLOC_FAILED;
        if (status == HS_LT_STATUS_SUCCESS) {
            atomic_store_explicit(&states[device], s, memory_order_release);
            *state = s;
        } else {
            free(s);
            result = fail_status(lt, p, status);
        }
    }
    hs_os_lock_release(states_lock);
    return result;
}

static uint16_t alignment_of(const void *pointer) {
    const uintptr_t lowest = (uintptr_t)pointer & -(uintptr_t)pointer;
    return lowest && lowest < MAX_ALIGNMENT ? (uint16_t)lowest : MAX_ALIGNMENT;
}

static product_key key_of(const hs_matmul *p, bool deterministic) {
    return (product_key){
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .dtype = p->dtype,
        .d_dtype = p->d_dtype,
        .epilogue = p->epilogue,
        .align_a = alignment_of(p->a),
        .align_b = alignment_of(p->b),
        .align_d = alignment_of(p->d),
        .align_bias = alignment_of(p->bias),
        .align_aux = alignment_of(p->aux),
        .transpose_a = p->transpose_a,
        .transpose_b = p->transpose_b,
        .tf32 = p->tf32,
        .accumulate = p->accumulate,
        .deterministic = deterministic,
    };
}

/* The slot of key, or the empty one where it belongs. */
static product *slot_of(device_state *s, const product_key *key) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    const unsigned char *bytes = (const unsigned char *)key;
    for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    product *slot = &s->slots[hash % SLOTS];
    while (slot->key.m && memcmp(&slot->key, key, sizeof *key))
        slot = slot == &s->slots[SLOTS - 1] ? s->slots : slot + 1;
    return slot;
}

/* ---- the choice of an algorithm ---- */
/* Partial sums of a product that is split along k are kept in float32 and added in a fixed order: the schemes that add
 * them in D's type would round more than once. */
static hs_lt_status ask(const hs_cublaslt *lt, device_state *s, const product_key *key, const hs_matmul_plan *plan,
                        int device, hs_lt_candidate *candidates, int *count) {
    const uint64_t workspace = (uint64_t)hs_matmul_workspace(device);
    const uint32_t reduction = HS_LT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t a = key->align_a, b = key->align_b, d = key->align_d;
    hs_lt_pref pref = NULL;
    hs_lt_status status = lt->pref_create(&pref);
    if (status) return status;
    status = lt->pref_set(pref, HS_LT_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    if (!status) status = lt->pref_set(pref, HS_LT_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction);
    if (!status) status = lt->pref_set(pref, HS_LT_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a);
    if (!status) status = lt->pref_set(pref, HS_LT_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b);
    if (!status) status = lt->pref_set(pref, HS_LT_PREF_MIN_ALIGNMENT_C_BYTES, &d, sizeof d);
    if (!status) status = lt->pref_set(pref, HS_LT_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof d);
    int returned = 0;
    if (!status)
        status = lt->heuristic(s->handle, plan->desc, plan->a, plan->b, plan->d, plan->d, pref, HS_MATMUL_CANDIDATES,
                               candidates, &returned);
    lt->pref_destroy(pref);
    *count = 0;
    for (int i = 0; !status && i < returned; i++)
        if (candidates[i].state == HS_LT_STATUS_SUCCESS) candidates[(*count)++] = candidates[i];
    return status;
}

/* How the library says that it has no kernel, as opposed to trouble. */
static bool is_refusal(hs_lt_status status) {
    return status == HS_LT_STATUS_NOT_SUPPORTED || status == HS_LT_STATUS_INVALID_VALUE;
}

static bool may_time(const hs_ctx *ctx) {
    const char *tune = getenv("HALFSTEP_TUNE");
    return !ctx->deterministic && !(tune && strcmp(tune, "0") == 0) && !hs_device_is_capturing(ctx->stream);
}

/* Describes p and chooses its algorithm. timed is false where there is no room to remember the result of a timing. */
static hs_lt_status choose(const hs_cublaslt *lt, device_state *s, const hs_ctx *ctx, const hs_matmul *p,
                           const product_key *key, bool timed, product *made) {
    hs_lt_candidate candidates[HS_MATMUL_CANDIDATES];
    int count = 0, best = 0;
    *made = (product){.key = *key};
    hs_lt_status status = hs_matmul_plan_make(lt, p, &made->plan);
    if (!status) status = ask(lt, s, key, &made->plan, ctx->device.index, candidates, &count);
    if (is_refusal(status) && p->epilogue != HS_LT_EPILOGUE_DEFAULT) status = HS_LT_STATUS_SUCCESS;
    if (status) {
        hs_matmul_plan_free(lt, &made->plan);
        return status;
    }
    if (count > 1 && timed && may_time(ctx))
        best =
            hs_matmul_fastest(lt, s->handle, &made->plan, p, candidates, count, hs_matmul_workspace(ctx->device.index));
    made->found = count > 0;
    if (made->found) made->algo = candidates[best].algo;
    return status;
}

hs_status hs_matmul_run(const hs_ctx *ctx, const hs_matmul *p, bool *found) {
    const hs_cublaslt *lt = hs_library_cublaslt(p->op);
    if (!lt) return HS_FAILURE;
    device_state *s;
    HS_TRY(state_of(lt, p, ctx->device.index, &s));
    const product_key key = key_of(p, ctx->deterministic);

    hs_os_lock_take(s->lock);
    product passing = {0};
    product *chosen = slot_of(s, &key);
    hs_lt_status status = HS_LT_STATUS_SUCCESS;
    if (!chosen->key.m) {
        const bool room = s->used < MAX_USED;
        status = choose(lt, s, ctx, p, &key, room, &passing);
        if (!status && room) {
            *chosen = passing;
            s->used++;
        } else {
            chosen = &passing;
        }
    }
    if (!status && chosen->found) {
        status = hs_matmul_plan_launch(lt, s->handle, &chosen->plan, p, &chosen->algo, ctx->workspace,
                                       hs_matmul_workspace(ctx->device.index), ctx->stream);
        if (is_refusal(status) && p->epilogue != HS_LT_EPILOGUE_DEFAULT) {
            chosen->found = false;
            status = HS_LT_STATUS_SUCCESS;
        }
    }
    *found = chosen->found;
    if (chosen == &passing) hs_matmul_plan_free(lt, &passing.plan);
    hs_os_lock_release(s->lock);

    if (!status && !*found && p->epilogue == HS_LT_EPILOGUE_DEFAULT) status = HS_LT_STATUS_NOT_SUPPORTED;
    return status ? fail_status(lt, p, status) : HS_OK;
}
