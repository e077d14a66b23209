// Tells the thread sanitizer of the mutexes in gRPC, which the system's packages bring without its instrumentation: a callback that gRPC
// runs on one of its threads then comes after the call that another thread began it with. Linked into the programs of preset `tsan`, whose
// definitions come before those of the shared library; each calls the library's and says what it orders.
#pragma GCC visibility push(default)
#include <absl/synchronization/mutex.h>
#pragma GCC visibility pop

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
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

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const lock = library_function<void(Mutex*)>("5Mutex4LockEv");
  lock(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  static auto* const try_lock = library_function<bool(Mutex*)>("5Mutex7TryLockEv");
  if (!try_lock(this)) return false;
  __tsan_acquire(this);
  return true;
}

void Mutex::Unlock() {
  static auto* const unlock = library_function<void(Mutex*)>("5Mutex6UnlockEv");
  __tsan_release(this);
  unlock(this);
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const wait = library_function<void(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  wait(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const wait =
      library_function<bool(CondVar*, Mutex*, Duration)>("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const bool timed_out = wait(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const wait =
      library_function<bool(CondVar*, Mutex*, Time)>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool timed_out = wait(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

ABSL_NAMESPACE_END
}  // namespace absl
