/* Ranks that this program starts by itself: the part that terminal.c needs. */
#ifndef RANKFOLD_CLI_WORLD_H
#define RANKFOLD_CLI_WORLD_H

#define RF_CLI_MESSAGE 640 /* longest message, with terminator */

/* In a rank that rf_cli_world started: keeps the message for the parent. 1 = the parent will say
 * it, 0 = say it here (rank 0, and whatever was not started so). */
int rf_cli_world_hand_over(const char *text);

#endif
