/* rankfold: the command line. A table of subcommands; each lives in the file of its name. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"doctor", "what is here, what works, what would be used and why", rf_cli_doctor},
    {"tune", "measure the tactics for shapes on this machine, and remember the winners",
     rf_cli_tune},
    {"bench", "time the all-reduce as a program would call it, results verified", rf_cli_bench},
    {"explain", "the plan for one shape, why, and how the candidates did", rf_cli_explain},
    {"variants", "the kernels in this program", rf_cli_variants},
    {"report", "an HTML page with curves, from the tactic database", rf_cli_report},
    {"db", "look after tactic databases: check, merge, export, import, freeze ...", rf_cli_db},
};

static const size_t n_commands = sizeof commands / sizeof *commands;

static void help(void)
{
    puts("Usage: rankfold COMMAND [OPTIONS]\n\n"
         "All-reduce between the ranks of one machine, from kernels that were generated, compiled\n"
         "and measured beforehand.\n\nCommands:");
    for (size_t i = 0; i < n_commands; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    puts("\n'rankfold COMMAND --help' has the details, 'rankfold --version' says the version.\n"
         "Commands that run ranks start them (-n N), or take part in a launcher's world\n"
         "(torchrun, mpirun).\n\n"
         "Exit codes: 0 all well, 1 something failed, 2 wrong usage.\n\nEnvironment:");
#define RF_X(name, text) printf("  %-21s %s\n", #name, text);
    RF_ENV_LIST(RF_X)
#undef RF_X
}

static int dispatch(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        rf_cli_error("no command; try 'rankfold --help'");
        return RF_CLI_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help();
        return RF_CLI_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("rankfold %s\n", rf_version_string());
        return RF_CLI_OK;
    }
    for (size_t i = 0; i < n_commands; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    rf_cli_error("unknown command '%s'; try 'rankfold --help'", name);
    return RF_CLI_USAGE;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error like others */
    return rf_cli_finish(dispatch(argc, argv));
}
