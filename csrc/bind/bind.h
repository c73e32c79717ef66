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

/* ---- what Python told us, once ---- */
/* One per module object; the op functions keep it alive. Filled by torch_register and arrays_register, read under the
 * GIL. */
typedef struct {
    Py_ssize_t references;
    PyTypeObject *tensor, *parameter; /* NULL until torch is there */
    const dl_exchange *exchange;      /* NULL for torch below 2.10 */
    PyObject *to_dlpack;              /* callable(tensor) -> capsule, where exchange is NULL */
    PyObject *current_stream;         /* callable(device index) -> int, where exchange is NULL */
    PyObject *out_of_memory;          /* torch.OutOfMemoryError */
    PyObject *is_deterministic;       /* callable() -> bool */
    PyObject *is_neg;                 /* callable(tensor) -> bool: whether its memory holds the negated values */
    PyObject *tensor_like;            /* callable(tensor) -> a new tensor like it */
    PyObject *dense;                  /* callable(array) -> a row-major array that holds the values it shows */
    PyObject *empty_like;             /* callable(array) -> a new array like it, for any kind */
    PyObject *gpu_workspace;          /* callable(bytes, device index, like) -> array, where exchange cannot allocate */
    PyObject *array_stream;           /* callable(array) -> int: the CUDA stream that its library works on */
} bind_state;

bind_state *bind_state_new(void);
void bind_state_release(bind_state *state);

/* ---- arrays ---- */
/* What must live until the call is over: capsules, copies, lists. The first array on a GPU says on which stream the
 * call runs: the one that its library works on. */
typedef struct {
    void *stream;
    PyObject *foreign; /* that array where it is not torch's; borrowed */
    bool has_stream;
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
/* *object is replaced by a copy, which holds keeps, where it is not row-major or shows its memory negated. */
int bind_dense_tensor(const bind_place *place, PyObject **object, hs_tensor *out, bind_holds *holds);
bool bind_is_numpy(PyObject *object);

/* Sets holds->stream for a tensor on device, where it is not set yet. */
int bind_stream(bind_state *state, hs_device device, bind_holds *holds);

/* An uninitialised array of model's kind, shape and dtype; model is row-major. NULL with an error set. */
PyObject *bind_empty_like(const bind_place *place, PyObject *model);

/* ---- ops ---- */
typedef enum { BIND_INPUT, BIND_OUTPUT, BIND_INPUT_LIST, BIND_OUTPUT_LIST, BIND_INTEGER, BIND_NUMBER } bind_kind;

typedef struct {
    const char *name;
    uint16_t offset; /* in the argument struct */
    uint8_t kind;    /* bind_kind */
    bool optional;   /* None is accepted */
    uint16_t model;  /* of an output: the offset of the input it is made like where ... is given, or BIND_NO_MODEL */
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

enum { BIND_MAX_ARGS_SIZE = 2048, BIND_MAX_FIELDS = 32, BIND_MAX_OUTPUTS = 4, BIND_NO_MODEL = UINT16_MAX };

extern const bind_op bind_ops[];
extern const int bind_op_count;

/* Adds one function per op and calls() to the module. A function takes the fields' values in order. An output is an
 * array to write into or, where it has a model, ... for a new one. With a ... the call returns the outputs: the one, or
 * a tuple of all in order; else None. */
int bind_add_ops(PyObject *module, bind_state *state);
#endif
