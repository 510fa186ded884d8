#include "device.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <typeindex>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulation {
namespace {

[[noreturn]] void die(const char* why) {
  std::fprintf(stderr, "emulated device: %s\n", why);
  std::abort();
}

// ---- fibers

constexpr std::size_t kStackBytes = 512 * 1024;  // reserved; what is not touched takes no memory
// Stacks begin at different offsets: at the same one they would fight for the same lines of the caches.
std::size_t stack_offset(unsigned number) {
  return number * std::size_t{1088} % (64 * 1024) / 16 * 16;
}

#if defined(__x86_64__)
// Saves what a call keeps, changes stacks, goes on where the other one left.
extern "C" void emulation_switch(void** from, void* to);
asm(R"(
.text
.globl emulation_switch
.type emulation_switch, @function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_switch, .-emulation_switch
)");
struct Context {
  void* stack_pointer = nullptr;
  void make(std::byte* stack, std::size_t offset, void (*entry)()) {
    auto* top = reinterpret_cast<std::uint64_t*>(stack + kStackBytes - offset);
    *--top = 0;  // where a call has its return address: 8 bytes off 16
    *--top = reinterpret_cast<std::uint64_t>(entry);
    for (int i = 0; i < 6; ++i) *--top = 0;
    stack_pointer = top;
  }
  static void change(Context& from, Context& to) { emulation_switch(&from.stack_pointer, to.stack_pointer); }
};
#else
struct Context {
  ucontext_t context = {};
  void make(std::byte* stack, std::size_t offset, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStackBytes - offset;
    makecontext(&context, entry, 0);
  }
  static void change(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
};
#endif

class Stacks {
 public:
  std::byte* take() {
    if (free_.empty()) {
      void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) die("no memory for a thread's stack");
      return static_cast<std::byte*>(memory);
    }
    std::byte* stack = free_.back();
    free_.pop_back();
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, kStackBytes);  // marks of the last thread's frames
#endif
    return stack;
  }
  void give(std::byte* stack) {
    free_.push_back(stack);
  }

 private:
  std::vector<std::byte*> free_;  // kept for the program's life
};

// ---- what runs

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
  void make() const { std::memcpy(to, from, bytes); }
};

struct Thread;
struct Meeting {  // of lanes that named one mask
  unsigned mask = 0;
  unsigned here = 0;
  void* brought[32] = {};
  std::vector<Thread*> waiting;
};
struct Warp {
  std::vector<std::unique_ptr<Meeting>> meetings;
};
struct Barrier {
  unsigned here = 0;
  std::vector<Thread*> waiting;
};
struct SlotCopy {
  std::uint64_t* barrier;
  Copy copy;
};
struct Block {
  Place place;
  unsigned live = 0;
  std::unique_ptr<std::uint8_t[]> shared_memory;
  std::uint8_t* shared = nullptr;
  std::map<std::pair<std::type_index, std::size_t>, std::unique_ptr<std::uint64_t[]>> declared;
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::vector<SlotCopy> copies;
};
struct Thread {
  Context context;
  std::byte* stack = nullptr;
  Block* block = nullptr;
  unsigned number = 0;  // in the block
  Place place;
  bool ended = false;
  std::vector<Copy> copies;               // not yet in a group
  std::vector<std::vector<Copy>> groups;  // under way
  void* fake_stack = nullptr;             // AddressSanitizer's
};

struct Device {
  std::mutex one_at_a_time;
  Stacks stacks;
  Context scheduler;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
  std::deque<Thread*> ready;
  Thread* last_ended = nullptr;
  std::optional<std::mt19937> random;
  const std::function<void()>* body = nullptr;
  Place block_size, grid_size;

  // The one that became ready last: a warp goes on as long as it can, while its stacks are in the caches.
  Thread* take_ready() {
    if (ready.empty()) return nullptr;
    if (random) std::swap(ready.back(), ready[(*random)() % ready.size()]);
    Thread* t = ready.back();
    ready.pop_back();
    return t;
  }
};
Device the_device;
inline Device& device() {
  return the_device;
}
Thread* current = nullptr;

