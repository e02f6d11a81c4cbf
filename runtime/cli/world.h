/* Ranks that this program starts by itself: the part that terminal.c needs. */
#ifndef RANKFOLD_CLI_WORLD_H
#define RANKFOLD_CLI_WORLD_H

#define RF_CLI_MESSAGE 640 /* longest message, with terminator */

/* In a rank other than 0 that was started by rf_cli_world: keeps the message for the parent and
 * returns 1. Elsewhere 0. */
int rf_cli_world_hand_over(const char *text);

#endif
