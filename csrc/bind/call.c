/* call.c - one call: read the arguments by the op's table, find device, stream and workspace, run, report. */
#include <string.h>

#include "../../kernels/base/os.h"
#include "bind.h"
#ifdef HS_WITH_CUDA
#include "../../kernels/cuda/device.h"
#endif

static const char capsule_name[] = "halfstep._C.op";

/* What a function of _C carries as its self. */
typedef struct {
    const bind_op *op;
    bind_state *state;
    PyMethodDef def;
    _Atomic uint64_t calls;
} bound_op;

typedef union {
    char bytes[BIND_MAX_ARGS_SIZE];
    double alignment;
} args_storage;

typedef struct {
    hs_ctx ctx;
    bool has_device;
    dl_managed_versioned *gpu_workspace;
    void *cpu_workspace;
    void *lists[8];
    int list_count;
    int output_count;
    bool makes; /* an output was given as ... */
    PyObject *outputs[BIND_MAX_OUTPUTS];
    PyObject *inputs[BIND_MAX_FIELDS]; /* by field: what was read */
    bind_holds holds;                  /* last: what it has room for is not zeroed */
} call;

static void set_python_error(const bind_state *state, hs_status status, hs_device device) {
    PyObject *type = PyExc_RuntimeError;
    switch (status) {
    case HS_BAD_VALUE:
        type = PyExc_ValueError;
        break;
    case HS_BAD_TYPE:
        type = PyExc_TypeError;
        break;
    case HS_OUT_OF_MEMORY:
        type = device.kind == HS_CUDA && state->out_of_memory ? state->out_of_memory : PyExc_MemoryError;
        break;
    default:
        break;
    }
    PyErr_SetString(type, hs_error());
}

static void call_end(call *c) {
    if (c->gpu_workspace) c->gpu_workspace->deleter(c->gpu_workspace);
    hs_os_free(c->cpu_workspace);
    while (c->output_count) Py_DECREF(c->outputs[--c->output_count]);
    while (c->list_count) PyMem_Free(c->lists[--c->list_count]);
    bind_release(&c->holds);
}

static int note_device(call *c, bind_state *state, const hs_tensor *t) {
    if (c->has_device) return 0;
    c->has_device = true;
    c->ctx.device = t->device;
    return bind_stream(state, t->device, &c->holds);
}

static int read_list(const bind_place *place, PyObject *object, hs_tensor_list *list, call *c) {
    if (!PyList_Check(object) && !PyTuple_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s: %s is a %S, expected a list of tensors", place->op, place->name,
                     (PyObject *)Py_TYPE(object));
        return -1;
    }
    const Py_ssize_t count = PySequence_Size(object);
    if (count <= 0) return (int)count;
    hs_tensor *items = PyMem_Calloc((size_t)count, sizeof *items);
    if (!items) {
        PyErr_NoMemory();
        return -1;
    }
    c->lists[c->list_count++] = items;
    list->items = items;
    list->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_Check(object) ? PyList_GetItem(object, i) : PyTuple_GetItem(object, i);
        if (!item) return -1;
        if (item == Py_None) continue;
        bind_holds *holds = &c->holds;
        if (holds->count > 32) { /* many tensors of a producer without the exchange API */
            PyObject *packed = PyTuple_New(holds->count);
            if (!packed) return -1;
            for (int k = 0; k < holds->count; k++) PyTuple_SetItem(packed, k, holds->objects[k]);
            holds->count = 1;
            holds->objects[0] = packed;
        }
        if (bind_tensor(place, item, &items[i], holds) < 0 || note_device(c, place->state, &items[i]) < 0) return -1;
    }
    return 0;
}

static int read_output(const bind_place *place, const bind_field *field, const bind_op *op, PyObject *object,
                       hs_tensor *out, call *c) {
    if (object == Py_Ellipsis && field->model != BIND_NO_MODEL) {
        PyObject *model = NULL;
        for (int i = 0; i < op->field_count; i++)
            if (op->fields[i].offset == field->model) model = c->inputs[i];
        if (!model) {
            PyErr_Format(PyExc_ValueError, "%s: %s is ..., but what it is made like is None", op->op, field->name);
            return -1;
        }
        object = bind_empty_like(place, model);
        if (!object) return -1;
        c->makes = true;
    } else {
        Py_INCREF(object);
    }
    c->outputs[c->output_count++] = object;
    if (object == Py_None && field->optional) return 0;
    return bind_tensor(place, object, out, &c->holds);
}

