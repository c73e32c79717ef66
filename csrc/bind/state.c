/* state.c - what Python told us, and how long it lives: as long as the module or a function of it. */
#include "bind.h"

bind_state *bind_state_new(void) {
    bind_state *state = PyMem_Calloc(1, sizeof *state);
    if (state) state->references = 1;
    return state;
}

void bind_state_release(bind_state *state) {
    if (!state || --state->references) return;
    Py_XDECREF((PyObject *)state->tensor);
    Py_XDECREF((PyObject *)state->parameter);
    Py_XDECREF(state->to_dlpack);
    Py_XDECREF(state->current_stream);
    Py_XDECREF(state->out_of_memory);
    Py_XDECREF(state->is_deterministic);
    Py_XDECREF(state->is_neg);
    Py_XDECREF(state->tensor_like);
    Py_XDECREF(state->dense);
    Py_XDECREF(state->empty_like);
    Py_XDECREF(state->gpu_workspace);
    Py_XDECREF(state->array_stream);
    PyMem_Free(state);
}