// Stops the running thread and goes on with the next that can run, or, if there is none, with the scheduler.
void wait_or_end(bool ends = false) {
  Device& d = device();
  Thread* me = current;
  Thread* next = ends ? nullptr : d.take_ready();
  if (next == me) return;
  current = next;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(ends ? nullptr : &me->fake_stack,
                                 next != nullptr ? next->stack : d.scheduler_stack,
                                 next != nullptr ? kStackBytes : d.scheduler_stack_bytes);
#else
  static_cast<void>(ends);
#endif
  Context::change(me->context, next != nullptr ? next->context : d.scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(me->fake_stack, nullptr, nullptr);
#endif
}

void begin_thread() {
  Device& d = device();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  (*d.body)();
  Thread* me = current;
  me->ended = true;
  d.last_ended = me;
  Block& block = *me->block;
  --block.live;
  // The others may have been waiting for this one only.
  Barrier& all = block.barriers[0];
  if (block.live > 0 && all.here == block.live) {
    all.here = 0;
    for (Thread* t : all.waiting) d.ready.push_back(t);
    all.waiting.clear();
  }
  wait_or_end(true);
}

// From the scheduler; comes back when a thread has ended or none can run.
void resume(Thread* t) {
  Device& d = device();
  current = t;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&d.scheduler_fake_stack, t->stack, kStackBytes);
#endif
  Context::change(d.scheduler, t->context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(d.scheduler_fake_stack, nullptr, nullptr);
#endif
  current = nullptr;
}

std::size_t threads_of(const Place& block) {
  return std::size_t{block.x} * block.y * block.z;
}

// The scheduler's own stack, as threads have to tell AddressSanitizer where they go.
void note_scheduler_stack() {
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  void* stack = nullptr;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &stack, &device().scheduler_stack_bytes);
  pthread_attr_destroy(&attributes);
  device().scheduler_stack = stack;
#endif
}

void run_blocks(unsigned first, unsigned count, std::size_t shared_bytes) {
  Device& d = device();
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Thread>> threads;
  for (unsigned i = first; i < first + count; ++i) {
    auto block = std::make_unique<Block>();
    block->place = {i % d.grid_size.x, i / d.grid_size.x % d.grid_size.y, i / d.grid_size.x / d.grid_size.y};
    // Whoever writes beyond its end writes beyond an allocation's.
    block->shared_memory = std::make_unique<std::uint8_t[]>(shared_bytes + 128);
    const auto address = reinterpret_cast<std::uintptr_t>(block->shared_memory.get());
    block->shared = block->shared_memory.get() + (128 - address % 128) % 128;
    std::memset(block->shared, 0xff, shared_bytes);
    block->live = static_cast<unsigned>(threads_of(d.block_size));
    block->warps.resize((block->live + 31) / 32);
    for (unsigned t = 0; t < block->live; ++t) {
      auto thread = std::make_unique<Thread>();
      thread->stack = d.stacks.take();
      thread->block = block.get();
      thread->number = t;
      thread->place = {t % d.block_size.x, t / d.block_size.x % d.block_size.y,
                       t / d.block_size.x / d.block_size.y};
      thread->context.make(thread->stack, stack_offset((i - first) * block->live + t), begin_thread);
      d.ready.push_front(thread.get());
      threads.push_back(std::move(thread));
    }
    blocks.push_back(std::move(block));
  }
  std::size_t left = threads.size();
  while (Thread* t = d.take_ready()) {
    d.last_ended = nullptr;
    resume(t);
    if (d.last_ended == nullptr) continue;
    d.stacks.give(d.last_ended->stack);
    --left;
  }
  if (left != 0) die("threads wait for others that never come");
}

// A slot's barrier: the parity of its next copies in bit 0, whether they have been asked for in bit 1, and
// above how many bytes they bring.
constexpr std::uint64_t kAsked = 2;
constexpr std::uint64_t kExpectedByte = 4;

}  // namespace

void run(Place grid, Place block, std::size_t shared_bytes, bool resident,
         const std::function<void()>& thread) {
  Device& d = device();
  const std::lock_guard lock(d.one_at_a_time);
  if (shared_bytes > kSharedBytes) die("more shared memory than there is");
  if (threads_of(block) > 1024) die("more threads in a block than there may be");
  if (const char* seed = std::getenv("GEM_EMULATION_SEED"); seed != nullptr && !d.random)
    d.random.emplace(static_cast<unsigned>(std::atoi(seed)));
  d.grid_size = grid;
  d.block_size = block;
  d.body = &thread;
  note_scheduler_stack();
  const unsigned blocks = grid.x * grid.y * grid.z;
  if (resident) {
    if (blocks > kMultiprocessors) die("more blocks than multiprocessors");
    run_blocks(0, blocks, shared_bytes);
  } else {
    for (unsigned i = 0; i < blocks; ++i) run_blocks(i, 1, shared_bytes);
  }
}

