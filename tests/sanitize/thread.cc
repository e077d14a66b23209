// What the thread sanitizer has to know of gRPC, which the system's packages bring without its instrumentation: that a callback
// on one of gRPC's threads comes after the call that began it on another. gRPC orders them by mutexes and atomics. The mutexes
// are Abseil's, whose members are defined here anew, each of which calls the shared library's and says what it orders; the
// atomics cannot be seen, so that all mutexes count as one: whoever leaves one comes before whoever enters any of them later.
// Linked into the programs of preset `tsan`.
#pragma GCC visibility push(default)
#include <absl/synchronization/mutex.h>
#pragma GCC visibility pop

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>
#include <string>

namespace {

// The shared library's definition of a member of absl::Mutex or absl::CondVar, by its mangled name behind the namespaces.
template <class Function>
Function* library_function(const char* name) {
  const std::string space = ABSL_INTERNAL_INLINE_NAMESPACE_STR;
  const std::string mangled = "_ZN4absl" + std::to_string(space.size()) + space + name;
  void* found = dlsym(RTLD_NEXT, mangled.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "[sanitize] %s: wanted Abseil's definition, found none\n", mangled.c_str());
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

// Entered and left with each mutex.
char every_mutex;

void entered() { __tsan_acquire(&every_mutex); }
void leaving() { __tsan_release(&every_mutex); }

}  // namespace

// gRPC's own accesses are not judged: those of its libraries, of which the sanitizer sees calls only (copies, freeing), and
// those of its headers, to what its atomics guard. What its headers call of Weft is: no function of Weft is called out of a
// CallOp or an interceptor, for which reports are left out wherever they stand in a stack.
extern "C" __attribute__((visibility("default"))) const char*
__tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libupb.so\n"
         "called_from_lib:libre2.so\n"
         "called_from_lib:libcares.so\n"
         "called_from_lib:libaddress_sorting.so\n"
         "called_from_lib:libcrypto.so\n"
         "called_from_lib:libssl.so\n"
         "called_from_lib:libabsl_cord.so\n"
         "called_from_lib:libabsl_cord_internal.so\n"
         "called_from_lib:libabsl_graphcycles_internal.so\n"
         "called_from_lib:libabsl_random_internal_pool_urbg.so\n"
         "called_from_lib:libabsl_status.so\n"
         "called_from_lib:libabsl_str_format_internal.so\n"
         "called_from_lib:libabsl_strings.so\n"
         "called_from_lib:libabsl_time_zone.so\n"
         "race_top:/usr/include/grpcpp/\n"
         "race:grpcpp/impl/codegen/interceptor_common.h\n"
         "race:grpc::internal::CallOp\n";
}

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const lock = library_function<void(Mutex*)>("5Mutex4LockEv");
  lock(this);
  entered();
}

bool Mutex::TryLock() {
  static auto* const try_lock = library_function<bool(Mutex*)>("5Mutex7TryLockEv");
  if (!try_lock(this)) return false;
  entered();
  return true;
}

void Mutex::Unlock() {
  static auto* const unlock = library_function<void(Mutex*)>("5Mutex6UnlockEv");
  leaving();
  unlock(this);
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const wait = library_function<void(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  leaving();
  wait(this, mutex);
  entered();
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const wait =
      library_function<bool(CondVar*, Mutex*, Duration)>("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  leaving();
  const bool timed_out = wait(this, mutex, timeout);
  entered();
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const wait = library_function<bool(CondVar*, Mutex*, Time)>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  leaving();
  const bool timed_out = wait(this, mutex, deadline);
  entered();
  return timed_out;
}

ABSL_NAMESPACE_END
}  // namespace absl
