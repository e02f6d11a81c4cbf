#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"

static void put(rfi_json *j, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++, j->length++)
        if (j->length + 1 < j->size)
            j->buf[j->length] = bytes[i];
}

static void put_text(rfi_json *j, const char *text)
{
    put(j, text, strlen(text));
}

void rfi_json_start(rfi_json *j, char *buf, size_t size)
{
    *j = (rfi_json){.buf = buf, .size = buf ? size : 0};
}

size_t rfi_json_end(rfi_json *j)
{
    if (j->size)
        j->buf[j->length < j->size ? j->length : j->size - 1] = 0;
    return j->length;
}

/* Bytes of the UTF-8 sequence at `s`; 0 = none (overlong, surrogate, cut, beyond U+10FFFF). */
static size_t sequence(const unsigned char *s)
{
    static const struct {
        unsigned char lead_low, lead_high, second_low, second_high;
        size_t bytes;
    } forms[] = {
        {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
        {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        if (s[0] < forms[f].lead_low || s[0] > forms[f].lead_high)
            continue;
        if (s[1] < forms[f].second_low || s[1] > forms[f].second_high)
            return 0;
        for (size_t i = 2; i < forms[f].bytes; i++)
            if ((s[i] & 0xc0) != 0x80)
                return 0;
        return forms[f].bytes;
    }
    return 0;
}

static void put_string(rfi_json *j, const char *text)
{
    put(j, "\"", 1);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        char escaped[8];
        if (*s == '"' || *s == '\\') {
            put(j, "\\", 1);
            put(j, (const char *)s++, 1);
        } else if (*s < ' ' || *s == 127) {
            snprintf(escaped, sizeof escaped, "\\u%04x", *s++);
            put_text(j, escaped);
        } else if (*s < 127) {
            put(j, (const char *)s++, 1);
        } else {
            size_t n = sequence(s);
            if (n)
                put(j, (const char *)s, n);
            else
                put_text(j, "\\ufffd");
            s += n ? n : 1;
        }
    }
    put(j, "\"", 1);
}

static void begin(rfi_json *j, const char *key)
{
    if (j->comma)
        put(j, ",", 1);
    if (key) {
        put_string(j, key);
        put(j, ":", 1);
    }
    j->comma = 1;
}

void rfi_json_open(rfi_json *j, const char *key, char bracket)
{
    begin(j, key);
    put(j, &bracket, 1);
    j->comma = 0;
}

void rfi_json_close(rfi_json *j, char bracket)
{
    put(j, &bracket, 1);
    j->comma = 1;
}

void rfi_json_text(rfi_json *j, const char *key, const char *value)
{
    begin(j, key);
    if (value)
        put_string(j, value);
    else
        put_text(j, "null");
}

/* %g writes the locale's decimal point: JSON has one of its own. */
void rfi_json_number(rfi_json *j, const char *key, double value)
{
    char text[32] = "null";
    begin(j, key);
    if (isfinite(value)) {
        snprintf(text, sizeof text, "%.9g", value);
        for (char *c = text; *c; c++)
            if (!strchr("0123456789+-eE", *c))
                *c = '.';
    }
    put_text(j, text);
}

void rfi_json_integer(rfi_json *j, const char *key, long long value)
{
    char text[32];
    begin(j, key);
    snprintf(text, sizeof text, "%lld", value);
    put_text(j, text);
}

void rfi_json_bool(rfi_json *j, const char *key, int value)
{
    begin(j, key);
    put_text(j, value ? "true" : "false");
}
