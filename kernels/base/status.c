#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[512];

hs_status hs_fail(hs_status code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return code;
}

const char *hs_error(void) {
    return sentence;
}
