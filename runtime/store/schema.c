/* db/schema.sql as the C string rfi_schema_sql (db.h): nothing to generate, nothing to drift. */
#include "store/db.h"

__asm__(".section .rodata\n"
        ".global rfi_schema_sql\n"
        ".hidden rfi_schema_sql\n"
        ".type rfi_schema_sql, %object\n"
        "rfi_schema_sql:\n"
        ".incbin \"db/schema.sql\"\n"
        ".byte 0\n"
        ".size rfi_schema_sql, . - rfi_schema_sql\n"
        ".text\n");
