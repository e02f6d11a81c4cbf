#include "core/comm.h"
size_t rf_status_json(const rf_comm *comm, char *buf, size_t size){(void)comm; if(size) buf[0]=0; return 0;}
