/* What NVIDIA's management library says on a machine that has the library and no driver: so that a machine with a driver can be
 * taken for one without. */
int nvmlInit_v2(void) { return 9; }
int nvmlShutdown(void) { return 1; }
const char *nvmlErrorString(int result) { return "Driver Not Loaded"; }
