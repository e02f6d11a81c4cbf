/* Writing JSON into a caller's buffer, counting what does not fit, as snprintf does. */
#ifndef RANKFOLD_JSON_H
#define RANKFOLD_JSON_H

#include <stddef.h>

typedef struct rfi_json {
    char *buf;
    size_t size, length; /* length may exceed size */
    int comma;           /* the next value or key needs one before it */
} rfi_json;

void rfi_json_start(rfi_json *j, char *buf, size_t size);
/* Terminates what was written; returns the whole length. */
size_t rfi_json_end(rfi_json *j);

/* Opens with '{' or '[', closes with '}' or ']'. key NULL inside arrays. */
void rfi_json_open(rfi_json *j, const char *key, char bracket);
void rfi_json_close(rfi_json *j, char bracket);
/* Any bytes: control characters are escaped, what is not UTF-8 becomes U+FFFD. NULL = null. */
void rfi_json_text(rfi_json *j, const char *key, const char *value);
void rfi_json_number(rfi_json *j, const char *key, double value); /* not finite: null */
void rfi_json_integer(rfi_json *j, const char *key, long long value);
void rfi_json_bool(rfi_json *j, const char *key, int value);

#endif
