/* The one place that fills an rf_error. */
#include <stdarg.h>
#include <stdio.h>

#include "core/group.h"

rf_result rfi_fail(rf_error *err, rf_result code, int rank, const char *step, const char *format,
                   ...)
{
    if (!err)
        return code;
    /* Formatted aside first: an argument may point into *err itself. */
    char text[RF_ERROR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    err->code = code;
    err->rank = rank;
    err->step = step;
    snprintf(err->text, sizeof err->text, "%s", text);
    return code;
}
