#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "store/shipped.h"

#define CLOSE_MS  10000u
#define MAX_PACKS 8

/* As one word for a shell. */
static const char *quoted(const char *word, char *out, size_t size)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_-./+,:=@%";
    if (!word[strspn(word, plain)])
        return word;
    size_t used = (size_t)snprintf(out, size, "'");
    for (; *word && used + 8 < size; word++)
        used += (size_t)snprintf(out + used, size - used, *word == '\'' ? "'\\''" : "%c", *word);
    snprintf(out + used, size - used, "'");
    return out;
}

const char *rf_cli_advice(const rf_cli_setup *setup, const char *line)
{
    static const char command[] = "`rankfold tune";
    static char text[1024];
    char file[512];
    const char *at = strstr(line, command);
    if (!at)
        return line;
    snprintf(text, sizeof text, "%.*s`%s tune%s%s%s", (int)(at - line), line,
             program_invocation_short_name, setup->db ? " --db " : "",
             setup->db ? quoted(setup->db, file, sizeof file) : "", at + sizeof command - 1);
    rf_cli_defuse(text);
    return text;
}

/* Warnings, each once: every prepare repeats what is wrong with the database. */
static void log_line(void *ctx, int level, const char *line)
{
    static char last[RF_ERROR_TEXT];
    if (level > 1 || strcmp(line, last) == 0)
        return;
    snprintf(last, sizeof last, "%s", line);
    rf_cli_error("%s", rf_cli_advice(ctx, line));
}

const char *rf_cli_grid_unit(const char *variant, uint32_t grid)
{
    return strstr(variant, "_cpu_") ? "KiB steps" : grid == 1 ? "block" : "blocks";
}

int rf_cli_plan_of_other_shape(const rf_plan_info *plan, const rf_shape *shape)
{
    return plan->measured_rows &&
           (plan->measured_rows != shape->rows || plan->measured_hidden != shape->hidden);
}

const char *rf_cli_plan_text(const rf_plan_info *plan, char out[RF_CLI_PLAN])
{
    if (plan->fallback)
        snprintf(out, RF_CLI_PLAN, "the caller's own collective");
    else
        snprintf(out, RF_CLI_PLAN, "%s, %u %s", plan->variant, plan->grid,
                 rf_cli_grid_unit(plan->variant, plan->grid));
    return out;
}

static size_t packs_of(rf_backend_kind backend, const rf_pack *packs[MAX_PACKS])
{
    size_t n = 0;
    for (size_t i = 0; i < rf_cli_n_packs && n < MAX_PACKS; i++)
        if (rf_cli_packs[i].backend == backend)
            packs[n++] = rf_cli_packs[i].pack;
    return n;
}

rf_result rf_cli_comm_open(const rf_cli_setup *setup, const rf_bootstrap *boot, rf_cli_comm *out,
                           rf_error *err)
{
    rf_cli_comm c = {0};
    rf_config config = RF_CONFIG_INIT;
    static const rf_pack *packs[MAX_PACKS]; /* as long as the comm */
    config.backend = setup->backend;
    config.device = boot->rank;
    config.packs = packs;
    config.n_packs = packs_of(setup->backend, packs);
    if (!config.n_packs) {
        *err = (rf_error){RF_E_PACK, -1, "packs",
                          "this program has no kernels for GPUs; rankfold-h200, say, has (ninja "
                          "h200)"};
        return err->code;
    }
    config.capacity_bytes = setup->capacity_bytes < 4096 ? 4096 : setup->capacity_bytes;
    config.channels = setup->channels;
    config.deadline_ms = setup->deadline_ms;
    config.flags = setup->admit;
    if (boot->rank == 0) {
        char shipped[PATH_MAX];
        config.log = log_line; /* the ranks would say the same */
        config.log_ctx = (void *)(uintptr_t)setup;
        rf_result bad = rf_store_open(setup->db, rfi_shipped_beside("/proc/self/exe", shipped),
                                      setup->store_flags, &c.store, err);
        if (bad != RF_OK)
            return bad;
    }
    config.store = c.store;
    rf_result bad = rf_comm_create(&config, boot, &c.comm, err);
    if (bad != RF_OK)
        rf_store_close(c.store);
    else
        *out = c;
    return bad;
}

void rf_cli_comm_close(rf_cli_comm *c, int orderly)
{
    if (orderly)
        rf_comm_close(c->comm, CLOSE_MS, NULL);
    rf_comm_destroy(c->comm);
    rf_store_close(c->store);
    c->comm = NULL, c->store = NULL;
}
