/* numpy.c - NumPy arrays to hs_tensor. bfloat16 is ml_dtypes' user-defined dtype, known by its name. */
#define NPY_NO_DEPRECATED_API NPY_1_25_API_VERSION
#define NPY_TARGET_VERSION NPY_1_25_API_VERSION
#include "bind.h"

#include <numpy/arrayobject.h>

/* Imported with the first array that is read, so that import halfstep stays as cheap as import numpy. */
static bool numpy_ready(void) {
    return PyArray_API || PyArray_ImportNumPyAPI() == 0;
}

bool bind_is_numpy(PyObject *object) {
    if (numpy_ready()) return PyArray_Check(object);
    PyErr_Clear();
    return false;
}

static int dtype_of(PyArrayObject *array) {
    switch (PyArray_TYPE(array)) {
    case NPY_FLOAT:
        return HS_F32;
    case NPY_HALF:
        return HS_F16;
    case NPY_DOUBLE:
        return HS_F64;
    case NPY_UINT8:
        return HS_U8;
    case NPY_BOOL:
        return HS_BOOL;
    default:
        break;
    }
    if (PyTypeNum_ISSIGNED(PyArray_TYPE(array))) {
        if (PyArray_ITEMSIZE(array) == 8) return HS_I64;
        if (PyArray_ITEMSIZE(array) == 4) return HS_I32;
    }
    if (!PyTypeNum_ISUSERDEF(PyArray_TYPE(array))) return HS_NONE;
    int dtype = HS_NONE;
    PyObject *name = PyObject_GetAttrString((PyObject *)PyArray_DESCR(array), "name");
    if (name && PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0) dtype = HS_BF16;
    Py_XDECREF(name);
    PyErr_Clear();
    return dtype;
}

int bind_tensor_from_numpy(const bind_place *place, PyObject *object, hs_tensor *out) {
    PyArrayObject *array = (PyArrayObject *)object;
    const int ndim = PyArray_NDIM(array);
    if (!PyArray_CheckExact(object) && PyObject_HasAttrString(object, "mask")) {
        PyErr_Format(PyExc_TypeError, "%s: %s is a masked array, whose mask would be ignored; pass %s.filled(value)",
                     place->op, place->name, place->name);
        return -1;
    }
    if (ndim > HS_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s: %s has %d axes, at most %d are supported", place->op, place->name, ndim,
                     HS_MAX_DIMS);
        return -1;
    }
    out->dtype = dtype_of(array);
    if (out->dtype == HS_NONE || !PyArray_ISNOTSWAPPED(array)) {
        PyErr_Format(PyExc_TypeError, "%s: %s has dtype %R, which is not supported", place->op, place->name,
                     (PyObject *)PyArray_DESCR(array));
        return -1;
    }
    if (!PyArray_ISALIGNED(array) || (place->written && !PyArray_ISWRITEABLE(array))) {
        PyErr_Format(PyExc_ValueError, "%s: %s is %s", place->op, place->name,
                     PyArray_ISALIGNED(array) ? "read-only and would be written" : "not aligned to its dtype");
        return -1;
    }
    const int64_t size = hs_dtype_size(out->dtype);
    out->ndim = ndim;
    out->device = (hs_device){HS_CPU, 0};
    out->data = PyArray_DATA(array);
    for (int i = 0; i < ndim; i++) {
        out->shape[i] = PyArray_DIM(array, i);
        const int64_t bytes = PyArray_STRIDE(array, i);
        /* A field of a record array: no whole number of elements apart, and so never contiguous. */
        out->stride[i] = bytes % size ? INT64_MIN : bytes / size;
    }
    return 0;
}
