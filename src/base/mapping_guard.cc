#include "base/mapping_guard.h"

#include <csignal>
#include <mutex>

#include <sys/mman.h>
#include <unistd.h>

namespace weft {
namespace {

using Entry = RegisteredMapping::Entry;

std::atomic<Entry*> first_entry{nullptr};
std::mutex entries_mutex;  // of taking and giving back
uintptr_t page_size = 0;   // set before the handler is installed

// Calls nothing but atomics and system calls.
void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Entry* entry = first_entry.load(); entry != nullptr; entry = entry->next) {
    if (address < entry->begin.load() || address >= entry->end.load()) continue;
    entry->lost.store(true);
    auto* page = reinterpret_cast<void*>(address / page_size * page_size);  // NOLINT(performance-no-int-to-ptr)
    if (::mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) return;
  }
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  ::raise(signal);  // comes, and ends the process, when the handler returns
}

Entry* take_entry() {
  for (Entry* entry = first_entry.load(); entry != nullptr; entry = entry->next) {
    if (entry->end.load() == 0) return entry;
  }
  auto* entry = new Entry;
  entry->next = first_entry.load();
  first_entry.store(entry);
  return entry;
}

}  // namespace

void guard_mappings() {
  page_size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

RegisteredMapping::RegisteredMapping(std::span<const std::byte> mapping) {
  const std::lock_guard lock(entries_mutex);
  entry_ = take_entry();
  const auto begin = reinterpret_cast<uintptr_t>(mapping.data());
  entry_->lost.store(false);
  entry_->begin.store(begin);
  entry_->end.store(begin + mapping.size());
}

RegisteredMapping::~RegisteredMapping() {
  const std::lock_guard lock(entries_mutex);
  entry_->end.store(0);
}

}  // namespace weft