/* What the call returns; NULL with an error set. */
static PyObject *result_of(call *c) {
    if (!c->makes) return Py_NewRef(Py_None);
    if (c->output_count == 1) return Py_NewRef(c->outputs[0]);
    PyObject *outputs = PyTuple_New(c->output_count);
    for (int i = 0; outputs && i < c->output_count; i++) PyTuple_SetItem(outputs, i, Py_NewRef(c->outputs[i]));
    return outputs;
}

static int read_field(const bind_field *field, const bind_op *op, bind_state *state, PyObject *object, char *args,
                      call *c) {
    const bool written = field->kind == BIND_OUTPUT || field->kind == BIND_OUTPUT_LIST;
    const bind_place place = {state, op->op, field->name, written};
    void *target = args + field->offset;
    if (object == Py_None && field->optional && field->kind != BIND_OUTPUT) return 0;
    switch ((bind_kind)field->kind) {
    case BIND_OUTPUT:
        if (read_output(&place, field, op, object, target, c) < 0) return -1;
        return hs_present(target) ? note_device(c, state, target) : 0;
    case BIND_INPUT:
        if (bind_dense_tensor(&place, &object, target, &c->holds) < 0) return -1;
        c->inputs[field - op->fields] = object;
        return note_device(c, state, target);
    case BIND_INPUT_LIST:
    case BIND_OUTPUT_LIST:
        return read_list(&place, object, target, c);
    case BIND_INTEGER: {
        const long long value = PyLong_AsLongLong(object);
        *(int64_t *)target = value;
        if (value != -1 || !PyErr_Occurred()) return 0;
        break;
    }
    case BIND_NUMBER: {
        const double value = PyFloat_AsDouble(object);
        *(double *)target = value;
        if (value != -1.0 || !PyErr_Occurred()) return 0;
        break;
    }
    }
    PyErr_Format(PyExc_TypeError, "%s: %s is %R, expected %s", op->op, field->name, object,
                 field->kind == BIND_INTEGER ? "a 64-bit integer" : "a number");
    return -1;
}

static void set_error(void *context, const char *kind, const char *message) {
    bind_state *state = context;
    const bool memory = strstr(kind, "emory") || strstr(message, "out of memory");
    PyErr_SetString(memory && state->out_of_memory ? state->out_of_memory : PyExc_RuntimeError, message);
}

static int get_workspace(call *c, const bind_op *op, bind_state *state, const void *args) {
    const int64_t bytes = op->workspace ? op->workspace(&c->ctx, args) : 0;
    if (bytes <= 0) return 0;
    c->ctx.workspace_bytes = bytes;
    if (c->ctx.device.kind == HS_CPU) {
        c->ctx.workspace = c->cpu_workspace = hs_os_aligned_alloc(256, (size_t)bytes);
        if (!c->cpu_workspace) {
            PyErr_Format(PyExc_MemoryError, "%s: no memory for a workspace of %lld bytes", op->op, (long long)bytes);
            return -1;
        }
        return 0;
    }
    if (state->exchange && !c->holds.foreign) {
        int64_t shape = bytes;
        dl_tensor wanted = {
            .device = {DL_CUDA, c->ctx.device.index}, .ndim = 1, .dtype = {DL_UINT, 8, 1}, .shape = &shape};
        if (state->exchange->allocate(&wanted, &c->gpu_workspace, state, set_error) != 0) return -1;
        c->ctx.workspace = c->gpu_workspace->tensor.data;
        return 0;
    }
    if (!state->gpu_workspace) {
        PyErr_Format(PyExc_RuntimeError, "%s: a workspace on the GPU needs torch or CuPy", op->op);
        return -1;
    }
    PyObject *like = c->holds.foreign ? c->holds.foreign : Py_None;
    PyObject *array =
        PyObject_CallFunction(state->gpu_workspace, "LiO", (long long)bytes, (int)c->ctx.device.index, like);
    hs_tensor view;
    const bind_place place = {state, op->op, "workspace", true};
    if (!bind_hold(&c->holds, array) || bind_tensor(&place, array, &view, &c->holds) < 0) return -1;
    c->ctx.workspace = view.data;
    return 0;
}

static int ask_deterministic(call *c, bind_state *state) {
    if (!state->is_deterministic) return 0;
    PyObject *answer = PyObject_CallNoArgs(state->is_deterministic);
    if (!answer) return -1;
    c->ctx.deterministic = PyObject_IsTrue(answer) == 1;
    Py_DECREF(answer);
    return 0;
}

