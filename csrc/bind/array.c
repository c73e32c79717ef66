/* array.c - torch tensors, NumPy arrays and whatever speaks DLPack to hs_tensor. */
#include <string.h>

#include "bind.h"

bool bind_hold(bind_holds *holds, PyObject *object) {
    if (!object) return false;
    if (holds->count == (int)(sizeof holds->objects / sizeof *holds->objects)) {
        Py_DECREF(object);
        PyErr_SetString(PyExc_RuntimeError, "too many temporary objects in one call");
        return false;
    }
    holds->objects[holds->count++] = object;
    return true;
}

void bind_release(bind_holds *holds) {
    while (holds->count) Py_DECREF(holds->objects[--holds->count]);
}

static int dtype_of(dl_dtype d) {
    if (d.lanes != 1) return HS_NONE;
    switch (d.code << 8 | d.bits) {
    case DL_FLOAT << 8 | 32:
        return HS_F32;
    case DL_FLOAT << 8 | 16:
        return HS_F16;
    case DL_BFLOAT << 8 | 16:
        return HS_BF16;
    case DL_FLOAT << 8 | 64:
        return HS_F64;
    case DL_INT << 8 | 64:
        return HS_I64;
    case DL_INT << 8 | 32:
        return HS_I32;
    case DL_UINT << 8 | 8:
        return HS_U8;
    case DL_BOOL << 8 | 8:
        return HS_BOOL;
    default:
        return HS_NONE;
    }
}

int bind_tensor_from_dlpack(const bind_place *place, const dl_tensor *from, hs_tensor *out) {
    if (from->ndim > HS_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s: %s has %d axes, at most %d are supported", place->op, place->name,
                     (int)from->ndim, HS_MAX_DIMS);
        return -1;
    }
    out->dtype = dtype_of(from->dtype);
    if (out->dtype == HS_NONE) {
        PyErr_Format(PyExc_TypeError, "%s: %s has a dtype that is not supported (DLPack code %d, %d bits)", place->op,
                     place->name, from->dtype.code, from->dtype.bits);
        return -1;
    }
    switch (from->device.type) {
    case DL_CPU:
    case DL_CUDA_HOST:
        out->device = (hs_device){HS_CPU, 0};
        break;
    case DL_CUDA:
    case DL_CUDA_MANAGED:
        out->device = (hs_device){HS_CUDA, from->device.id};
        break;
    default:
        PyErr_Format(PyExc_TypeError, "%s: %s is on a device that is neither the CPU nor CUDA (DLPack device %d)",
                     place->op, place->name, (int)from->device.type);
        return -1;
    }
    out->ndim = from->ndim;
    int64_t expected = 1, elements = 1;
    for (int i = from->ndim - 1; i >= 0; i--) {
        out->shape[i] = from->shape[i];
        out->stride[i] = from->strides ? from->strides[i] : expected;
        expected *= from->shape[i];
        elements *= from->shape[i];
    }
    out->data = from->data ? (char *)from->data + from->byte_offset : NULL;
    if (!out->data && elements) {
        PyErr_Format(PyExc_TypeError,
                     "%s: %s has no data: a fake, functional or wrapper tensor, a DTensor, or freed storage", place->op,
                     place->name);
        return -1;
    }
    return 0;
}

/* Puts "op: argument" before what the producer said, and makes it a TypeError. */
static int producer_error(const bind_place *place) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyErr_Format(PyExc_TypeError, "%s: %s cannot be read: %S", place->op, place->name, value ? value : Py_None);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return -1;
}

/* Steals the capsule, which is NULL where the producer failed. It keeps the memory alive and is not consumed: its
 * destructor calls the producer's deleter. */
static int tensor_from_capsule(const bind_place *place, PyObject *capsule, hs_tensor *out, bind_holds *holds) {
    if (!capsule) return producer_error(place);
    if (!bind_hold(holds, capsule)) return -1;
    const dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    return managed ? bind_tensor_from_dlpack(place, &managed->tensor, out) : producer_error(place);
}

/* torch below 2.10, by its own function in place of __dlpack__: that one orders streams, which the call has no use for
 * as it runs on the stream that torch works on, and in some versions refuses a device that is not the current one. */
static int tensor_from_old_torch(const bind_place *place, PyObject *object, hs_tensor *out, bind_holds *holds) {
    PyObject *detached = PyObject_CallMethod(object, "detach", NULL);
    PyObject *capsule = detached ? PyObject_CallFunctionObjArgs(place->state->to_dlpack, detached, NULL) : NULL;
    Py_XDECREF(detached);
    return tensor_from_capsule(place, capsule, out, holds);
}

