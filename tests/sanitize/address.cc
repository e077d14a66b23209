// What the leak detector has to know of the libraries: c-ares keeps the name that it looked up.
extern "C" __attribute__((visibility("default"))) const char*
__lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "leak:libcares.so\n";
}