const Place& thread_place() {
  return current->place;
}
const Place& block_place() {
  return current->block->place;
}
const Place& block_size() {
  return device().block_size;
}
const Place& grid_size() {
  return device().grid_size;
}
std::uint8_t* dynamic_shared() {
  return current->block->shared;
}
void* block_shared(const std::type_info& type, std::size_t bytes) {
  auto& memory = current->block->declared[{std::type_index(type), bytes}];
  if (!memory) memory = std::make_unique<std::uint64_t[]>((bytes + 7) / 8);
  return memory.get();
}

void give_way() {
  device().ready.push_front(current);
  wait_or_end();
}

void block_barrier(int barrier, unsigned count) {
  Barrier& b = current->block->barriers[barrier];
  const unsigned wanted = count == 0 ? current->block->live : count;
  if (++b.here < wanted) {
    b.waiting.push_back(current);
    wait_or_end();
    return;
  }
  b.here = 0;
  for (Thread* t : b.waiting) device().ready.push_back(t);
  b.waiting.clear();
}

void warp_meet(unsigned mask, void* mine, void (*together)(Brought)) {
  Warp& warp = current->block->warps[current->number / 32];
  const unsigned lane = current->number % 32;
  if ((mask >> lane & 1) == 0) die("a lane that its own mask leaves out");
  Meeting* meeting = nullptr;
  for (const auto& m : warp.meetings) {
    if (m->mask == mask) meeting = m.get();
  }
  if (meeting == nullptr) {
    meeting = warp.meetings.emplace_back(std::make_unique<Meeting>()).get();
    meeting->mask = mask;
  }
  meeting->here |= 1u << lane;
  meeting->brought[lane] = mine;
  if (meeting->here != mask) {
    meeting->waiting.push_back(current);
    wait_or_end();
    return;
  }
  together(Brought(meeting->brought));
  meeting->here = 0;
  for (Thread* t : meeting->waiting) device().ready.push_back(t);
  meeting->waiting.clear();
}

void copy_later(void* to, const void* from, std::size_t bytes) {
  std::memset(to, 0xff, bytes);
  current->copies.push_back({to, from, bytes});
}
void copies_commit() {
  current->groups.push_back(std::move(current->copies));
  current->copies.clear();
}
void copies_wait(std::size_t pending) {
  while (current->groups.size() > pending) {
    for (const Copy& c : current->groups.front()) c.make();
    current->groups.erase(current->groups.begin());
  }
}

void slot_init(std::uint64_t* barrier) {
  *barrier = 0;
}
void slot_expect(std::uint64_t* barrier, std::size_t bytes) {
  if (*barrier & kAsked) die("a slot of the ring is asked for again before it was waited for");
  *barrier |= kAsked | bytes * kExpectedByte;
}
void slot_copy(std::uint64_t* barrier, void* to, const void* from, std::size_t bytes) {
  if (!(*barrier & kAsked)) die("a copy into a slot that nothing was said to come to");
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0 ||
      bytes % 16 != 0)
    die("a bulk copy that is not whole 16-byte pieces");
  std::memset(to, 0xff, bytes);
  current->block->copies.push_back({barrier, {to, from, bytes}});
}
void slot_wait(std::uint64_t* barrier, unsigned parity) {
  while ((*barrier & 1) == parity) {
    if (!(*barrier & kAsked)) {
      give_way();
      continue;
    }
    std::size_t missing = *barrier / kExpectedByte;
    std::erase_if(current->block->copies, [&](const SlotCopy& c) {
      if (c.barrier != barrier) return false;
      c.copy.make();
      missing -= c.copy.bytes;
      return true;
    });
    if (missing != 0) die("a slot waits for other bytes than its copies bring");
    *barrier = (*barrier & 1) ^ 1;
  }
}

}  // namespace emulation
