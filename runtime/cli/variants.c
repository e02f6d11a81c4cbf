#include <fnmatch.h>
#include <stdio.h>

#include "cli/cli.h"

static int wanted(const rf_variant_info *v, const char *glob, uint64_t world)
{
    return (!glob || fnmatch(glob, v->name, 0) == 0) && (!world || v->world == (int)world);
}

/* What --admit has to name for it to run: nothing, or a list. */
#define ADMIT 32
static const char *admit_text(const rf_variant_info *v, char out[ADMIT])
{
    snprintf(out, ADMIT, "%s%s%s", v->reassoc ? ",reassoc" : "", v->lossy ? ",lossy" : "",
             v->dependent ? ",dependent" : "");
    return *out ? out + 1 : out;
}

static void print_text(const rf_variant_info *v)
{
    char text[ADMIT];
    const char *admit = admit_text(v, text);
    printf("%-48s %d rank%-1s %-5s hidden %-6llu %s%s%s\n", v->name, v->world,
           rf_cli_s((uint64_t)v->world), rf_dtype_name(v->dtype), (unsigned long long)v->hidden,
           v->hash, *admit ? "  --admit " : "", admit);
}

static void print_json(const rf_variant_info *v, int first)
{
    char text[ADMIT];
    printf("%s\n  {\"name\": ", first ? "" : ",");
    rf_cli_json_string(v->name);
    printf(", \"hash\": \"%s\", \"sku\": ", v->hash);
    rf_cli_json_string(v->sku);
    printf(", \"world\": %d, \"dtype\": \"%s\", \"hidden\": %llu, \"algorithm\": \"%s\", "
           "\"transport\": \"%s\", \"wire\": \"%s\", \"isa\": \"%s\", \"copy\": \"%s\", "
           "\"unroll\": %u, \"admit\": \"%s\"}",
           v->world, rf_dtype_name(v->dtype), (unsigned long long)v->hidden, v->algorithm,
           v->transport, v->wire, v->isa, v->copy, v->unroll, admit_text(v, text));
}

static size_t list(const char *glob, uint64_t world, int json)
{
    size_t shown = 0;
    for (size_t p = 0; p < rf_cli_n_packs; p++)
        for (size_t i = 0; i < rf_pack_count(rf_cli_packs[p].pack); i++) {
            rf_variant_info v;
            if (rf_pack_variant(rf_cli_packs[p].pack, i, &v) != RF_OK || !wanted(&v, glob, world))
                continue;
            if (json)
                print_json(&v, shown == 0);
            else
                print_text(&v);
            shown++;
        }
    return shown;
}

int rf_cli_variants(int argc, char **argv)
{
    uint64_t world = 0;
    int json = 0, rest;
    const rf_cli_option options[] = {
        {"world", 'w', "N", RF_CLI_RANKS, &world, "only those for N ranks"},
        {"json", 0, NULL, RF_CLI_FLAG, &json, "as JSON"},
    };
    const rf_cli_syntax syntax = RF_CLI_SYNTAX(
        "variants", "[OPTIONS] [GLOB]",
        "Lists the kernels that this program is linked with: all, or those whose name matches the\n"
        "glob (with * and ?), such as '*bf16*'.",
        options, 0, 1);
    int code = rf_cli_parse(&syntax, argc, argv, &rest);
    if (code >= 0)
        return code;
    const char *glob = rest < argc ? argv[rest] : NULL;
    if (json)
        putchar('[');
    size_t shown = list(glob, world, json);
    if (json)
        puts("\n]");
    if (shown == 0)
        rf_cli_error("no variant matches");
    return shown ? RF_CLI_OK : RF_CLI_FAILURE;
}
