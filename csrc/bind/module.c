/* module.c - halfstep._C: the op functions, and what Python tells the C side once. */
#include <string.h>

#include "../../kernels/base/library.h"
#include "../../kernels/base/threads.h"
#include "../../kernels/cpu/isa.h"
#include "bind.h"
#ifdef HS_WITH_CUDA
#include "../../kernels/cuda/device.h"
#endif

typedef struct {
    bind_state *bind;
} module_state;

static bind_state *state_of(PyObject *module) {
    return ((module_state *)PyModule_GetState(module))->bind;
}

static void replace(PyObject **slot, PyObject *value) {
    PyObject *old = *slot;
    *slot = value == Py_None ? NULL : Py_NewRef(value);
    Py_XDECREF(old);
}

static const dl_exchange *exchange_from(PyObject *capsule) {
    const dl_exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (exchange && exchange->header.version.major != 1) exchange = (const dl_exchange *)exchange->header.previous;
    return exchange && exchange->borrow ? exchange : NULL;
}

static PyObject *torch_register(PyObject *module, PyObject *args) {
    PyObject *tensor, *parameter, *capsule, *to_dlpack, *stream, *memory, *deterministic, *is_neg, *like;
    if (!PyArg_ParseTuple(args, "OOOOOOOOO", &tensor, &parameter, &capsule, &to_dlpack, &stream, &memory,
                          &deterministic, &is_neg, &like))
        return NULL;
    if (!PyType_Check(tensor) || !PyType_Check(parameter))
        return PyErr_Format(PyExc_TypeError, "torch_register: expected two types, got %R and %R", tensor, parameter);
    const dl_exchange *exchange = capsule == Py_None ? NULL : exchange_from(capsule);
    if (PyErr_Occurred()) return NULL;
    if (!exchange && !PyCallable_Check(to_dlpack))
        return PyErr_Format(PyExc_TypeError, "torch_register: to_dlpack is %R, expected a function", to_dlpack);
    bind_state *state = state_of(module);
    replace((PyObject **)&state->tensor, tensor);
    replace((PyObject **)&state->parameter, parameter);
    replace(&state->to_dlpack, to_dlpack);
    replace(&state->current_stream, stream);
    replace(&state->out_of_memory, memory);
    replace(&state->is_deterministic, deterministic);
    replace(&state->is_neg, is_neg);
    replace(&state->tensor_like, like);
    state->exchange = exchange;
    return PyBool_FromLong(exchange != NULL);
}

static PyObject *arrays_register(PyObject *module, PyObject *args) {
    PyObject *dense, *empty_like, *gpu_workspace, *array_stream;
    if (!PyArg_ParseTuple(args, "OOOO", &dense, &empty_like, &gpu_workspace, &array_stream)) return NULL;
    bind_state *state = state_of(module);
    replace(&state->dense, dense);
    replace(&state->empty_like, empty_like);
    replace(&state->gpu_workspace, gpu_workspace);
    replace(&state->array_stream, array_stream);
    Py_RETURN_NONE;
}

static PyObject *library_paths(PyObject *module, PyObject *folders) {
    (void)module;
    const char *paths[32];
    PyObject *held[32] = {0};
    int count = 0;
    const Py_ssize_t size = PySequence_Size(folders);
    if (size < 0) return NULL;
    if (size > 32) return PyErr_Format(PyExc_ValueError, "library_paths: %zd folders, at most 32 are supported", size);
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *item = PySequence_GetItem(folders, i);
        PyObject *bytes = item ? PyUnicode_EncodeFSDefault(item) : NULL;
        Py_XDECREF(item);
        if (!bytes) break;
        held[count] = bytes;
        paths[count++] = PyBytes_AsString(bytes);
    }
    if (!PyErr_Occurred() && hs_library_paths_set(paths, count) != HS_OK)
        PyErr_SetString(PyExc_MemoryError, hs_error());
    for (int i = 0; i < count; i++) Py_DECREF(held[i]);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *thread_count(PyObject *module, PyObject *args) {
    (void)module;
    int count = 0;
    if (!PyArg_ParseTuple(args, "|i", &count)) return NULL;
    if (count < 0) return PyErr_Format(PyExc_ValueError, "thread_count: %d threads, expected 1 or more", count);
    if (count) hs_thread_count_set(count);
    return PyLong_FromLong(hs_thread_count());
}

static PyObject *build(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
#ifdef HS_WITH_CUDA
    const int cuda = 1;
#else
    const int cuda = 0;
#endif
    return Py_BuildValue("{s:O,s:s,s:s,s:s}", "cuda", cuda ? Py_True : Py_False, "cuda_architectures", HS_CUDA_ARCHS,
                         "cpu_instruction_set", hs_cpu_isa(), "compiler", __VERSION__);
}

static PyObject *gpu_count(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
#ifdef HS_WITH_CUDA
    return PyLong_FromLong(hs_device_count());
#else
    return PyLong_FromLong(0);
#endif
}

static PyMethodDef methods[] = {
    {"torch_register", torch_register, METH_VARARGS,
     "torch_register(Tensor, Parameter, exchange_capsule, to_dlpack, current_stream, OutOfMemoryError,"
     " is_deterministic, is_neg, empty_like) -> bool: whether the exchange API is in use. Without a capsule there must"
     " be to_dlpack; what stands behind it may be None."},
    {"arrays_register", arrays_register, METH_VARARGS,
     "arrays_register(dense, empty_like, gpu_workspace, array_stream): dense(array) and empty_like(array) -> array,"
     " gpu_workspace(bytes, device_index, like) -> array, for torch below 2.10 and CuPy, array_stream(array) -> int"},
    {"library_paths", library_paths, METH_O, "library_paths(folders): where to look for cuBLASLt and its like"},
    {"thread_count", thread_count, METH_VARARGS, "thread_count(count=0) -> int: sets it where count is not 0"},
    {"build", build, METH_NOARGS, "build() -> dict: how this module was built"},
    {"gpu_count", gpu_count, METH_NOARGS, "gpu_count() -> int: 0 without a driver, a GPU or the CUDA kernels"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    state->bind = bind_state_new();
    if (!state->bind) {
        PyErr_NoMemory();
        return -1;
    }
    return bind_add_ops(module, state->bind);
}

static void module_free(void *module) {
    module_state *state = PyModule_GetState(module);
    if (state) bind_state_release(state->bind);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "halfstep._C",
    "The C side of halfstep. Not a public interface.",
    sizeof(module_state),
    methods,
    slots,
    NULL,
    NULL,
    module_free,
};

PyMODINIT_FUNC PyInit__C(void);
PyMODINIT_FUNC PyInit__C(void) {
    return PyModuleDef_Init(&definition);
}