static int call_for_stream(PyObject *function, PyObject *argument, void **stream) {
    PyObject *number = argument ? PyObject_CallFunctionObjArgs(function, argument, NULL) : NULL;
    if (!number) return -1;
    *stream = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

static int foreign_stream(bind_state *state, PyObject *object, bind_holds *holds) {
    if (holds->has_stream) return 0;
    holds->has_stream = true;
    holds->foreign = object;
    return state->array_stream ? call_for_stream(state->array_stream, object, &holds->stream) : 0;
}

/* CuPy, JAX and others. On CUDA the producer orders its work before the call's stream; to DLPack the legacy default
 * stream is 1. */
static int tensor_from_protocol(const bind_place *place, PyObject *object, hs_tensor *out, bind_holds *holds) {
    PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    if (!device) return producer_error(place);
    int type = 0, id = 0;
    const int parsed = PyArg_ParseTuple(device, "ii", &type, &id);
    Py_DECREF(device);
    if (!parsed) return producer_error(place);
    if (type == DL_CUDA && foreign_stream(place->state, object, holds) < 0) return producer_error(place);
    const unsigned long long stream = holds->stream ? (unsigned long long)(uintptr_t)holds->stream : 1;
    PyObject *keywords = type == DL_CUDA ? Py_BuildValue("{s:K}", "stream", stream) : PyDict_New();
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__"), *empty = PyTuple_New(0);
    PyObject *capsule = method && empty && keywords ? PyObject_Call(method, empty, keywords) : NULL;
    Py_XDECREF(method);
    Py_XDECREF(empty);
    Py_XDECREF(keywords);
    return tensor_from_capsule(place, capsule, out, holds);
}

int bind_tensor(const bind_place *place, PyObject *object, hs_tensor *out, bind_holds *holds) {
    bind_state *state = place->state;
    PyTypeObject *type = Py_TYPE(object);
    if (state->tensor && (type == state->tensor || type == state->parameter)) {
        if (!state->exchange) return tensor_from_old_torch(place, object, out, holds);
        dl_tensor borrowed;
        if (state->exchange->borrow(object, &borrowed) < 0) return producer_error(place);
        return bind_tensor_from_dlpack(place, &borrowed, out);
    }
    if (bind_is_numpy(object)) return bind_tensor_from_numpy(place, object, out);
    if (state->tensor && PyType_IsSubtype(type, state->tensor)) {
        PyErr_Format(PyExc_TypeError,
                     "%s: %s is a %S, a subclass of torch.Tensor that may not own plain memory; "
                     "pass %s.as_subclass(torch.Tensor) if it does",
                     place->op, place->name, (PyObject *)type, place->name);
        return -1;
    }
    if (PyObject_HasAttrString(object, "__dlpack__") && PyObject_HasAttrString(object, "__dlpack_device__"))
        return tensor_from_protocol(place, object, out, holds);
    PyErr_Format(PyExc_TypeError, "%s: %s is a %S, expected a tensor or an array", place->op, place->name,
                 (PyObject *)type);
    return -1;
}

/* Whether object is a torch tensor like conj().imag. A parameter owns its values as they are. */
static int is_negated(const bind_state *state, PyObject *object) {
    if (!state->is_neg || Py_TYPE(object) != state->tensor) return 0;
    PyObject *answer = PyObject_CallFunctionObjArgs(state->is_neg, object, NULL);
    if (!answer) return -1;
    const int negated = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return negated;
}

int bind_dense_tensor(const bind_place *place, PyObject **object, hs_tensor *out, bind_holds *holds) {
    const int negated = is_negated(place->state, *object);
    if (negated < 0) return producer_error(place);
    if (!negated) {
        if (bind_tensor(place, *object, out, holds) < 0) return -1;
        if (hs_is_contiguous(out) || !place->state->dense) return 0;
    }
    PyObject *copy = PyObject_CallFunctionObjArgs(place->state->dense, *object, NULL);
    if (!bind_hold(holds, copy)) return -1;
    *object = copy;
    return bind_tensor(place, copy, out, holds);
}

PyObject *bind_empty_like(const bind_place *place, PyObject *model) {
    const bind_state *state = place->state;
    PyTypeObject *type = Py_TYPE(model);
    const bool tensor = state->tensor && (type == state->tensor || type == state->parameter);
    PyObject *make = tensor ? state->tensor_like : state->empty_like;
    if (!make)
        return PyErr_Format(PyExc_RuntimeError, "%s: nothing is registered that allocates %s", place->op, place->name);
    return PyObject_CallFunctionObjArgs(make, model, NULL);
}

int bind_stream(bind_state *state, hs_device device, bind_holds *holds) {
    if (device.kind == HS_CPU || holds->has_stream) return 0;
    holds->has_stream = true;
    if (state->exchange) return state->exchange->current_stream(DL_CUDA, device.index, &holds->stream);
    if (!state->current_stream) return 0;
    PyObject *index = PyLong_FromLong(device.index);
    const int status = call_for_stream(state->current_stream, index, &holds->stream);
    Py_XDECREF(index);
    return status;
}
