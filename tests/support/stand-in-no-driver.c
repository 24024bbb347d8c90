/* A stand-in for NVIDIA's management library without a driver, so that a test on a machine with a driver finds none. */
int nvmlInit_v2(void) { return 9; }
int nvmlShutdown(void) { return 1; }
const char *nvmlErrorString(int result) { return "Driver Not Loaded"; }
