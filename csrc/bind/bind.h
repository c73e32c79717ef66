/* bind.h - Python objects to C arguments and back. No algorithm lives here. */
#ifndef HS_BIND_H
#define HS_BIND_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "../../kernels/base/status.h"
#include "../../kernels/base/tensor.h"
#include "dlpack.h"

/* ---- what torch told us, once ---- */
/* One per module object; the op functions keep it alive. Filled by torch_register, read under the GIL. */
typedef struct {
    Py_ssize_t references;
    PyTypeObject *tensor, *parameter; /* NULL until torch is there */
    const dl_exchange *exchange;      /* NULL for torch below 2.10 */
    PyObject *current_stream;         /* callable(device index) -> int, where exchange is NULL */
    PyObject *out_of_memory;          /* torch.OutOfMemoryError */
    PyObject *is_deterministic;       /* callable() -> bool */
    PyObject *gpu_workspace;          /* callable(bytes, device index) -> array, where exchange cannot allocate */
} bind_state;

bind_state *bind_state_new(void);
void bind_state_release(bind_state *state);

/* ---- arrays ---- */
/* What must live until the call is over: capsules, copies, lists. */
typedef struct {
    int count;
    PyObject *objects[64]; /* the first count of them */
} bind_holds;

bool bind_hold(bind_holds *holds, PyObject *object); /* steals the reference; false with an error set when full */
void bind_release(bind_holds *holds);

/* Where an array is being read for: the names go into errors. */
typedef struct {
    bind_state *state;
    const char *op, *name;
    bool written;
} bind_place;

/* Each returns 0, or -1 with an error set that names op and argument. */
int bind_tensor(const bind_place *place, PyObject *object, hs_tensor *out, bind_holds *holds);
int bind_tensor_from_dlpack(const bind_place *place, const dl_tensor *from, hs_tensor *out);
int bind_tensor_from_numpy(const bind_place *place, PyObject *array, hs_tensor *out);
bool bind_is_numpy(PyObject *object);

/* The stream on which the caller works. */
int bind_current_stream(bind_state *state, hs_device device, void **stream);

/* ---- ops ---- */
typedef enum { BIND_INPUT, BIND_OUTPUT, BIND_INPUT_LIST, BIND_OUTPUT_LIST, BIND_INTEGER, BIND_NUMBER } bind_kind;

typedef struct {
    const char *name;
    uint16_t offset; /* in the argument struct */
    uint8_t kind;    /* bind_kind */
    bool optional;   /* None is accepted */
} bind_field;

typedef struct {
    const char *function; /* the name in _C and in the call counters */
    const char *op;       /* the name in errors */
    const bind_field *fields;
    int field_count;
    size_t args_size;
    hs_status (*run)(const hs_ctx *ctx, const void *args);
    int64_t (*workspace)(const hs_ctx *ctx, const void *args); /* NULL: none */
    bool asks_deterministic;
} bind_op;

enum { BIND_MAX_ARGS_SIZE = 2048 };

extern const bind_op bind_ops[];
extern const int bind_op_count;

/* Adds one function per op and calls() to the module. */
int bind_add_ops(PyObject *module, bind_state *state);
#endif