/* The kernel may sleep (threads) or wait for the driver's lock, so other Python threads run meanwhile. */
static hs_status run(call *c, const bind_op *op, const void *args) {
    hs_status status = HS_OK;
    Py_BEGIN_ALLOW_THREADS;
#ifdef HS_WITH_CUDA
    int previous = 0;
    if (c->ctx.device.kind == HS_CUDA) status = hs_device_enter(c->ctx.device.index, &previous);
    if (status == HS_OK) {
        status = op->run(&c->ctx, args);
        if (c->ctx.device.kind == HS_CUDA) hs_device_leave(c->ctx.device.index, previous);
    }
#else
    status = op->run(&c->ctx, args);
#endif
    Py_END_ALLOW_THREADS;
    return status;
}

static PyObject *call_op(PyObject *self, PyObject *const *objects, Py_ssize_t count) {
    bound_op *bound = PyCapsule_GetPointer(self, capsule_name);
    if (!bound) return NULL;
    const bind_op *op = bound->op;
    if (count != op->field_count)
        return PyErr_Format(PyExc_TypeError, "%s takes %d arguments, got %zd", op->function, op->field_count, count);
    args_storage args;
    call c;
    memset(&c, 0, offsetof(call, holds));
    memset(&c.holds, 0, offsetof(bind_holds, objects));
    memset(args.bytes, 0, op->args_size);
    PyObject *result = NULL;
    for (int i = 0; i < op->field_count; i++)
        if (read_field(&op->fields[i], op, bound->state, objects[i], args.bytes, &c) < 0) goto end;
    c.ctx.stream = c.holds.stream;
    if (op->asks_deterministic && ask_deterministic(&c, bound->state) < 0) goto end;
    if (get_workspace(&c, op, bound->state, args.bytes) < 0) goto end;
    const hs_status status = run(&c, op, args.bytes);
    if (status != HS_OK) {
        set_python_error(bound->state, status, c.ctx.device);
        goto end;
    }
    atomic_fetch_add_explicit(&bound->calls, 1, memory_order_relaxed);
    result = result_of(&c);
end:
    call_end(&c);
    return result;
}

/* ---- registration ---- */
static void forget(PyObject *capsule) {
    bound_op *bound = PyCapsule_GetPointer(capsule, capsule_name);
    bind_state_release(bound->state);
    PyMem_Free(bound);
}

static PyObject *calls(PyObject *self, PyObject *unused) {
    (void)unused;
    PyObject *counts = PyDict_New();
    for (Py_ssize_t i = 0; counts && i < PyTuple_Size(self); i++) {
        bound_op *bound = PyCapsule_GetPointer(PyTuple_GetItem(self, i), capsule_name);
        PyObject *count = PyLong_FromUnsignedLongLong(atomic_load(&bound->calls));
        if (!count || PyDict_SetItemString(counts, bound->op->function, count) < 0) Py_CLEAR(counts);
        Py_XDECREF(count);
    }
    return counts;
}

static PyMethodDef calls_def = {"calls", calls, METH_NOARGS, "calls() -> dict: completed calls by function"};

static int add(PyObject *module, const char *name, PyObject *value) {
    const int status = value ? PyModule_AddObjectRef(module, name, value) : -1;
    Py_XDECREF(value);
    return status;
}

int bind_add_ops(PyObject *module, bind_state *state) {
    PyObject *all = PyTuple_New(bind_op_count);
    if (!all) return -1;
    for (int i = 0; i < bind_op_count; i++) {
        bound_op *bound = PyMem_Calloc(1, sizeof *bound);
        PyObject *capsule = bound ? PyCapsule_New(bound, capsule_name, forget) : NULL;
        if (!capsule) {
            PyMem_Free(bound);
            Py_DECREF(all);
            return -1;
        }
        state->references++;
        bound->op = &bind_ops[i];
        bound->state = state;
        bound->def = (PyMethodDef){bind_ops[i].function, (PyCFunction)(void (*)(void))call_op, METH_FASTCALL, NULL};
        PyTuple_SetItem(all, i, capsule);
        if (add(module, bind_ops[i].function, PyCFunction_NewEx(&bound->def, capsule, NULL)) < 0) {
            Py_DECREF(all);
            return -1;
        }
    }
    const int status = add(module, "calls", PyCFunction_NewEx(&calls_def, all, NULL));
    Py_DECREF(all);
    return status;
}
