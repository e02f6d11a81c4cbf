#include "cli/database.h"

#define WAIT_MS 3000

rf_result rf_cli_db_open(const char *path, rfi_db *db, rf_error *err)
{
    char standard[RFI_DB_PATH];
    rf_result result = path ? RF_OK : rfi_db_default_path(standard, err);
    return result ? result : rfi_db_open(db, path ? path : standard, RFI_DB_READ, WAIT_MS, err);
}
