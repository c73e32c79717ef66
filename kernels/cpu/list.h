/* list.h - a list of tensors as one long row of elements, so that threads share many small tensors and one large one
 * alike. */
#ifndef HS_CPU_LIST_H
#define HS_CPU_LIST_H
#include <stddef.h>

#include "../base/tensor.h"

/* Elements [from, to) of one tensor of a list. Zeroed, it stands before the first tensor. */
typedef struct {
    int64_t item, from, to;
    int64_t next, next_begin; /* the tensor to look at next, and the long row's number of its first element */
} hs_piece;

static inline int64_t hs_list_numel(const hs_tensor_list *list) {
    int64_t n = 0;
    for (int64_t i = 0; i < list->count; i++) n += hs_numel(&list->items[i]);
    return n;
}

/* Moves piece to the next tensor that has elements in [begin, end) of the long row; false after the last. */
static inline bool hs_next_piece(const hs_tensor_list *list, int64_t begin, int64_t end, hs_piece *piece) {
    while (piece->next < list->count && piece->next_begin < end) {
        const int64_t first = piece->next_begin, n = hs_numel(&list->items[piece->next]);
        piece->item = piece->next++;
        piece->next_begin += n;
        piece->from = begin > first ? begin - first : 0;
        piece->to = end - first < n ? end - first : n;
        if (piece->from < piece->to) return true;
    }
    return false;
}

/* The address of element i of a tensor; NULL when the tensor is absent. */
static inline void *hs_element(const hs_tensor *t, int64_t i) {
    return hs_present(t) ? (char *)t->data + i * hs_dtype_size(t->dtype) : NULL;
}
#endif
